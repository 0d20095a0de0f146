"""The same function as Hugging Face's models, from the files that `save_pretrained` writes.

Decoders: GPT-2, LLaMA, LLaMA with grouped queries, Mixtral. Encoder: BERT. Encoder-decoder: Marian.
"""

import pytest
import torch
import transformers
from theirs import bert, gpt2, llama, marian, mixtral
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from companion import KVCache
from companion.files.published.pretrained import load_pretrained
from companion.files.published.writing import special_tokens
from companion.generation.generate import complete
from companion.generation.sampling import Sampling

MODELS = {
    "gpt2": lambda: gpt2(),
    "gpt2, d_ff by default, exact gelu, untied": lambda: gpt2(
        n_inner=None, activation_function="gelu", tie_word_embeddings=False
    ),
    "llama, every head its own keys": lambda: llama(num_key_value_heads=6),
    "llama, grouped": lambda: llama(),
    "llama, one key head, wide heads, another base, tied, biases": lambda: llama(
        num_key_value_heads=1,
        head_dim=8,
        rope_parameters={"rope_theta": 500.0, "rope_type": "default"},
        tie_word_embeddings=True,
        attention_bias=True,
        mlp_bias=True,
        rms_norm_eps=1e-3,
    ),
    "mixtral": lambda: mixtral(),
    "mixtral, one expert of three, tied, biasless wide heads": lambda: mixtral(
        num_local_experts=3, num_experts_per_tok=1, head_dim=8, tie_word_embeddings=True
    ),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@torch.no_grad()
def test_decoders_logits_equal_whole_cached_and_padded(make, tmp_path):
    theirs = make()
    theirs.save_pretrained(tmp_path)
    ours = load_pretrained(tmp_path)
    assert not ours.training
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    tokens = torch.randint(0, theirs.config.vocab_size, (3, 17))
    expected = theirs(tokens).logits
    assert expected.std() > 0.5  # large enough that 1e-5 is a tight bound
    torch.testing.assert_close(ours(tokens).logits, expected, rtol=1e-5, atol=1e-5)

    cache = KVCache.create(ours.config, 3, 17)
    for chunk in tokens.split([6, 1, 7, 3], dim=1):
        out = ours(chunk, cache=cache)
        cache = out.cache
        there = slice(cache.filled - chunk.shape[1], cache.filled)
        torch.testing.assert_close(out.logits, expected[:, there], rtol=1e-5, atol=1e-5)

    lengths = torch.tensor([5, 17, 9])
    padded = tokens.masked_fill(torch.arange(17) >= lengths[:, None], 0)
    logits = ours(padded, real=torch.arange(17) < lengths[:, None]).logits
    for row, length in enumerate(lengths.tolist()):
        alone = theirs(tokens[row : row + 1, :length]).logits[0]
        torch.testing.assert_close(logits[row, :length], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [gpt2, llama, mixtral])
def test_a_ragged_batch_continues_as_theirs_does_one_by_one(make, tmp_path):
    theirs = make()
    theirs.save_pretrained(tmp_path)
    prompts = [[3, 1, 4, 1, 5], [9], [2, 6, 5]]
    ours = complete(load_pretrained(tmp_path), prompts, max_new_tokens=12, sampling=Sampling(temperature=0))
    for prompt, continuation in zip(prompts, ours, strict=True):
        whole = theirs.generate(
            torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        assert continuation == whole[0, len(prompt) :].tolist()


BERTS = {
    "bert, both heads": transformers.BertForPreTraining,
    "bert, masked tokens": transformers.BertForMaskedLM,
    "bert, no head": transformers.BertModel,
}


@pytest.mark.parametrize("head", BERTS.values(), ids=BERTS)
@torch.no_grad()
def test_berts_logits_and_pooled_vector_equal_with_segments_and_padding(head, tmp_path):
    theirs = bert(head)
    theirs.save_pretrained(tmp_path)
    ours = load_pretrained(tmp_path)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    tokens, segments = torch.randint(0, 57, (3, 17)), torch.randint(0, 3, (3, 17))
    real = torch.arange(17) < torch.tensor([5, 17, 9])[:, None]
    for given in ({}, {"segments": segments}, {"segments": segments, "real": real}):
        names = {"segments": "token_type_ids", "real": "attention_mask"}
        expected = theirs(tokens, **{names[name]: value for name, value in given.items()})
        features = ours.features(tokens, **given)
        seen = real if "real" in given else torch.ones_like(real)  # what a padding token makes of itself is no matter
        if head is transformers.BertModel:
            torch.testing.assert_close(features.stream[seen], expected[0][seen], rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(ours.pool(features.stream), expected.pooler_output, rtol=1e-5, atol=1e-5)
            continue
        logits = expected[0] if head is transformers.BertForMaskedLM else expected.prediction_logits
        assert logits.std() > 0.5
        torch.testing.assert_close(ours(tokens, **given).logits[seen], logits[seen], rtol=1e-5, atol=1e-5)
        if head is transformers.BertForPreTraining:
            scores = expected.seq_relationship_logits
            torch.testing.assert_close(ours.classify(features.stream), scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "changes", [{}, {"scale_embedding": False, "activation_function": "relu"}], ids=["2018", "2017"]
)
@torch.no_grad()
def test_marians_logits_equal_whole_and_cached_with_padded_sources(changes, tmp_path):
    theirs = marian(**changes)
    theirs.save_pretrained(tmp_path)
    ours = load_pretrained(tmp_path)
    source, target = torch.randint(0, 46, (3, 13)), torch.randint(0, 46, (3, 17))
    target[:, 0] = special_tokens(tmp_path).start
    real = torch.arange(13) < torch.tensor([13, 4, 7])[:, None]
    expected = theirs(source, attention_mask=real, decoder_input_ids=target).logits
    assert expected.std() > 0.5
    memory = ours.encode(source, real=real)
    torch.testing.assert_close(ours(target, source=memory).logits, expected, rtol=1e-5, atol=1e-5)
    unpadded = theirs(source, decoder_input_ids=target).logits
    torch.testing.assert_close(ours(target, source=source).logits, unpadded, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(expected, unpadded, atol=1e-2)

    cache = KVCache.create(ours.config, 3, 17)
    kept, encoded = (
        EncoderDecoderCache(DynamicCache(), DynamicCache()),
        theirs.get_encoder()(source, attention_mask=real),
    )
    for chunk in target.split([6, 1, 7, 3], dim=1):
        out = ours(chunk, source=memory, cache=cache)
        cache = out.cache
        step = theirs(
            encoder_outputs=encoded, attention_mask=real, decoder_input_ids=chunk, past_key_values=kept, use_cache=True
        )
        there = slice(cache.filled - chunk.shape[1], cache.filled)
        torch.testing.assert_close(out.logits, expected[:, there], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(out.logits, step.logits, rtol=1e-5, atol=1e-5)
