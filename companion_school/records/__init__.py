"""Recorded results of runs that take too long to repeat in a lesson.

`python -m authoring.records` in the repository repeats the runs, and `python -m authoring.records.real` repeats the
measurements in real.json.

    story.json      training runs of story models for lesson 14: plans, loss curves, and samples during training
    story/          story model of lesson 14: safetensors in half precision, configuration and tokenizer
    law.json        training runs of several sizes, for the scaling law of lesson 23
    cache.json      kinds of attention with caches of equal size in bytes, for lesson 15
    data.json       training runs on raw, deduplicated, filtered and mixed text, for lesson 24
    recall.json     recall of pairs by layers with tables and by softmax attention, for lesson 17
    heads.json      effect of heads for later tokens on the loss of the next token, for lesson 18
    rounding.json   loss of small models after rounding of their weights, for lesson 19
    steps.json      AdamW and Muon at several learning rates, rates at several widths, and schedules, for lesson 22
    answering.json  reinforcement learning of answers from three starting points, for lesson 20
    answering/      model trained on exercise books, with which lesson 20 begins: safetensors in half precision and
                    configuration
    inside.json     heads and residual streams of small story models, and how heads form, for lesson 21
    evening.json    a small model from its texts to its answers, for lesson 27
    scores.json     answers of SmolLM2, of rounded copies and of a judge to four suites of questions, for lesson 25
    real.json       measurements on SmolLM2 and MiniLM, by the cells' names (see `companion_school.study.real`)
    smollm2.json    logits of transformers for SmolLM2, with which stage 10 of *Your own transformer* compares
    live.json       models of the explorer, and the cost of storing them in 8 bits
    live/           these models, in the format that `companion_school.explorer.models` describes
"""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from companion.data.tokenizer import BytePairTokenizer
from companion.files.models import load_model
from companion.ground.fields import shown
from companion.transformer import Transformer

NAMES = (
    "answering",
    "cache",
    "data",
    "evening",
    "heads",
    "inside",
    "law",
    "live",
    "recall",
    "rounding",
    "scores",
    "steps",
    "story",
)


def record(name: str) -> dict[str, Any]:
    """Return the contents of a record.

    Args:
        name: One of `NAMES`.

    Raises:
        ValueError: There is no such record. The message lists all records.
    """
    if name not in NAMES:
        raise ValueError(f"record {shown(name)}: expected one of {', '.join(NAMES)}")
    return read(name)


def read(name: str) -> dict[str, Any]:
    """Return the contents of a JSON file in this folder, given its name without the extension."""
    found: dict[str, Any] = json.loads(resources.files(__name__).joinpath(f"{name}.json").read_text("utf-8"))
    return found


def story_model() -> tuple[Transformer, BytePairTokenizer]:
    """Load the story model, in single precision, and its tokenizer."""
    with resources.as_file(resources.files(__name__).joinpath("story")) as folder:
        model = load_model(Path(folder), dtype=torch.float32)
        return model.eval(), BytePairTokenizer.load(Path(folder) / "tokenizer.json")


def answering_model() -> Transformer:
    """Load lesson 20's model, which was trained on exercise books, in single precision."""
    with resources.as_file(resources.files(__name__).joinpath("answering")) as folder:
        return load_model(Path(folder), dtype=torch.float32).eval()
