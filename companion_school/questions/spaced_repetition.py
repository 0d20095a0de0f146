"""When the reader answered which question, and when it is to be asked again.

The file is `questions.json` beside the progress in the exercises. It holds each answer's day and whether it was right,
and of the latest answer to each question also what was written, so that a notebook can show it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import NamedTuple

from companion.ground.user_files import read_kept, write_kept
from companion_school.questions.question import Question

FILE = "questions.json"
INTERVALS = (1, 3, 7, 21)
"""Days until a question is asked again: after the first answer, and after each right one. A wrong one begins anew."""
LONGEST = 4_000
"""Characters of an answer that are stored."""

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


class _Row(NamedTuple):
    """An answer as the file holds it. `text` is what was written, empty except for the latest answer to a question."""

    day: date
    right: bool
    text: str = ""


def _read_rows() -> dict[str, list[_Row]]:
    return read_kept(
        FILE,
        "the answers that the course kept",
        lambda rows: [_Row(date.fromisoformat(day), bool(right), *map(str, text)) for day, right, *text in rows],
    )


def read_answers() -> dict[str, list[Given]]:
    """All answers by the question's key. Raises `ValueError` naming the file if it cannot be understood."""
    return {key: [(row.day, row.right) for row in rows] for key, rows in _read_rows().items()}


def latest_answers() -> dict[str, tuple[str, bool]]:
    """Return what was written in the latest answer to each question, by the question's key, and whether it was right.

    Questions whose latest answer was stored without its text are left out.

    Raises:
        ValueError: The file cannot be understood; the message names it.
    """
    return {key: (rows[-1].text, rows[-1].right) for key, rows in _read_rows().items() if rows and rows[-1].text}


def note_answer(question: Question, right: bool, day: date | None = None, text: str = "") -> None:
    """Store that a question was answered today, or on `day`, and what was written."""
    known = _read_rows()
    earlier = [row._replace(text="") for row in known.get(question.key, [])]
    known[question.key] = [*earlier, _Row(day or date.today(), right, text[:LONGEST])]
    rows = {
        key: [(row.day.isoformat(), row.right, *([row.text] if row.text else [])) for row in given]
        for key, given in known.items()
    }
    write_kept(FILE, dict(sorted(rows.items())))


def due(asked: Iterable[Question], day: date | None = None) -> list[Question]:
    """Those to be asked again today, or on `day`: the longest overdue first."""
    known, day = read_answers(), day or date.today()
    when = [(state(known[question.key]).due, question) for question in asked if question.key in known]
    waiting = [(on, question) for on, question in when if on is not None and on <= day]
    return [question for _, question in sorted(waiting, key=lambda pair: pair[0])]
