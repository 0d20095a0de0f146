"""Every exercise has what the course promises. That its checks pass what is right and name what is not on five seeds,
`make verify` proves."""

import time

import pytest

from companion.checking.examine import examine, in_this_process, key_of
from companion.exercises.catalogue import exercises

BOOK = list(exercises().values())


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
    examine(key_of(exercise), in_this_process(exercise.reference))
    assert time.process_time() - begun < 2.0


def test_names_and_numbers_are_given_once():
    assert len({one.name for one in BOOK}) == len(BOOK)
    for lesson in {one.lesson for one in BOOK}:
        numbers = [int(one.id.split(".")[1]) for one in BOOK if one.lesson == lesson]
        assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) >= 3
