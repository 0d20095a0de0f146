"""Moving figure of tokens: how a tokenizer's merges split text that the reader types."""

from __future__ import annotations

import json
import string

from matplotlib.patches import FancyBboxPatch

from companion.data.tokenizer import SMALLEST_VOCAB, BytePairTokenizer
from companion_school.study import figures
from companion_school.study.live import moving

MOST = 36**3
"""Maximum vocabulary size, because ids are stored as three digits in base 36."""
_DIGITS = string.digits + string.ascii_lowercase


def cut(tokenizer: BytePairTokenizer, text: str, *, caption: str = "") -> None:
    """Show a text box with its contents split into tokens, and a slider for the number of merges.

    Args:
        tokenizer: The tokenizer. The figure stores each merge in 6 bytes, so the tokenizer should have at most about
            3,000 merges.
        text: Initial text, 1 to 60 characters.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: The text is empty or too long, or the tokenizer has no merges or more than 46,656 tokens.
    """
    if not 0 < len(text) <= 60:
        raise ValueError(f"text: expected 1 to 60 characters, got {len(text)}")
    if tokenizer.vocab == SMALLEST_VOCAB:
        raise ValueError("tokenizer: expected a tokenizer with merges, got one with only the 256 bytes")
    if tokenizer.vocab > MOST:
        raise ValueError(f"tokenizer: expected at most {MOST:,} tokens, got {tokenizer.vocab:,}")
    model = json.loads(tokenizer.to_json())["model"]
    ids = model["vocab"]
    merges = "".join(_base_36(ids[half]) for pair in model["merges"] for half in pair)
    tokens = tokenizer.encode(text)
    pieces = [tokenizer.bytes_of(token) for token in tokens]
    fig, ax = figures.subplots(width=7.6, height=1.3)
    ax.axis("off")
    ax.set(xlim=(0, 76), ylim=(0, 10))
    x = 1.0
    for token, piece in zip(tokens, pieces, strict=True):
        shown = piece.decode(errors="replace").replace(" ", "␣")
        wide = 1.4 * len(shown) + 1.6
        ax.add_patch(FancyBboxPatch((x, 4.5), wide, 4, boxstyle="round,pad=0.1", facecolor="white", edgecolor="black"))
        ax.text(x + wide / 2, 6.4, shown, ha="center", va="center", family="monospace", fontsize=13)
        ax.text(x + wide / 2, 2.2, str(token), ha="center", va="center", fontsize=10)
        x += wide + 1.0
    moving.show(
        "cut",
        {"merges": merges, "text": text},
        fig,
        alt="A text in a box, and under it the tokens that it is cut into, each with its number. Another text may be "
        "typed, and the merges can be taken away and given back one group after the other, so that letters join.",
        caption=caption,
        numbers={"token": [piece.decode(errors="replace") for piece in pieces], "id": tokens},
    )


def _base_36(number: int) -> str:
    digits = ""
    for _ in range(3):
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits
