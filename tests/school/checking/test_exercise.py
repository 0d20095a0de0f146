"""An exercise is one function: readers see parts of its text, and malformed ones are rejected."""

import pytest
import torch

from companion_school.checking.exercise import Case, Draw, Group, exercise

HINTS = ("one", "two", "three")
FIELDS = {"task": "Double a number", "points": 1, "difficulty": 1, "minutes": 5, "hints": HINTS}


def make(**changed):
    @exercise(**({"id": "2.9", "title": "Double it"} | FIELDS | changed))
    def double(x, times=1):
        """Return `x` doubled."""
        ### BEGIN SOLUTION
        return x * 2
        ### END SOLUTION

    return double


def test_the_stub_has_the_signature_and_not_the_solution():
    double = make()
    assert double.stub == "def double(x, times=1):\n    raise NotImplementedError"
    assert double.solution == "def double(x, times=1):\n    return x * 2"
    assert double.statement == "Return `x` doubled."
    assert double.lesson == 2 and double(3) == 6


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"id": "2"}, "expected a lesson and a number"),
        ({"id": "2.0"}, "expected a lesson and a number"),
        ({"task": " "}, "expected a line of at most 90 characters"),
        ({"task": "x" * 91}, "expected a line of at most 90 characters"),
        ({"task": "Double\nit"}, "expected a line"),
        ({"task": "Double | it"}, r"without \|"),
        ({"task": "Double it."}, "without a full stop"),
        ({"hints": ("one", "two")}, "expected 3 hints, got 2"),
        ({"hints": ("one", "two", " ")}, "expected 3 hints"),
        ({"difficulty": 4}, "expected one of"),
        ({"points": 0}, "at least one point"),
        ({"minutes": 0}, "at least one point and one minute"),
        ({"groups": (Group("all", 1),)}, "groups: expected at least two"),
        (
            {"groups": (Group("one", 1, ("a",)), Group("two", 1))},
            "groups: expected at least one point per group and 1 in total",
        ),
        (
            {"points": 2, "groups": (Group("one", 2, ("a",)), Group("two", 0))},
            "at least one point per group and 2 in total, got 2",
        ),
        (
            {"points": 2, "groups": (Group("one", 1, ("a",)), Group("two", 1, ("a",)))},
            "each property in exactly one group",
        ),
        (
            {"points": 2, "groups": (Group("one", 1), Group("two", 1, ("a",)))},
            "for all other cases, and not as the first",
        ),
    ],
)
def test_what_is_no_exercise_is_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        make(**changed)


def test_a_solution_without_its_markers_is_refused():
    def unmarked(x):
        """Return `x`."""
        return x

    def outside(x):
        """Return `x`."""
        y = x
        ### BEGIN SOLUTION
        return y
        ### END SOLUTION

    def silent(x):
        ### BEGIN SOLUTION
        return x
        ### END SOLUTION

    for function, message in ((unmarked, "BEGIN"), (outside, "nothing outside"), (silent, "statement")):
        with pytest.raises(ValueError, match=message):
            exercise("2.9", "An exercise", **FIELDS)(function)


def test_cases_and_messages_are_given_once():
    double = make()

    @double.cases
    def _(draw):
        yield Case("a number", (draw.whole(1, 3),))

    assert [case.shows for case in double.inputs()] == ["a number"]
    with pytest.raises(ValueError, match="defined twice"):
        double.cases(lambda draw: [])
    double.mistake("you halved it")(lambda x: x / 2)
    with pytest.raises(ValueError, match="two mistakes"):
        double.mistake("you halved it")
    with pytest.raises(ValueError, match="no cases"):
        next(make().inputs())


def test_a_seed_decides_every_number_and_sizes_are_never_equal():
    def numbers(seed):
        draw = Draw(seed)
        return (
            draw.normal(2, 3),
            draw.uniform(4),
            draw.wholes(0, 9, 5),
            draw.shuffled(6),
            draw.sizes(3),
            draw.whole(0, 99),
        )

    for one, other in zip(numbers(7), numbers(7), strict=True):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))
    assert not torch.equal(numbers(7)[0], numbers(8)[0])
    for seed in range(20):
        found = Draw(seed).sizes(4, 2, 5)
        assert sorted(found) == [2, 3, 4, 5]
        assert 3 <= Draw(seed).whole(3, 4) <= 4
    with pytest.raises(ValueError, match="at least 4"):
        Draw(0).sizes(4, 2, 4)
