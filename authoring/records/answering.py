"""Record for lesson 20: a small model trained on exercise books, and several methods for improving its answers.

The runs use the lesson's own cells. Results are stored in `build/records/answering` and reused.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from authoring.records.adapted import adapted
from authoring.records.stored import LessonRuns, stored
from companion.files.models import load_model, save_model
from companion.transformer import Transformer

BOOKS = (420, 840, 1260)
"""Numbers of updates on pages of books. If the working is not learned, training starts again with the next number."""
TAUGHT = 120
"""Updates of fine-tuning on people's answers."""
RATE = 1e-3
"""Learning rate of the steps on rewards."""
STEPS = {"checker": (100, 100, 100), "hole": (60, 60, 60)}
"""Number of steps for each seed, by reward."""
EVERY = 10
STARTS = (0, 1, 2)
ASKED, TRIES = 500, 32
"""Number of unseen questions, and of answers per question, before and after training with the checker from the first
seed."""
TEACHER, DISTILLED = 12, (0, 6, 12, 24)
"""Number of steps with the checker that train the teacher, and the updates after which the student is measured."""
CELLS = (
    "setup", "sets-up-words", "sets-up-write", "sets-up-books", "sets-up-reading", "template", "sets-up-counts",
    "answers", "sets-up-people", "fine-tune", "sets-up-tries", "above-group", "improve", "hole", "distil",
)  # fmt: skip


class Runs(LessonRuns):
    """The lesson's training runs, whose results are stored in a folder."""

    number, cells = "20", CELLS

    def _kept(self, name: str, start: int, make: Callable[[Transformer, torch.Generator], None]) -> Transformer:
        """Load the model of one seed in half precision, as it ships. If necessary, train and save it first."""
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
        """Return a model trained on exercise books.

        Its training ends after the first budget at which it predicts more than 80% of the working, or after the last
        budget.
        """

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
        """Return the share of tokens in the worked steps of unseen books that the model ranks as most probable."""
        page = self.lesson["pages"](200, torch.Generator().manual_seed(99))[0][:, : 1 + 11]
        said = model(page[:, :-1]).logits.argmax(-1)[:, 6:]
        return (said == page[:, 7:]).float().mean().item()

    def taught(self, start: int) -> Transformer:
        """Return the model from `books` after fine-tuning on people's answers."""
        return self._kept("taught", start, lambda model, dice: self.lesson["fine_tune"](model, TAUGHT, dice))

    def _asked(self, model: Transformer, seed: int) -> list[int]:
        """Return the number of unseen questions that got 0, 1, ..., `TRIES` right answers."""
        dice = torch.Generator().manual_seed(seed)
        q = self.lesson["digits"](self.lesson["HELD"][:ASKED])
        prompts, found = self.lesson["template"](q), []
        for _ in range(TRIES):
            found.append(self.lesson["verified"](self.lesson["write"](model, prompts, 1.0, dice), q))
        return torch.stack(found).sum(0).bincount(minlength=TRIES + 1).tolist()  # type: ignore[no-any-return]

    def __call__(self, reward: str, start: int) -> dict[str, Any]:
        """Return a run's record: a row for every `EVERY` steps, and sample answers or counts of right answers."""
        file = self.folder / f"{reward}-{start}.json"

        def make() -> dict[str, Any]:
            model = self.taught(start)
            counts = reward == "checker" and start == 0
            counted = [self._asked(model, start)] if counts else []
            rows, says, seconds = self._improved(model, reward, start)
            counted += [self._asked(model, start)] if counts else []
            found = {"reward": reward, "start": start, "seconds": round(seconds, 1), "rows": rows}
            found |= {"says": says} if reward == "hole" else {"counted": counted}
            return found

        return stored(file, make)

    def _right(self, model: Transformer, start: int) -> float:
        share: float = self.lesson["right_share"](model, dice=torch.Generator().manual_seed(start))
        return round(share, 3)

    def teacher_and_student(
        self, start: int, dice: torch.Generator
    ) -> tuple[Transformer, Transformer, torch.optim.Optimizer]:
        """Return a teacher trained with rewards, a student without this training, and the student's optimizer."""
        teacher, student = self.taught(start), self.taught(start)
        learning, following = (
            torch.optim.AdamW(model.parameters(), RATE, (0.9, 0.95), weight_decay=0.0) for model in (teacher, student)
        )
        for _ in range(TEACHER):
            self.lesson["improve"](teacher, learning, self.lesson["verified"], dice)
        return teacher, student, following

    def distilled(self, start: int) -> dict[str, Any]:
        """Train a student on its own answers, corrected by a teacher, and return its accuracy over time as rows of
        [updates, share right]."""

        def make() -> dict[str, Any]:
            dice, rows = torch.Generator().manual_seed(start), []
            teacher, student, optimizer = self.teacher_and_student(start, dice)
            for step in range(DISTILLED[-1] + 1):
                if step in DISTILLED:
                    rows.append([step, self._right(student, start)])
                self.lesson["distil"](student, teacher, optimizer, dice)
            return {"start": start, "teacher": self._right(teacher, start), "rows": rows}

        return stored(self.folder / f"distilled-{start}.json", make)

    def _improved(self, model: Transformer, reward: str, start: int) -> tuple[list[list[float]], list[str], float]:
        """Train on rewards.

        Returns:
            Rows of [step, reward, share right, tokens, share with working], three answers from the last step, and the
            seconds that the steps took.
        """
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
    """Return the record, and the model with which the lesson begins, which was trained on exercise books.

    The record has three lists of runs: runs with rewards, runs with a teacher, and runs of SmolLM2 with adapters.
    """
    run = Runs(folder)
    found = {"runs": [run(reward, start) for reward, of in STEPS.items() for start in range(len(of))]}
    found |= {"distilled": [run.distilled(start) for start in STARTS], "smollm2": adapted(folder)}
    return found, run.books(0)
