"""Partial credit: groups of cases earn points separately, and an answer that does nothing earns none."""

import torch

from companion_school.checking.call import Result, in_this_process
from companion_school.checking.credit import earned, examine_groups, without_groups
from companion_school.checking.examine import examine, key_of
from companion_school.checking.exercise import Case, Group, exercise
from companion_school.checking.sealed_keys import seal, unseal

GROUPS = (Group("positive numbers", 2, ("one", "two")), Group("zero", 1, ("zero",)), Group("refused", 1))


@exercise(
    "2.9",
    "Its root",
    task="Take a root",
    points=4,
    difficulty=1,
    minutes=5,
    hints=("a", "b", "c"),
    groups=GROUPS,
    right={"refusals": "a root of what has none is what it is about"},
)
def root(x):
    """The root of `x`."""
    ### BEGIN SOLUTION
    if x < 0:
        raise ValueError("negative")
    return x**0.5
    ### END SOLUTION


@root.cases
def _(draw):
    yield Case("one", (1.0,))
    yield Case("two", (draw.whole(2, 9) * 1.0,))
    yield Case("zero", (0.0,))
    yield Case("a negative number is refused", (-1.0,), refuse=True)


@root.mistake("that is the square")
def _(x):
    return x * x


KEY = key_of(root)


def passed(answer, key=KEY):
    return earned(examine_groups(key, in_this_process(answer)))


def never(x):
    raise ValueError(x)


def test_a_group_that_is_right_earns_its_points_whatever_the_others_are():
    assert passed(root.reference) == [True, True, True]
    assert passed(lambda x: abs(x) ** 0.5) == [True, True, False]
    assert passed(lambda x: 7.0 if x == 0 else root(x)) == [True, False, True]


def test_without_the_first_group_nothing_is_earned():
    assert passed(lambda x: 0.0) == [False] * 3 and passed(never) == [False] * 3
    assert [verdict.result for verdict in examine_groups(KEY, in_this_process(never))][2] is Result.RIGHT


def test_all_groups_are_right_where_the_whole_is_and_only_there():
    calls = []

    def counts(x):  # right on the first call and wrong later
        calls.append(x)
        return 8.0 if calls.count(x) > 1 and x == 0 else root(x)

    assert examine(KEY, in_this_process(counts)).robust.result is Result.WRONG
    calls.clear()
    verdicts = examine_groups(KEY, in_this_process(counts))
    assert earned(verdicts) == [True] * 3 and verdicts[0].robust.shows == "zero"
    [mistake] = root.mistakes
    verdict = examine_groups(KEY, in_this_process(lambda x: x * x))[0]
    assert verdict.mistake == mistake.message


def test_a_key_without_some_groups_keeps_the_numbers_of_the_others():
    key = without_groups(KEY, [1])
    assert [case.shows for case in key.cases] == ["one", "two", "a negative number is refused"]
    assert key.groups == (0, 0, 2) and examine(key, in_this_process(root.reference)).result is Result.RIGHT


def test_a_sealed_key_knows_the_groups():
    sealed = unseal(seal(root, 3))
    assert sealed.groups == ("positive numbers", "zero", "refused") and sealed.key.groups == (0, 0, 1, 2)
    no_refusal = in_this_process(lambda x: torch.tensor(abs(x)).sqrt().item())
    assert sealed.examine_group(2, no_refusal).result is Result.RIGHT
    assert sealed.examine_group(3, no_refusal).result is Result.WRONG
    assert sealed.examine_group(3, in_this_process(lambda x: 0.0)).shows == "one"
