"""GPT-NeoX: the differences of its blocks change the logits; `test_releases` tests the equality with `transformers`."""

import json

import pytest
import torch
from families.compared import PUBLISHED, TOKENS, ids, refused, release, seen_in_the_logits
from safetensors.torch import load_file, save_file

from companion.families.pretrained import load_pretrained

(PATH,) = [path for path in PUBLISHED if path.stem == "pythia-70m"]


@pytest.mark.parametrize(
    ("group", "change"), [("norm", {"placement": "pre"}), ("positions", {"partial_rotary_factor": 0.5})]
)
def test_what_it_does_otherwise_is_seen_in_the_logits(group, change, tmp_path):
    seen_in_the_logits("pythia-70m", group, change, tmp_path)


@torch.no_grad()
def test_one_sublayer_after_the_other_is_read_too(tmp_path):
    _, theirs = release(PATH, 1, tmp_path, use_parallel_residual=False, rotary_pct=1.0)
    tokens = ids(2, TOKENS, 1)
    torch.testing.assert_close(load_pretrained(tmp_path)(tokens).logits, theirs(tokens).logits, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_masks_and_frequencies_that_early_files_hold_are_left_out(tmp_path):
    ours, _ = release(PATH, 1, tmp_path)
    path = tmp_path / "model.safetensors"
    extra = {"bias": torch.ones(1, 1, 32, 32, dtype=torch.bool), "masked_bias": torch.tensor(-1e9)}
    extra |= {"rotary_emb.inv_freq": torch.ones(1)}
    save_file(load_file(path) | {f"gpt_neox.layers.0.attention.{name}": value for name, value in extra.items()}, path)
    tokens = ids(1, 9, 0)
    assert torch.equal(load_pretrained(tmp_path)(tokens).logits, ours(tokens).logits)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"use_parallel_residual": 1}, "use_parallel_residual=1: expected true or false"),
        ({"rotary_pct": 0.4}, "rotary_pct=0.4: expected a share of d_head=8 that is an even number"),
        ({"rotary_pct": 0}, "rotary_pct=0: expected a number above 0"),
        ({"rotary_emb_base": "x"}, "rotary_emb_base='x': expected a number"),
        ({"rope_theta": 5.0}, "rope_theta=5.0: expected 10000, as rotary_emb_base"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "expected 0.25, as rotary_pct"),
    ],
)
def test_a_field_that_cannot_be_honoured_is_refused_by_name(change, named, tmp_path):
    refused("pythia-70m", change, named, tmp_path)


def test_positions_as_newer_versions_write_them_are_the_same(tmp_path):
    ours, _ = release(PATH, 1, tmp_path)
    path = tmp_path / "config.json"
    said = {name: value for name, value in json.loads(path.read_text()).items() if not name.startswith("rotary")}
    said["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000, "partial_rotary_factor": 0.25}
    path.write_text(json.dumps(said))
    assert load_pretrained(tmp_path).config == ours.config
