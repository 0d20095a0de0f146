"""An error about a name that a cell cannot know comes with advice."""

import pytest
import torch

from companion import AttentionConfig, FeedForwardConfig, ModelConfig, Transformer
from companion_school.study.missing_names import RENAMED, advice_on


def error_of(function):
    with pytest.raises((NameError, TypeError, ImportError)) as found:
        function()
    return found.value


def test_a_name_without_a_value_asks_for_the_cells_above():
    assert "first code cell" in advice_on(error_of(lambda: check(1)))
    assert "Run All Above" in advice_on(error_of(lambda: queries + 1))


def test_code_older_than_the_course_is_told_the_new_names():
    config = ModelConfig(7, 8, 1, 9, AttentionConfig(2), FeedForwardConfig(10))
    model, tokens = Transformer(config), torch.zeros(1, 3, dtype=torch.long)
    for old in ("real", "counted"):
        advice = advice_on(error_of(lambda old=old: model.features(tokens, **{old: tokens > 0})))
        assert advice == f"If this is a name of `companion`: {old} is now called {RENAMED[old]}."
        assert model.features(tokens, **{RENAMED[old]: tokens >= 0}).stream.shape == (1, 3, 8)
    assert "is now called softcap" in advice_on(error_of(lambda: AttentionConfig(2, score_cap=3.0)))
    assert AttentionConfig(2, softcap=3.0).softcap == 3
    advice = advice_on(error_of(lambda: __import__("companion.data.yardsticks")))
    assert "companion.data.yardsticks is now called companion.data.baselines" in advice


def test_other_errors_are_left_alone():
    assert advice_on(error_of(lambda: torch.zeros(2, wrong=1))) is None
    assert advice_on(error_of(lambda: __import__("no_such_module"))) is None
