"""GPT-Neo: unscaled attention scores and local layers; `test_releases` tests the equality with `transformers`."""

import pytest
from families.compared import PUBLISHED, refused, release, seen_in_the_logits


@pytest.mark.parametrize("change", [{"score_width": None}, {"window": None}])
def test_what_it_does_otherwise_is_seen_in_the_logits(change, tmp_path):
    seen_in_the_logits("tinystories-33m", "attention", change, tmp_path)


def test_layers_that_are_all_global_have_no_window(tmp_path):
    (path,) = [path for path in PUBLISHED if path.stem == "gpt-neo-125m"]
    kinds = {"attention_types": [[["global"], 4]], "attention_layers": ["global"] * 4}
    ours, _ = release(path, 1, tmp_path, **kinds)
    assert ours.config.attention.window is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"attention_types": [[["global", "local"], 3]]}, "4 layers in total, each global or local"),
        ({"attention_types": [[["global", "near"], 2]]}, "4 layers in total, each global or local"),
        ({"attention_types": "x"}, "attention_types='x': expected pairs of layer types"),
        ({"attention_types": None}, "attention_types=None: expected pairs of layer types"),
        ({"attention_layers": ["local"] * 4}, "expected the same types of layers as in attention_types"),
        ({"window_size": 0}, "window_size=0: expected a whole number >= 1"),
    ],
)
def test_a_field_that_cannot_be_honoured_is_refused_by_name(change, named, tmp_path):
    refused("gpt-neo-125m", change, named, tmp_path)
