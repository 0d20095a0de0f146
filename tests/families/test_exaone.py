"""EXAONE 4: its additions to LLaMA change the logits; `test_releases` tests the equality with `transformers`."""

import json

import pytest
from families.compared import PUBLISHED, release, seen_in_the_logits

from companion.families.pretrained import load_pretrained


@pytest.mark.parametrize(
    ("group", "fields"),
    [("positions", {"pattern": (True,)}), ("attention", {"qk_norm": None}), ("norm", {"placement": "pre"})],
)
def test_what_it_adds_is_seen_in_the_logits(group, fields, tmp_path):
    seen_in_the_logits("exaone-4.0-32b", group, fields, tmp_path)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            {"layer_types": None},
            "sliding_window_pattern='LLLG': expected a whole number >= 1, unless layer_types is given",
        ),
        (
            {"layer_types": None, "sliding_window": None},
            "sliding_window=None: expected a number of tokens, unless layer_types",
        ),
        ({"sliding_window": None}, "sliding_window=None: expected a number of tokens, because some layers are local"),
    ],
)
def test_windows_that_are_not_said_are_refused_by_name(change, named, tmp_path):
    (path,) = [path for path in PUBLISHED if path.stem == "exaone-4.0-32b"]
    release(path, 0, tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    with pytest.raises(ValueError, match=r"config\.json: ") as caught:
        load_pretrained(tmp_path)
    assert named in str(caught.value)
