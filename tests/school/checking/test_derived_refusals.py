"""What an exercise rejects in one argument it rejects in all of them."""

import math

import pytest
import torch

from companion_school.checking.call import Outcome, Result, in_this_process
from companion_school.checking.derived_cases import REFUSED, refusal_cases
from companion_school.checking.examine import examine, key_of
from companion_school.checking.exercise import Case
from companion_school.exercises.catalogue import exercises


def share(total, parts, rate):
    if total % parts or not 0 < rate <= 1:
        raise ValueError(f"total={total}, parts={parts}, rate={rate}: expected a multiple of parts, a share")
    return rate * total / parts


OWN = (Case("shares", (12, 4, 0.5)), Case("seven for two are refused", (7, 2, 0.5), refuse=True))


def made(*answers):
    return refusal_cases(OWN, [in_this_process(answer) for answer in answers])


def test_each_argument_is_spoilt():
    arguments = [(case.shows, case.arguments) for case in made(share)]
    assert (REFUSED, (4, 8, 0.5)) not in arguments and (REFUSED, (12, 8, 0.5)) in arguments
    assert any(shows == REFUSED and math.isnan(numbers[2]) for shows, numbers in arguments)


def test_what_one_right_answer_takes_need_not_be_refused():
    def takes_nan(total, parts, rate):
        return math.nan if math.isnan(rate) else share(total, parts, rate)

    assert not any(math.isnan(case.arguments[2]) for case in made(share, takes_nan))
    assert any(math.isnan(case.arguments[2]) for case in made(share))


def test_a_tuple_of_another_length_is_no_refusal():
    def unpacks(x):
        rows, columns = x.shape
        return x.sum() / (rows * columns)

    own = Case("the mean", (torch.ones(2, 3),)), Case("refused", (torch.ones(2),), refuse=True)
    assert refusal_cases(own, [in_this_process(unpacks)]) == []


def test_an_exercise_that_refuses_nothing_gets_no_cases():
    assert refusal_cases(OWN[:1], [in_this_process(share)]) == []


def by_number_of_entries(tokens, real, mask_id, lots, how, anything):
    if tokens.numel() != real.numel():
        raise ValueError("real")
    return exercises()["7.4"].reference(tokens, real.reshape(tokens.shape), mask_id, lots, how, anything)


def values_to_spare(q, k, v):
    if q.shape != k.shape or len(v) < len(q):
        raise ValueError("shapes")
    return exercises()["12.4"].reference(q, k, v[: len(q)])


def nan_passes(length, d_head, turn):
    if d_head % 2 or d_head < 4 or turn <= 0:
        raise ValueError("no hand")
    return max(1.0, (length / (2 * math.pi * turn)) ** (d_head / (d_head - 2)))


def more_key_heads_pass(vocab, d, layers, heads, kv_heads, d_ff, tied):
    if d % heads or (heads > kv_heads and heads % kv_heads):
        raise ValueError("heads")
    return exercises()["13.2"].reference(vocab, d, layers, max(heads, kv_heads), kv_heads, d_ff, tied)


@pytest.mark.parametrize(
    ("id", "answer"),
    [("7.4", by_number_of_entries), ("12.4", values_to_spare), ("5.4", nan_passes), ("13.2", more_key_heads_pass)],
)
def test_answers_that_refuse_too_little_are_found(id, answer):
    verdict = examine(key_of(exercises()[id]), in_this_process(answer)).strict
    assert verdict.result is not Result.RIGHT and verdict.shows == REFUSED


def test_a_refusal_holds_beside_nothing_to_do_and_an_axis_more_is_another_shape():
    write, norm = exercises()["0.5"], exercises()["0.3"]
    verdict = examine(key_of(write), in_this_process(lambda text, n, *rest: write(text, n, *rest) if n else [])).strict
    assert verdict.shows == "an unknown word is rejected" and "n = 0" in verdict.input

    def column(y, gain, eps):
        if len(gain) != y.shape[-1]:
            raise ValueError("gain")
        return y / (y.square().mean(-1, keepdim=True) + eps).sqrt() * gain

    found = examine(key_of(norm), in_this_process(column))
    assert found.is_right and found.robust.shows == REFUSED and "(7, 1)" in found.robust.input


@pytest.mark.parametrize("kind", ["int64", "int32"])
def test_the_whole_numbers_of_numpy_are_numbers(kind):
    numpy = pytest.importorskip("numpy")
    call = in_this_process(lambda x: (getattr(numpy, kind)(x), [numpy.float32(0.5), True]))
    assert call(Case("a number", (3,))) == Outcome((3, [0.5, True]))
