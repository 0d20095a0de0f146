"""ERNIE 4.5: its additions to LLaMA change the logits; `test_releases` tests the equality with `transformers`."""

from families.compared import seen_in_the_logits


def test_interleaved_pairs_are_seen_in_the_logits(tmp_path):
    seen_in_the_logits("ernie-4.5-0.3b", "positions", {"layout": "half"}, tmp_path)
