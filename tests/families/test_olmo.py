"""OLMo 2 and 3: their additions to LLaMA change the logits; `test_releases` tests the equality with `transformers`."""

import json

import pytest
from families.compared import PUBLISHED, release, seen_in_the_logits

from companion import WindowConfig
from companion.families.pretrained import load_pretrained


def test_norms_behind_are_seen_in_the_logits(tmp_path):
    seen_in_the_logits("olmo-2-1b", "norm", {"placement": "pre"}, tmp_path)


@pytest.mark.parametrize("window", [None, WindowConfig(7, (True, True, True, False))])
def test_local_layers_and_that_they_are_not_scaled_are_seen_in_the_logits(window, tmp_path):
    seen_in_the_logits("olmo-3-7b", "attention", {"window": window}, tmp_path)


def test_a_base_on_which_versions_of_released_code_disagree_is_refused(tmp_path):
    (path,) = [path for path in PUBLISHED if path.stem == "olmo-3-7b"]
    release(path, 0, tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"rope_theta": 10000.0}))
    with pytest.raises(ValueError, match=r"rope_theta=10000\.0: expected 500000\.0: versions of the released code"):
        load_pretrained(tmp_path)
