"""OLMo 2: what it adds to LLaMA is seen; `test_releases` has the equality with `transformers`."""

from families.compared import seen_in_the_logits


def test_norms_behind_are_seen_in_the_logits(tmp_path):
    seen_in_the_logits("olmo-2-1b", "norm", {"placement": "pre"}, tmp_path)
