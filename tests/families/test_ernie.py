"""ERNIE 4.5: what it adds to LLaMA is seen; `test_releases` has the equality with `transformers`."""

from families.compared import seen_in_the_logits


def test_interleaved_pairs_are_seen_in_the_logits(tmp_path):
    seen_in_the_logits("ernie-4.5-0.3b", "positions", {"layout": "half"}, tmp_path)
