"""Gemma, Gemma 2 and 3: their additions to LLaMA change the logits; `test_releases` tests the equality."""

import pytest
from families.compared import refused, seen_in_the_logits


def test_capped_scores_are_seen_in_the_logits(tmp_path):
    seen_in_the_logits("gemma-2-2b", "attention", {"softcap": None}, tmp_path)


@pytest.mark.parametrize(
    ("group", "change"),
    [
        ("norm", {"unit_offset": False}),
        ("embedding", {"scaled": False, "rounded": False}),
        ("feed_forward", {"activation": "geglu"}),
    ],
)
def test_what_the_first_gemma_adds_is_seen_in_the_logits(group, change, tmp_path):
    """One of these is that `gelu` means its approximation."""
    seen_in_the_logits("gemma-2b", group, change, tmp_path, more_than=1e-4)


@pytest.mark.parametrize("change", [{"hidden_act": "silu"}, {"hidden_activation": "gelu"}])
def test_another_gate_of_the_first_gemma_is_refused(change, tmp_path):
    (name, value), *_ = change.items()
    refused("gemma-2b", change, f"{name}={value!r}: expected ", tmp_path)


def test_a_gain_of_one_and_more_is_seen_in_the_logits(tmp_path):
    seen_in_the_logits("gemma-3-270m", "norm", {"unit_offset": False}, tmp_path)


def test_the_base_of_global_layers_is_seen_in_the_logits(tmp_path):
    seen_in_the_logits("gemma-3-1b", "positions", {"base": 10000.0}, tmp_path)
