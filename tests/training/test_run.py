"""A command resumes a run only if it is the run that the command asks for."""

import json
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch

from companion.config.model import AttentionConfig, FeedForwardConfig, ModelConfig
from companion.training.distributed.parallel import Parallel
from companion.training.run import Run
from companion.training.run_folder import RunFolder
from companion.training.settings import TextSettings

CONFIG = ModelConfig(23, 8, 2, context=9, attention=AttentionConfig(2), feed_forward=FeedForwardConfig(8))


def test_a_run_of_before_a_field_existed_goes_on_and_one_of_another_model_does_not():
    settings, now = TextSettings(model="model.json"), json.loads(json.dumps(asdict(CONFIG)))
    run = Run(settings, RunFolder("runs/one"), torch.device("cpu"), Parallel(), "companion train")
    run.task, run.record = SimpleNamespace(config=CONFIG), {"model": now}
    run.check_model()
    before = json.loads(json.dumps(now))
    for group, field in (
        ("attention", "window"),
        ("attention", "qk_norm"),
        ("positions", "scaling"),
        ("norm", "unit_offset"),
    ):
        del before[group][field]
    run.record = {"model": before}
    run.check_model()
    now["attention"]["window"] = {"width": 5}
    run.record = {"model": now}
    with pytest.raises(ValueError, match="--model model.json: the run in runs/one started with a different file"):
        run.check_model()
