"""ModernBERT: its differences change the output; `test_releases` tests the equality with `transformers`."""

import json

import pytest
import torch
from families.compared import PUBLISHED, ids, refused, release, seen_in_the_logits
from safetensors.torch import load_file, save_file

from companion import WindowConfig
from companion.families.pretrained import load_pretrained

(PATH,) = [path for path in PUBLISHED if path.stem == "modernbert-base"]


@pytest.mark.parametrize(
    ("group", "change"),
    [
        ("attention", {"window": None}),
        ("attention", {"window": WindowConfig(6, (False, True, True))}),
        ("attention", {"window": WindowConfig(4, (False, True, True), base=10000.0)}),
        ("norm", {"first": True}),
        ("positions", {"base": 500.0}),
    ],
)
def test_what_it_does_otherwise_is_seen_in_the_logits(group, change, tmp_path):
    seen_in_the_logits("modernbert-base", group, change, tmp_path)


@torch.no_grad()
def test_an_encoder_alone_with_biases_is_read_as_newer_versions_write_it(tmp_path):
    biased = {name: True for name in ("attention_bias", "classifier_bias", "norm_bias")}
    _, theirs = release(PATH, 1, tmp_path, **biased)
    tokens = ids(2, 9, 0)
    ours = load_pretrained(tmp_path)
    torch.testing.assert_close(ours(tokens).logits, theirs(tokens).logits, atol=1e-5, rtol=1e-5)
    theirs.config.save_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    assert "layer_types" in said and "global_rope_theta" not in said
    assert load_pretrained(tmp_path).config == ours.config
    tensors = load_file(tmp_path / "model.safetensors")
    alone = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    save_file(alone, tmp_path / "model.safetensors")
    stream = load_pretrained(tmp_path).features(tokens).stream
    torch.testing.assert_close(stream, theirs.model(tokens).last_hidden_state, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hidden_activation": "relu", "classifier_activation": "relu"}, "expected the silu or gelu of a gate"),
        ({"classifier_activation": "relu"}, "classifier_activation='relu': expected 'gelu', as hidden_activation"),
        ({"classifier_bias": 1}, "classifier_bias=1: expected True or False"),
        ({"decoder_bias": False}, "decoder_bias=False: expected true"),
        ({"global_attn_every_n_layers": 0}, "global_attn_every_n_layers=0: expected a whole number >= 1"),
        ({"layer_norm_eps": 0.1}, "layer_norm_eps=0.1: expected 1e-05, as norm_eps"),
    ],
)
def test_a_field_that_cannot_be_honoured_is_refused_by_name(change, named, tmp_path):
    refused("modernbert-base", change, named, tmp_path)
