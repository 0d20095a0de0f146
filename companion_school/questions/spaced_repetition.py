"""Spaced repetition: the reader's answers, and the days when questions are due again.

Answers are stored in `questions.json`, beside the file that records progress in the exercises. The file contains the
day of each answer and whether the answer was right. It also contains the text of the latest answer to each question, so
that a notebook can show that answer again.
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
"""Days until a question is due again: after the first answer, and after each further right answer.

A wrong answer starts over with the first interval. A right answer after the last interval settles the question.
"""
LONGEST = 4_000
"""Maximum number of characters stored of an answer."""

Given = tuple[date, bool]
"""The day of an answer, and whether it was right or, for a prediction, as expected."""


@dataclass(frozen=True)
class State:
    """Repetition state of a question.

    Attributes:
        answers: Number of answers so far.
        due: Day on which the question is due again; None if it has not been answered yet or is settled.
        settled: True if the question will not be asked again.
    """

    answers: int
    due: date | None
    settled: bool = False


def state(given: Sequence[Given]) -> State:
    """Compute the state of a question from all answers to it, in chronological order.

    Only the first answer on a day counts, because afterwards the reader has seen the explanation. Before a question is
    due, a wrong answer resets its interval, but a right answer changes nothing.
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
    """An answer as stored. `text` is empty for every answer to a question except the latest."""

    day: date
    right: bool
    text: str = ""


def _read_rows() -> dict[str, list[_Row]]:
    return read_kept(
        FILE,
        "answers saved by the course",
        lambda rows: [_Row(date.fromisoformat(day), bool(right), *map(str, text)) for day, right, *text in rows],
    )


def read_answers() -> dict[str, list[Given]]:
    """Return the answers to each question, keyed by the question's key.

    Raises:
        ValueError: The file is invalid; the message names it.
    """
    return {key: [(row.day, row.right) for row in rows] for key, rows in _read_rows().items()}


def latest_answers() -> dict[str, tuple[str, bool]]:
    """Return each question's latest answer, as its text and whether it was right, keyed by the question's key.

    Questions whose latest answer was stored without its text are left out.

    Raises:
        ValueError: The file is invalid; the message names it.
    """
    return {key: (rows[-1].text, rows[-1].right) for key, rows in _read_rows().items() if rows and rows[-1].text}


def note_answer(question: Question, right: bool, day: date | None = None, text: str = "") -> None:
    """Store an answer to a question.

    Args:
        question: The question.
        right: True if the answer was right or, for a prediction, as expected.
        day: Day of the answer (default: today).
        text: The answer itself, of which at most `LONGEST` characters are stored.
    """
    known = _read_rows()
    earlier = [row._replace(text="") for row in known.get(question.key, [])]
    known[question.key] = [*earlier, _Row(day or date.today(), right, text[:LONGEST])]
    rows = {
        key: [(row.day.isoformat(), row.right, *([row.text] if row.text else [])) for row in given]
        for key, given in known.items()
    }
    write_kept(FILE, dict(sorted(rows.items())))


def due(asked: Iterable[Question], day: date | None = None) -> list[Question]:
    """Return the questions that are due today, or on `day`, longest overdue first."""
    known, day = read_answers(), day or date.today()
    when = [(state(known[question.key]).due, question) for question in asked if question.key in known]
    waiting = [(on, question) for on, question in when if on is not None and on <= day]
    return [question for _, question in sorted(waiting, key=lambda pair: pair[0])]
