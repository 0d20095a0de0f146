"""Runs that take longer than a lesson, as records: `python -m authoring.records` in the repository makes them again.

story.json      the story model of lesson 14: its text, plan, curve, and what it wrote on the way
story/          that model: safetensors in half precision, its configuration, its tokenizer
law.json        trials that the scaling law of lesson 14 is held against
cache.json      kinds of attention at equal bytes of cache, for lesson 15
recall.json     what a layer with tables or a softmax recalls of pairs, for lesson 17
answering.json  answers that rewards improve, from three starts, for lesson 20
answering/      the model of exercise books that lesson 20 begins with: safetensors in half precision, its configuration
heads.json      what heads for later tokens do to the loss of the next one, for lesson 18
rounding.json   what small models lose by rounded weights, for lesson 19
steps.json      AdamW and Muon over rates, rates over widths, and schedules, for lesson 19
inside.json     heads and streams of small story models, and how heads form, for lesson 21
real.json       what lessons measure on SmolLM2 and MiniLM, by the names in their cells: `companion_school.study.real`
live.json       the models of the explorer, and what 8 bits cost them
live/           these models: `companion_school.explorer.models` says in which form
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

NAMES = ("answering", "cache", "heads", "inside", "law", "live", "recall", "rounding", "steps", "story")


def record(name: str) -> dict[str, Any]:
    """What the record of that name holds. Raises `ValueError` for a name that there is not, naming those there are."""
    if name not in NAMES:
        raise ValueError(f"record {shown(name)}: expected one of {', '.join(NAMES)}")
    text = resources.files(__name__).joinpath(f"{name}.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def story_model() -> tuple[Transformer, BytePairTokenizer]:
    """The story model, computing in single precision, and its tokenizer."""
    with resources.as_file(resources.files(__name__).joinpath("story")) as folder:
        model = load_model(Path(folder), dtype=torch.float32)
        return model.eval(), BytePairTokenizer.load(Path(folder) / "tokenizer.json")


def answering_model() -> Transformer:
    """The model of lesson 20 that has read exercise books, computing in single precision."""
    with resources.as_file(resources.files(__name__).joinpath("answering")) as folder:
        return load_model(Path(folder), dtype=torch.float32).eval()
