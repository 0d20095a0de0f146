"""Record for lesson 25: scores of SmolLM2 and of its quantized copies on four suites of questions.

The lesson's own cells make the questions, the prompts and the quantized copies. The record contains log-likelihoods in
nats: a list for each question, with one entry per choice. Results are stored in `build/records/scores` and reused.
SmolLM2 must be on this machine (`companion get smollm2`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from authoring.records.stored import LessonRuns, stored
from companion_school.study.real import real_model

CELLS = ("setup", "suites", "suite-names", "suite-others", "suite-course", "scored", "rounded", "judging")
SOME = 30
"""How many number names are asked with each prompt, by the quantized copies, and without the number."""
LAST = 23
"""Last lesson whose questions are in the record."""


class Scores(LessonRuns):
    """The lesson's scores, which are stored in a folder."""

    number, cells = "25", CELLS

    @cached_property
    def model(self) -> tuple[Any, Any]:
        opened = real_model("smollm2")
        if opened is None:
            raise ValueError("smollm2: expected the model on this machine; `companion get smollm2` downloads it")
        return opened

    def __call__(self, name: str, items: Callable[[], Sequence[Any]], *given: str) -> list[list[float]]:
        """Score items with a prompt and the text that precedes it, and return the log-likelihoods."""

        def make() -> dict[str, Any]:
            with torch.no_grad():
                found = self.lesson["scored"](*self.model, items(), *given)
            return {"nats": [[round(nats, 3) for nats in row] for row in found]}

        nats: list[list[float]] = stored(self.folder / f"{name}.json", make)["nats"]
        return nats

    def rounded(self, model: str, name: str, items: Callable[[], Sequence[Any]], *given: str) -> list[list[float]]:
        """Score items with a quantized copy of the model."""
        file = f"{name}-{model.replace(' ', '-').replace(',', '')}"
        how = self.lesson["MODELS"][model]
        if how is None or (self.folder / f"{file}.json").exists():
            return self(file, items, *given)
        own = self.lesson["round_matrices"](self.model[0], *how)
        try:
            return self(file, items, *given)
        finally:
            self.lesson["put_back"](own)


def scores(folder: Path) -> dict[str, Any]:
    """Return the record: log-likelihoods by suite and model, by prompt, for the course's questions, and for a judge."""
    score = Scores(folder)
    lesson = score.lesson
    names, agreement, sums = lesson["number_names"], lesson["agreement"], lesson["sums"]
    written = lesson["PROMPTS"]["written"][0]
    found: dict[str, Any] = {"names": {}, "agreement": {}}
    for model in lesson["MODELS"]:
        found["agreement"][model] = score.rounded(model, "agreement", agreement)
        asked = names if model == "as it is" else lambda: names()[:SOME]
        found["names"][model] = score.rounded(model, "names", asked, written)
    found["prior"] = score("prior", lambda: names()[:SOME], written.replace("{} ", ""))
    found["tokens"] = [[len(score.model[1].encode(text)) for text in item.choices] for item in names()]
    found["judge"] = {
        "as they are": score("judge", lambda: list(lesson["pairs"]())),
        "wrong one padded": score("judge-wrong", lambda: list(lesson["pairs"](wrong_more=lesson["PADDED"]))),
        "right one padded": score("judge-right", lambda: list(lesson["pairs"](right_more=lesson["PADDED"]))),
    }
    found["prompts"] = {}
    for style, (ask, _) in lesson["PROMPTS"].items():
        for shots in (0, 4):
            known = style == "written" and shots == 0
            found["prompts"][f"{style}, {shots}"] = (
                found["names"]["as it is"][:SOME]
                if known
                else score(f"{style}-{shots}", lambda: names()[:SOME], ask, lesson["solved"](style, shots))
            )
    found["sums"] = {"as it is": score("sums", sums, "{0[0]} + {0[1]} =")}
    found["course"] = course(score)
    return found


def course(score: Scores) -> dict[str, Any]:
    """Return the course's multiple-choice questions by lesson and name, with scores for every sixth of them."""
    asked = {key: item for key, item in score.lesson["course_questions"]().items() if int(key.split("/")[0]) <= LAST}
    tokenizer = score.model[1]
    found = {
        key: {
            "is": score.lesson["digest"](item), "right": item.right,
            "bytes": [len(text.encode()) for text in item.choices],
            "tokens": [len(tokenizer.encode(text)) for text in item.choices],
        }
        for key, item in asked.items()
    }  # fmt: skip
    sixth = list(asked)[::6]
    for at in range(0, len(sixth), 28):
        part = sixth[at : at + 28]
        items = [asked[key] for key in part]
        nats = score(f"course-{at}", lambda items=items: items, "Question: {}\nAnswer:")
        prior = score(f"course-prior-{at}", lambda items=items: items, "Answer:")
        for key, given, before in zip(part, nats, prior, strict=True):
            found[key] |= {"nats": given, "prior": before}
    return found
