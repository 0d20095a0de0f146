"""Qwen3.5's text models: features of their layers change the logits; `test_releases` tests the equality."""

import json

import pytest
import torch
from families.compared import PUBLISHED, ids, refused, release, seen_in_the_logits
from safetensors.torch import load_file, save_file

from companion.families.pretrained import load_pretrained


@pytest.mark.parametrize("name", ["qwen3.5-9b", "qwen3.5-35b-a3b"])
@pytest.mark.parametrize(
    ("group", "change"),
    [("positions", {"partial_rotary_factor": 1.0}), ("attention", {"gate": None}), ("norm", {"unit_offset": False})],
)
def test_what_it_does_otherwise_is_seen_in_the_logits(name, group, change, tmp_path):
    seen_in_the_logits(name, group, change, tmp_path)


@torch.no_grad()
def test_the_text_model_out_of_one_that_sees_is_read_with_its_prefix_and_its_layers_by_interval(tmp_path):
    (path,) = [path for path in PUBLISHED if path.stem == "qwen3.5-9b"]
    ours, _ = release(path, 0, tmp_path)
    file = tmp_path / "model.safetensors"
    prefixed = {name.replace("model.", "model.language_model."): value for name, value in load_file(file).items()}
    save_file(prefixed | {"mtp.fc.weight": torch.ones(3)}, file)
    said = json.loads((tmp_path / "config.json").read_text())
    said = {name: value for name, value in said.items() if name != "layer_types"} | {"full_attention_interval": 4}
    (tmp_path / "config.json").write_text(json.dumps(said))
    again = load_pretrained(tmp_path)
    assert again.config == ours.config and torch.equal(again(ids(1, 9, 0)).logits, ours(ids(1, 9, 0)).logits)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"attn_output_gate": False}, "attn_output_gate=False: expected true"),
        ({"layer_types": ["linear_attention"] * 3}, ": expected the types of 5 layers"),
        ({"partial_rotary_factor": 0.5}, "rope_parameters.partial_rotary_factor=0.25: expected 0.5"),
        ({"linear_num_key_heads": 4}, "linear_num_key_heads=4: expected a divisor of"),
    ],
)
def test_a_field_that_cannot_be_honoured_is_refused_by_name(change, named, tmp_path):
    refused("qwen3.5-9b", change, named, tmp_path)
