"""Command R: its additions to LLaMA change the logits; `test_releases` tests the equality with `transformers`."""

import pytest
from families.compared import refused, seen_in_the_logits


@pytest.mark.parametrize(
    ("name", "group", "change"),
    [
        ("command-r", "norm", {"kind": "rms", "bias": True}),
        ("command-r", "embedding", {"logit_divisor": 1.0}),
        ("command-r", "positions", {"layout": "half"}),
        ("command-r7b", "positions", {"pattern": (True,)}),
        ("command-r7b", "attention", {"window": None}),
    ],
)
def test_what_it_does_otherwise_is_seen_in_the_logits(name, group, change, tmp_path):
    seen_in_the_logits(name, group, change, tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "named"),
    [
        (
            "command-r",
            {"use_qk_norm": True},
            "use_qk_norm=True: expected false or null, norms with a gain for each head",
        ),
        ("command-r", {"logit_scale": 0}, "logit_scale=0: expected a number from 1e-6 to 1e6"),
        ("command-r", {"rms_norm_eps": 1e-6}, "rms_norm_eps=1e-06: unsupported field"),
        ("command-r7b", {"use_parallel_block": False}, "use_parallel_block=False: expected true"),
        ("command-r7b", {"sliding_window_pattern": 3}, "layer_switch=4: expected 3, as sliding_window_pattern"),
        ("command-r7b", {"rotary_pct": 0.5}, "rotary_pct=0.5: expected 1.0"),
    ],
)
def test_a_field_that_cannot_be_honoured_is_refused_by_name(name, change, named, tmp_path):
    refused(name, change, named, tmp_path)
