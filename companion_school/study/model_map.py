"""Map of the model (lesson 00): the path of a word through it, with the lesson that explains each step."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from companion_school.study import figures

# (bottom edge, text, lesson, color), from top to bottom
PATH = (
    (9.1, "word -> id -> vector", "01", "sky"),
    (7.15, "query, key and value of each word", "02", "orange"),
    (6.45, "rotate queries and keys by position", "05", "orange"),
    (5.75, "scores, mask, softmax, weighted average", "02", "orange"),
    (5.05, "join the heads", "03", "orange"),
    (4.15, "add to the state, normalise", "06", "green"),
    (3.25, "a network for each word alone, or experts", "06, 11", "purple"),
    (2.35, "add to the state, normalise", "06", "green"),
    (0.85, "score for every word in the vocabulary", "01", "sky"),
    (0.15, "choose the next word", "10", "sky"),
)
AROUND = (
    ("waves in place of rotation", "04"),
    ("a stack that reads: encoder", "07"),
    ("a stack that writes: decoder", "08"),
    ("training all positions at once", "09"),
    ("writing fast: what may be kept", "10"),
    ("what attention costs", "12"),
    ("BERT, GPT, LLaMA, Mixtral", "13"),
    ("train one on real text", "14"),
    ("keep less of each token", "15"),
    ("the block of today", "16"),
    ("a memory in place of a cache", "17"),
    ("more than one token a step", "18"),
    ("fewer bits", "19"),
    ("from completing to answering", "20"),
    ("looking inside a trained model", "21"),
    ("better steps", "22"),
    ("how large it should be", "23"),
    ("what it should read", "24"),
    ("how good it is", "25"),
    ("more than one chip", "26"),
    ("from start to finish", "27"),
)
"""Text and lesson of each item, from top to bottom."""
HEIGHT = 0.6


def draw() -> Figure:
    """Draw the map. Use `figures.show` to display it."""
    fig, ax = figures.subplots(width=9.6, height=6.6)
    ax.axis("off")
    ax.set(xlim=(0, 12.4), ylim=(0, 9.9))
    for bottom, text, lesson, color in PATH:
        _box(ax, 1.3, bottom, 5.6, text, lesson, figures.PALETTE[color])
    for place, (text, lesson) in enumerate(AROUND):
        _box(ax, 7.9, 7.45 - 7.3 * place / (len(AROUND) - 1), 4.4, text, lesson, "white", height=0.34)
    ax.text(7.9, 9.4, "This lesson, 00, walks down the left side.", fontsize=10.5, style="italic", va="center")
    ax.text(7.9, 8.2, "Around the model", fontsize=12, weight="bold")
    ax.add_patch(Rectangle((1.0, 2.1), 6.2, 6.35, fill=False, linestyle="--", edgecolor="black"))
    ax.text(1.15, 8.06, "one block (large models stack dozens)", fontsize=10, style="italic", va="center")
    down = {"arrowstyle": "-|>", "color": "black"}
    for top, bottom in ((9.1, 8.45), (2.1, 1.45)):
        ax.annotate("", (4.1, bottom), (4.1, top), arrowprops=down)
    ax.plot([1.3, 0.45, 0.45, 1.2], [0.45, 0.45, 9.4, 9.4], color="black", linewidth=1.2, marker="", linestyle="-")
    ax.annotate("", (1.32, 9.4), (1.0, 9.4), arrowprops=down)
    ax.text(0.3, 5.0, "the new word joins the text", rotation=90, va="center", ha="right", fontsize=10)
    return fig


def _box(
    ax: Axes, x: float, y: float, width: float, text: str, lesson: str, color: str, height: float = HEIGHT
) -> None:
    ax.add_patch(Rectangle((x, y), width, height, facecolor=color, alpha=0.3))
    ax.add_patch(Rectangle((x, y), width, height, fill=False, edgecolor="black"))
    ax.text(x + 0.15, y + height / 2, text.replace("->", "→"), va="center", fontsize=10.5)
    ax.text(x + width - 0.12, y + height / 2, lesson, va="center", ha="right", fontsize=10.5, weight="bold")
