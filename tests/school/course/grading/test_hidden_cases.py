"""Hidden cases test something new, use sizes that are not public, and never cost a right answer its points."""

from dataclasses import replace

import pytest
import torch

from companion_school.build.parts import parts
from companion_school.build.stages import STAGES
from companion_school.checking.call import in_this_process
from companion_school.checking.codec import same_as
from companion_school.checking.derived_cases import LARGE
from companion_school.checking.examine import examine, key_of
from companion_school.course.grading.exercise_mark import KeyRing, hidden_key
from companion_school.course.hidden_seeds import hidden_seed, hidden_seeds
from companion_school.course.points import is_constant
from companion_school.exercises.catalogue import exercises, find_exercise

SECRET = b"a secret of these tests"
CHOSEN = [*exercises().values(), *(part.exercise() for number in STAGES for part in parts(number))]
ASKED = [exercise for exercise in CHOSEN if not is_constant(exercise)]


def groups_with_new_cases(exercise, seed):
    """Return the groups of right cases in which a seed draws a case that is not public."""
    known = {same_as(case.arguments) for case in exercise.inputs()}
    drawn = [case for case in exercise.inputs(seed) if same_as(case.arguments) not in known]
    return {exercise.group_of(case) for case in drawn if not case.is_robust}


def test_every_group_of_every_exercise_has_hidden_cases_that_are_new():
    lacking = [
        f"{exercise.id}, group {group}"
        for exercise in ASKED
        for seed in hidden_seeds(SECRET, exercise.id)
        for group in {*range(max(1, len(exercise.groups)))} - groups_with_new_cases(exercise, seed)
    ]
    assert lacking == []


def test_what_a_public_case_asks_is_not_asked_again():
    exercise = find_exercise("1.7")
    keys = KeyRing(SECRET)
    public = keys.public(exercise)
    known = {same_as(case.arguments) for case in public.cases}
    for key, seed in zip(keys.hidden(exercise), hidden_seeds(SECRET, exercise.id), strict=True):
        whole = key_of(exercise, seed)
        assert 0 < len(key.cases) < len(whole.cases) and {*key.groups} == {0, 1, 2, 3}
        assert known.isdisjoint(same_as(case.arguments) for case in key.cases)
        for at, case in enumerate(key.cases):  # each case has its own result
            assert case.refuse or key.expected(at).value == exercise.reference(*case.arguments)


@pytest.mark.slow
@pytest.mark.parametrize("share", range(4))
def test_right_answers_are_right_on_hidden_seeds(share):
    """Each exercise is tested on one of fifty seeds; all of them on all seeds take half an hour."""
    faults = []
    for number, exercise in enumerate(ASKED):
        # Without the race, which depends on the clock
        if number % 4 == share and not exercise.id.startswith("build.11"):
            drawn = key_of(exercise, hidden_seed(SECRET, exercise.id, number % 50))
            key = hidden_key(drawn, replace(drawn, cases=()), exercise.variants)
            if {*drawn.groups} != {*key.groups} or not any(not case.is_robust for case in key.cases):
                faults.append(f"{exercise.id}: nothing is left to ask")
            for answer in exercise.variants:
                verdict = examine(key, in_this_process(answer))
                faults += [] if verdict.is_robust else [f"{exercise.id}: {verdict}"]
    assert faults == []


def test_no_derived_case_of_waves_has_a_width_that_the_stub_excludes():
    [waves] = [part.exercise() for part in parts(3) if part.name == "waves"]
    for number in range(50):
        key = key_of(waves, hidden_seed(SECRET, waves.id, number))
        assert all(case.arguments[1] % 2 == 0 for case in key.cases if not case.refuse)


@pytest.mark.parametrize("id", ["2.3", "5.2", "7.3", "11.3", "14.3", "17.2", "20.4", "21.3"])
def test_an_answer_that_is_right_for_small_sizes_alone_is_not_right(id):
    exercise = find_exercise(id)

    def sizes(value):
        if isinstance(value, torch.Tensor):
            return [*value.shape]
        return [size for part in value for size in sizes(part)] if isinstance(value, (list, tuple)) else []

    def small(*arguments):
        return exercise.reference(*arguments) if max(sizes(arguments), default=0) <= 16 else None

    verdict = examine(key_of(exercise), in_this_process(small))
    assert not verdict.is_right and verdict.shows == LARGE
    assert examine(key_of(exercise), in_this_process(exercise.reference)).is_robust
