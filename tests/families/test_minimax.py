"""MiniMax-M2: its additions to LLaMA change the logits; `test_releases` tests the equality with `transformers`."""

import pytest
import torch
from families.compared import PUBLISHED, ids, refused, release, seen_in_the_logits
from safetensors.torch import load_file, save_file

from companion.families.pretrained import load_pretrained


@pytest.mark.parametrize(
    ("group", "change"),
    [("attention", {"qk_norm": None}), ("positions", {"partial_rotary_factor": 1.0}), ("moe", {"balanced": False})],
)
def test_what_it_adds_is_seen_in_the_logits(group, change, tmp_path):
    seen_in_the_logits("minimax-m2", group, change, tmp_path)


@torch.no_grad()
def test_layers_that_predict_further_tokens_are_left_out(tmp_path):
    (path,) = [path for path in PUBLISHED if path.stem == "minimax-m2"]
    ours, _ = release(path, 0, tmp_path)
    file = tmp_path / "model.safetensors"
    further = {f"model.layers.{ours.config.layers}.hnorm.weight": torch.ones(24), "model.mtp.0.x": torch.ones(3)}
    save_file(load_file(file) | further, file)
    assert torch.equal(load_pretrained(tmp_path)(ids(1, 9, 0)).logits, ours(ids(1, 9, 0)).logits)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rotary_dim": 16}, "rotary_dim=16: expected an even number, at most head_dim=8"),
        ({"rotary_dim": "x"}, "rotary_dim='x': expected an even number"),
        ({"partial_rotary_factor": 0.25}, "rotary_dim=4: expected an even number, 0.25 times head_dim=8"),
        ({"partial_rotary_factor": 1.0}, "rotary_dim=4: expected an even number, 1.0 times head_dim=8"),
        ({"attn_type_list": [1, 0, 1]}, "attn_type_list=[1, 0, 1]: expected 3 times 1"),
        ({"qk_norm_type": "per_head"}, "qk_norm_type='per_head': expected \"per_layer\""),
        ({"shared_intermediate_size": 8}, "shared_intermediate_size=8: expected 0, shared experts are not read"),
        ({"scoring_func": "softmax"}, "scoring_func='softmax': expected \"sigmoid\""),
        (
            {"quantization_config": {"quant_method": "fp8"}},
            "quantized (FP8), which is not supported: expected a release in bf16",
        ),
    ],
)
def test_a_field_that_cannot_be_honoured_is_refused_by_name(change, named, tmp_path):
    refused("minimax-m2", change, named, tmp_path)
