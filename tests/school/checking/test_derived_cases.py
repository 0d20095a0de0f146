"""Requirements on every answer, whatever the exercise, such as to keep no state between calls."""

import inspect
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch

from companion_school.checking.call import Outcome, Result, in_this_process
from companion_school.checking.codec import outcome_of, outcome_value
from companion_school.checking.compare import difference
from companion_school.checking.derived_cases import EDGE, EXCUSES, LIMIT, NAMES, OTHER, ROOM, SCALE, TIE
from companion_school.checking.examine import AnswerKey, examine, key_of
from companion_school.checking.exercise import Case
from companion_school.checking.sealed_keys import seal, unseal
from companion_school.exercises.catalogue import exercises

CASES = (
    Case("doubles two numbers", (torch.tensor([1.0, 2.0]), 2.0)),
    Case("takes another factor", (torch.tensor([3.0, 5.0]), 3.0)),
    Case("of three numbers", (torch.tensor([1.0, 2.0, 4.0]), 2.0)),
)
KEY = AnswerKey(
    ("x", "factor"), CASES, lambda index: Outcome(CASES[index].arguments[0] * CASES[index].arguments[1]), ()
)


def examined(answer):
    return examine(KEY, in_this_process(answer)).strict


def test_a_plain_answer_is_right():
    assert examined(lambda x, factor: x * factor).result is Result.RIGHT


def test_results_in_one_buffer_that_the_next_call_overwrites_are_found():
    buffer = torch.empty(9)

    def scaled(x, factor):
        return torch.mul(x, factor, out=buffer[: len(x)])

    verdict = examined(scaled)
    assert verdict.result is Result.WRONG and "changed what an earlier call had returned" in verdict.fault
    assert verdict.shows == "takes another factor"


def test_a_list_that_grows_from_call_to_call_is_found():
    kept: list = []

    def listed(x, factor):
        kept[:] = [x * factor]
        return kept

    key = AnswerKey(KEY.names, CASES, lambda index: Outcome([KEY.expected(index).value]), ())
    assert "changed what an earlier call" in examine(key, in_this_process(listed)).strict.fault


def test_what_was_remembered_by_too_little_is_found_when_it_is_asked_again():
    known: dict = {}

    def remembers(x, factor):
        """Right as long as no shape comes twice, because the cached result ignores the factor."""
        if len(x) in known and len(known) == 2:
            return x * known[len(x)]
        known[len(x)] = factor
        return x * factor

    verdict = examined(remembers)
    assert verdict.result is Result.WRONG and "called again after other inputs" in verdict.fault
    assert verdict.shows == "doubles two numbers"


def test_an_answer_that_counts_its_calls_is_found():
    calls = []

    def thrice(x, factor):
        calls.append(1)
        return x * factor if len(calls) <= 3 else x

    assert "called again" in examined(thrice).fault


def test_an_error_of_a_kind_of_its_own_is_a_value_error_if_except_takes_it_for_one():
    class HeadsDoNotDivide(ValueError):
        pass

    def refuses(x):
        raise HeadsDoNotDivide("3 heads do not divide 4")

    key = AnswerKey(("x",), (Case("is refused", (1,), refuse=True),), lambda index: Outcome(), ())
    assert examine(key, in_this_process(refuses)).strict.result is Result.RIGHT

    def fails(x):
        raise IndexError("3 heads do not divide 4")

    assert "expected a ValueError, got IndexError" in examine(key, in_this_process(fails)).strict.fault


def test_a_named_tuple_is_a_tuple():
    class Head(NamedTuple):
        output: torch.Tensor
        weights: torch.Tensor

    key = AnswerKey(
        ("x",), (Case("two results", (torch.ones(2),)),), lambda i: Outcome((torch.ones(2), torch.ones(2))), ()
    )
    assert examine(key, in_this_process(lambda x: Head(x.clone(), x.clone()))).result is Result.RIGHT


@pytest.mark.parametrize("spoiled", [True, False])
def test_it_is_told_from_process_to_process(spoiled):
    assert outcome_of(outcome_value(Outcome(1, spoiled=spoiled))).spoiled is spoiled
    old = outcome_value(Outcome(1))
    del old["spoiled"]
    assert outcome_of(old).spoiled is False, "problem sets that are out already do not say"


def test_an_exact_zero_is_asked_for_where_the_statement_speaks_of_one():
    expected = torch.tensor([0.5, 0.5, 0.0])
    almost = torch.tensor([0.5, 0.5, 1e-12])
    assert difference(almost, expected) is None
    assert difference(almost, expected, exact_zero=True) == "expected exactly 0, got numbers up to 1.0e-12 in its place"
    assert difference([expected.clone()], [expected], exact_zero=True) is None
    assert difference([almost], [expected], exact_zero=True).startswith("result 1: expected exactly 0")


def test_a_share_of_one_that_cuts_what_rounds_away_is_found():
    """The sum of the probabilities rounds to 1 before the last of them, and the rest must still be kept."""
    from companion_school.exercises.lesson_10 import temperature_top_p

    logits = torch.tensor([0.0, -40.0, -41.0], dtype=torch.float64)
    assert temperature_top_p(logits, 1.0, 1.0).gt(0).all()


def test_a_small_weight_on_a_hidden_key_is_found():
    exercise = exercises()["2.3"]

    def leaks(scores, may_look):
        weights = exercise.reference(scores, may_look)
        return torch.where(may_look, weights, weights + 1e-12)

    verdict = examine(key_of(exercise), in_this_process(leaks)).strict
    assert verdict.result is Result.WRONG and "expected exactly 0" in verdict.fault
    sealed = unseal(seal(exercise, 0))
    assert str(sealed.examine(in_this_process(leaks))) == str(verdict)


def test_results_of_foreign_kinds_are_compared_and_not_raised():
    verdict = examined(lambda x, factor: (x * factor).numpy())
    assert verdict.result is Result.WRONG and "got a ndarray" in verdict.fault


def test_a_result_that_is_its_argument_is_found_unless_it_may_be():
    def kept(x, factor):
        return x if factor == 1 else x * factor

    case = Case("times one", (torch.ones(3), 1.0))
    key = AnswerKey(KEY.names, (case,), lambda index: Outcome(torch.ones(3)), ())
    assert "shares its memory with the argument x" in examine(key, in_this_process(kept)).strict.fault
    allowed = replace(key, cases=(replace(case, alias=True),))
    assert examine(allowed, in_this_process(kept)).strict.result is Result.RIGHT


def test_a_result_that_is_kept_for_the_next_call_is_found_when_somebody_writes_into_it():
    known: dict = {}

    def remembers(x, factor):
        return known.setdefault((tuple(x.tolist()), factor), x * factor)

    assert "its earlier results overwritten" in examined(remembers).fault


def test_an_answer_that_needs_its_tensors_in_a_row_is_found():
    key = AnswerKey(("x",), (Case("doubles", (torch.ones(2, 3),)),), lambda index: Outcome(torch.full((6,), 2.0)), ())
    assert "another memory layout" in examine(key, in_this_process(lambda x: x.view(6) * 2)).strict.fault
    assert examine(key, in_this_process(lambda x: x.reshape(6) * 2)).strict.result is Result.RIGHT
    bound = replace(key, cases=(replace(key.cases[0], layout=False),))
    assert examine(bound, in_this_process(lambda x: x.view(6) * 2)).strict.result is Result.RIGHT


def masked_after(scores, may_look):
    e = (scores - scores.amax(-1, keepdim=True)).exp() * may_look
    return e / e.sum(-1, keepdim=True).masked_fill(~may_look.any(-1, keepdim=True), 1.0)


def one_maximum(scores, may_look):
    z = scores.masked_fill(~may_look, -torch.inf)
    e = (z - z.max()).exp()
    return e / e.sum(-1, keepdim=True).masked_fill(~may_look.any(-1, keepdim=True), 1.0)


def no_number_hidden(scores, may_look):
    return exercises()["2.3"].reference(scores.nan_to_num(0.0), may_look)


def no_axis_of_one(scores, may_look):
    if 1 in scores.shape:
        raise ValueError("one is too few")
    return exercises()["2.3"].reference(scores, may_look)


@pytest.mark.parametrize(
    ("answer", "law"),
    [(masked_after, "levels"), (one_maximum, "levels"), (no_number_hidden, "nan"), (no_axis_of_one, "one")],
)
def test_the_laws_make_cases_that_nobody_wrote_down(answer, law):
    exercise = exercises()["2.3"]

    def refusing(scores, may_look):
        if may_look.dtype != torch.bool or may_look.shape != scores.shape:
            raise ValueError("may_look")
        return answer(scores, may_look)

    made = tuple(case for case in key_of(exercise).cases if case.shows == NAMES[law])
    expected = [in_this_process(exercise.reference)(case) for case in made]
    key = AnswerKey(("scores", "may_look"), made, lambda index: expected[index], ())
    verdict = examine(key, in_this_process(refusing)).strict
    assert verdict.result is not Result.RIGHT and verdict.shows == NAMES[law]


def test_an_exercise_is_excused_by_names_that_there_are_and_with_a_reason():
    excused = [(one.id, law, why) for one in exercises().values() for law, why in one.excused.items()]
    assert excused and all(law in EXCUSES and why for _, law, why in excused)


def test_a_nan_may_be_refused_and_must_not_be_taken_out():
    case = Case("NaN shows", (torch.tensor([1.0, torch.nan]),), only_nan=True)
    key = AnswerKey(("x",), (case,), lambda index: Outcome(torch.tensor([1.0, torch.nan])), ())

    def refuses(x):
        raise ValueError("x: expected numbers, got NaN")

    assert examine(key, in_this_process(refuses)).strict.result is Result.RIGHT
    assert examine(key, in_this_process(lambda x: x + 1)).strict.result is Result.RIGHT
    assert "expected NaN" in examine(key, in_this_process(lambda x: x.nan_to_num())).strict.fault


def test_what_is_kept_by_shape_alone_is_of_no_use_with_other_numbers():
    turned = exercises()["5.2"]
    kept: dict = {}

    def forgets_the_base(x, positions, base):
        return turned.reference(x, positions, kept.setdefault((tuple(positions), x.shape), base))

    verdict = examine(key_of(turned), in_this_process(forgets_the_base)).strict
    assert verdict.result is Result.WRONG and verdict.shows == OTHER


def test_a_small_weight_that_is_cut_is_wrong_where_zeros_are_exact():
    small, cut = torch.tensor([1.0, 1e-12], dtype=torch.float64), torch.tensor([1.0, 0.0], dtype=torch.float64)
    assert difference(cut, small, exact_zero=True) == "expected 1.0e-12, got exactly 0 in its place"
    assert difference(cut, torch.tensor([1.0, 1e-17], dtype=torch.float64), exact_zero=True) is None  # rounding
    assert difference(cut, small) is None


def of_law(id, law):
    """Return the key of an exercise with only the cases of one law, which its reference must pass."""
    exercise = exercises()[id]
    made = tuple(case for case in key_of(exercise).cases if case.shows == law)
    expected = [in_this_process(exercise.reference)(case) for case in made]
    key = AnswerKey(tuple(inspect.signature(exercise.reference).parameters), made, lambda at: expected[at], ())
    assert made and examine(key, in_this_process(exercise.reference)).strict.result is Result.RIGHT
    return exercise.reference, key


def test_equal_numbers_side_by_side_are_numbers_of_their_own():
    _, key = of_law("2.3", TIE)

    def of_different_ones(scores, may_look):
        e = scores.exp() * may_look
        rows = [row / row.unique().sum() if row.any() else row for row in e]
        return torch.stack(rows)

    assert examine(key, in_this_process(of_different_ones)).strict.shows == TIE


def test_a_number_is_scaled_up_and_down():
    right, key = of_law("5.4", SCALE)
    assert examine(key, in_this_process(lambda *sizes: min(1e7, right(*sizes)))).strict.shows == SCALE


def test_a_whole_number_may_be_as_large_as_an_axis():
    right, key = of_law("3.3", EDGE)

    def fewer(x, heads):
        if heads > 1 and heads >= x.shape[-1]:
            raise ValueError("heads of no width")
        return right(x, heads)

    assert examine(key, in_this_process(fewer)).strict.shows == EDGE


@pytest.mark.parametrize("bound", [lambda left: left <= 0, lambda left: left < -1])
def test_a_limit_is_met_exactly_and_missed_by_one(bound):
    right, key = of_law("13.4", LIMIT)

    def loose(memory, parameters, *sizes):
        if bound(memory - parameters * sizes[-1]):
            raise ValueError("the weights do not fit")
        return right(max(memory, parameters * sizes[-1]), parameters, *sizes)

    assert examine(key, in_this_process(loose)).strict.shows == LIMIT


def test_copies_are_found_where_the_statement_forbids_them():
    exercise = exercises()["3.5"]

    def copies(q, k, v):
        if q.shape[1] % k.shape[1]:
            raise ValueError("heads")
        key_head = torch.arange(q.shape[1]) // (q.shape[1] // k.shape[1])
        return torch.softmax(q @ k[:, key_head].mT / q.shape[-1] ** 0.5, dim=-1) @ v[:, key_head]

    verdict = examine(key_of(exercise), in_this_process(copies)).strict
    # The cached keys themselves
    assert verdict.shows == ROOM and "bytes at once; expected at most 65536" in verdict.fault
    sealed = unseal(seal(exercise, 0))
    assert sealed.examine(in_this_process(copies)).strict.fault == verdict.fault
    outcome = outcome_of(outcome_value(Outcome(1, peak=7)))
    assert outcome.peak == 7


def test_a_message_must_hold_what_the_statement_wants_in_it():
    key = AnswerKey(("x",), (Case("names row 7", (1,), refuse=True, says="7"),), lambda index: Outcome(), ())

    def refusing(message):
        def refuses(x):
            raise ValueError(message)

        return refuses

    assert examine(key, in_this_process(refusing("row 7 differs"))).strict.result is Result.RIGHT
    assert "whose message contains '7'" in examine(key, in_this_process(refusing("they differ"))).strict.fault


def test_float64_is_computed_in_float64():
    single = torch.tensor([0.1, 0.2, 1 / 3])
    fault = difference(single.double(), torch.tensor([0.1, 0.2, 1 / 3], dtype=torch.float64))
    assert fault.endswith("which happens if float32 is used in between")
    assert difference(3.0, 3) == "expected the int 3, got the float 3"
    assert difference(torch.tensor(3), 3) is None and difference(3.0, 3, 1e-9) is None
