"""The lessons' questions as exercises of a problem set, with choices in an order determined by the secret.

Each question becomes a function without arguments that returns either the letter of a choice or a number. It is
released and graded like any exercise with one fixed result: all points are for the hidden check, and the check in a
student's notebook does not contain the answer. A prediction can be graded if it lists choices and reasons; its function
returns a choice and a reason.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from companion_school.checking.exercise import Case, Draw, Exercise, Group, Mistake, Value
from companion_school.course.hidden_seeds import keyed
from companion_school.questions.numbers import read_number
from companion_school.questions.question import Answer, Question, find_question, questions

POINTS, PREDICTION_POINTS = 1, 2
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def is_question(id: str) -> bool:
    """Return True if `id` looks like a question's id, as in "2.a"."""
    return re.fullmatch(r"\d{1,2}\.[a-z]", id) is not None


def function_name(question: Question) -> str:
    """Return the name of the function that a student writes, as in `question_2_a`."""
    return f"question_{question.id.replace('.', '_')}"


_LESSON = re.compile(
    r"\b((?:cell|head|code|formula|equation|picture|numbers|chances|figure)s? (?:above|below)|Figure \d+\.\d+|press\b|"
    r"(?:with|do|does|of) this (?:model|head|run)|with these weights|these \w+ clocks|our batch|the runs of|"
    r"(?:after )?the \d+ updates|in these (?:steps|runs)|this lesson|the figure|handles?|stations?|sliders?)\b",
    re.IGNORECASE,
)
"""Phrases that refer to a cell, figure or run in a lesson, which are missing from a problem set."""


LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
"""A link in Markdown. A lesson's relative links lead nowhere in a problem set."""


def needs_lesson(question: Question) -> list[str]:
    """Return the phrases in a question that refer to its lesson."""
    texts = (question.text, *(answer.text for answer in (*question.answers, *question.choices, *question.reasons)))
    return [*dict.fromkeys(found[0] for text in texts for found in _LESSON.finditer(text))]


def find_gradable(id: str) -> Question:
    """Return the question with this id.

    Raises:
        ValueError: The id is unknown, or the question is a prediction without a list of reasons.
    """
    question = find_question(id)
    if not question.is_gradable:
        near = (other for other in questions().values() if other.lesson == question.lesson)
        choices = ", ".join(other.id for other in near if other.is_gradable)
        what = f"question {question.id} is a prediction without a list of reasons, which cannot be graded"
        raise ValueError(f"{what}; expected one of {choices}")
    return question


def as_exercise(question: Question, secret: bytes) -> Exercise:
    """Return the question as an exercise, with its choices in an order determined by the secret."""
    question = replace(question, text=LINK.sub(r"\1", question.text))
    if question.kind == "predict":
        return _prediction(question, secret)
    assert question.right is not None
    answers, right, offered = list(question.answers), question.right, ""
    statement = f"{question.text}\n\nReturn a number."
    value_of: Callable[[str], Value] = read_number
    if question.kind == "choice":
        answers = _shuffled(question.answers, secret, "choices", question.key)
        offered = LETTERS[: len(answers)]
        value_of = dict(zip([answer.text for answer in answers], offered, strict=True)).__getitem__
        letters = ", ".join(f'`"{letter}"`' for letter in offered)
        statement = f"{question.text}\n\n{_listed(answers, LETTERS)}\n\nReturn the letter of your choice: {letters}."
    made = _exercise(question, statement, value_of(right.text), POINTS)
    made.offered = tuple(offered)

    def cases(draw: Draw) -> Iterator[Case]:
        yield Case("the answer to the question", (), tolerance=right.tolerance or None)

    made.cases(cases)
    known = dict.fromkeys(answer.why for answer in answers if not answer.right)
    for why in known:
        given = next(value_of(answer.text) for answer in answers if not answer.right and answer.why == why)
        made.mistakes.append(Mistake(why, lambda given=given: given))
    return made


def _prediction(question: Question, secret: bytes) -> Exercise:
    """Return a prediction as an exercise that asks for a letter (what will happen) and a number (why).

    Both must be right. If the question allows it, the right letter with a wrong number earns part of the points.
    """
    choices = _shuffled(question.choices, secret, "choices", question.key)
    reasons = _shuffled(question.reasons, secret, "reasons", question.key)
    numbers = [str(number) for number in range(1, len(reasons) + 1)]
    points = f"Both must be right; a right letter with a wrong number earns {question.alone or 'nothing'}."
    statement = (
        f"{question.text}\n\nWhat happens:\n\n{_listed(choices, LETTERS)}\n\n"
        f"and why:\n\n{_listed(reasons, numbers)}\n\n"
        f'Return the letter of what happens and the number of the reason, as in `return "A", 1`. {points}'
    )
    places = list(product(enumerate(choices), enumerate(reasons, 1)))
    pairs = [((LETTERS[at], number), choice, reason) for (at, choice), (number, reason) in places]
    right = next(pair for pair, choice, reason in pairs if choice.right and reason.right)
    made = _exercise(question, statement, right, PREDICTION_POINTS)
    made.offered = tuple(pair for pair, _, _ in pairs)
    first, both = "what happens", "what happens, and why"
    if question.alone:
        made.groups = (Group(first, question.alone, (first,)), Group(both, PREDICTION_POINTS - question.alone))

    def cases(draw: Draw) -> Iterator[Case]:
        if question.alone:
            yield Case(first, (), part=0)
        yield Case(both, ())

    made.cases(cases)
    for pair, choice, reason in pairs:
        if pair != right:
            why = reason.why if choice.right else choice.why
            made.mistakes.append(Mistake(why, lambda pair=pair: pair))
    return made


def _exercise(question: Question, statement: str, expected: Value, points: int) -> Exercise:
    return fixed_result(
        function_name(question),
        expected,
        id=question.id,
        title=f"A question from lesson {question.lesson}",
        task="Answer a question of the lesson",
        statement=statement,
        points=points,
        difficulty=1,
        minutes=points,
    )


def fixed_result(name: str, expected: Value, **about: Any) -> Exercise:
    """Return an exercise without hints that asks for a function without arguments.

    Args:
        name: Name of the function.
        expected: The result that it must return.
        about: Other required fields of the `Exercise`, such as its statement.
    """
    return Exercise(
        name=name,
        stub=f"def {name}():\n    raise NotImplementedError",
        solution=f"def {name}():\n    return {expected!r}",
        reference=lambda: expected,
        hints=(),
        **about,
    )


def _shuffled(answers: Sequence[Answer], secret: bytes, *what: str) -> list[Answer]:
    shuffled = list(answers)
    random.Random(keyed(secret, *what)).shuffle(shuffled)
    return shuffled


def _listed(answers: Sequence[Answer], marks: Sequence[str]) -> str:
    return "\n".join(f"- **{mark}** {answer.text}" for mark, answer in zip(marks, answers, strict=False))
