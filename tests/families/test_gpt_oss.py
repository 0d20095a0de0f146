"""gpt-oss: what it adds to LLaMA is seen, what is not read is named; `test_releases` has the equality of logits with
`transformers`."""

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

from companion.costs.account import parameters
from companion.families.pretrained import load_pretrained
from companion.families.registry import preset
from companion.files.models import load_tensors, save_tensors

(PATH,) = [path for path in PUBLISHED if path.stem == "gpt-oss-20b"]


def test_the_texts_are_those_of_transformers(tmp_path):
    same_texts_from_a_ragged_batch(release(PATH, 5, tmp_path)[1], tmp_path)


@pytest.mark.parametrize(
    ("group", "fields"),
    [
        ("attention", {"sinks": False}),
        ("attention", {"window": None}),
        ("feed_forward", {"activation": "swiglu"}),
        ("feed_forward", {"bias": False}),
        ("moe", {"router_bias": False}),
        ("moe", {"gating": "softmax_topk"}),
    ],
)
def test_what_it_adds_is_seen_in_the_logits(group, fields, tmp_path):
    seen_in_the_logits("gpt-oss-20b", group, fields, tmp_path)


def test_a_file_may_leave_out_what_transformers_takes_for_granted(tmp_path):
    _, theirs = release(PATH, 0, tmp_path)
    as_without(theirs, ("layer_types", "swiglu_limit", "rms_norm_eps", "attention_bias"), tmp_path)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"quantization_config": {"quant_method": "mxfp4"}}, "MXFP4 are not read: take a release in bf16"),
        ({"swiglu_limit": 5.0}, "swiglu_limit=5.0"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu': expected 'silu'"),
        ({"rope_scaling": None, "rope_parameters": None}, "a yarn scaling"),
        ({"experts_per_token": 3}, "experts_per_token=3: expected 2, as num_experts_per_tok"),
        (
            {"num_experts_per_tok": 9, "experts_per_token": 9},
            "num_experts_per_tok=9: expected at most num_local_experts=5",
        ),
    ],
)
def test_what_would_be_another_function_is_refused_by_name(change, named, tmp_path):
    refused_by_name(release(PATH, 0, tmp_path)[1], change, named, tmp_path)


def test_an_odd_number_of_columns_is_no_gate_and_hidden_matrix(tmp_path):
    release(PATH, 0, tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_tensors(file)
    name = "model.layers.1.mlp.experts.gate_up_proj"
    tensors[name] = tensors[name][..., :-1].contiguous()
    save_tensors(file, tensors)
    with pytest.raises(ValueError, match=r"gate_up_proj has shape \(5, 24, 39\): .* asks for \(5, 24, 40\)"):
        load_pretrained(tmp_path)


@torch.no_grad()
def test_a_sink_takes_weight_from_every_head(tmp_path):
    ours, _ = release(PATH, 0, tmp_path)
    assert all(block.attention.sinks.abs().max() > 0 for block in ours.decoder.blocks)


def test_the_numbers_of_the_model_card():
    """21 and 117 billion, of which 3.6 and 5.1 take part in one token beside the row that is looked up for it."""
    for name, total, active in (("gpt-oss-20b", 20.91, 3.61), ("gpt-oss-120b", 116.83, 5.13)):
        count = parameters(preset(name))
        assert (round(count.total / 1e9, 2), round((count.active - count.embedding) / 1e9, 2)) == (total, active)
