"""Find near-duplicates, texts that share most of their wording, using MinHash signatures divided into bands.

A text is represented by the set of its shingles, which are runs of a few words. The similarity of two texts is the
fraction of their shingles that they have in common (Jaccard similarity). If all shingles are put in a random order, the
first shingles of two texts are the same with exactly this probability (Broder 1997). A signature contains the first
shingles of many random orders. Two signatures therefore estimate the similarity of their texts, and texts that agree in
all `rows` entries of one of `bands` bands become candidates (locality-sensitive hashing, Leskovec et al., "Mining of
Massive Datasets", chapter 3).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from companion.ground.fields import require_whole, shown

WORD = re.compile(r"\w+")


def shingles(text: str, words: int = 5) -> npt.NDArray[np.uint64]:
    """Return the distinct runs of `words` words in a text as sorted 64-bit hashes, (shingle,).

    Case, punctuation and line breaks make no difference. A text with fewer words is a single shingle, and a text
    without words has none.

    Raises:
        ValueError: for `words` below 1.
    """
    require_whole("words", words)
    found = WORD.findall(text.lower())
    runs = {" ".join(found[at : at + words]) for at in range(max(1, len(found) - words + 1))} if found else set()
    hashes = [hashlib.blake2b(run.encode(), digest_size=8).digest() for run in sorted(runs)]
    return np.unique(np.frombuffer(b"".join(hashes), ">u8").astype(np.uint64))


def jaccard(one: npt.NDArray[np.uint64], other: npt.NDArray[np.uint64]) -> float:
    """Return the Jaccard similarity of two sets of shingles, the size of the intersection divided by that of the union.

    Two empty sets have similarity 1.
    """
    both = len(np.intersect1d(one, other))
    either = len(one) + len(other) - both
    return both / either if either else 1.0


def signature(found: npt.NDArray[np.uint64], hashes: int = 112, seed: int = 0) -> npt.NDArray[np.uint64]:
    """Return the MinHash signature (hash,) of a set of shingles: its first element in each of `hashes` random orders.

    The fraction of equal entries in two signatures estimates the Jaccard similarity s of their sets, with a standard
    deviation of sqrt(s (1 - s) / hashes). An order is a one-to-one function of 64-bit numbers (the finalizer of
    SplitMix64, after a random number is added). All entries in the signature of an empty set are 2^64 - 1.

    Raises:
        ValueError: for `hashes` below 1, or a seed that is not a non-negative integer.
    """
    require_whole("hashes", hashes)
    require_whole("seed", seed, 0)
    if not len(found):
        return np.full(hashes, np.iinfo(np.uint64).max, np.uint64)
    numbers = np.arange(1, hashes + 1, dtype=np.uint64) + np.uint64(seed) * np.uint64(2**32)
    return splitmix64(found[None, :] + splitmix64(numbers)[:, None]).min(axis=1)


def near_duplicates(
    texts: Sequence[str], *, words: int = 5, bands: int = 14, rows: int = 8, seed: int = 0
) -> list[int]:
    """Group texts that share most of their wording, and return for each text the index of the first text in its group.

    Texts of similarity s share a band with probability 1 - (1 - s^rows)^bands. Texts that are linked by a chain of such
    pairs are in the same group. The defaults are those of FineWeb (2024), which link 77 % of the pairs with similarity
    0.75 and 5 % of the pairs with similarity 0.5.

    Args:
        texts: the texts; those without words form one group.
        words: number of words in a shingle.
        bands: number of bands in a signature.
        rows: number of signature entries in each band.
        seed: seed of the random orders.

    Raises:
        ValueError: for a string in place of a list of texts, and for a number that is not a positive whole number.
    """
    if isinstance(texts, str):
        raise ValueError(f"texts: expected a list of texts, got a single string, {shown(texts)}")
    require_whole("bands", bands)
    require_whole("rows", rows)
    first = list(range(len(texts)))

    def root(at: int) -> int:
        while first[at] != at:
            first[at] = first[first[at]]
            at = first[at]
        return at

    buckets: dict[tuple[int, bytes], int] = {}
    for at, text in enumerate(texts):
        minima = signature(shingles(text, words), bands * rows, seed).reshape(bands, rows)
        for band, key in enumerate(minima):
            one, other = root(buckets.setdefault((band, key.tobytes()), at)), root(at)
            first[max(one, other)] = min(one, other)
    return [root(at) for at in range(len(texts))]


def splitmix64(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Apply the finalizer of SplitMix64, a one-to-one function of 64-bit numbers (Steele et al. 2014)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
