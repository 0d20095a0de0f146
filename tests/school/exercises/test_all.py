"""Every exercise has what the course promises. That its checks pass what is right and name what is not on five seeds,
`make verify` proves."""

import inspect
import time
from functools import cache

import pytest
import torch

from companion.school.checking.call import in_this_process
from companion.school.checking.credit import earned, examine_groups
from companion.school.checking.examine import examine, key_of
from companion.school.course.proof.verify import stub
from companion.school.exercises.catalogue import exercises

BOOK = list(exercises().values())
CONSTANTS = (None, 0, 1, 0.0, 1.0, True, False, "", (), [], {}, torch.zeros(()), torch.zeros(1), torch.ones(1))
public_key = cache(lambda id: key_of(exercises()[id]))


def refuses(*arguments):
    raise ValueError("no")


@pytest.mark.parametrize("exercise", BOOK, ids=[one.id for one in BOOK])
def test_it_has_what_the_course_promises(exercise):
    assert len(exercise.variants) >= 2 and len(exercise.mistakes) >= 4
    messages = [known.message for known in exercise.mistakes]
    assert all(message[0].islower() or not message[0].isalpha() for message in messages)
    assert all(not message.endswith(".") for message in messages)
    assert exercise.title[0].isupper() and len(exercise.title) <= 38
    assert all(hint.endswith((".", "?")) for hint in exercise.hints)


@pytest.mark.parametrize("exercise", BOOK, ids=[one.id for one in BOOK])
def test_a_check_answers_at_once(exercise):
    begun = time.process_time()
    examine(public_key(exercise.id), in_this_process(exercise.reference))
    assert time.process_time() - begun < 2.0


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
    """An exercise of 25 minutes and more has groups, and each of its properties is one that its cases show."""
    for exercise in BOOK:
        assert exercise.minutes < 25 or len(exercise.groups) >= 3, exercise.id
        shown = {case.shows for case in exercise.inputs()}
        assert {shows for group in exercise.groups for shows in group.shows} <= shown, exercise.id


def test_names_and_numbers_are_given_once():
    assert len({one.name for one in BOOK}) == len(BOOK)
    for lesson in {one.lesson for one in BOOK}:
        numbers = [int(one.id.split(".")[1]) for one in BOOK if one.lesson == lesson]
        assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) >= 3
