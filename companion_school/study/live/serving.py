"""Moving figures of faster decoding: speculative sampling, and a timetable of a server's batches (lesson 18)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import NamedTuple

from matplotlib.figure import Figure

from companion_school.study import figures
from companion_school.study.live import moving

WAYS = ("static", "continuous", "in chunks")
SEATS, APART = (1, 2, 4), (0, 1, 3)
"""Numbers of seats (batch slots) and factors for the arrival times of the texts that the controls offer."""


def mending(p: Sequence[float], q: Sequence[float], *, words: Sequence[str], caption: str = "") -> None:
    """Show how speculative sampling accepts, rejects and replaces a draft model's tokens.

    Args:
        p: The probability of each word according to the model.
        q: The probability of each word according to the draft model.
        words: Two to five words.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: There are not two to five words, or the probabilities do not match them or do not add up to 1.
    """
    if not 2 <= len(words) <= 5 or not len(p) == len(q) == len(words):
        raise ValueError(
            f"p, q, words: expected probabilities for 2 to 5 words; got {len(p)}, {len(q)} and {len(words)}"
        )
    for name, of in (("p", p), ("q", q)):
        if min(of) < 0 or not math.isclose(sum(of), 1, abs_tol=1e-6):
            raise ValueError(f"{name}: expected probabilities that sum to 1; got {list(of)}")
    accepted = [min(pair) for pair in zip(p, q, strict=True)]
    missing = [max(0.0, a - b) for a, b in zip(p, q, strict=True)]
    moving.show(
        "mending",
        {"p": list(p), "q": list(q), "words": list(words)},
        _mended(p, q, words),
        alt="For each word a bar of the draft's guesses, of which a filled part is accepted and a hatched one "
        "rejected, and one that is written: accepted and resampled parts, up to the line of the model's probability.",
        caption=caption,
        numbers={
            "word": list(words),
            "the model's probability": [f"{x:.2f}" for x in p],
            "the draft's probability": [f"{x:.2f}" for x in q],
            "accepted": [f"{x:.2f}" for x in accepted],
            "resampled": [f"{x:.2f}" for x in missing],
        },
    )


def _mended(p: Sequence[float], q: Sequence[float], words: Sequence[str]) -> Figure:
    """Draw two bars for each word: how often the draft model proposes it, and how often it is the result."""
    fig, ax = figures.subplots(width=7.2, height=3.0)
    blue, orange = figures.PALETTE["blue"], figures.PALETTE["orange"]
    for at, (here, there) in enumerate(zip(p, q, strict=True)):
        stays, label = min(here, there), at == 0
        ax.bar(at - 0.2, stays, 0.34, color=blue, label="accepted" if label else None)
        rejected = {"color": "white", "edgecolor": "black", "hatch": "//"}
        if there > stays:
            ax.bar(at - 0.2, there - stays, 0.34, bottom=stays, **rejected)
        ax.bar(at + 0.2, stays, 0.34, color=blue)
        ax.bar(at + 0.2, here - stays, 0.34, bottom=stays, color=orange, label="resampled" if label else None)
        wanted = {"color": "black", "linestyle": "--", "marker": ""}
        ax.plot([at - 0.42, at + 0.42], [here] * 2, label="the model's probability" if label else None, **wanted)
    ax.set_xticks(range(len(words)), [f"{word}\nguessed, written" for word in words])
    ax.set(ylabel="probability", xlabel="word", ylim=(0, 1.25 * max(*p, *q)))
    ax.bar(0, 0, label="rejected", **rejected)
    ax.legend(loc="upper center", ncol=4, fontsize=8)
    ax.grid(False, axis="x")
    return fig


class Step(NamedTuple):
    """A step of a timetable.

    Attributes:
        began: Start of the step.
        took: Duration of the step.
        seats: One character per seat: "." for an empty seat, otherwise the letter of its text, in lower case while the
            prompt is read and in upper case while a token is generated.
    """

    began: float
    took: float
    seats: str


class Measured(NamedTuple):
    """A timetable. The unit of time is the time needed to read the weights once.

    Attributes:
        steps: The steps.
        end: End of the last step.
        first: Mean time from the arrival of a text to its first token.
        gap: Longest time between two consecutive tokens of any text.
    """

    steps: list[Step]
    end: float
    first: float
    gap: float


def timetable(texts: Sequence[tuple[float, int, int]], *, seats: int, way: str, together: int, chunk: int) -> Measured:
    """Simulate how a server batches texts.

    The step that reads the last token of a prompt generates the first token of the answer as well.

    Args:
        texts: A tuple (time of arrival, number of prompt tokens, number of answer tokens) for each text, in order of
            arrival.
        seats: Number of seats (batch slots).
        way: "static": a batch begins only when all seats are empty; "continuous": a waiting text takes a seat as soon
            as one is free; "in chunks": continuous, but no step reads more than `chunk` tokens of a prompt.
        together: Number of tokens that a step can process in the time needed to read the weights once; steps with more
            tokens take proportionally longer.
        chunk: For "in chunks", the maximum number of prompt tokens that a step reads from one text.
    """
    waiting, sits = list(range(len(texts))), {}  # type: ignore[var-annotated]
    steps, now, times = [], 0.0, {at: [] for at in range(len(texts))}  # type: ignore[var-annotated]
    while waiting or sits:
        for seat in range(seats) if way != "static" or not sits else ():
            if seat not in sits and waiting and texts[waiting[0]][0] <= now:
                text = waiting.pop(0)
                sits[seat] = [text, texts[text][1], texts[text][2]]
        if not sits:
            steps.append(Step(now, texts[waiting[0]][0] - now, "." * seats))
            now = texts[waiting[0]][0]
            continue
        reads = {seat: min(left, chunk if way == WAYS[2] else left) or 1 for seat, (_, left, _) in sits.items()}
        took, letters = max(1.0, sum(reads.values()) / together), ["."] * seats
        for seat, (text, prompt, answer) in list(sits.items()):
            prompt_left = max(0, prompt - reads[seat]) if prompt else 0
            letters[seat] = chr(ord("a" if prompt else "A") + text)
            if prompt_left == 0:
                times[text].append(now + took)
                answer -= 1
            sits[seat] = [text, prompt_left, answer]
            if answer == 0:
                del sits[seat]
        steps.append(Step(now, took, "".join(letters)))
        now += took
    gaps = [b - a for each in times.values() for a, b in pairwise(each)]
    first = sum(each[0] - text[0] for each, text in zip(times.values(), texts, strict=True)) / len(texts)
    return Measured(steps, now, first, max(gaps, default=0.0))


def seats(texts: Sequence[tuple[float, int, int]], *, together: int = 8, chunk: int = 4, caption: str = "") -> None:
    """Show how a server batches texts: static or continuous batching, with prompts read at once or in chunks.

    Args:
        texts: 2 to 12 texts, as in `timetable`, with prompts and answers of 1 to 64 tokens.
        together: See `timetable`.
        chunk: See `timetable`.
        caption: Caption of the figure, including its number.

    Raises:
        ValueError: An argument is out of range, or the texts are not sorted by time of arrival.
    """
    if not 2 <= len(texts) <= 12 or min(together, chunk) < 1:
        raise ValueError(
            f"expected 2 to 12 texts, together >= 1 and chunk >= 1; got {len(texts)} texts, {together=} and {chunk=}"
        )
    arrivals = [text[0] for text in texts]
    if arrivals != sorted(arrivals) or arrivals[0] < 0 or not all(1 <= n <= 64 for text in texts for n in text[1:]):
        raise ValueError(
            "texts: expected (arrival, prompt, answer), with ascending arrivals >= 0 and 1 to 64 tokens each"
        )
    tables = {}
    for way in WAYS:
        for count in SEATS:
            for apart in APART:
                moved = [(apart * arrival, prompt, answer) for arrival, prompt, answer in texts]
                tables[f"{way} {count} {apart}"] = timetable(
                    moved, seats=count, way=way, together=together, chunk=chunk
                )
    answers = sum(text[2] for text in texts)
    shown = {
        name: {
            "steps": " ".join(step.seats if step.took == 1 else f"{step.seats}{step.took:.4g}" for step in table.steps),
            "told": [round(x, 1) for x in (table.end, table.first, table.gap)],
        }
        for name, table in tables.items()
    }
    four = {way: tables[f"{way} {SEATS[-1]} 1"] for way in WAYS}
    moving.show(
        "seats",
        {"ways": WAYS, "seats": SEATS, "apart": APART, "tables": shown, "tokens": answers, "texts": len(texts)},
        _seated({way: four[way] for way in WAYS[:2]}),
        alt="Two timetables with a row for each of four seats and time to the right. With static batching seats "
        "stand empty until the longest text is done; with continuous batching they are filled at once, and "
        "all texts are done much earlier. A box stands for a prompt, a bar for an answer.",
        caption=caption,
        numbers={
            "way": list(WAYS),
            "all done after": [f"{table.end:.1f}" for table in four.values()],
            "mean time to first token": [f"{table.first:.1f}" for table in four.values()],
            "longest gap between tokens": [f"{table.gap:.1f}" for table in four.values()],
        },
    )


def _seated(tables: dict[str, Measured]) -> Figure:
    fig, axes = figures.subplots(len(tables), 1, width=7.2, height=3.9)
    plain = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
    for ax, (way, table) in zip(axes, tables.items(), strict=True):
        told: set[str] = set()
        for seat in range(len(table.steps[0].seats)):
            mine = [(step.seats[seat], step) for step in table.steps]
            for letter, run in groupby(mine, key=itemgetter(0)):
                steps = [step for _, step in run]
                began, took = steps[0].began, sum(step.took for step in steps)
                if letter == ".":
                    continue
                color = figures.PALETTE["orange" if letter.islower() else "sky"]
                ax.barh(seat, took, left=began, height=0.8, color=color, edgecolor="black", linewidth=0.5)
                if letter.upper() not in told:
                    told.add(letter.upper())
                    ax.text(began + 0.5, seat, letter.upper(), ha="center", va="center", fontsize=8, bbox=plain)
        ax.set(title=way, ylabel="seat", xlabel="time, in readings of the weights")
        ax.set(xlim=(0, max(table.end for table in tables.values())))
        ax.set_yticks(range(len(table.steps[0].seats)))
        ax.invert_yaxis()
        ax.grid(False)
    return fig
