"""The lessons' questions as exercises of a problem set: choices in an order that the instructor's secret decides.

A question becomes a function without arguments that returns a choice's letter or a number. So it is released, graded
and told about like every exercise whose answer is one fixed result: all its points are for the hidden check, and what
a student receives does not know the answer.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from companion.checking.exercise import Case, Draw, Exercise, Mistake, Value
from companion.course.seeds import keyed
from companion.questions.question import Question, questions, read_number

POINTS = 1
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def is_question(id: str) -> bool:
    """Whether a number is a question's, as in "2.a", and not an exercise's."""
    return re.fullmatch(r"\d{1,2}\.[a-z]", id) is not None


def function_name(question: Question) -> str:
    """The function that a student writes: `question_2_a`."""
    return f"question_{question.id.replace('.', '_')}"


def find_gradable(id: str) -> Question:
    """The question of this number. Raises `ValueError` for an unknown one and for a prediction, which has no marks."""
    from companion.questions.question import find_question

    question = find_question(id)
    if question.kind == "predict":
        choices = ", ".join(other.id for other in questions().values() if other.kind != "predict")
        raise ValueError(f"question {question.id} is a prediction, which has no marks; expected one of {choices}")
    return question


def as_exercise(question: Question, secret: bytes) -> Exercise:
    """The question as an exercise, its choices in the order that follows from the secret."""
    name, right = function_name(question), question.right
    assert right is not None
    answers = list(question.answers)
    statement, value_of = question.text, _number
    if question.kind == "choice":
        random.Random(keyed(secret, "choices", question.key)).shuffle(answers)
        rows = "\n".join(f"- **{letter}** {answer.text}" for letter, answer in zip(LETTERS, answers, strict=False))
        letters = ", ".join(f'`"{letter}"`' for letter in LETTERS[: len(answers)])
        statement = f"{question.text}\n\n{rows}\n\nReturn the letter of your choice: {letters}."

        def value_of(text: str) -> Value:
            return LETTERS[[answer.text for answer in answers].index(text)]
    else:
        statement = f"{question.text}\n\nReturn a number."
    expected = value_of(right.text)
    made = Exercise(
        id=question.id,
        title=f"Question: {question.name.replace('-', ' ')}",
        task="Answer a question of the lesson",
        name=name,
        statement=statement,
        stub=f"def {name}():\n    raise NotImplementedError",
        solution=f"def {name}():\n    return {expected!r}",
        reference=lambda: expected,
        hints=(),
        points=POINTS,
        difficulty=1,
        minutes=1,
    )

    def cases(draw: Draw) -> Iterator[Case]:
        yield Case("the answer to the question", (), tolerance=right.tolerance or None)

    made.cases(cases)
    known = dict.fromkeys(answer.why for answer in answers if not answer.right)
    for why in known:
        given = next(value_of(answer.text) for answer in answers if not answer.right and answer.why == why)
        made.mistakes.append(Mistake(why, lambda given=given: given))
    return made


def _number(text: str) -> Value:
    return read_number(text)
