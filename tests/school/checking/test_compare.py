"""The description of a value's differences: the shape first, then the dtype, then the numbers."""

import math

import pytest
import torch

from companion_school.checking.compare import describe, difference, numbers

X = torch.tensor([[1.0, 2.0, 3.0]])


@pytest.mark.parametrize(
    "found, expected",
    [
        (X, X.clone()),
        (X + 1e-7, X),
        (torch.tensor([math.nan, -math.inf]), torch.tensor([math.nan, -math.inf])),
        (2, 2.0),
        (torch.tensor(2.0), 2.0),
        (0.1 + 0.2, 0.3),
        (True, True),
        (None, None),
        ("it", "it"),
        ([1, 2], (1, 2)),
        ({"a": X}, {"a": X}),
        ([X, (1, "b")], (X, [1, "b"])),
    ],
)
def test_the_same_is_no_difference(found, expected):
    assert difference(found, expected) is None


@pytest.mark.parametrize(
    "found, expected, message",
    [
        (X.T, X, "expected shape (1, 3), got (3, 1)"),
        (X.double(), X, "expected float32, got float64"),
        (X + 0.1, X, "expected [[1, 2, 3]], got [[1.1, 2.1, 3.1]]"),
        ([1.0, 2.0, 3.0], X, "expected a tensor of shape (1, 3), got a list"),
        (3.0, math.inf, "expected inf, got 3"),
        (-math.inf, math.inf, "expected inf, got -inf"),
        (torch.tensor(3.0), -math.inf, "expected -inf, got float32 () 3"),
        (None, X, "expected a tensor of shape (1, 3), got None"),
        (torch.tensor([math.nan]), torch.tensor([0.0]), "expected [0], got [nan]"),
        (torch.tensor([-math.inf]), torch.tensor([math.inf]), "got [-inf]"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "expected [1, 3], got [1, 2]"),
        (1.5, 2.0, "expected 2, got 1.5"),
        (math.nan, 2.0, "got nan"),
        (True, 1, "expected a number, got a bool"),
        (1, True, "expected True, got 1"),
        ("1", 1, "expected a number, got a str"),
        ((1, 2), (1, 2, 3), "expected 3 results, got"),
        ((1, 2), (1, 3), "result 2: expected 3, got 2"),
        ({"a": 1}, {"b": 1}, "expected a dict with the keys 'b'"),
        ({"a": 1}, {"a": 2}, "['a']: expected 2, got 1"),
    ],
)
def test_a_difference_is_said_in_one_line(found, expected, message):
    line = difference(found, expected)
    assert message in line and "\n" not in line


def test_in_a_large_tensor_the_first_wrong_row_is_shown():
    expected = torch.arange(40.0).reshape(4, 10)
    found = expected.clone()
    found[2, 3] = -1.0
    assert difference(found, expected).startswith("in [2] expected [20, 21, 22, 23")


def test_a_difference_too_small_to_print_is_said_as_a_number():
    found = torch.tensor([0.5403, 1.0]).double() + torch.tensor([1e-6, 0.0]).double()
    line = difference(found, torch.tensor([0.5403, 1.0]).double())
    assert line.startswith("expected [0.5403, 1], got numbers that differ from these by up to 1.0e-06")


def test_the_tolerance_is_the_dtypes_unless_given():
    half = torch.tensor([1.0], dtype=torch.float16)
    assert difference(half + 5e-4, half) is None
    assert difference(X + 5e-4, X) is not None
    assert difference(X + 5e-4, X, tolerance=1e-3) is None


def test_only_what_an_exercise_can_expect_is_compared():
    with pytest.raises(TypeError, match="object"):
        difference(object(), object())


def test_values_are_described_in_few_words():
    assert describe(X) == "float32 (1, 3) [[1, 2, 3]]"
    assert (
        describe(torch.zeros(9, 9)).startswith("float32 (9, 9), beginning [0, 0")
        and len(describe(torch.zeros(99, 9))) < 120
    )
    assert describe({"a": (X, 1)}) == "{'a': (float32 (1, 3) [[1, 2, 3]], 1)}"
    assert describe(torch.zeros(9), 4) == "float32 (9,)" and describe(("heat",)) == "('heat',)"
    assert describe("x" * 999).endswith("...")
    assert numbers(torch.arange(20)).endswith("15, ...]")


def test_complex_numbers_are_compared_in_both_parts():
    expected = torch.complex(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    assert difference(expected.clone(), expected) is None
    assert "expected [[1.0, 3.0], [2.0, 4.0]]".replace(".0", "") in str(difference(expected.conj(), expected))
