"""GLM-4.5: its additions to LLaMA change the logits, and unsupported fields are named.

`test_releases` tests the equality of logits with `transformers`.
"""

import pytest
from families.compared import PUBLISHED, refused_by_name, release, same_texts_from_a_ragged_batch, seen_in_the_logits

from companion.costs.account import parameters
from companion.families.registry import preset

PATHS = {path.stem: path for path in PUBLISHED if path.stem.startswith("glm-4.5")}


@pytest.mark.parametrize("name", PATHS)
def test_the_texts_are_those_of_transformers(name, tmp_path):
    same_texts_from_a_ragged_batch(release(PATHS[name], 5, tmp_path)[1], tmp_path)


@pytest.mark.parametrize(
    ("group", "fields"),
    [
        ("attention", {"qk_norm": None}),
        ("positions", {"partial_rotary_factor": 1.0}),
        ("moe", {"scale": 1.0}),
        ("moe", {"balanced": False}),
        ("moe", {"gating": "sigmoid_topk"}),
    ],
)
def test_what_it_adds_is_seen_in_the_logits(group, fields, tmp_path):
    seen_in_the_logits("glm-4.5", group, fields, tmp_path)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            {"quantization_config": {"quant_method": "compressed-tensors"}},
            "quantized (compressed-tensors), which is not supported: expected a release in bf16",
        ),
        ({"use_qk_norm": "yes"}, "use_qk_norm='yes': expected true or false"),
        ({"norm_topk_prob": 1}, "norm_topk_prob=1: expected true or false"),
        ({"partial_rotary_factor": 0}, "partial_rotary_factor=0"),
        ({"topk_group": 2}, "topk_group=2: expected at most n_group=1"),
    ],
)
def test_what_would_be_another_function_is_refused_by_name(change, named, tmp_path):
    refused_by_name(release(PATHS["glm-4.5-air"], 0, tmp_path)[1], change, named, tmp_path)


def test_the_numbers_of_its_report():
    """355 and 106 billion are published, with the layer for multi-token prediction.

    Without the embedding tables, 32 and 12 billion of them are active per token.
    """
    large, air = parameters(preset("glm-4.5")), parameters(preset("glm-4.5-air"))
    assert round(large.total / 1e9) == 353 and round(air.total / 1e9) == 107
    assert (
        round((large.active - 2 * large.embedding) / 1e9) == 32 and round((air.active - 2 * air.embedding) / 1e9) == 12
    )
