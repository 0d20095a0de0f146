"""A command resumes a run only if it is the run that the command asks for."""

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from companion.commands.resuming import check_same_model
from companion.config.model import AttentionConfig, FeedForwardConfig, ModelConfig
from companion.training.settings import TextSettings

CONFIG = ModelConfig(23, 8, 2, context=9, attention=AttentionConfig(2), feed_forward=FeedForwardConfig(8))


def test_a_run_of_before_a_field_existed_goes_on_and_one_of_another_model_does_not():
    folder, task = (
        SimpleNamespace(path=Path("runs/one")),
        SimpleNamespace(config=CONFIG, settings=TextSettings(model="model.json")),
    )
    now = json.loads(json.dumps(asdict(CONFIG)))
    check_same_model(folder, {"model": now}, task)
    before = json.loads(json.dumps(now))
    for group, field in (
        ("attention", "window"),
        ("attention", "qk_norm"),
        ("positions", "scaling"),
        ("norm", "unit_offset"),
    ):
        del before[group][field]
    check_same_model(folder, {"model": before}, task)
    check_same_model(folder, {}, task)
    now["attention"]["window"] = {"width": 5}
    with pytest.raises(ValueError, match="--model model.json: the run in runs/one started with a different file"):
        check_same_model(folder, {"model": now}, task)
