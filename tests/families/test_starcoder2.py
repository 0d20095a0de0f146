"""StarCoder2: its additions to LLaMA change the logits; `test_releases` tests the equality with `transformers`."""

import pytest
import torch
from families.compared import PUBLISHED, TOKENS, ids, refused, release, seen_in_the_logits

from companion.families.pretrained import load_pretrained


@pytest.mark.parametrize(("group", "change"), [("attention", {"window": None}), ("positions", {"base": 10000.0})])
def test_what_it_does_otherwise_is_seen_in_the_logits(group, change, tmp_path):
    seen_in_the_logits("starcoder2-3b", group, change, tmp_path)


@torch.no_grad()
def test_one_without_biases_and_windows_is_read_too(tmp_path):
    (path,) = [path for path in PUBLISHED if path.stem == "starcoder2-3b"]
    _, theirs = release(path, 1, tmp_path, use_bias=False, sliding_window=None, tie_word_embeddings=False)
    tokens = ids(2, TOKENS, 1)
    torch.testing.assert_close(load_pretrained(tmp_path)(tokens).logits, theirs(tokens).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"norm_type": "rms_norm"}, "norm_type='rms_norm': expected \"layer_norm\""),
        ({"mlp_type": "gated"}, "mlp_type='gated': expected \"default\""),
        ({"use_bias": None}, "use_bias=None: expected true or false"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5"),
    ],
)
def test_a_field_that_cannot_be_honoured_is_refused_by_name(change, named, tmp_path):
    refused("starcoder2-3b", change, named, tmp_path)
