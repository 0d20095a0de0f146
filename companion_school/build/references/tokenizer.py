"""Stage 1, tokenizer.py: a text in tokens, and back, by byte-pair merges learned from a text (lesson 01).

A token is a number. 0 to 255 are the bytes; 256 + n is what the n-th merge, counted from 0, has joined. So a tokenizer
is its list of merges, and nothing else: pairs of tokens, in the order in which they were learned.
"""

import re
from collections import Counter, defaultdict
from itertools import pairwise

Merge = tuple[int, int]
"""Two tokens that stand side by side and become one."""


PIECE = re.compile(r" ?[^\W\d_]{1,64}| ?\d{1,64}| ?(?:[^\w\s]|_){1,64}|\s{1,64}")
"""Letters, digits or signs, each with at most one blank before them, or white space: at most 64 characters."""


def pieces(text: str) -> list[bytes]:  # given
    """The text in pieces, as bytes; no merge reaches from one into the next. Put together they are the text.

    Raises `ValueError` for text that UTF-8 cannot write.
    """
    return [piece.encode() for piece in PIECE.findall(text)]


def join(word: list[int], pair: Merge, token: int) -> list[int]:
    """The word with `token` wherever the two of `pair` stood side by side, from left to right."""
    joined, at = [], 0
    while at < len(word):
        if at + 1 < len(word) and (word[at], word[at + 1]) == pair:
            joined.append(token)
            at += 2
        else:
            joined.append(word[at])
            at += 1
    return joined


def learn(text: str, most: int) -> list[Merge]:
    """The merges of a text, at most so many: each joins the pair that occurs most often, until none occurs twice.

    Pairs are counted within the pieces of the text, at every place, and of equally frequent ones the smallest wins.
    A thousand merges of a megabyte should not take a minute: join where the pair occurs, and leave all else alone.
    """
    times = Counter(pieces(text))  # a piece that occurs a thousand times is joined once
    words, often = [list(piece) for piece in times], list(times.values())
    count: Counter[Merge] = Counter()
    where = defaultdict(set)  # in which words a pair occurs, or has occurred
    for number, word in enumerate(words):
        for pair in pairwise(word):
            count[pair] += often[number]
            where[pair].add(number)
    merges: list[Merge] = []
    while len(merges) < most and count:
        best = min(count, key=lambda pair: (-count[pair], pair))
        if count[best] < 2:
            break
        for number in where.pop(best):
            for pair in pairwise(words[number]):
                count[pair] -= often[number]
            words[number] = join(words[number], best, 256 + len(merges))
            for pair in pairwise(words[number]):
                count[pair] += often[number]
                where[pair].add(number)
        del count[best]
        merges.append(best)
    return merges


def encode(text: str, merges: list[Merge]) -> list[int]:
    """The tokens of a text: in each piece, of the pairs that can be joined the one learned first, until none can.

    Raises `ValueError` for text that UTF-8 cannot write.
    """
    rank = {pair: number for number, pair in enumerate(merges)}
    known: dict[bytes, list[int]] = {}  # a text says the same words again and again
    tokens = []
    for piece in pieces(text):
        if piece not in known:
            word = list(piece)
            while ranks := [rank[pair] for pair in pairwise(word) if pair in rank]:
                word = join(word, merges[min(ranks)], 256 + min(ranks))
            known[piece] = word
        tokens += known[piece]
    return tokens


def decode(tokens: list[int], merges: list[Merge]) -> str:
    """The text of the tokens: `decode(encode(text, merges), merges) == text` for every text.

    Tokens that end within a character, as a model may write them, give U+FFFD there.
    """
    spelt = [bytes([byte]) for byte in range(256)]
    for left, right in merges:
        spelt.append(spelt[left] + spelt[right])
    return b"".join(spelt[token] for token in tokens).decode(errors="replace")
