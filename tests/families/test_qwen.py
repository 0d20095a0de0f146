"""Qwen 2 and 3: their additions to LLaMA change the logits; `test_releases` tests the equality with `transformers`."""

import json

import pytest
import torch
import transformers
from families.compared import PUBLISHED, release, seen_in_the_logits

from companion.families.export import export_model
from companion.families.pretrained import load_pretrained


def test_biases_are_seen_in_the_logits(tmp_path):
    seen_in_the_logits("qwen2.5-0.5b", "attention", {"bias": False}, tmp_path)


def test_normed_heads_are_seen_in_the_logits(tmp_path):
    seen_in_the_logits("qwen3-0.6b", "attention", {"qk_norm": None}, tmp_path)


@pytest.mark.parametrize(
    ("plain", "step", "pattern"),
    [([0], 1, (False, True, True)), ([2, 0], 1, (False, True)), ([], 2, (False, True)), ([0, 1, 2], 1, None)],
)
def test_plain_layers_may_stand_among_those_with_experts(plain, step, pattern, tmp_path):
    (path,) = [path for path in PUBLISHED if path.stem == "qwen3-30b-a3b"]
    _, theirs = release(path, 0, tmp_path)
    config = theirs.config
    config.num_hidden_layers, config.intermediate_size = 3, 40
    config.mlp_only_layers, config.decoder_sparse_step = plain, step
    torch.manual_seed(1)
    theirs = transformers.Qwen3MoeForCausalLM(config).eval()
    theirs.save_pretrained(tmp_path)
    ours, tokens = load_pretrained(tmp_path), torch.arange(3, 20)[None]
    assert ours.config.moe is None if pattern is None else ours.config.moe.pattern == pattern
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens).logits, theirs(tokens).logits, atol=1e-4, rtol=1e-5)
    if pattern is not None:
        export_model(tmp_path / "again", ours)
        said = json.loads((tmp_path / "again" / "config.json").read_text())
        mixed = [(pattern * 3)[layer] for layer in range(3)]
        assert said["mlp_only_layers"] == [layer for layer in range(3) if not mixed[layer]]
        assert load_pretrained(tmp_path / "again").config == ours.config


@pytest.mark.parametrize(("name", "value"), [("mlp_only_layers", 1), ("decoder_sparse_step", 0)])
def test_a_pattern_that_is_none_is_refused(name, value, tmp_path):
    (path,) = [path for path in PUBLISHED if path.stem == "qwen3-30b-a3b"]
    release(path, 0, tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {name: value}))
    with pytest.raises(ValueError, match=name):
        load_pretrained(tmp_path)
