"""Gemma 2 and 3: what they add to LLaMA is seen; `test_releases` has the equality with `transformers`."""

from families.compared import seen_in_the_logits


def test_capped_scores_are_seen_in_the_logits(tmp_path):
    seen_in_the_logits("gemma-2-2b", "attention", {"score_cap": None}, tmp_path)


def test_a_gain_of_one_and_more_is_seen_in_the_logits(tmp_path):
    seen_in_the_logits("gemma-3-270m", "norm", {"unit_offset": False}, tmp_path)


def test_the_base_of_global_layers_is_seen_in_the_logits(tmp_path):
    seen_in_the_logits("gemma-3-1b", "positions", {"base": 10000.0}, tmp_path)
