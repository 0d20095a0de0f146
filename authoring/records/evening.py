"""Record for lesson 27: its pipeline from a folder of texts to a fine-tuned model, with ten times the compute.

The lesson's own cells do the work, with larger settings. The steps are pilot runs, `companion train`, three ways to
lengthen the context and a control, `companion tune`, quantization, and a check of generated stories. The results of all
steps are stored in `build/records/evening` and reused.
"""

from __future__ import annotations

import shutil
import time
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from authoring.records.stored import LessonRuns, stored
from companion import Sampling, account, complete
from companion.data.stories import read
from companion.files.models import load_model, save_model
from companion.training.run_folder import RunFolder
from companion.transformer import Transformer

RAW = 5000
"""Number of stories in the untidy folder before drafts of every fifth story are added. The page has 2,000."""
PILOTS, LOOKS = (16, 32, 64), (30, 60, 120, 240)
BUDGET = 6e11
"""Operations of the main run."""
FURTHER, TUNED, OPENINGS, TALKS = 60, 60, 150, 600
"""Numbers of updates with a longer context, of tuning on whole stories, and of tuning on first sentences; number of
conversations to tune on."""
STARTS = (0, 1, 2)
RATES = (0.003, 0.001)
"""Learning rates for training with a longer context. The figure and the answers use the first."""
ITEMS, TOLD = 100, 40
CELLS = (
    "setup", "raw-folder", "inspect", "cleaned", "clean-first", "sets-up-pilots", "tokens", "pilot", "fitted", "advice",
    "command", "train-tales", "score", "interval", "suite", "asked", "stretch", "extend", "lengthened",
    "talks", "tune", "right-animals", "round",
)  # fmt: skip
"""Cells of the lesson that define the functions and the page's texts."""


class Evening(LessonRuns):
    """The steps of the pipeline, whose results are stored in a folder."""

    number, cells = "27", CELLS

    def pilot(self, width: int) -> dict[str, Any]:
        """Return a pilot run on the lesson's own texts: its parameters, and its score by update."""

        def make() -> dict[str, Any]:
            parameters, scores = self.lesson["pilot"](width, LOOKS)
            return {"width": width, "parameters": parameters, "scores": {u: round(s, 4) for u, s in scores.items()}}

        return stored(self.folder / f"pilot-{width}.json", make)

    @cached_property
    def texts(self) -> tuple[list[str], list[str], list[str]]:
        """Training, validation and test texts for the longer run."""
        found = self.lesson["raw_folder"](RAW)
        kept: tuple[list[str], list[str], list[str]] = self.lesson["cleaned"](
            found, self.lesson["near_duplicates"](found)
        )
        return kept

    @cached_property
    def law(self) -> tuple[float, ...]:
        """The law that is fitted to the pilot runs."""
        points = [(run["parameters"], 1024 * int(u), score) for run in map(self.pilot, PILOTS)
                  for u, score in run["scores"].items()]  # fmt: skip
        law: tuple[float, ...] = self.lesson["fitted"](points)
        return law

    @cached_property
    def width(self) -> int:
        """The width that the law recommends for the budget of the longer run."""
        return int(self.lesson["advice"](self.law, BUDGET)[0])

    @cached_property
    def run(self) -> RunFolder:
        """Run `companion train` for the main run, or resume it if it was interrupted."""
        place = self.folder / "main"
        if not (place / "run" / "result.json").exists():
            began = time.process_time()
            shutil.rmtree(place / "tales", ignore_errors=True)
            steps = round(BUDGET / 6 / self.parameters / 1024)
            self.lesson["train_tales"](place, self.texts[0], self.width, steps)
            (place / "seconds").write_text(f"{time.process_time() - began:.0f}")
        return RunFolder(place / "run")

    @property
    def parameters(self) -> int:
        return account.parameters(self.lesson["shape_of"](self.width)).total

    def trained(self) -> dict[str, Any]:
        """Measure the main run on the test set and on both suites."""

        def make() -> dict[str, Any]:
            lesson, model, words = self.lesson, self.run.model().eval(), self.run.tokenizer()
            found = lesson["tested"](model, words, self.texts[2])
            suites = [lesson["suite"](), lesson["suite"](ITEMS, seed=128)]
            mine, large = (sum(lesson["answers"](model, words, items)) for items in suites)
            return {
                "width": self.width,
                "parameters": self.parameters,
                "updates": self.run.record()["updates"],
                "promised": round(self.lesson["advice"](self.law, BUDGET)[1], 4),
                "validated": round(self.run.result()["bits_per_byte"], 4),
                "looked": round(lesson["tested"](model, words, self.texts[1])["score"], 4),
                "score": round(found["score"], 4),
                "interval": [round(end, 4) for end in found["interval"]],
                "documents": len(self.texts[2]),
                "page_suite": mine,
                "suite": [large, ITEMS],
                "seconds": float((self.folder / "main" / "seconds").read_text()),
            }

        return stored(self.folder / "trained.json", make)

    @cached_property
    def _tokens(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        words = self.run.tokenizer()
        train, looked, _ = (self.lesson["ids_of"](words, texts) for texts in self.texts)
        return train, looked

    def longer(self, start: int, rate: float = RATES[0]) -> dict[str, Any]:
        """Lengthen the context in three ways, and train a control; the continued training uses one seed."""

        def make() -> dict[str, Any]:
            began, lesson, words = time.process_time(), self.lesson, self.run.tokenizer()
            train, looked = self._tokens
            ways, rows = lesson["lengthened"](self.run.model().eval(), train, looked, FURTHER, start, rate)
            spent = time.process_time() - began
            scores = {how: lesson["tested"](model, words, self.texts[1], model.config.context)
                      for how, model in ways.items()}  # fmt: skip
            if start == 0 and rate == RATES[0]:
                save_model(self.folder / "long", ways["larger base"])
            return {
                "start": start,
                "rate": rate,
                "updates": FURTHER,
                "rows": {how: [[round(x, 3) for x in part] for part in both] for how, both in rows.items()},
                "scores": {how: round(found["score"], 4) for how, found in scores.items()},
                "intervals": {how: [round(x, 4) for x in found["interval"]] for how, found in scores.items()},
                "seconds": round(spent, 1),
            }

        return stored(self.folder / f"longer-{start}-{rate}.json", make)

    def answering(self) -> dict[str, Any]:
        """Fine-tune the model with the longest context, and evaluate its answers, quantized weights and stories."""

        def make() -> dict[str, Any]:
            lesson, words, place = self.lesson, self.run.tokenizer(), self.folder / "answers"
            long = load_model(self.folder / "long").eval()
            items = lesson["suite"](ITEMS, seed=128)
            suite = sum(lesson["answers"](long, words, items, 256))
            added = lesson["rounded"](long, words, self.texts[1], 256)
            began = time.process_time()
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            run = lesson["tuned"](place, long, words, self.texts[0][:TALKS], TUNED)
            seconds = time.process_time() - began
            right, _ = lesson["answered"](run)
            return {
                "suite": [suite, ITEMS],
                "added": {form: round(more, 4) for form, more in added.items()},
                "right": sum(right),
                "updates": TUNED,
                "told": self._told(long),
                "seconds": round(seconds, 1),
            }

        return stored(self.folder / "answering.json", make)

    def openings(self) -> dict[str, Any]:
        """Fine-tune the model with the longest context on one-sentence answers, and count its right answers."""

        def make() -> dict[str, Any]:
            lesson, place = self.lesson, self.folder / "openings"
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            texts = [lesson["opening"](text) for text in self.texts[0][:TALKS]]
            long, began = load_model(self.folder / "long").eval(), time.process_time()
            run = lesson["tuned"](place, long, self.run.tokenizer(), texts, OPENINGS)
            seconds = time.process_time() - began
            right, _ = lesson["answered"](run)
            found = lesson["tested"](run.model().eval(), run.tokenizer(), self.texts[1], 256)
            score = round(found["score"], 4)
            return {"right": sum(right), "score": score, "updates": OPENINGS, "seconds": round(seconds, 1)}

        return stored(self.folder / "openings.json", make)

    def _told(self, model: Transformer) -> dict[str, int]:
        """Let a model tell stories, and count the complete ones, the consistent ones, and copies of training texts."""
        words = self.run.tokenizer()
        rule, known = Sampling(temperature=0.7, top_p=0.95), set(self.texts[0])
        new = complete(
            model, [[words.separator]] * TOLD, max_new_tokens=250, sampling=rule, stop={words.separator}, seed=0
        )
        texts = [words.decode(ids).strip() for ids in new]
        readings = [read(text) for text in texts]
        return {
            "stories": TOLD,
            "whole": sum(one.whole for one in readings),
            "keeps": sum(one.keeps for one in readings),
            "copied": sum(text in known for text in texts),
        }


def evening(folder: Path) -> dict[str, Any]:
    """Return the record: the pilot runs, the main run, the longer contexts, the answers, and the cost of each step."""
    steps = Evening(folder)
    pilots = [steps.pilot(width) for width in PILOTS]
    trained = steps.trained()
    longer, gentler = ([steps.longer(start, rate) for start in STARTS] for rate in RATES)
    answers, openings = steps.answering(), steps.openings()
    size = trained["parameters"]
    return {
        "pilots": pilots,
        "trained": trained,
        "longer": longer,
        "gentler": gentler,
        "answers": answers,
        "openings": openings,
        "cost": {
            "training": [6 * size * 1024 * trained["updates"], trained["seconds"]],
            "longer context": [6 * size * 1024 * FURTHER, longer[0]["seconds"] / 4],
            "tuning": [6 * size * 8 * 35 * OPENINGS, openings["seconds"]],
        },
    }
