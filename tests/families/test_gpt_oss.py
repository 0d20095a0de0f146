"""gpt-oss: its additions to LLaMA change the logits, and unsupported fields are named.

`test_releases` tests the equality of logits with `transformers`.
"""

import json

import pytest
import torch
from families.compared import (
    PUBLISHED,
    TOKENS,
    as_without,
    ids,
    refused_by_name,
    release,
    same_texts_from_a_ragged_batch,
    seen_in_the_logits,
)
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from companion.costs.account import parameters
from companion.families.export import export_model
from companion.families.inspected import inspect
from companion.families.pretrained import load_pretrained
from companion.families.registry import preset
from companion.files.models import load_tensors, save_tensors

MXFP4 = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}
DOWN = "model.layers.1.mlp.experts.down_proj_blocks"
(PATH,) = [path for path in PUBLISHED if path.stem == "gpt-oss-20b"]


@torch.no_grad()
def in_mxfp4(folder):
    """Return the 20B model at small sizes in OpenAI's format, and that of `transformers` with the same weights."""
    _, theirs = release(PATH, 2, folder, hidden_size=64, intermediate_size=32)
    for parameter in theirs.parameters():
        parameter.copy_(parameter.bfloat16())
    draw, packed = torch.Generator().manual_seed(0), {}
    for name, parameter in theirs.named_parameters():
        if name.endswith(("gate_up_proj", "down_proj")):
            experts, columns, rows = parameter.shape
            blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), generator=draw, dtype=torch.uint8)
            scales = torch.randint(118, 126, blocks.shape[:3], generator=draw, dtype=torch.uint8)
            parameter.copy_(convert_moe_packed_tensors(blocks, scales))
            packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    plain = {name: tensor.bfloat16() for name, tensor in load_tensors(folder / "model.safetensors").items()}
    plain = {name: tensor for name, tensor in plain.items() if f"{name}_blocks" not in packed}
    save_tensors(folder / "model.safetensors", plain | packed)
    said = json.loads((folder / "config.json").read_text()) | {"quantization_config": MXFP4}
    (folder / "config.json").write_text(json.dumps(said))
    return theirs


@torch.no_grad()
def test_a_release_in_mxfp4_is_read_as_the_numbers_that_it_stands_for(tmp_path):
    theirs = in_mxfp4(tmp_path)
    ours = load_pretrained(tmp_path)
    assert ours.embedding.weight.dtype == torch.bfloat16
    for block, layer in zip(ours.decoder.blocks, theirs.model.layers, strict=True):
        assert torch.equal(block.feed_forward.outer, layer.mlp.experts.down_proj.bfloat16())
        assert torch.equal(block.feed_forward.gate, layer.mlp.experts.gate_up_proj[..., ::2].bfloat16())
    tokens = ids(2, TOKENS, 0)
    wanted = theirs(tokens).logits
    torch.testing.assert_close(load_pretrained(tmp_path, dtype=torch.float32)(tokens).logits, wanted)
    found = inspect(tmp_path)
    assert found.refused == [] and found.tensors["uint8"] == 12 and found.config == ours.config
    export_model(tmp_path / "plain", ours)
    assert torch.equal(load_pretrained(tmp_path / "plain")(tokens).logits, ours(tokens).logits)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("model.layers.1.mlp.experts.down_proj_scales"), "missing .*down_proj_scales"),
        (
            lambda tensors: tensors.update({DOWN: tensors[DOWN].flatten(2)}),
            r"down_proj_blocks is \(5, 64, 16\): expected bytes, \(expert, row, block, byte\)",
        ),
        (lambda tensors: tensors.update({DOWN: tensors[DOWN].int()}), "down_proj_blocks is .*: expected bytes"),
    ],
)
def test_bytes_that_say_nothing_are_refused(change, message, tmp_path):
    in_mxfp4(tmp_path)
    tensors = load_tensors(tmp_path / "model.safetensors")
    change(tensors)
    save_tensors(tmp_path / "model.safetensors", tensors)
    with pytest.raises(ValueError, match=message):
        load_pretrained(tmp_path)


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
        ({"quantization_config": {"quant_method": "fp8"}}, "expected null, or MXFP4 (quant_method 'mxfp4')"),
        ({"quantization_config": "mxfp4"}, "expected null, or MXFP4 (quant_method 'mxfp4')"),
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
    """21 and 117 billion, of which 3.6 and 5.1 billion are active per token, without the embedding."""
    for name, total, active in (("gpt-oss-20b", 20.91, 3.61), ("gpt-oss-120b", 116.83, 5.13)):
        count = parameters(preset(name))
        assert (round(count.total / 1e9, 2), round((count.active - count.embedding) / 1e9, 2)) == (total, active)
