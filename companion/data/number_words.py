"""Translation of number names, a task in which word order matters, data is unlimited and answers can be checked.

Whether a number is held out depends only on the number itself (`is_held_out`), so no choice of languages, pieces, seeds
or batches lets a held-out number into training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, get_args

import numpy as np
from jaxtyping import Int
from torch import Tensor

from companion.data.batches import IGNORE
from companion.data.near_duplicates import splitmix64
from companion.data.number_names import MOST, Language, PieceKind, language
from companion.ground.fields import require_whole
from companion.ground.padding import padded

PAD, BOS, EOS = 0, 1, 2
"""Three separate ids. If the padding were also another symbol, the loss of that symbol would be masked too."""
SPECIAL = ("<pad>", "<bos>", "<eos>")
HELD_OUT = 10
"""One in this many numbers is held out."""
DIGITS = range(1, 7)
"""Possible lengths of a number, in digits."""


def is_held_out(number: int) -> bool:
    """Return whether a number is reserved for evaluation: about one in ten, always the same ones.

    A hash of the number (splitmix64, Steele et al. 2014) decides. 0 must not be held out: its name does not occur in
    any other name, so a model could not learn it.

    Raises:
        ValueError: if the number is outside the range of numbers whose names are known.
    """
    require_whole("number", number, 0)
    if number >= MOST:
        raise ValueError(f"number={number!r}: expected at most {MOST - 1:,}")
    return bool(_held_out()[number])


@lru_cache
def _held_out() -> np.ndarray:
    numbers = np.arange(MOST, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    return splitmix64(numbers) % np.uint64(HELD_OUT) == 0


@lru_cache
def one_side(digits: int, *, held_out: bool) -> Int[np.ndarray, " number"]:
    """Return all held-out numbers, or all others, that have this many digits (0 has one digit), in order.

    Raises:
        ValueError: if no names have this number of digits.
    """
    if digits not in DIGITS:
        raise ValueError(f"digits={digits!r}: expected a whole number from {DIGITS[0]} to {DIGITS[-1]}")
    first, end = 0 if digits == 1 else 10 ** (digits - 1), 10**digits
    found = first + np.flatnonzero(_held_out()[first:end] == held_out)
    found.setflags(write=False)
    return found


def held_out(count: int, *, seed: int = 0, digits: Sequence[int] = DIGITS) -> list[int]:
    """Return `count` distinct held-out numbers in order, or all of them if there are fewer.

    Every length (in digits) gets an equal share if it has enough numbers. (There are hardly any held-out numbers with
    one digit, and about ten with two.)
    """
    require_whole("count", count)
    random = np.random.default_rng(seed)
    chosen: list[int] = []
    for i, length in enumerate(sorted(digits)):  # longer numbers make up for missing short ones
        there = one_side(length, held_out=True)
        share = -(-(count - len(chosen)) // (len(digits) - i))
        chosen += random.permutation(there)[:share].tolist()
    return sorted(chosen)


def sample(
    count: int, *, seed: int | tuple[int, ...] | np.random.Generator = 0, digits: Sequence[int] = DIGITS
) -> list[int]:
    """Draw `count` training numbers with replacement, never held-out ones.

    The number of digits is drawn first, with a probability proportional to that number. If numbers below a million were
    drawn uniformly, nine out of ten would have six digits, and only one in a hundred thousand would have one digit.
    """
    require_whole("count", count)
    random = np.random.default_rng(seed)
    weights = np.array([length for length in digits], dtype=float)
    lengths = random.choice(np.array(digits), size=count, p=weights / weights.sum())
    return [int(random.choice(one_side(int(length), held_out=False))) for length in lengths]


class Pairs(NamedTuple):
    """A batch of translations, padded on the right.

    Attributes:
        source: the source's pieces, followed by `PAD`.
        inputs: the decoder's input, which is `BOS` and then the target's pieces.
        targets: the expected output, which is shifted by one position: the target's pieces, `EOS`, and then `IGNORE`.
    """

    source: Int[Tensor, "batch key"]
    inputs: Int[Tensor, "batch token"]
    targets: Int[Tensor, "batch token"]


@dataclass(frozen=True)
class NumberWords:
    """The task of translating number names from one language into another. `task` creates it.

    Both languages share one vocabulary, because a model has one embedding table: `PAD`, `BOS`, `EOS`, the pieces of the
    source, and those pieces of the target that the source does not have.
    """

    source: Language
    target: Language
    source_pieces: PieceKind = "parts"
    target_pieces: PieceKind = "parts"

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """The vocabulary piece of each id."""
        pieces = self.source.pieces(self.source_pieces) + self.target.pieces(self.target_pieces)
        return (*SPECIAL, *dict.fromkeys(pieces))

    @property
    def vocab(self) -> int:
        """Vocabulary size."""
        return len(self.vocabulary)

    @cached_property
    def longest(self) -> int:
        """Maximum number of tokens in a source, or in a target including its `BOS` or `EOS`.

        A model needs a context of at least this length.
        """
        return max(self.source.longest(self.source_pieces), 1 + self.target.longest(self.target_pieces))

    @property
    def title(self) -> str:
        """Name such as `German to English`."""
        return f"{self.source.title} to {self.target.title}"

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the names, their pieces and the held-out numbers."""
        digest = hashlib.blake2b(digest_size=16)
        for text in (*self.vocabulary, "", *self.source.texts(), "", *self.target.texts()):
            digest.update(text.encode() + b"\0")
        digest.update(_held_out().tobytes())
        return digest.hexdigest()

    def encode(self, number: int) -> tuple[list[int], list[int]]:
        """Return the ids of a number's name in the source and in the target language, without `BOS` and `EOS`."""
        source = self.source.split(self.source.name(number), self.source_pieces)
        target = self.target.split(self.target.name(number), self.target_pieces)
        return [self._ids[piece] for piece in source], [self._ids[piece] for piece in target]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the piece of each id, for example to label a figure's axis. Raises `ValueError` for an invalid id."""
        for token in ids:
            if not 0 <= token < self.vocab:
                raise ValueError(f"id {token!r}: expected a whole number from 0 to {self.vocab - 1}")
        return [self.vocabulary[token] for token in ids]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the target text of ids, up to the first `EOS`; `PAD` and `BOS` are left out."""
        ids = list(ids)
        ids = ids[: ids.index(EOS)] if EOS in ids else ids
        return self.target.join(self.pieces([i for i in ids if i not in (PAD, BOS)]), self.target_pieces)

    def batch(self, numbers: Sequence[int]) -> Pairs:
        """Return a batch with the translations of `numbers`, one per row. Raises `ValueError` if `numbers` is empty."""
        if len(numbers) == 0:
            raise ValueError("numbers is empty; expected at least one")
        sources, targets = zip(*map(self.encode, numbers), strict=True)
        return Pairs(
            padded(sources, PAD),
            padded([[BOS, *ids] for ids in targets], PAD),
            padded([[*ids, EOS] for ids in targets], IGNORE),
        )

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {piece: i for i, piece in enumerate(self.vocabulary)}


def task(
    source: str, target: str, *, source_pieces: PieceKind = "parts", target_pieces: PieceKind = "parts"
) -> NumberWords:
    """Make the task of translating between two languages, given by their codes, as in `task("de", "en")`.

    Raises:
        ValueError: if a language or the kind of pieces is unknown, or if both languages are the same.
    """
    if source == target:
        raise ValueError(f"from {source!r} to {target!r}: expected two different languages")
    for name, kind in (("source_pieces", source_pieces), ("target_pieces", target_pieces)):
        if kind not in get_args(PieceKind):
            raise ValueError(f"{name}={kind!r}: expected one of {', '.join(map(repr, get_args(PieceKind)))}")
    return NumberWords(language(source), language(target), source_pieces, target_pieces)


class PairBatches:
    """Training batches that depend only on (seed, number), like `TrainingBatches`.

    Args:
        task: the languages and their vocabulary.
        batch: pairs per batch.
        seed: seed for drawing numbers.
        numbers: numbers to draw from instead of all training numbers.

    Raises:
        ValueError: if `numbers` is empty.
    """

    def __init__(self, task: NumberWords, *, batch: int, seed: int, numbers: Sequence[int] | None = None) -> None:
        require_whole("batch", batch)
        if numbers is not None and len(numbers) == 0:
            raise ValueError("numbers is empty; expected at least one to draw from")
        self.task, self.batch, self.seed, self.numbers = task, batch, seed, numbers

    def __call__(self, step: int) -> Pairs:
        random = np.random.default_rng((self.seed, step))
        if self.numbers is None:
            return self.task.batch(sample(self.batch, seed=random))
        return self.task.batch([self.numbers[i] for i in random.integers(len(self.numbers), size=self.batch)])
