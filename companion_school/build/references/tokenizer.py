"""Stage 1, tokenizer.py: from text to tokens and back, with byte-pair merges learned from a text (lesson 01).

A token is a number: 0 to 255 are the bytes, and 256 + n is the result of merge n, counted from 0. So a tokenizer is
completely defined by its list of merges, which are pairs of tokens in the order they were learned.
"""

import json
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

from tokenizers import Regex, pre_tokenizers

Merge = tuple[int, int]
"""Two adjacent tokens that become one."""

# GPT-2's pattern: an ending such as 's or 't; letters, digits or other signs after at most one space; or white space.
# Other programs know this pattern by name, so they can split a text exactly as you did.
PIECE = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CUT = pre_tokenizers.Split(Regex(PIECE), "isolated")  # Python's own `re` has no \p{L}, a letter of any alphabet


def pieces(text: str) -> list[bytes]:  # given
    """Split the text into pieces of bytes, across which nothing is merged. The pieces joined together are the text.

    Raises `ValueError` for text that UTF-8 cannot encode.
    """
    return [piece.encode() for piece, _ in CUT.pre_tokenize_str(text)]


def symbols() -> list[str]:  # given
    """Return the character that represents each byte in a `tokenizer.json`: a visible character represents itself, and
    the other bytes get characters from U+0100 on."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in visible else next(others)) for byte in range(256)]


def save_merges(merges: list[Merge], folder: str | Path) -> None:  # given
    """Write merges to a `tokenizer.json` that other programs can read. They get the same ids for every text, and id 0
    ends a text.

    Raises `ValueError` if two merges produce the same token, which such a file cannot represent.
    """
    written = symbols()
    for left, right in merges:
        written.append(written[left] + written[right])
    if len({*written}) < len(written):
        twice = next(one for one in written if written.count(one) > 1)
        raise ValueError(f"merges: two merges produce {twice!r}, but a tokenizer.json can list each token only once")
    bytewise = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    end = {"id": 0, "content": written[0], "special": True}
    end |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    pairs = [[written[left], written[right]] for left, right in merges]
    model = {"type": "BPE", "vocab": {one: id for id, one in enumerate(written)}, "merges": pairs}
    told = {"version": "1.0", "added_tokens": [end], "pre_tokenizer": bytewise, "decoder": bytewise, "model": model}
    also = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": written[0]}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(told, ensure_ascii=False, indent=1), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(also, ensure_ascii=False, indent=1), "utf-8")


def load_merges(folder: str | Path) -> list[Merge]:  # given
    """Return the merges that `save_merges` wrote."""
    model = json.loads((Path(folder) / "tokenizer.json").read_text("utf-8"))["model"]
    return [(model["vocab"][left], model["vocab"][right]) for left, right in model["merges"]]


def join(word: list[int], pair: Merge, token: int) -> list[int]:
    """Return the word with `token` in place of each adjacent `pair`, from left to right."""
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
    """Learn at most `most` merges from a text: each joins the most frequent pair, until no pair occurs twice.

    Pairs are counted at every position within the pieces of the text. Of equally frequent pairs, the smallest is
    chosen. A thousand merges on a megabyte should take less than a minute, so update only the words that contain the
    pair.
    """
    times = Counter(pieces(text))  # a piece that occurs a thousand times is processed once
    words, often = [list(piece) for piece in times], list(times.values())
    count: Counter[Merge] = Counter()
    where = defaultdict(set)  # words in which a pair occurs or has occurred
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
    """Return the tokens of a text: in each piece, repeatedly join the pair that was learned first, until no pair can be
    joined.

    Raises `ValueError` for text that UTF-8 cannot encode.
    """
    rank = {pair: number for number, pair in enumerate(merges)}
    known: dict[bytes, list[int]] = {}  # the same words occur again and again in a text
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
    """Return the text of the tokens: `decode(encode(text, merges), merges) == text` for every text.

    If tokens end in the middle of a character, as a model's tokens may, U+FFFD is returned for that character.
    """
    spelt = [bytes([byte]) for byte in range(256)]
    for left, right in merges:
        spelt.append(spelt[left] + spelt[right])
    return b"".join(spelt[token] for token in tokens).decode(errors="replace")
