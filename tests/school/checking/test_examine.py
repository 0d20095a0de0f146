"""An examination ends at the first case that fails, describes the fault, and names the mistake with the same result."""

import pytest
import torch

from companion_school.checking.call import Result, in_this_process
from companion_school.checking.examine import examine, key_of
from companion_school.checking.exercise import Case, exercise
from companion_school.exercises.catalogue import exercises


@pytest.fixture
def rows():
    @exercise("2.9", "Rows", task="Scale", points=1, difficulty=1, minutes=5, hints=("one", "two", "three"))
    def softmax_rows(x, scale):
        """Return the softmax of each row of `x` times `scale`. Refuse a scale below zero."""
        ### BEGIN SOLUTION
        if scale < 0:
            raise ValueError(f"scale={scale}: expected at least 0")
        return torch.softmax(x * scale, dim=-1)
        ### END SOLUTION

    @softmax_rows.cases
    def _(draw):
        yield Case("one row", (draw.normal(1, 3), 1.0))
        yield Case("several rows", (draw.normal(3, 4), 0.5), gradients=True)
        yield Case("a negative scale is refused", (draw.normal(1, 2), -1.0), refuse=True)

    @softmax_rows.mistake("the scale is missing")
    def _(x, scale):
        return torch.softmax(x, dim=-1)

    @softmax_rows.mistake("the softmax runs over the columns")
    def _(x, scale):
        return torch.softmax(x * scale, dim=0)

    @softmax_rows.mistake("a negative scale is not refused")
    def _(x, scale):
        return torch.softmax(x * scale, dim=-1)

    return softmax_rows


def seen(exercise, answer):
    return examine(key_of(exercise), in_this_process(answer)).strict


def test_the_reference_is_right(rows):
    assert seen(rows, rows.reference).result is Result.RIGHT and str(seen(rows, rows.reference)) == "right"


@pytest.mark.parametrize("number", range(3))
def test_a_known_mistake_is_named_at_the_first_case_that_shows_it(rows, number):
    known = rows.mistakes[number]
    verdict = seen(rows, known.answer)
    assert verdict.result is Result.WRONG and verdict.mistake == known.message
    assert verdict.shows == ["several rows", "one row", "a negative scale is refused"][number]
    assert f"most likely: {known.message}" in str(verdict) and "x = float64" in str(verdict)


def test_a_mistake_of_another_kind_is_not_named(rows):
    verdict = seen(rows, lambda x, scale: x * scale)
    assert verdict.result is Result.WRONG and verdict.mistake is None
    assert "most likely" not in str(verdict) and "expected" in str(verdict) and "scale = 1" in str(verdict)


def raises(x, scale):
    return x @ x


def refuses_badly(x, scale):
    if scale < 0:
        raise TypeError("no")
    return torch.softmax(x * scale, dim=-1)


def writes_into_its_argument(x, scale):
    x *= scale
    return torch.softmax(x, dim=-1)


def detaches(x, scale):
    if scale < 0:
        raise ValueError("no")
    return torch.softmax(x.detach() * scale, dim=-1)


def detaches_half(x, scale):
    if scale < 0:
        raise ValueError("no")
    weights = torch.softmax(x * scale, dim=-1)
    return 0.5 * weights + 0.5 * weights.detach()


def without_numbers(x, scale):
    return torch.empty_like(x, device="meta")


def sparse_in_a_list(x, scale):
    return [torch.softmax(x * scale, dim=-1).to_sparse()]


@pytest.mark.parametrize(
    "answer, result, message",
    [
        (without_numbers, Result.CRASHED, "the result is a tensor on the device 'meta'"),
        (sparse_in_a_list, Result.CRASHED, "the result is a tensor of the layout torch.sparse_coo"),
        (raises, Result.CRASHED, "it raised RuntimeError"),
        (refuses_badly, Result.WRONG, "expected a ValueError, got TypeError: no"),
        (detaches, Result.WRONG, "no gradient flows back to x"),
        (detaches_half, Result.WRONG, "its gradient with respect to x is not"),
    ],
)
def test_what_is_wrong_is_said(rows, answer, result, message):
    verdict = seen(rows, answer)
    assert verdict.result is result and message in str(verdict)


def test_an_argument_that_is_written_into_is_told(rows):
    rows._cases = lambda draw: [Case("one row", (draw.normal(1, 3), 2.0))]
    verdict = seen(rows, writes_into_its_argument)
    assert verdict.result is Result.WRONG
    assert "wrote into its argument x" in verdict.fault


def stub(x, scale):
    raise NotImplementedError


def dots(x, scale): ...


def test_one_coincidence_names_no_mistake(rows):
    rows._cases = lambda draw: [
        Case("a large scale", (draw.normal(1, 3), 1.0)),
        Case("a small one", (draw.normal(1, 3), 0.5)),
        Case("another", (draw.normal(2, 3), 0.25)),
    ]
    rows.mistake("it is upside down")(lambda x, scale: torch.softmax(-x * scale, dim=-1))
    like_it_once = lambda x, scale: torch.softmax(-x * scale if scale == 1 else x, dim=-1)  # noqa: E731
    assert seen(rows, like_it_once).result is Result.WRONG and seen(rows, like_it_once).mistake is None
    assert seen(rows, rows.mistakes[-1].answer).mistake == "it is upside down"


def test_the_only_right_answer_is_not_given_away():
    @exercise("2.8", "A number", task="Say it", points=1, difficulty=1, minutes=5, hints=("one", "two", "three"))
    def number():
        """Return it."""
        ### BEGIN SOLUTION
        return 0.4683
        ### END SOLUTION

    number._cases = lambda draw: [Case("the number", ())]
    verdict = seen(number, lambda: 0.5)
    assert verdict.result is Result.WRONG and "0.5 is not right" in str(verdict) and "0.4683" not in str(verdict)


@pytest.mark.parametrize("answer", [stub, dots, lambda x, scale: None, lambda x, scale: ...])
def test_what_is_not_written_is_missing_and_not_wrong(rows, answer):
    assert seen(rows, answer).result is Result.MISSING


def test_a_result_without_a_backward_pass_is_an_error_of_the_answer():
    def overwrites(x):
        y = x.exp()
        return y, y.mul_(2)

    case = Case("a row", (torch.ones(3),), gradients=True)
    kind, said = in_this_process(overwrites)(case).error
    assert kind == "RuntimeError" and "modified by an inplace operation" in said


def test_each_call_gets_arguments_of_its_own(rows):
    case = Case("", (torch.ones(1, 2), 2.0))
    in_this_process(writes_into_its_argument)(case)
    assert torch.equal(case.arguments[0], torch.ones(1, 2))


def test_a_refusal_forgotten_is_not_named_after_a_mistake_that_fails_everywhere():
    shift = exercises()["8.2"]

    def indexes(targets, start):
        if (targets == start).any():
            raise ValueError("start")
        return torch.cat([torch.full_like(targets[:, :1], start), targets[:, :-1]], dim=1)

    verdict = examine(key_of(shift), in_this_process(indexes)).strict
    assert verdict.result is not Result.RIGHT and verdict.mistake is None
