"""Qwen 2 and 3: what they add to LLaMA is seen; `test_releases` has the equality with `transformers`."""

import json

import pytest
from families.compared import PUBLISHED, release, seen_in_the_logits

from companion.families.pretrained import load_pretrained


def test_biases_are_seen_in_the_logits(tmp_path):
    seen_in_the_logits("qwen2.5-0.5b", "attention", {"bias": False}, tmp_path)


def test_normed_heads_are_seen_in_the_logits(tmp_path):
    seen_in_the_logits("qwen3-0.6b", "attention", {"qk_norm": None}, tmp_path)


@pytest.mark.parametrize(("name", "value"), [("mlp_only_layers", [0]), ("decoder_sparse_step", 2)])
def test_layers_without_experts_among_others_are_refused_with_the_reason(name, value, tmp_path):
    (path,) = [path for path in PUBLISHED if path.stem == "qwen3-30b-a3b"]
    release(path, 0, tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {name: value}))
    with pytest.raises(
        ValueError, match=rf"{name}=.*: expected .*, our models have experts in every layer, or in none"
    ):
        load_pretrained(tmp_path)
