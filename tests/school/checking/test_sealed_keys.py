"""A sealed key gives the reference's verdicts, contains results but no code, and does not reveal the answer."""

from dataclasses import replace
from functools import cache

import pytest

from companion_school.checking.call import Result, identical, in_this_process
from companion_school.checking.codec import pack
from companion_school.checking.examine import examine
from companion_school.checking.sealed_keys import kept_key, kind_of, seal, unseal
from companion_school.course.hidden_seeds import hidden_seed
from companion_school.course.points import is_constant
from companion_school.course.proof.verify import stub
from companion_school.exercises.catalogue import exercises

BOOK = exercises()
SECRET = b"a secret that only this test knows"


@cache
def some(id):
    """Return an exercise with every fourth of its known mistakes.

    A key stores the result of each mistake on every case; `make verify` tests that all mistakes are named.
    """
    return replace(BOOK[id], mistakes=BOOK[id].mistakes[::4])


def called_once(answer, *keys):
    """Return a call of an answer that is cached for each case and round, and shared by all keys."""
    call, kept = in_this_process(answer), {}
    index = {id(case): at for key in keys for at, case in enumerate(key.cases)}

    def once(case, again=False):
        at = index[id(case)], again
        if at not in kept:
            kept[at] = call(case, again)
        return kept[at]

    return once


@pytest.mark.parametrize("id", BOOK)
def test_it_gives_the_verdicts_of_the_reference(id):
    one = some(id)
    seed = hidden_seed(SECRET, one.id)
    key, sealed = kept_key(one, seed), unseal(seal(one, seed))
    assert (sealed.id, sealed.title, sealed.name, sealed.forbidden) == (one.id, one.title, one.name, one.forbidden)
    asked = zip(sealed.key.cases, key.cases, strict=True)
    assert all(identical([*mine.arguments], [*theirs.arguments]) for mine, theirs in asked)
    for answer in (one.reference, stub(one), *(known.answer for known in one.mistakes)):
        call = called_once(answer, sealed.key, key)
        assert str(sealed.examine(call)) == str(examine(key, call))


@pytest.mark.parametrize("id", BOOK)
def test_without_mistakes_it_tells_right_from_wrong_and_names_none(id):
    one = some(id)
    # The key from above, because making one takes long
    sealed = unseal(seal(one, hidden_seed(SECRET, one.id), mistakes=False))
    assert sealed.examine(in_this_process(one.reference)).result is Result.RIGHT
    for known in one.mistakes:
        verdict = sealed.examine(in_this_process(known.answer))
        verdict = verdict.strict  # what belongs to robust is reported there
        assert verdict.result in (Result.WRONG, Result.CRASHED) and verdict.mistake is None


@pytest.mark.parametrize("one", [one for one in BOOK.values() if is_constant(one)], ids=lambda one: one.id)
def test_a_fixed_result_is_not_told(one):
    sealed = unseal(seal(one, 0, knows_answers=False))
    assert sealed.key.expected(0).value == kind_of(one.reference())
    assert sealed.examine(in_this_process(one.reference)).result is Result.RIGHT
    assert sealed.examine(in_this_process(stub(one))).result is Result.MISSING
    for known in one.mistakes:
        verdict = sealed.examine(in_this_process(known.answer))
        assert verdict.result is Result.WRONG
    assert "not of the right kind" in sealed.examine(in_this_process(lambda: object())).fault
    assert sealed.examine(in_this_process(lambda: 1 / 0)).result is Result.CRASHED
    wrong = sealed.examine(in_this_process(one.mistakes[0].answer))
    assert "expected" not in str(wrong) and wrong.mistake == one.mistakes[0].message


def test_the_same_exercise_and_seed_give_the_same_bytes():
    one = BOOK["2.3"]
    assert seal(one, 5) == seal(one, 5) != seal(one, 6)


def test_other_bytes_are_refused():
    for data in (b"", b"x" * 50, pack({"id": "2.3"}), pack([1, 2]), seal(BOOK["2.3"], 0)[:-1]):
        with pytest.raises(ValueError, match="expected a"):
            unseal(data)
