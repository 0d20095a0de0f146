"""Questions with different numbers for each student, derived from the student's id and the instructor's secret.

These are the examination questions that ask for a number. Students receive their numbers on a sheet and write a
function in the notebook that returns the result. The correct result depends on the secret, so it is not known to the
check in the student's notebook.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from random import Random

from companion_school.checking.exercise import Case, Draw, Exercise
from companion_school.course.exam import paper
from companion_school.course.exam.exam_question import Asked, Question
from companion_school.course.hidden_seeds import keyed
from companion_school.course.release.questions import fixed_result
from companion_school.old_ids import current

NEAR = 0.005
"""Relative tolerance of a result that is not a whole number, because students give three digits."""
LARGE = 10_000
"""Whole results above this must be returned exactly. Below it, rounding errors of float32 are too small to matter."""
ASKED = (
    "Your sheet has the question with your own numbers. Return the result with at least three digits, or exactly if "
    "it is a whole number. The check tests only the form of your result, because it does not know your numbers."
)


def find_numbers(id: str) -> Question:
    """Return the question with this id.

    Raises:
        ValueError: There is no such question, or it does not ask for a number.
    """
    known = {one.id: one for one in paper.exam_questions().values() if one.kind == "number"}
    if (found := known.get(current(id))) is None:
        raise ValueError(f"--numbers {id}: expected one of {', '.join(known)}")
    return found


def is_own(id: str) -> bool:
    """Return True if `id` belongs to a question that asks for a number, as in "2.variance"."""
    found = paper.exam_questions().get(current(id)) if re.fullmatch(r"\d{1,2}\.[a-z-]{2,}", id) else None
    return found is not None and found.kind == "number"


def function_name(question: Question) -> str:
    """Return the name of the function that a student writes, as in `own_2_variance`."""
    return f"own_{re.sub('[.-]', '_', question.id)}"


def asked(question: Question, secret: bytes, student: str) -> Asked:
    """Return the question with this student's numbers."""
    return question.make(Random(keyed(secret, "own numbers", question.id, student)))


def as_exercise(question: Question, secret: bytes, student: str) -> Exercise:
    """Return the question as an exercise whose expected result is computed from this student's numbers."""
    result = float(asked(question, secret, student).answer or 0.0)
    # A check allows for the precision of float32, unless an int is expected. For large counts, that would be too much.
    must_be_exact = student != "" and result.is_integer() and abs(result) > LARGE
    made = fixed_result(
        function_name(question),
        int(result) if must_be_exact else result,
        id=question.id,
        title=f"Your own numbers: {question.id.partition('.')[2].replace('-', ' ')}",
        task="Answer a question with numbers of your own",
        statement=ASKED,
        points=question.points,
        difficulty=2,
        minutes=question.minutes,
    )

    def cases(draw: Draw) -> Iterator[Case]:
        yield Case("the answer with your numbers", (), tolerance=None if result.is_integer() else NEAR * abs(result))

    made.cases(cases)
    return made


def sheet(name: str, questions: Sequence[Question], secret: bytes, student: str) -> str:
    """Return a student's sheet as an HTML page to print or send."""
    head = (
        f"# {name}: the numbers of {student}\n\nReturn each result from the function in the notebook that is named "
        "here."
    )
    told = [f"**{one.id}**, `{function_name(one)}`: {asked(one, secret, student).text}" for one in questions]
    return paper.as_page(f"{name}: {student}", [head, *told])
