"""DeepSeek-V2 and V3: their additions change the logits, and unsupported fields are named.

`test_releases` tests the equality of logits with `transformers`.
"""

import json

import pytest
import torch
from families.compared import (
    PUBLISHED,
    as_without,
    refused_by_name,
    release,
    same_texts_from_a_ragged_batch,
    seen_in_the_logits,
)

from companion.config.model import LatentConfig
from companion.costs.account import cache_bytes
from companion.families.pretrained import load_pretrained
from companion.families.registry import preset
from companion.files.models import load_tensors, save_tensors

PATHS = {path.stem: path for path in PUBLISHED if path.stem.startswith(("deepseek", "moonlight"))}


def theirs_of(name, folder, seed=0):
    return release(PATHS[name], seed, folder)[1]


@pytest.mark.parametrize("name", PATHS)
def test_the_texts_are_those_of_transformers(name, tmp_path):
    same_texts_from_a_ragged_batch(theirs_of(name, tmp_path, seed=5), tmp_path)


@pytest.mark.parametrize(
    ("name", "group", "fields"),
    [
        ("deepseek-v2", "attention", {"score_width": None}),
        ("deepseek-v2", "moe", {"groups": 1, "top_groups": 1}),
        ("deepseek-v2", "moe", {"group_best": 2}),
        ("deepseek-v2", "moe", {"scale": 1.0}),
        ("deepseek-v3", "positions", {"layout": "half"}),
        ("deepseek-v3", "moe", {"balanced": False}),
        ("deepseek-v3", "moe", {"group_best": 1}),
        ("deepseek-v3", "moe", {"gating": "sigmoid_topk"}),
    ],
)
def test_what_they_add_is_seen_in_the_logits(name, group, fields, tmp_path):
    seen_in_the_logits(name, group, fields, tmp_path)


def test_the_epsilon_of_latents_is_their_own(tmp_path):
    ours, _ = release(PATHS["moonlight-16b"], 0, tmp_path)
    assert (ours.config.norm.eps, ours.config.attention.latent) == (1e-5, LatentConfig(10, 4, None, eps=1e-6))
    assert preset("deepseek-v3").attention.latent == LatentConfig(512, 64, 1536)


def test_a_file_may_leave_out_what_transformers_takes_for_granted(tmp_path):
    path = PATHS["deepseek-v3"]
    _, theirs = release(path, 0, tmp_path)
    theirs.config.routed_scaling_factor = 2.5
    as_without(theirs, ("routed_scaling_factor", "rope_interleave", "norm_topk_prob", "rms_norm_eps"), tmp_path)


REFUSED = {
    "deepseek-v3": [
        (
            {"quantization_config": {"quant_method": "fp8"}},
            "quantized (FP8), which is not supported: expected a release in bf16",
        ),
        ({"scoring_func": "softmax"}, 'expected "sigmoid"'),
        ({"topk_method": "greedy"}, 'expected "noaux_tc"'),
        ({"moe_layer_freq": 2}, "moe_layer_freq=2"),
        ({"num_key_value_heads": 2}, "num_key_value_heads=2"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"first_k_dense_replace": -1}, "first_k_dense_replace=-1"),
        ({"topk_group": 9}, "topk_group=9: expected at most n_group=4"),
        ({"kv_lora_rank": 0}, "rank=0"),
        ({"index_topk": 64}, "index_topk=64"),  # the indexer of V3.2
    ],
    "deepseek-v2": [
        ({"topk_method": "noaux_tc"}, "expected 'greedy' or 'group_limited_greedy'"),
        ({"norm_topk_prob": True}, "norm_topk_prob=True"),
    ],
}


@pytest.mark.parametrize(
    ("name", "change", "named"), [(name, *case) for name, cases in REFUSED.items() for case in cases]
)
def test_what_would_be_another_function_is_refused_by_name(name, change, named, tmp_path):
    refused_by_name(theirs_of(name, tmp_path), change, named, tmp_path)


def test_layers_that_predict_further_tokens_are_left_out(tmp_path):
    """`transformers` leaves them out too: they follow the last layer and do not affect the next token."""
    ours, _ = release(PATHS["deepseek-v3"], 0, tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_tensors(file)
    tensors["model.layers.3.eh_proj.weight"] = torch.ones(24, 48)
    tensors["model.layers.3.self_attn.kv_b_proj.weight"] = torch.ones(66, 10)
    save_tensors(file, tensors)
    again = load_pretrained(tmp_path)
    assert again.config == ours.config
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), ours.parameters(), strict=True))


def test_without_experts_all_layers_have_the_plain_network(tmp_path):
    release(PATHS["deepseek-v3"], 0, tmp_path)
    path = tmp_path / "config.json"
    said = json.loads(path.read_text())
    path.write_text(json.dumps(said | {"first_k_dense_replace": 3}))
    with pytest.raises(ValueError, match=r"missing model\.layers\.1\.mlp\.gate_proj\.weight"):
        load_pretrained(tmp_path)


def test_576_numbers_are_kept_of_a_token_in_each_layer():
    config = preset("deepseek-v3")
    assert config.sizes.kept_numbers == 512 + 64
    assert cache_bytes(config, 1, dtype=torch.bfloat16) == 61 * 576 * 2 == 70_272  # 68.6 KiB
    every = config.sizes.heads * (128 + 64 + 128)
    assert every == 40_960
