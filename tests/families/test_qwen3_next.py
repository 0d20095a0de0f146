"""Qwen3-Next: its additions change the logits, and unsupported fields are named.

`test_releases` tests the equality of logits with `transformers`.
"""

import json

import pytest
import torch
from families.compared import PUBLISHED, refused_by_name, release, seen_in_the_logits

from companion.costs.account import cache_bytes
from companion.families.pretrained import load_pretrained
from companion.families.registry import preset
from companion.files.models import load_tensors, save_tensors

(PATH,) = [path for path in PUBLISHED if path.stem == "qwen3-next-80b-a3b"]


def test_what_it_adds_is_seen_in_the_logits(tmp_path):
    for group, fields in (
        ("attention", {"gate": None}),
        ("attention", {"qk_norm": None}),
        ("norm", {"unit_offset": False}),
        ("positions", {"partial_rotary_factor": 1.0}),
        ("moe", {"shared_gate": False}),
    ):
        seen_in_the_logits(PATH.stem, group, fields, tmp_path)


def test_what_would_be_another_function_is_refused_by_name(tmp_path):
    _, theirs = release(PATH, 0, tmp_path)
    for change, named in (
        ({"use_sliding_window": True}, "use_sliding_window=True"),
        ({"linear_num_key_heads": 4}, "key_heads=4"),
        ({"full_attention_interval": 0, "layer_types": None}, "full_attention_interval=0"),
        ({"layer_types": ["sliding_attention"] * 5}, "each full_attention or linear_attention"),
        ({"mlp_only_layers": 1}, "mlp_only_layers=1"),
    ):
        refused_by_name(theirs, change, named, tmp_path)


def test_tensors_of_other_sizes_are_refused_by_their_published_name(tmp_path):
    release(PATH, 0, tmp_path)
    path = tmp_path / "config.json"
    said = path.read_text()
    for name, value, message in (
        (
            "linear_conv_kernel_dim",
            3,
            r"0\.linear_attn\.conv1d\.weight has shape \(54, 1, 4\): .*linear_conv_kernel_dim=3 asks for \(54, 1, 3\)",
        ),
        (
            "linear_value_head_dim",
            6,
            r"0\.linear_attn\.in_proj_qkvz\.weight has shape \(84, 24\): .*linear_value_head_dim=6",
        ),
    ):
        path.write_text(json.dumps(json.loads(said) | {name: value}))
        with pytest.raises(ValueError, match=message):
            load_pretrained(tmp_path)


def test_plain_layers_may_stand_among_those_with_experts(tmp_path):
    import transformers

    said = json.loads(PATH.read_text())
    assert said["mlp_only_layers"] == []
    _, theirs = release(PATH, 0, tmp_path)
    config = theirs.config
    config.mlp_only_layers, config.decoder_sparse_step = [3], 2
    torch.manual_seed(1)
    theirs = transformers.Qwen3NextForCausalLM(config).eval()
    theirs.save_pretrained(tmp_path)
    ours, tokens = load_pretrained(tmp_path), torch.arange(3, 20)[None]
    assert ours.config.moe.pattern == (False, True, False, False)
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens).logits, theirs(tokens).logits, atol=1e-4, rtol=1e-5)


def test_what_predicts_further_tokens_is_left_out(tmp_path):
    ours, _ = release(PATH, 0, tmp_path)
    file = tmp_path / "model.safetensors"
    save_tensors(file, load_tensors(file) | {"mtp.fc.weight": torch.ones(24, 48)})
    again = load_pretrained(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), ours.parameters(), strict=True))


def test_most_of_what_is_kept_does_not_grow():
    """The memory of 36 layers does not grow with the text; the other 12 store 1,024 elements per token each."""
    config = preset("qwen3-next-80b-a3b")
    grown = cache_bytes(config, 10**6, dtype=torch.bfloat16) - cache_bytes(config, 100, dtype=torch.bfloat16)
    assert grown == (10**6 - 100) * 12 * 2 * (256 + 256) * 2
    matrices = 36 * 32 * 128 * 128 * 4
    assert matrices == 75_497_472 and cache_bytes(config, 100, dtype=torch.bfloat16) > matrices
