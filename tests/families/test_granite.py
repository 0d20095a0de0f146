"""Granite: its four multipliers change the logits, and unsupported parts are rejected by name."""

import json

import pytest
import torch
from families.compared import PUBLISHED, ids, release, seen_in_the_logits

from companion import Transformer
from companion.families.pretrained import load_pretrained


def changed(name, change, folder):
    """Return a small release with some fields changed."""
    (path,) = [path for path in PUBLISHED if path.stem == name]
    release(path, 0, folder)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))


@pytest.mark.parametrize(
    ("group", "fields"),
    [
        ("embedding", {"multiplier": 1.0}),
        ("embedding", {"logit_divisor": 1.0}),
        ("attention", {"score_width": None}),
    ],
)
def test_what_it_adds_is_seen_in_the_logits(group, fields, tmp_path):
    seen_in_the_logits("granite-4.0-micro", group, fields, tmp_path)


@torch.no_grad()
def test_what_sub_layers_add_is_multiplied(tmp_path):
    (path,) = [path for path in PUBLISHED if path.stem == "granite-3.3-8b"]
    ours, _ = release(path, 0, tmp_path)
    other = Transformer(ours.config.with_(residual=1.0)).eval()
    other.load_state_dict(ours.state_dict())
    assert (other(ids(1, 9, 0)).logits - ours(ids(1, 9, 0)).logits).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("name", "change", "named"),
    [
        ("granite-4.0-micro", {"layer_types": ["mamba", "attention", "mamba"]}, "attention in every layer: our models"),
        ("granite-4.0-micro", {"layer_types": None}, "our models have no state-space layers"),
        (
            "granite-4.0-micro",
            {"layer_types": ["attention"]},
            "layer_types=['attention']: expected the types of 3 layers",
        ),
        (
            "granite-4.0-micro",
            {"num_local_experts": 4},
            "num_local_experts=4: expected 0: experts with an additional dense",
        ),
        ("granite-4.0-micro", {"position_embedding_type": "x"}, "expected 'rope', 'nope' or null"),
        (
            "granite-3.3-8b",
            {"residual_multiplier": None},
            "residual_multiplier=None: expected a number from 1e-6 to 1e6",
        ),
        ("granite-3.3-8b", {"attention_multiplier": 0}, "attention_multiplier=0: expected a number from 1e-6 to 1e6"),
    ],
)
def test_parts_that_we_do_not_build_are_refused_by_name(name, change, named, tmp_path):
    changed(name, change, tmp_path)
    with pytest.raises(ValueError, match=r"config\.json: ") as caught:
        load_pretrained(tmp_path)
    assert named in str(caught.value)


def test_a_release_without_positions_has_none(tmp_path):
    changed("granite-4.0-micro", {"position_embedding_type": "nope"}, tmp_path)
    assert load_pretrained(tmp_path).config.positions.kind == "none"
