"""Deduplication: find repeated texts and paragraphs by comparing their sentences.

Paragraphs are separated by blank lines. A paragraph is a repetition if sentences that occurred before make up a quarter
of it or more. Paragraphs with fewer than `SHORTEST_REPEAT` characters are never removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

PARAGRAPH_BREAK = re.compile(r"(\n[ \t]*(?:\r?\n[ \t]*)*\r?\n)")
SENTENCE_END = re.compile(r"(?<=[.:;!?]) ")
SHORTEST_REPEAT = 60
"""Paragraphs with fewer characters than this (headings, rules, "See also") may repeat."""


def without_repeats(texts: Iterable[str]) -> Iterator[str]:
    """Yield each text without the paragraphs that repeat earlier ones, and "" for a text that occurred before."""
    seen: set[str] = set()
    sentences: set[str] = set()
    for text in texts:
        kept: list[str] = []
        if text not in seen:
            seen.add(text)
            pieces = PARAGRAPH_BREAK.split(text)  # paragraph, break, paragraph, break, ..., paragraph
            for i in range(0, len(pieces), 2):
                if not _is_repeated(pieces[i], sentences):
                    sentences.update(_sentences(pieces[i]))
                    kept.extend(pieces[i : i + 2])
        yield "".join(kept)


def repeated_share(train: Iterable[str], texts: Sequence[str]) -> float:
    """Return the fraction of the bytes of `texts` that are in paragraphs repeated from `train`."""
    pieces = [piece for text in texts for piece in PARAGRAPH_BREAK.split(text)[::2]]
    ours = {s for piece in pieces for s in _sentences(piece)}  # only these are stored, however large `train` is
    known = {s for text in train for piece in PARAGRAPH_BREAK.split(text)[::2] for s in _sentences(piece) if s in ours}
    total = sum(len(text.encode()) for text in texts)
    return sum(len(piece.encode()) for piece in pieces if _is_repeated(piece, known)) / total if total else 0.0


def _sentences(paragraph: str) -> list[str]:
    return SENTENCE_END.split(" ".join(paragraph.split()))


def _is_repeated(paragraph: str, seen: set[str]) -> bool:
    sentences = _sentences(paragraph)
    length = sum(map(len, sentences))
    return length >= SHORTEST_REPEAT and sum(len(s) for s in sentences if s in seen) >= length / 4
