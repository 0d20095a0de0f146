"""When the reader answered which question, and when it is to be asked again.

The file is `questions.json` beside the progress in the exercises. It holds each answer's day and whether it was right,
and nothing of what was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from companion.ground.user_files import read_kept, write_kept
from companion_school.questions.question import Question

FILE = "questions.json"
INTERVALS = (1, 3, 7, 21)
"""Days until a question is asked again: after the first answer, and after each right one. A wrong one begins anew."""

Given = tuple[date, bool]
"""The day of an answer, and whether it was right (a prediction: whether it came as expected)."""


@dataclass(frozen=True)
class State:
    """How a question stands. `due`: the day to ask it again; None if it was not answered yet, or is settled."""

    answers: int
    due: date | None
    settled: bool = False


def state(given: Sequence[Given]) -> State:
    """What follows from the answers so far, in their order.

    The first answer of a day counts, since the next ones know the reason. Before its day a question can be lost and
    not won: answered right once more, it is asked when it would have been.
    """
    step, due, last = 0, None, None
    for day, right in given:
        if day == last:
            continue
        last = day
        if due is None or not right:
            step = 0
        elif day >= due:
            step += 1
        else:
            continue
        if step == len(INTERVALS):
            return State(len(given), None, settled=True)
        due = day + timedelta(days=INTERVALS[step])
    return State(len(given), due)


def read_answers() -> dict[str, list[Given]]:
    """All answers by the question's key. Raises `ValueError` naming the file if it cannot be understood."""
    return read_kept(
        FILE,
        "the answers that the course kept",
        lambda given: [(date.fromisoformat(day), bool(right)) for day, right in given],
    )


def note_answer(question: Question, right: bool, day: date | None = None) -> None:
    """Keep that a question was answered today, or on `day`."""
    known = read_answers()
    known.setdefault(question.key, []).append((day or date.today(), right))
    rows = {key: [(when.isoformat(), well) for when, well in given] for key, given in known.items()}
    write_kept(FILE, dict(sorted(rows.items())))


def due(asked: Iterable[Question], day: date | None = None) -> list[Question]:
    """Those to be asked again today, or on `day`: the longest overdue first."""
    known, day = read_answers(), day or date.today()
    when = [(state(known[question.key]).due, question) for question in asked if question.key in known]
    waiting = [(on, question) for on, question in when if on is not None and on <= day]
    return [question for _, question in sorted(waiting, key=lambda pair: pair[0])]
