"""The baselines are correct: Witten and Bell's recursion, a probability distribution, and xz's own size."""

import lzma
import math
import shutil
import subprocess
import time
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from companion.data import baselines as yardsticks_module
from companion.data.baselines import NgramModel, baselines, xz_bits_per_byte
from companion.data.corpora import Document


def plain_witten_bell(train: list[bytes], order: int, context: bytes, byte: int) -> float:
    """Compute the recursion literally, with dictionaries."""
    counts: dict[bytes, Counter[int]] = defaultdict(Counter)
    for text in train:
        for i in range(len(text)):
            for k in range(min(order - 1, i) + 1):
                counts[text[i - k : i]][text[i]] += 1

    def p(h: bytes) -> float:
        shorter = p(h[1:]) if h else 1 / 256
        n, t = sum(counts[h].values()), len(counts[h])
        return (counts[h][byte] + t * shorter) / (n + t) if n else shorter

    return p(context[max(0, len(context) - order + 1) :])


def test_a_bigram_by_hand() -> None:
    # "abab": after a comes a never and b twice, so p(a) = (2 + 2/256) / (4 + 2). After b comes a once: p(a | b) = (1 +
    # 1 p(a)) / (1 + 1).
    model = NgramModel(2).fit([b"abab"])
    p_a = (2 + 2 / 256) / 6
    assert model.next_byte(b"")[ord("a")] == pytest.approx(p_a)
    assert model.next_byte(b"b")[ord("a")] == pytest.approx((1 + p_a) / 2)
    assert model.next_byte(b"a")[ord("b")] == pytest.approx((2 + p_a) / 3)  # p(b) = p(a)
    assert model.next_byte(b"c")[ord("b")] == pytest.approx(p_a)  # an unseen context passes the probability on
    assert model.bits(b"ab") == pytest.approx(-math.log2(p_a) - math.log2((2 + p_a) / 3))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.binary(max_size=30).map(lambda b: bytes(x % 4 for x in b)), min_size=1, max_size=4),
    st.binary(max_size=12).map(lambda b: bytes(x % 5 for x in b)),
    st.integers(1, 5),
)
def test_every_probability_is_the_recursions(train: list[bytes], text: bytes, order: int) -> None:
    train = [*train, b"\1"]
    fast = NgramModel(order).fit(train).probabilities(text)
    slow = [plain_witten_bell(train, order, text[:i], text[i]) for i in range(len(text))]
    np.testing.assert_allclose(fast, slow, rtol=1e-12)


@pytest.mark.parametrize("context", [b"", b"a", b"ab", b"xyz", b"the cat sat", b"\0\0\0\0\0\0"])
@pytest.mark.parametrize("order", [1, 3, 5, 8])
def test_the_next_byte_has_a_distribution_that_sums_to_one(order: int, context: bytes) -> None:
    model = NgramModel(order).fit([b"the cat sat on the mat", b"abracadabra", b""])
    p = model.next_byte(context)
    assert p.min() > 0
    assert p.sum() == pytest.approx(1, abs=1e-12)


def test_a_context_does_not_reach_into_the_document_before() -> None:
    together, apart = NgramModel(2).fit([b"abac"]), NgramModel(2).fit([b"ab", b"ac"])
    assert together.next_byte(b"b")[ord("a")] > apart.next_byte(b"b")[ord("a")]
    assert apart.next_byte(b"b")[ord("a")] == pytest.approx(apart.next_byte(b"")[ord("a")])


def test_a_lower_order_can_be_asked_of_a_higher_model() -> None:
    train, text = [b"the cat sat on the mat"], b"the mat sat"
    assert NgramModel(5).fit(train).bits(text, order=3) == pytest.approx(NgramModel(3).fit(train).bits(text))


def test_bad_arguments_are_named() -> None:
    for order in (0, 9):
        with pytest.raises(ValueError, match=f"order={order}: expected"):
            NgramModel(order)
    with pytest.raises(ValueError, match="order=4: .* order 3"):
        NgramModel(3).fit([b"abc"]).probabilities(b"a", order=4)
    with pytest.raises(ValueError, match="call fit first"):
        NgramModel(3).probabilities(b"a")
    with pytest.raises(ValueError, match="at least one byte"):
        NgramModel(3).fit([b""])
    with pytest.raises(ValueError, match="at least one byte of text"):
        xz_bits_per_byte([], [Document("empty", "")])


def test_xz_is_the_size_xz_gives_and_priming_helps_with_what_was_there_before() -> None:
    noise = "".join(chr(33 + i) for i in np.random.default_rng(0).integers(0, 90, 4000))
    held_out, train = [Document("h", noise)], [Document("t", "before " + noise + " after")]
    alone = xz_bits_per_byte([], held_out)
    assert alone == pytest.approx(8 * len(lzma.compress(noise.encode(), preset=9)) / 4000)
    if (program := shutil.which("xz")) is not None:
        size = len(subprocess.run([program, "-9", "-c"], input=noise.encode(), capture_output=True, check=True).stdout)
        assert abs(alone - 8 * size / 4000) < 0.1
    assert xz_bits_per_byte(train, held_out) < alone / 20


def test_all_five_on_half_a_megabyte_take_seconds() -> None:
    """They take about one second; the bound catches a count that has become hopelessly slow."""
    words = np.random.default_rng(1).choice(["alpha ", "beta ", "gamma\n", "delta, ", "omega. "], 90_000)
    documents = [Document(str(i), "".join(words[i::10])) for i in range(10)]
    began = time.process_time()
    marks = baselines(documents[1:], documents[:1])
    assert time.process_time() - began < 20
    names = [mark.name.split(",")[0] for mark in marks]
    assert names == ["xz -9", "xz -9", *(f"byte {n}-gram model" for n in (3, 4, 5))]
    trigram, fourgram, fivegram = (mark.bits_per_byte for mark in marks[2:])
    assert 0 < fivegram < fourgram < trigram < 8


def test_of_much_text_a_part_is_read_and_the_names_say_so(monkeypatch) -> None:
    documents = [Document(str(i), f"sentence number {i}, and some more of it\n" * 3) for i in range(40)]
    whole = baselines(documents[1:], documents[:1])
    monkeypatch.setattr(yardsticks_module, "MOST_READ", 1000)
    fitted: list[int] = []
    fit = NgramModel.fit
    monkeypatch.setattr(NgramModel, "fit", lambda self, texts: fit(self, (fitted.append(len(t)) or t for t in texts)))
    bounded = baselines(documents[1:], documents[:1])
    assert 500 < sum(fitted) <= 1000
    assert [mark.name for mark in whole][:3:2] == ["xz -9, held-out text alone", "byte 3-gram model"]
    assert bounded[0] == whole[0]
    assert all(" B" in mark.name for mark in bounded[1:])
