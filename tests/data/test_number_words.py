"""The translation task: fixed held-out numbers, batches that depend only on their index, and ids that decode."""

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from companion.data import number_words
from companion.data.batches import IGNORE
from companion.data.number_words import BOS, DIGITS, EOS, PAD, PairBatches, is_held_out, one_side, sample

TASK = number_words.task("de", "en")
LETTERS = number_words.task("fr", "de", source_pieces="characters", target_pieces="characters")


def test_every_number_is_on_one_side_and_one_in_ten_is_held_out() -> None:
    sides = {held: [one_side(digits, held_out=held) for digits in DIGITS] for held in (True, False)}
    together = np.concatenate([*sides[True], *sides[False]])
    assert len(together) == len(np.unique(together)) == 10**6
    for digits, held, train in zip(DIGITS, sides[True], sides[False], strict=True):
        for side in (held, train):
            assert {len(str(n)) for n in side.tolist()} == {digits}
        if digits > 2:
            assert abs(len(held) / (len(held) + len(train)) - 0.1) < 0.03
    assert all(is_held_out(n) for n in sides[True][3][:50].tolist())
    assert not any(is_held_out(n) for n in sides[False][3][:50].tolist()) and not is_held_out(0)


def test_the_division_is_the_same_for_ever() -> None:
    """The split was published with the runs; another one would train on numbers that they were evaluated on."""
    assert [n for n in range(200) if is_held_out(n)][:9] == [2, 18, 29, 30, 31, 43, 68, 72, 75]
    assert sum(len(one_side(digits, held_out=True)) for digits in DIGITS) == 100_012


def test_every_piece_of_a_held_out_name_occurs_in_names_that_are_trained_on() -> None:
    for task in (TASK, LETTERS):
        seen = {i for n in sample(3000) for ids in task.encode(n) for i in ids} | set(task.encode(0)[0])
        assert all(i in seen | set(task.encode(0)[1]) for n in number_words.held_out(500) for i in task.encode(n)[0])


def test_a_sample_has_every_length_and_no_held_out_number() -> None:
    drawn = sample(21_000, seed=3)
    assert not any(map(is_held_out, drawn))
    counts = Counter(len(str(n)) for n in drawn)
    for digits in DIGITS:
        assert counts[digits] == pytest.approx(1000 * digits, rel=0.15)
    assert sample(50, seed=3) == sample(50, seed=3) != sample(50, seed=4)
    assert {len(str(n)) for n in sample(200, digits=(2, 4))} == {2, 4}


@pytest.mark.parametrize("count", [1, 10, 300, 2000, 9000])
def test_held_out_numbers_are_different_and_as_even_over_lengths_as_can_be(count: int) -> None:
    chosen = number_words.held_out(count)
    assert len(set(chosen)) == len(chosen) == count and all(map(is_held_out, chosen)) and chosen == sorted(chosen)
    counts = Counter(len(str(n)) for n in chosen)
    full = [digits for digits in DIGITS if counts[digits] == len(one_side(digits, held_out=True))]
    others = [counts[digits] for digits in DIGITS if digits not in full]
    assert max(others) - min(others) <= 1
    assert number_words.held_out(count) == chosen != number_words.held_out(count, seed=1) or count < 5


def test_all_held_out_numbers_of_a_length_are_all_there_are() -> None:
    assert number_words.held_out(10**6, digits=[3]) == one_side(3, held_out=True).tolist()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 999_999), min_size=1, max_size=6), st.sampled_from([TASK, LETTERS]))
def test_a_batch_is_shifted_padded_on_the_right_and_comes_back(chosen, task) -> None:
    source, inputs, targets = task.batch(chosen)
    assert inputs.shape == targets.shape and len(source) == len(inputs) == len(chosen)
    assert max(source.shape[1], inputs.shape[1]) <= task.longest
    for number, read, fed, wanted in zip(chosen, source, inputs, targets, strict=True):
        length = int((wanted != IGNORE).sum())
        assert (wanted[:length] != IGNORE).all() and wanted[length - 1] == EOS
        assert fed[0] == BOS and torch.equal(fed[1:length], wanted[: length - 1]) and (fed[length:] == PAD).all()
        assert task.decode(wanted[:length].tolist()) == task.target.name(number)
        assert task.decode(fed.tolist()) == task.target.name(number)  # the start token and padding decode to nothing
        real = read[read != PAD].tolist()
        assert task.source.join(task.pieces(real), task.source_pieces) == task.source.name(number)
        assert read[: len(real)].tolist() == real


def test_the_vocabulary_is_one_for_both_languages_with_three_special_ids() -> None:
    assert len({PAD, BOS, EOS}) == 3 and TASK.vocabulary[:3] == ("<pad>", "<bos>", "<eos>")
    assert len(set(TASK.vocabulary)) == TASK.vocab == 3 + 32 + 33
    words = {i for n in sample(500) for ids in TASK.encode(n) for i in ids}
    assert not words & {PAD, BOS, EOS}
    ids = TASK.encode(21_304)[1]
    assert TASK.decode([BOS, *ids, EOS, *ids]) == "twenty-one thousand, three hundred and four"
    with pytest.raises(ValueError, match="id 68: expected a whole number from 0 to 67"):
        TASK.decode([68])


def test_training_batches_depend_on_seed_and_number_alone_and_never_hold_out() -> None:
    one, other = (PairBatches(TASK, batch=5, seed=2) for _ in range(2))
    for step in (7, 0, 7, 1000):
        assert all(map(torch.equal, one(step), other(step)))
    assert not torch.equal(one(0).targets, one(1).targets)
    assert not torch.equal(one(0).targets, PairBatches(TASK, batch=5, seed=3)(0).targets)
    few = PairBatches(TASK, batch=40, seed=0, numbers=[7, 12])
    assert {TASK.decode(row) for row in few(0).inputs.tolist()} == {"seven", "twelve"}
    drawn = {TASK.target.number(TASK.decode(row)) for step in range(30) for row in one(step).inputs.tolist()}
    assert not any(map(is_held_out, drawn)) and len(drawn) > 100


def test_the_fingerprint_tells_languages_and_pieces_apart_and_is_the_same_in_another_process() -> None:
    tasks = [TASK, LETTERS, number_words.task("en", "de"), number_words.task("de", "en", source_pieces="characters")]
    assert len({task.fingerprint for task in tasks}) == 4
    script = "from companion.data import number_words as n; print(n.task('de', 'en').fingerprint)"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.strip() == TASK.fingerprint


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="from 'de' to 'de': expected two different languages"):
        number_words.task("de", "de")
    with pytest.raises(ValueError, match=r"language 'klingon': expected one of de \(German\)"):
        number_words.task("de", "klingon")
    with pytest.raises(ValueError, match="numbers is empty"):
        TASK.batch([])
    with pytest.raises(ValueError, match="numbers is empty"):
        PairBatches(TASK, batch=2, seed=0, numbers=[])
    with pytest.raises(ValueError, match="batch=0"):
        PairBatches(TASK, batch=0, seed=0)
    with pytest.raises(ValueError, match="digits=7: expected a whole number from 1 to 6"):
        one_side(7, held_out=True)
    with pytest.raises(ValueError, match="number=1000000: expected at most 999,999"):
        is_held_out(10**6)
    with pytest.raises(ValueError, match="count=0"):
        sample(0)


def test_kinds_of_pieces_that_do_not_exist_are_named(unchecked) -> None:
    with pytest.raises(ValueError, match="target_pieces='words': expected one of 'parts', 'characters'"):
        number_words.task("de", "en", target_pieces="words")  # type: ignore[arg-type]
