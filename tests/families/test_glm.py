"""GLM-4: its additions to LLaMA change the logits; `test_releases` tests the equality with `transformers`."""

import json

import pytest
from families.compared import PUBLISHED, release, seen_in_the_logits
from safetensors.torch import load_file, save_file

from companion.families.pretrained import load_pretrained


@pytest.mark.parametrize(
    ("name", "group", "fields"),
    [
        ("glm-4-9b-chat", "positions", {"layout": "half"}),
        ("glm-4-9b-chat", "positions", {"partial_rotary_factor": 1.0}),
        ("glm-4-9b-chat", "attention", {"bias": False}),
        ("glm-4-9b-0414", "norm", {"placement": "pre"}),
    ],
)
def test_what_it_adds_is_seen_in_the_logits(name, group, fields, tmp_path):
    seen_in_the_logits(name, group, fields, tmp_path)


def test_a_fused_matrix_that_is_missing_or_of_other_rows_is_named(tmp_path):
    (path,) = [path for path in PUBLISHED if path.stem == "glm-4-9b-chat"]
    release(path, 0, tmp_path)
    weights, name = tmp_path / "model.safetensors", "model.layers.1.mlp.gate_up_proj.weight"
    tensors = load_file(weights)
    save_file(tensors | {name: tensors[name][:-1].clone()}, weights)
    with pytest.raises(
        ValueError, match=rf"{name} has shape \(39, 24\): config.json's intermediate_size=20 asks for \(40, 24\)"
    ):
        load_pretrained(tmp_path)
    del tensors[name]
    save_file(tensors, weights)
    with pytest.raises(ValueError, match=rf"does not match the weights: missing {name}$"):
        load_pretrained(tmp_path)


def test_a_share_that_is_said_twice_and_differs_is_refused(tmp_path):
    (path,) = [path for path in PUBLISHED if path.stem == "glm-4-9b-0414"]
    release(path, 0, tmp_path)
    config = tmp_path / "config.json"
    fields = json.loads(config.read_text())
    config.write_text(json.dumps(fields | {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0}}))
    with pytest.raises(ValueError, match=r"rope_parameters\.partial_rotary_factor=1\.0: expected 0\.5, as "):
        load_pretrained(tmp_path)
