"""T5 and FLAN-T5: their differences change the logits; `test_releases` tests the equality with `transformers`."""

import json
import math

import pytest
import torch
from families.compared import PUBLISHED, TOKENS, ids, refused, release
from safetensors.torch import load_file, save_file

from companion import Transformer
from companion.families.llama import changed
from companion.families.pretrained import load_pretrained

T5, FLAN = (next(path for path in PUBLISHED if path.stem == name) for name in ("t5-small", "flan-t5-small"))


@pytest.mark.parametrize(
    ("group", "change"),
    [
        ("attention", {"score_width": None}),
        ("positions", {"kind": "none"}),
        ("positions", {"reach": 20}),
        ("embedding", {"logit_divisor": 1.0}),
    ],
)
@torch.no_grad()
def test_what_it_does_otherwise_is_seen_in_the_logits(group, change, tmp_path):
    ours, _ = release(T5, 0, tmp_path)
    other = Transformer(changed(ours.config, **{group: change})).eval()
    other.load_state_dict(ours.state_dict(), strict=False)
    tokens = ids(1, TOKENS, 0)
    assert (other(tokens, source=tokens).logits - ours(tokens, source=tokens).logits).abs().max() > 1e-3


@torch.no_grad()
def test_a_head_of_its_own_is_read_whatever_newer_versions_say_of_it(tmp_path):
    """They write that every head is tied, and in another field whether logits are scaled."""
    ours, theirs = release(FLAN, 1, tmp_path)
    assert not ours.config.embedding.tied and ours.config.embedding.logit_divisor == 1
    theirs.save_pretrained(tmp_path / "again")
    said = json.loads((tmp_path / "again" / "config.json").read_text())
    assert said["tie_word_embeddings"] and not said["scale_decoder_outputs"]
    (tmp_path / "again" / "config.json").write_text(json.dumps(said | {"n_positions": 32}))
    assert load_pretrained(tmp_path / "again").config == ours.config


def test_a_table_that_is_stored_often_is_one(tmp_path):
    """The relative positions of cross-attention, which early files contain, are ignored."""
    ours, _ = release(T5, 1, tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    table = tensors["shared.weight"]
    for name in ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head"):
        tensors[f"{name}.weight"] = table.clone()
    tensors["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.randn(32, 6)
    save_file(tensors, path)
    again = load_pretrained(tmp_path)
    assert again.config == ours.config and again.config.embedding.logit_divisor == math.sqrt(ours.config.d_model)
    assert torch.equal(again.embedding.weight, ours.embedding.weight)


@pytest.mark.parametrize("network", ["relu", "gelu", "gelu_new", "silu", "gated-gelu", "gated-silu"])
@torch.no_grad()
def test_every_network_that_is_read_is_theirs(network, tmp_path):
    _, theirs = release(T5, 1, tmp_path, feed_forward_proj=network)
    tokens = ids(2, 9, 1)
    wanted = theirs(tokens, decoder_input_ids=tokens).logits
    torch.testing.assert_close(load_pretrained(tmp_path)(tokens, source=tokens).logits, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"feed_forward_proj": "gated-relu"}, "feed_forward_proj='gated-relu': expected one of 'relu', 'gelu'"),
        ({"num_decoder_layers": 3}, "num_decoder_layers=3: expected 4, as num_layers"),
        ({"relative_attention_num_buckets": 7}, "relative_attention_num_buckets=7: expected an even number"),
        ({"relative_attention_max_distance": 16}, "relative_attention_max_distance=16: expected a whole number >= 17"),
        ({"scale_decoder_outputs": 1}, "scale_decoder_outputs=1: expected true or false, or null"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder=False: expected true"),
    ],
)
def test_a_field_that_cannot_be_honoured_is_refused_by_name(change, named, tmp_path):
    refused("flan-t5-small", change, named, tmp_path)
