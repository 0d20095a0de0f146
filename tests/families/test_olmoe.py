"""OLMoE: its additions to LLaMA change the logits; `test_releases` tests the equality with `transformers`."""

import pytest
from families.compared import seen_in_the_logits


@pytest.mark.parametrize(("group", "fields"), [("attention", {"qk_norm": None}), ("moe", {"gating": "topk_softmax"})])
def test_what_it_adds_is_seen_in_the_logits(group, fields, tmp_path):
    seen_in_the_logits("olmoe-1b-7b", group, fields, tmp_path)
