"""The same function as Hugging Face's GPT-2 and LLaMA, from the files that `save_pretrained` writes."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from companion import KVCache
from companion.checkpoints import load_gpt2, load_llama, load_pretrained
from companion.generation import Sampling, complete

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the import: nothing here may look for a network
import transformers


def gpt2(**changes):
    config = transformers.GPT2Config(
        **{"vocab_size": 61, "n_embd": 20, "n_layer": 3, "n_head": 4, "n_positions": 24, "n_inner": 36} | changes
    )
    return _drawn(transformers.GPT2LMHeadModel(config))


def llama(**changes):
    config = transformers.LlamaConfig(
        **{
            "vocab_size": 59,
            "hidden_size": 24,
            "num_hidden_layers": 3,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "intermediate_size": 40,
            "max_position_embeddings": 24,
        }
        | changes
    )
    return _drawn(transformers.LlamaForCausalLM(config))


def _drawn(model):
    """Every weight, gain and bias drawn anew: at their first values some of them could be swapped unnoticed."""
    torch.manual_seed(5)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.3)
            if p.ndim == 1:
                p += 1
    return model.eval()


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
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@torch.no_grad()
def test_logits_equal_whole_cached_and_padded(make, tmp_path):
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
    logits = ours(padded, mask=torch.arange(17) < lengths[:, None]).logits
    for row, length in enumerate(lengths.tolist()):
        alone = theirs(tokens[row : row + 1, :length]).logits[0]
        torch.testing.assert_close(logits[row, :length], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [gpt2, llama])
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


def test_shards_are_put_together(tmp_path):
    theirs = llama()
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 1
    tokens = torch.arange(10)[None]
    torch.testing.assert_close(load_llama(tmp_path)(tokens).logits, theirs(tokens).logits, rtol=1e-5, atol=1e-5)
    shards[-1].unlink()
    with pytest.raises(ValueError, match=f"{shards[-1].name}: expected a safetensors file, found none"):
        load_llama(tmp_path)


def test_the_first_release_of_gpt2_is_read_too(tmp_path):
    """Its tensors have no prefix, and each layer carries its causal mask."""
    theirs = gpt2()
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = {name.removeprefix("transformer."): t for name, t in load_file(path).items() if name != "lm_head.weight"}
    for layer in range(3):
        tensors[f"h.{layer}.attn.bias"] = torch.ones(24, 24).tril()[None, None]
    save_file(tensors, path)
    tokens = torch.arange(10)[None]
    torch.testing.assert_close(load_gpt2(tmp_path)(tokens).logits, theirs(tokens).logits, rtol=1e-5, atol=1e-5)


REFUSED = [
    (
        llama,
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
        "rope_parameters.rope_type",
    ),
    (llama, {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling="),
    (llama, {"hidden_act": "gelu"}, "hidden_act='gelu'"),
    (llama, {"sliding_window": 8}, "sliding_window=8"),
    (llama, {"quantization_config": {"bits": 4}}, "quantization_config="),
    (llama, {"attention_dropout": 0.1}, "attention_dropout=0.1"),
    (llama, {"pretraining_tp": 2}, "pretraining_tp=2"),
    (llama, {"num_key_value_heads": 4}, "kv_heads=4"),
    (llama, {"model_type": "mistral"}, "model_type='mistral'"),
    (gpt2, {"scale_attn_weights": False}, "scale_attn_weights=False"),
    (gpt2, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
    (gpt2, {"add_cross_attention": True}, "add_cross_attention=True"),
    (gpt2, {"activation_function": "silu"}, "activation_function='silu'"),
    (gpt2, {"attn_pdrop": 0.3}, "attn_pdrop=0.3"),
    (gpt2, {"n_ctx": 12}, "n_ctx=12"),
    (gpt2, {"alibi": True}, "alibi=True"),
    (gpt2, {"n_embd": 21}, "d_model=21"),
]


@pytest.mark.parametrize(("make", "change", "named"), REFUSED, ids=[named for *_, named in REFUSED])
def test_a_field_that_would_change_the_function_is_refused_by_name(make, change, named, tmp_path):
    make().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=r"config\.json: ") as caught:
        {gpt2: load_gpt2, llama: load_llama}[make](tmp_path)
    assert named in str(caught.value)


def test_every_tensor_must_find_its_place(tmp_path):
    llama(tie_word_embeddings=True).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    table = tensors["model.embed_tokens.weight"]
    save_file(tensors | {"lm_head.weight": table.clone()}, path)
    assert torch.equal(load_llama(tmp_path).embedding.weight, table)
    save_file(tensors | {"lm_head.weight": table + 1}, path)
    with pytest.raises(ValueError, match=r"lm_head.weight differs from model.embed_tokens.weight"):
        load_llama(tmp_path)
    extra = tensors | {"model.layers.0.self_attn.q_norm.weight": torch.ones(4)}
    del extra["model.norm.weight"]
    save_file(extra, path)
    with pytest.raises(ValueError, match=r"missing model.norm.weight; unexpected model\.layers\.0\.self_attn\.q_norm"):
        load_llama(tmp_path)
