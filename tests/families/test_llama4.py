"""Llama 4: its additions to LLaMA change the logits, and unsupported parts are named.

`test_releases` tests the equality of logits with `transformers`.
"""

import pytest
from families.compared import PUBLISHED, refused_by_name, release, same_texts_from_a_ragged_batch, seen_in_the_logits

from companion.costs.account import parameters
from companion.families.registry import preset

PATHS = {path.stem: path for path in PUBLISHED if path.stem.startswith("llama-4")}


@pytest.mark.parametrize("name", PATHS)
def test_the_texts_are_those_of_transformers(name, tmp_path):
    same_texts_from_a_ragged_batch(release(PATHS[name], 5, tmp_path)[1], tmp_path)


@pytest.mark.parametrize(
    ("name", "group", "fields"),
    [
        ("llama-4-scout", "attention", {"qk_norm": None}),
        ("llama-4-scout", "positions", {"layout": "half"}),
        ("llama-4-scout", "moe", {"weighted": "output"}),
        ("llama-4-scout", "moe", {"gating": "softmax_topk"}),
    ],
)
def test_what_it_adds_is_seen_in_the_logits(name, group, fields, tmp_path):
    seen_in_the_logits(name, group, fields, tmp_path)


def test_every_second_layer_of_the_larger_one_has_experts(tmp_path):
    ours, _ = release(PATHS["llama-4-maverick"], 0, tmp_path)
    networks = [ours.config.network(layer) for layer in range(ours.config.layers)]
    assert [experts is not None for _, experts in networks] == [False, True, False, True, False]
    assert [network.d_ff for network, _ in networks] == [28, 20, 28, 20, 28]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"attention_chunk_size": 16}, "chunks are not supported"),
        ({"max_position_embeddings": 10485760}, "attention_chunk_size=8192: expected at least max_position_embeddings"),
        ({"floor_scale": 32}, "scores that are scaled in long texts are not supported"),
        ({"no_rope_layers": [0] * 5}, "no_rope_layers=[0, 0, 0, 0, 0]: expected at least one layer that rotates"),
        ({"moe_layers": [7]}, "moe_layers=[7]: expected layer indices from 0 to 4"),
        ({"interleave_moe_layer_step": 0}, "interleave_moe_layer_step=0"),
        ({"use_qk_norm": 1}, "use_qk_norm=1: expected true or false"),
        (
            {"quantization_config": {"quant_method": "fp8"}},
            "quantized (FP8), which is not supported: expected a release in bf16",
        ),
    ],
)
def test_what_would_be_another_function_is_refused_by_name(change, named, tmp_path):
    theirs = release(PATHS["llama-4-scout"], 0, tmp_path)[1]
    theirs.config.moe_layers = None if "interleave_moe_layer_step" in change else theirs.config.moe_layers
    refused_by_name(theirs, change, named, tmp_path)


def test_the_numbers_of_its_release():
    """109 billion including the vision part, of which 17 billion are active per token."""
    count = parameters(preset("llama-4-scout"))
    assert (round(count.total / 1e9, 1), round(count.active / 1e9)) == (107.8, 17)
