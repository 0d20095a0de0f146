"""Mistral and Mixtral compute the same as `transformers`, with experts in both layouts; some settings are rejected."""

import pytest
import torch
from families.compared import (
    as_without,
    refused_by_name,
    same_function,
    same_logits_whole_cached_and_padded,
    same_texts_from_a_ragged_batch,
    seen_in_the_logits,
)
from safetensors.torch import load_file, save_file
from theirs import mixtral

from companion.families.pretrained import load_pretrained

MODELS = {
    "mixtral": lambda: mixtral(),
    "mixtral, one expert of three, tied, biasless wide heads": lambda: mixtral(
        num_local_experts=3, num_experts_per_tok=1, head_dim=8, tie_word_embeddings=True
    ),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_logits_equal_whole_cached_and_padded(make, tmp_path):
    same_logits_whole_cached_and_padded(make(), tmp_path)


def test_a_ragged_batch_continues_as_theirs_does_one_by_one(tmp_path):
    same_texts_from_a_ragged_batch(mixtral(), tmp_path)


def test_mixtrals_experts_are_read_one_by_one_and_fused(tmp_path):
    theirs = mixtral()
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    released = load_file(path)
    assert "model.layers.0.block_sparse_moe.experts.4.w2.weight" in released
    fused = {name: tensor for name, tensor in released.items() if ".block_sparse_moe." not in name}
    held = theirs.state_dict()
    fused |= {name: held[name].clone() for name in held if ".mlp." in name}
    assert "model.layers.0.mlp.experts.gate_up_proj" in fused
    save_file(fused, path)
    same_function(load_pretrained(tmp_path), theirs)
    fused["model.layers.2.mlp.experts.gate_up_proj"] = torch.zeros(5, 41, 24)
    save_file(fused, path)
    with pytest.raises(
        ValueError, match=r"layers.2.mlp.experts.gate_up_proj is \(5, 41, 24\): expected .* divided into 2 parts"
    ):
        load_pretrained(tmp_path)
    released["model.layers.1.block_sparse_moe.experts.3.w1.weight"] = torch.zeros(20, 23)
    save_file(released, path)
    with pytest.raises(ValueError, match=r"moe.experts.3.w1.weight has shape \(20, 23\): .* asks for \(20, 24\)"):
        load_pretrained(tmp_path)
    del released["model.layers.1.block_sparse_moe.experts.3.w1.weight"]
    save_file(released, path)
    with pytest.raises(ValueError, match=r"missing model.layers.1.mlp.experts.3.w1.weight"):
        load_pretrained(tmp_path)


REFUSED = [
    ({"sliding_window": -8}, "sliding_window=-8"),
    ({"router_jitter_noise": 0.1}, "router_jitter_noise=0.1"),
    ({"num_experts_per_tok": 6}, "num_experts_per_tok=6"),
    ({"rope_theta": -1.0, "rope_parameters": None}, "rope_theta=-1.0"),
]


@pytest.mark.parametrize(("change", "named"), REFUSED, ids=[named for _, named in REFUSED])
def test_a_field_that_would_change_the_function_is_refused_by_name(change, named, tmp_path):
    refused_by_name(mixtral(), change, named, tmp_path)


def test_a_field_left_out_has_its_published_default(tmp_path):
    names = ("rope_parameters", "rms_norm_eps", "num_experts_per_tok", "tie_word_embeddings")
    as_without(mixtral(), names, tmp_path)


def test_the_window_is_seen_in_the_logits(tmp_path):
    seen_in_the_logits("mistral-7b-v0.1", "attention", {"window": None}, tmp_path)
