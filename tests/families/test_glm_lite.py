"""GLM-4.7-Flash: which of its layers have experts; `test_releases` tests the equality with `transformers`."""

import pytest
import torch
from families.compared import PUBLISHED, TOKENS, ids, refused, release

from companion.families.pretrained import load_pretrained


@pytest.mark.parametrize("kinds", [["sparse", "dense", "sparse"], ["dense"] * 3, ["sparse"] * 3])
@torch.no_grad()
def test_layers_that_are_named_have_experts(kinds, tmp_path):
    (path,) = [path for path in PUBLISHED if path.stem == "glm-4.7-flash"]
    _, theirs = release(path, 1, tmp_path, mlp_layer_types=kinds)
    ours, tokens = load_pretrained(tmp_path), ids(2, TOKENS, 1)
    assert [ours.config.network(layer)[1] is not None for layer in range(3)] == [kind == "sparse" for kind in kinds]
    torch.testing.assert_close(ours(tokens).logits, theirs(tokens).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"mlp_layer_types": ["dense", "sparse"]}, "expected 3 kinds of networks, each dense or sparse"),
        ({"num_key_value_heads": 2}, "num_key_value_heads=2: expected 6, as num_attention_heads"),
        ({"scoring_func": "softmax"}, "scoring_func='softmax': expected \"sigmoid\""),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5: expected 1.0 or null"),
    ],
)
def test_a_field_that_cannot_be_honoured_is_refused_by_name(change, named, tmp_path):
    refused("glm-4.7-flash", change, named, tmp_path)
