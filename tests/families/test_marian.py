"""Marian computes the same as `transformers`, whether its tables are stored once or several times."""

import pytest
import torch
from families.compared import as_without, refused_by_name
from safetensors.torch import load_file, save_file
from theirs import marian
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from companion import KVCache
from companion.families.pretrained import load_pretrained
from companion.files.published.generation_config import special_tokens


@pytest.mark.parametrize(
    "changes", [{}, {"scale_embedding": False, "activation_function": "relu"}], ids=["2018", "2017"]
)
@torch.no_grad()
def test_logits_equal_whole_and_cached_with_padded_sources(changes, tmp_path):
    theirs = marian(**changes)
    theirs.save_pretrained(tmp_path)
    ours = load_pretrained(tmp_path)
    source, target = torch.randint(0, 46, (3, 13)), torch.randint(0, 46, (3, 17))
    target[:, 0] = special_tokens(tmp_path).start
    real = torch.arange(13) < torch.tensor([13, 4, 7])[:, None]
    expected = theirs(source, attention_mask=real, decoder_input_ids=target).logits
    assert expected.std() > 0.5
    memory = ours.encode(source, attention_mask=real)
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


def test_marians_table_may_be_stored_four_times_and_its_sinusoids_too(tmp_path):
    theirs = marian()
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    table = next(tensor for tensor in tensors.values() if tensor.shape == (47, 20))
    for name in ("model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head"):
        tensors[f"{name}.weight"] = table.clone()
    waves = theirs.model.encoder.embed_positions.weight.detach().clone()
    tensors |= {"model.encoder.embed_positions.weight": waves, "model.decoder.embed_positions.weight": waves.clone()}
    save_file(tensors, path)
    source, target = torch.arange(9)[None], torch.arange(20, 27)[None]
    expected = theirs(source, decoder_input_ids=target).logits
    torch.testing.assert_close(load_pretrained(tmp_path)(target, source=source).logits, expected, rtol=1e-5, atol=1e-5)
    mixed = waves.view(40, 2, 10).transpose(1, 2).flatten(1).contiguous()  # sine beside cosine, as in the paper
    save_file(tensors | {"model.decoder.embed_positions.weight": mixed}, path)
    with pytest.raises(ValueError, match=r"decoder.embed_positions.weight of shape \(40, 20\): expected sinusoidal"):
        load_pretrained(tmp_path)


REFUSED = [
    ({"normalize_before": True}, "normalize_before=True"),
    ({"normalize_embedding": True}, "normalize_embedding=True"),
    ({"static_position_embeddings": False}, "static_position_embeddings=False"),
    ({"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings=False"),
    ({"decoder_vocab_size": 50}, "decoder_vocab_size=50"),
    ({"decoder_layers": 2}, "decoder_layers=2"),
    ({"decoder_ffn_dim": 44}, "decoder_ffn_dim=44"),
    ({"is_encoder_decoder": False}, "is_encoder_decoder=False"),
]


@pytest.mark.parametrize(("change", "named"), REFUSED, ids=[named for _, named in REFUSED])
def test_a_field_that_would_change_the_function_is_refused_by_name(change, named, tmp_path):
    refused_by_name(marian(), change, named, tmp_path)


def test_a_field_left_out_has_its_published_default(tmp_path):
    as_without(
        marian(), ("dropout", "tie_word_embeddings", "decoder_vocab_size", "share_encoder_decoder_embeddings"), tmp_path
    )
