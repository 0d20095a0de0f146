"""Baselines for a model: a good compressor and byte n-gram models, in bits per byte on the same held-out text.

Bits per byte are the mean of -log2 p over the bytes of a text. Unlike the loss per token, they do not depend on the
tokenizer, so models, n-grams and compressors can be compared with each other.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from companion.data.corpora import Document
from companion.data.large_corpora import sample
from companion.ground.display import readable_bytes

XZ_WINDOW = 64 * 2**20
"""`xz -9` looks back 64 MiB, so training text beyond this size cannot help it."""
MOST_READ = 4 * 2**20
"""Maximum bytes of training text that the baselines read. Reading them takes seconds and a few hundred MB of memory."""


@dataclass(frozen=True)
class Baseline:
    """One baseline."""

    name: str
    bits_per_byte: float


def baselines(train: Sequence[Document], held_out: Sequence[Document]) -> list[Baseline]:
    """Measure the baselines on `held_out`.

    The baselines are `xz -9`, by itself and primed with the training text, and n-grams of order 3, 4 and 5.

    Without training text, only `xz -9` by itself can be measured. If there are more than `MOST_READ` bytes of training
    text, the baselines read a sample of it, and their names say how large the sample is. For megabytes of text, the
    measurements take seconds. Most of the time is spent on sorting, which takes O(n log n) for n bytes of training
    text.
    """
    whole = _bytes(train)
    train = sample(train, MOST_READ)
    read = _bytes(train)
    of = "" if read == whole else f"{readable_bytes(read)} of "
    marks = [Baseline("xz -9, held-out text alone", xz_bits_per_byte([], held_out))]
    if not read:
        return marks
    marks.append(Baseline(f"xz -9, primed with {of}the training text", xz_bits_per_byte(train, held_out)))
    model = NgramModel(order=5).fit(document.text.encode() for document in train)
    for order in (3, 4, 5):
        bits = sum(model.bits(document.text.encode(), order=order) for document in held_out)
        name = f"byte {order}-gram model" + (f" of {readable_bytes(read)}" if of else "")
        marks.append(Baseline(name, bits / _bytes(held_out)))
    return marks


def xz_bits_per_byte(train: Sequence[Document], held_out: Sequence[Document]) -> float:
    """Return the bits per byte that `xz -9` adds for `held_out` after compressing `train`, which may be empty.

    With training text, this is the compressed size of both texts together minus that of the training text. Only the
    last `XZ_WINDOW` bytes of the training text are used.

    Raises:
        ValueError: if `held_out` is empty.
    """
    before = b"".join(document.text.encode() for document in train)[-XZ_WINDOW:]
    text = b"".join(document.text.encode() for document in held_out)
    if not text:
        raise ValueError("held_out: expected at least one byte of text, got none")
    extra = len(lzma.compress(before + text, preset=9)) - (len(lzma.compress(before, preset=9)) if before else 0)
    return 8 * extra / len(text)


class NgramModel:
    """Byte n-gram model that interpolates over all shorter contexts, as in Witten and Bell (1991).

    Let c(h, b) be the number of times byte b followed the context h, n(h) = sum_b c(h, b), t(h) the number of different
    bytes seen after h, and h' the context h without its first byte:

        p(b | h) = (c(h, b) + t(h) p(b | h')) / (n(h) + t(h)),     p(b) before any context = 1 / 256

    A context that was never seen has n = t = 0 and uses p(b | h'). An order-n model looks at n - 1 bytes. Contexts do
    not extend beyond the start of a document.

    Raises:
        ValueError: if the order is not between 1 and 8.
    """

    def __init__(self, order: int) -> None:
        if not 1 <= order <= 8:
            raise ValueError(f"order={order!r}: expected a whole number from 1 to 8 (eight bytes fill a 64-bit key)")
        self.order = order
        # One table for each context length k = 0 ... order-1, sorted by key for binary search: the (k+1)-grams with
        # their counts, and the contexts h of k bytes with n(h) and t(h).
        self._tables: list[tuple[npt.NDArray[Any], ...]] = []

    def fit(self, texts: Iterable[bytes]) -> NgramModel:
        """Count every n-gram of `texts`, each a separate document.

        Counting takes O(order * n log n) time and O(n) memory.
        """
        stream, depth = _join(texts)
        self._tables = []
        for k in range(self.order):
            grams, counts = np.unique(_keys(stream, k + 1)[depth[k:] >= k], return_counts=True)
            contexts, start, followers = np.unique(grams >> np.uint64(8), return_index=True, return_counts=True)
            totals = np.add.reduceat(counts, start) if len(start) else counts
            self._tables.append((grams, counts, contexts, totals, followers))
        return self

    def bits(self, text: bytes, order: int | None = None) -> float:
        """Return the length of `text` in bits under the model, which is the sum of -log2 p.

        `order` may be lower than that of the model.
        """
        return float(-np.log2(self.probabilities(text, order)).sum())

    def probabilities(self, text: bytes, order: int | None = None) -> npt.NDArray[np.float64]:
        """Return the probability of every byte of `text` given the bytes before it, (byte,).

        Raises:
            ValueError: if `order` is higher than that of the model, or if `fit` has not been called.
        """
        order = self.order if order is None else order
        if not 1 <= order <= self.order:
            raise ValueError(f"order={order!r}: expected a whole number from 1 to this model's order {self.order}")
        if not self._tables:
            raise ValueError("the model has no counts yet: call fit first")
        stream = np.frombuffer(text, np.uint8)
        p = np.full(len(stream), 1 / 256)
        for k in range(min(order, len(stream))):
            grams, counts, contexts, totals, followers = self._tables[k]
            keys = _keys(stream, k + 1)
            c = _look_up(grams, counts, keys)
            n = _look_up(contexts, totals, keys >> np.uint64(8))
            t = _look_up(contexts, followers, keys >> np.uint64(8))
            seen = n > 0
            p[k:][seen] = ((c + t * p[k:]) / np.maximum(n + t, 1))[seen]
        return p

    def next_byte(self, context: bytes) -> npt.NDArray[np.float64]:
        """Return the probability of each of the 256 bytes that could follow `context`, (256,); they sum to 1."""
        tail = context[-(self.order - 1) :] if self.order > 1 else b""
        return np.array([self.probabilities(tail + bytes([byte]))[-1] for byte in range(256)])


def _bytes(documents: Sequence[Document]) -> int:
    return sum(document.bytes for document in documents)


def _join(texts: Iterable[bytes]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    parts = [np.frombuffer(text, np.uint8) for text in texts]
    if not any(len(part) for part in parts):
        raise ValueError("texts: expected at least one byte to count, got none")
    return np.concatenate(parts), np.concatenate([np.arange(len(part)) for part in parts])


def _keys(stream: npt.NDArray[np.uint8], length: int) -> npt.NDArray[np.uint64]:
    """Return every run of `length` bytes as an integer whose lowest byte is the most recent one.

    The shape is (len(stream) - length + 1,).
    """
    count = max(0, len(stream) - length + 1)
    keys = np.zeros(count, np.uint64)
    for i in range(length):
        keys = (keys << np.uint64(8)) | stream[i : i + count].astype(np.uint64)
    return keys


def _look_up(
    keys: npt.NDArray[np.uint64], values: npt.NDArray[np.integer], wanted: npt.NDArray[np.uint64]
) -> npt.NDArray[np.int64]:
    """Return the value of each wanted key, or 0 for an absent key; `keys` must be sorted."""
    if not len(keys):  # no training text was long enough
        return np.zeros(len(wanted), np.int64)
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0).astype(np.int64)
