"""Texts that share most of their wording form a group, and signatures estimate how much they share."""

import itertools
import random

import numpy as np
import pytest

from companion.data.near_duplicates import jaccard, near_duplicates, shingles, signature

WORDS = [f"w{i}" for i in range(500)]


def text_of(count: int, seed: int) -> list[str]:
    dice = random.Random(seed)
    return [WORDS[int(500 * dice.random())] for _ in range(count)]


def test_shingles_are_runs_of_words() -> None:
    assert len(shingles("The cat, the cat; THE\ncat sat.", 2)) == 3  # the cat, cat the, cat sat
    assert len(shingles("one two", 5)) == 1 and len(shingles(" ... ", 5)) == 0
    assert jaccard(shingles("a b c", 1), shingles("b c d", 1)) == 0.5
    assert jaccard(shingles(""), shingles("")) == 1 and jaccard(shingles(""), shingles("a")) == 0


def test_signatures_agree_as_often_as_the_sets_are_similar() -> None:
    # Sets of 30 numbers that share 20: similarity 1/2. The mean over 40 pairs and 500 orders is within 4 standard
    # deviations.
    shares = []
    for pair in range(40):
        numbers = shingles(" ".join(f"p{pair}x{i}" for i in range(40)), 1)
        assert jaccard(numbers[:30], numbers[10:]) == 0.5
        shares.append(np.mean(signature(numbers[:30], 500) == signature(numbers[10:], 500)))
    assert abs(np.mean(shares) - 0.5) < 4 * 0.5 / np.sqrt(40 * 500)
    one = shingles("one and the same text")
    assert (signature(one, 9, seed=3) == signature(one, 9, seed=3)).all()
    assert not (signature(one, 9, seed=3) == signature(one, 9, seed=4)).any()


def test_bands_link_pairs_as_often_as_the_formula_says() -> None:
    linked = []
    for pair in range(300):  # 45 shared words of 75: similarity 0.6
        shared, left, right = (
            " ".join(f"p{pair}{side}{i}" for i in range(n)) for side, n in (("s", 45), ("l", 15), ("r", 15))
        )
        linked.append(near_duplicates([f"{shared} {left}", f"{shared} {right}"], words=1, bands=6, rows=4)[1] == 0)
    expected = 1 - (1 - 0.6**4) ** 6
    assert abs(np.mean(linked) - expected) < 4 * np.sqrt(expected * (1 - expected) / 300)


def test_edited_copies_form_a_group_and_other_texts_do_not() -> None:
    originals = [text_of(200, seed) for seed in range(5)]
    edited = [["new", *words[:100], "other", *words[101:]] for words in originals]
    texts = [" ".join(words) for words in itertools.chain(originals, edited)]
    assert near_duplicates(texts) == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
    assert near_duplicates([]) == [] and near_duplicates(["", "a b", "!"]) == [0, 1, 0]


def test_a_chain_of_similar_texts_is_one_group() -> None:
    words = [f"u{i}" for i in range(260)]
    # Neighbours share 190 words, the first and the last text 140
    texts = [" ".join(words[at : at + 200]) for at in range(0, 61, 10)]
    assert near_duplicates(texts, words=1, bands=20, rows=5) == [0] * 7
    ends = near_duplicates([texts[0], texts[-1]], words=1, bands=2, rows=20)
    assert ends == [0, 1]


def test_what_cannot_be_compared_is_named() -> None:
    with pytest.raises(ValueError, match="texts: expected a list of texts, got a single string"):
        near_duplicates("one text")
    for name in ("words", "bands", "rows"):
        with pytest.raises(ValueError, match=f"{name}.*0"):
            near_duplicates(["a"], **{name: 0})
    with pytest.raises(ValueError, match="seed"):
        signature(shingles("a"), seed=-1)
