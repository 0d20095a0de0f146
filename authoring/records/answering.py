"""What lesson 20 looks at: a small model of exercise books, and answers that rewards improve, from three starts.

The lesson's own cells are run. Each run is kept in `build/records/answering` when it is done, and is not made again.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from authoring.comparisons.cells import names_of
from companion.files.models import load_model, save_model
from companion.transformer import Transformer

BOOKS = (420, 840, 1260)
"""Updates on the books' pages: more, from the same start, where the working was not learned in fewer."""
TAUGHT = 120
"""Updates on people's answers."""
RATE = 1e-3
"""Of the steps on rewards."""
STEPS = {"checker": (100, 100, 30), "hole": (60, 60)}
"""Of each start, by what pays."""
EVERY = 10
ASKED, TRIES = 500, 32
"""Unseen questions, and answers to each of them, before and after the steps with the checker, from the first start."""
CELLS = (
    "setup",
    "sets-up-words",
    "sets-up-books",
    "sets-up-reading",
    "sets-up-write",
    "template",
    "sets-up-counts",
    "answers",
    "sets-up-people",
    "checker",
    "above-group",
    "group-loss",
    "improve",
    "hole",
)


class Runs:
    """The lesson's training, with what it gave kept in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def lesson(self) -> dict[str, Any]:
        """What the lesson's cells define."""
        return names_of("20", *CELLS)

    def _kept(self, name: str, start: int, make: Callable[[Transformer, torch.Generator], None]) -> Transformer:
        """A model of one start, in half precision as it ships: read, or made and written."""
        place = self.folder / f"{name}-{start}"
        if not place.exists():
            began = time.perf_counter()
            lesson = self.lesson
            model = lesson["small_model"](start) if name == "books" else lesson["with_roles"](self.books(start))
            make(model, torch.Generator().manual_seed(start))
            save_model(place, model.half())
            print(name, start, f"{time.perf_counter() - began:.0f} s", flush=True)
        return load_model(place, dtype=torch.float32)

    def books(self, start: int) -> Transformer:
        """A model that has read exercise books, until it writes most steps of the working as they are."""

        def read(model: Transformer, dice: torch.Generator) -> None:
            begun = copy.deepcopy(model.state_dict())
            for updates in BOOKS:
                model.load_state_dict(begun)
                self.lesson["complete_books"](model, updates, dice.manual_seed(start))
                if self._working(model) > 0.8:
                    break
            print("books", start, updates, "updates", flush=True)

        return self._kept("books", start, read)

    @torch.no_grad()
    def _working(self, model: Transformer) -> float:
        """The share of the steps in new books' working that are the model's first choice."""
        page = self.lesson["pages"](200, torch.Generator().manual_seed(99))[0][:, : 1 + 11]
        said = model(page[:, :-1]).logits.argmax(-1)[:, 6:]
        return (said == page[:, 7:]).float().mean().item()

    def taught(self, start: int) -> Transformer:
        """The same, fine-tuned on people's answers."""
        return self._kept("taught", start, lambda model, dice: self.lesson["fine_tune"](model, TAUGHT, dice))

    def _asked(self, model: Transformer, seed: int) -> list[int]:
        """To how many unseen questions 0, 1, ..., `TRIES` of as many answers are right."""
        dice = torch.Generator().manual_seed(seed)
        q = self.lesson["digits"](self.lesson["HELD"][:ASKED])
        prompts, found = self.lesson["template"](q), []
        for _ in range(TRIES):
            found.append(self.lesson["verified"](self.lesson["write"](model, prompts, 1.0, dice), q))
        return torch.stack(found).sum(0).bincount(minlength=TRIES + 1).tolist()  # type: ignore[no-any-return]

    def __call__(self, reward: str, start: int) -> dict[str, Any]:
        """What one run gave: a row every `EVERY` steps, and how many of `TRIES` answers were right before and after."""
        file = self.folder / f"{reward}-{start}.json"
        if not file.exists():
            model = self.taught(start)
            counts = reward == "checker" and start == 0
            counted = [self._asked(model, start)] if counts else []
            rows, says, seconds = self._improved(model, reward, start)
            counted += [self._asked(model, start)] if counts else []
            found = {"reward": reward, "start": start, "seconds": round(seconds, 1), "rows": rows}
            found |= {"says": says} if reward == "hole" else {"counted": counted}
            self.folder.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(found), encoding="utf-8")
            print(reward, start, rows[::5], f"{seconds:.0f} s of a core", flush=True)
        read: dict[str, Any] = json.loads(file.read_text("utf-8"))
        return read

    def _improved(self, model: Transformer, reward: str, start: int) -> tuple[list[list[float]], list[str], float]:
        """Rows of [step, reward, share right, tokens, share with working], three last answers, the steps' seconds."""
        lesson, dice, rows, spent = self.lesson, torch.Generator().manual_seed(start), [], 0.0
        judge = lesson["holed" if reward == "hole" else "verified"]
        optimizer = torch.optim.AdamW(model.parameters(), RATE, (0.9, 0.95), weight_decay=0.0)
        for step in range(STEPS[reward][start] + 1):
            began = time.process_time()
            texts, q, won = lesson["improve"](model, optimizer, judge, dice)
            spent += time.process_time() - began
            if step % EVERY == 0:
                answer = texts[:, lesson["PROMPT"] :]
                shares = (
                    won.mean(),
                    lesson["verified"](texts, q).float().mean(),
                    lesson["counts"](texts).sum(1).float().mean(),
                    (answer[:, 0] != lesson["EQUALS"]).float().mean(),
                )
                rows.append([step, *(round(share.item(), 3) for share in shares)])
        return rows, [lesson["spoken"](text) for text in texts[::8][:3]], spent


def answering(folder: Path) -> tuple[dict[str, Any], Transformer]:
    """The record: a list of runs. And the model of books that the lesson begins with."""
    run = Runs(folder)
    return {"runs": [run(reward, start) for reward, of in STEPS.items() for start in range(len(of))]}, run.books(0)
