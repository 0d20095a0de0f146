"""Every exercise has what the course promises.

`make verify` tests on five seeds that the checks pass right answers and name mistakes.
"""

import inspect
import re
from dataclasses import replace
from functools import cache

import pytest
import torch

from companion_school.checking.call import in_this_process
from companion_school.checking.credit import earned, examine_groups
from companion_school.checking.derived_cases import EXCUSES
from companion_school.checking.examine import examine, key_of
from companion_school.checking.exercise import KINDS, STAR
from companion_school.course.points import is_constant
from companion_school.course.proof.verify import missing, stub, words
from companion_school.course.release.notebook_cells import heading
from companion_school.exercises.catalogue import exercises
from companion_school.old_ids import MOVED

BOOK = list(exercises().values())
CONSTANTS = (None, 0, 1, 0.0, 1.0, True, False, "", (), [], {}, torch.zeros(()), torch.zeros(1), torch.ones(1))
public_key = cache(lambda id: key_of(exercises()[id]))


def refuses(*arguments):
    raise ValueError("no")


@pytest.mark.parametrize("exercise", BOOK, ids=[one.id for one in BOOK])
def test_it_has_what_the_course_promises(exercise):
    assert not [*missing(exercise)]
    assert exercise.asks or is_constant(exercise)  # the list of what makes an answer robust, if it has arguments
    kept = {*KINDS, *EXCUSES, *(case.shows for case in exercise.inputs())}
    assert {*exercise.right, *exercise.robust} <= kept and all((exercise.right | exercise.robust).values())


@pytest.mark.parametrize("exercise", BOOK, ids=[one.id for one in BOOK])
def test_what_it_says_has_no_control_characters(exercise):
    r"""A docstring that is not raw turns the t of \text into a tab, and its b into a backspace."""
    told = " ".join([exercise.statement, *exercise.hints, *exercise.asks, *map(str, exercise.mistakes)])
    assert not re.search(r"[\x00-\x09\x0b-\x1f]| {5,}ext\{", told)


EMPTY_WORDS = re.compile(
    r"\b(all|and|any|are|does|each|for|from|its|may|not|other|than|that|the|there|two|what|where|which|with)\b"
)


def content(text):
    """Return the content words of a text, without their endings."""
    words = re.findall(r"[a-z]{3,}", EMPTY_WORDS.sub("", text.lower()))
    return {re.sub(r"(ies|es|s|ed|ing)$", "", word) for word in words}


REVIEWED = {
    ("0.4", "gradients, including the router's"), ("0.4", "gradients when a single expert gets all the weight"),
    ("2.2", "a standard deviation other than one"), ("2.2", "a mean as small as the standard deviation"),
    ("3.5", "two query heads on one key head"), ("3.5", "four query heads on two key heads"),
    ("6.7", "a token whose entries hardly differ"), ("6.7", "a token whose entries are all equal"),
    ("6.7", "entries of 10,000 in float16"), ("8.3", "two targets, two source tokens, no padding"),
    ("10.3", "with m = 1 the most probable token stays"), ("14.2", "one micro-batch"),
    ("14.2", "one of padding only, whose gradient is NaN"), ("18.6", "the same text twice, with a partly filled block"),
    ("15.2", "no memory for the keys of all heads"), ("15.3", "the full rank changes nothing"),
    ("18.3", "no more tokens than the text has"), ("18.3", "a text of one token"),
    ("18.6", "the same block twice in a text"), ("18.6", "texts shorter than a block"),
    ("20.2", "rows without an adapter"), ("22.2", "momentum against the gradient"),
}  # fmt: skip
"""Cases that count for right and share words with a line under the star that asks for something else."""


@pytest.mark.parametrize("exercise", BOOK, ids=[one.id for one in BOOK])
def test_what_costs_points_is_not_listed_under_the_star(exercise):
    """What counts for right is in the statement, and what is under the star costs no points."""
    asks = " ".join(exercise.asks)
    for kind, pattern in (("room", "bytes|memory|cop(y|ies)"), ("memory", "stays? as|memory"), ("refusals", "refused")):
        assert kind not in exercise.right or not re.search(pattern, asks)
    told = heading(exercise).partition(f"{STAR} *Robust*")[0]
    assert "gradients" not in exercise.right or "radient" in told
    for case in exercise.inputs():
        for ask in exercise.asks:
            is_other = case.is_robust or "ValueError" in ask or (exercise.id, case.shows) in REVIEWED
            shared = content(ask) & content(case.shows)
            assert is_other or len(shared) < 2, (case.shows, ask)


def test_what_an_exercise_lacks_is_said_in_sentences():
    two = exercises()["2.2"]
    assert not [*missing(two)]
    longer = two.statement.replace("Return a `float`.", "Return it. " + "So it is. " * 30)
    wrong = replace(two, title="a" * 39, hints=("a", "b.", "c?"), variants=[], mistakes=[], statement=longer)
    told = [*missing(wrong)]
    assert [text.split()[-1] for text in told[:2]] == ["0", "0"] and "title" in told[2] and "'a'" in told[3]
    assert "90 words" in told[4] and len(told) == 5
    other = replace(two, statement=two.statement.replace("12.0", "13.0"))
    assert other.statement != two.statement and "Expected: 13.0 Got: 12.0" in next(missing(other))
    assert words("Of $a + b$ take `c - d`\n\n$$e + f$$\n\n```python\n>>> g(1, 2)\n3\n```\n\n| h | i |") == 5


@pytest.mark.parametrize("exercise", BOOK, ids=[one.id for one in BOOK])
def test_an_answer_that_does_nothing_earns_nothing(exercise):
    returns = [lambda *_, value=value: value for value in CONSTANTS]
    count = len(inspect.signature(exercise.reference).parameters)
    for at in range(count):
        returns.append(lambda *arguments, at=at: arguments[at])
        returns.append(lambda *arguments, at=at: torch.zeros_like(torch.as_tensor(arguments[at])))
    for answer in (stub(exercise), refuses, *returns):
        key, call = public_key(exercise.id), in_this_process(answer)
        verdicts = examine_groups(key, call) if exercise.groups else [examine(key, call)]
        assert not any(earned(verdicts)), answer(*next(exercise.inputs()).arguments)


def test_long_work_is_not_all_or_nothing():
    """An exercise of 25 minutes or more has groups, and all their properties are properties of cases."""
    for exercise in BOOK:
        assert exercise.minutes < 25 or len(exercise.groups) >= 3, exercise.id
        shown = {case.shows for case in exercise.inputs()}
        assert {shows for group in exercise.groups for shows in group.shows} <= shown, exercise.id


def test_names_and_numbers_are_given_once():
    assert len({one.name for one in BOOK}) == len(BOOK)
    for lesson in {one.lesson for one in BOOK}:
        numbers = [int(one.id.split(".")[1]) for one in BOOK if one.lesson == lesson]
        gone = [int(old.split(".")[1]) for old in MOVED if re.fullmatch(rf"{lesson}\.\d+", old)]
        assert sorted(numbers + gone) == list(range(1, len(numbers + gone) + 1)) and len(numbers) >= 3
