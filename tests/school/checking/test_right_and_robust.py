"""The two marks of an answer: right, which earns the points, and robust, which is reported after it."""

import math

import pytest
import torch

from companion_school.checking.call import Outcome, Result, in_this_process
from companion_school.checking.credit import ROBUST, earned, examine_groups, group_numbers, without_groups
from companion_school.checking.examine import examine, key_of
from companion_school.checking.exercise import Case, exercise
from companion_school.checking.notebook_answer import NotYet, attempt, praise
from companion_school.checking.sealed_keys import seal, unseal


@exercise(
    "2.8",
    "Shares",
    task="Divide by the sum",
    points=2,
    difficulty=1,
    minutes=5,
    hints=("a.", "b.", "c."),
    robust={"a thousandth of a thousandth": "by less than a lesson can tell"},
)
def shares(x, total):
    """Divide `x` by `total`.

    ★
    - A total of 0 is refused,
      with a `ValueError`.
    - Gradients flow.
    """
    ### BEGIN SOLUTION
    if total == 0:
        raise ValueError("total")
    return x / total
    ### END SOLUTION


@shares.cases
def _(draw):
    yield Case("three numbers", (draw.normal(3), 2.0))
    yield Case("a total of 0 is refused", (draw.normal(3), 0.0), refuse=True)
    yield Case("gradients", (draw.normal(2, 3), 4.0), gradients=True)
    yield Case("a thousandth of a thousandth", (draw.normal(3), 1e6))


@shares.mistake("that is the product")
def _(x, total):
    return x * total


@shares.mistake("nobody refuses a total of 0")
def _(x, total):
    return x / total


KEY = key_of(shares)


def tried(answer, key=KEY):
    return examine(key, in_this_process(answer))


def test_the_reference_has_both_marks():
    verdict = tried(shares.reference)
    assert verdict.is_right and verdict.is_robust and verdict.strict is verdict and str(verdict) == "right"


def test_a_statement_has_its_idea_above_the_star_and_a_list_below():
    assert shares.idea == "Divide `x` by `total`."
    assert shares.asks == ("A total of 0 is refused, with a `ValueError`.", "Gradients flow.")


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda x, total: x / total, "expected a ValueError"),
        (lambda x, total: shares(x.detach(), total), "no gradient flows back to x"),
        (lambda x, total: shares(x.float(), total), "expected float64, got float32"),
        (lambda x, total: shares(x, total).double().float().double(), "which happens if float32 is used"),
        (lambda x, total: shares(x, total).tolist(), "got a list"),
        (lambda x, total: (number for number in shares(x, total)), "got a list"),
        (lambda x, total: shares(x, total).nan_to_num(), "expected NaN"),
        (lambda x, total: shares(x, min(total, 1e3)), "expected ["),
        (lambda x, total: shares(x.div_(total), 1.0 if total else 0.0), "wrote into its argument x"),
        (lambda x, total: shares(x.as_strided(x.shape, x.contiguous().stride()), total), "called again"),
    ],
)
def test_what_a_lesson_does_not_speak_of_costs_no_point(answer, told):
    verdict = tried(answer)
    assert verdict.is_right and not verdict.is_robust and told in str(verdict.robust)
    assert verdict.strict is verdict.robust and str(verdict).startswith("right. What would make it robust")


@pytest.mark.parametrize(
    "answer",
    [
        lambda x, total: x * total,
        lambda x, total: shares(x, total)[..., :1],
        lambda x, total: shares(x, total) + 1e-4,
        lambda x, total: shares(x, total).round(decimals=3),
        lambda x, total: shares(x.nan_to_num(), total).sum(),
    ],
)
def test_a_wrong_idea_is_not_right_whatever_it_stands(answer):
    verdict = tried(answer)
    assert verdict.result is Result.WRONG and verdict.strict is verdict


def test_a_mistake_is_told_under_the_mark_that_it_costs():
    assert tried(lambda x, total: x * total).mistake == "that is the product"
    verdict = tried(lambda x, total: x / total)
    assert verdict.mistake is None and verdict.robust.mistake == "nobody refuses a total of 0"


def test_an_exercise_may_ask_for_gradients_or_refusals_or_everything():
    detached, takes = (lambda x, total: shares(x.detach(), total)), (lambda x, total: x / total)
    for kind, lost in (("gradients", [detached]), ("refusals", [takes]), ("all", [detached, takes])):
        shares.right = {kind: "it is what the exercise is about"}
        try:
            key = key_of(shares)
        finally:
            shares.right = {}
        assert [answer for answer in (detached, takes) if not tried(answer, key).is_right] == lost
        assert tried(shares.reference, key).is_robust


def test_the_robust_cases_can_be_left_out():
    key = without_groups(KEY, [ROBUST])
    assert ROBUST not in group_numbers(key) and 0 < len(key.cases) < len(KEY.cases)
    assert not any(case.refuse or case.only_nan for case in key.cases)


def test_robust_earns_nothing_by_itself():
    [verdict] = examine_groups(KEY, in_this_process(lambda x, total: x / total))
    assert earned([verdict]) == [True] and verdict.robust.mistake == "nobody refuses a total of 0"
    assert earned(examine_groups(KEY, in_this_process(lambda x, total: shares(x, total) * math.nan))) == [False]


def test_a_sealed_key_knows_both_marks():
    sealed = unseal(seal(shares, 0))
    found = sealed.examine(in_this_process(lambda x, total: x / total))
    assert found.is_right and str(found) == str(tried(lambda x, total: x / total))


def test_a_robust_case_that_is_stopped_by_hand_ends_by_itself():
    def endless(x, total):
        if total == 0:
            raise KeyboardInterrupt
        return x / total

    verdict = tried(endless)
    assert verdict.is_right and verdict.robust.result is Result.TIMEOUT
    with pytest.raises(KeyboardInterrupt):
        in_this_process(endless)(Case("a right case", (torch.ones(2), 0.0)))


def test_what_pytorch_has_not_is_an_error_and_no_answer_that_is_missing():
    def lacks(x, total):
        raise NotImplementedError('"add" not implemented for this dtype')

    assert in_this_process(lacks)(KEY.cases[0]).error == ("NotImplementedError", '"add" not implemented for this dtype')

    def stub(x, total):
        raise NotImplementedError

    assert in_this_process(stub)(KEY.cases[0]) == Outcome(result=Result.MISSING)


def test_praise_comes_first_and_one_thing_after_it():
    def said(answer):
        verdict = attempt("2.8 Shares", "shares", answer, (), lambda one: tried(one))
        return praise(verdict, "2.8 Shares: right. 2 points.")

    assert said(shares.reference).startswith("✓ 2.8 Shares: right. 2 points. It is also robust ★")
    first, _, rest = said(lambda x, total: x / total).partition("\n\n")
    assert first == "✓ 2.8 Shares: right. 2 points." and rest.startswith("What would make it robust ★, next:\n")
    assert rest.count("expected") == 1
    with pytest.raises(NotYet, match="that is the product"):
        said(lambda x, total: x * total)
