"""One page of numbers."""

from __future__ import annotations

import textwrap
from typing import Any

from companion.bench.gpu.figures import Figure, Part
from companion.bench.report import duration, si
from companion.ground import readable

TITLES = {
    "ceiling": "what the chip reaches",
    "tests": "tests that need a GPU",
    "training": "training",
    "decoding": "decoding",
    "cache": "what the cache gains, after so many tokens",
    "experts": "mixture of experts",
    "processes": "several processes, of which there is one",
    "attention": "attention, by length",
}
WIDTH = 110


def head(report: dict[str, Any]) -> str:
    """The machine, and what is not on it."""
    machine = report["machine"]
    name = (
        "a rehearsal on the CPU: nothing below says how fast anything is" if report["rehearsal"] else machine["device"]
    )
    if "memory" in machine:
        name += f", {si(float(machine['memory']))}B, CUDA {machine['cuda']}"
    lines = [
        f"GPU       {name}",
        f"when      {report['started']}",
        "versions  " + ", ".join(f"{what} {machine[what]}" for what in ("python", "torch", "triton", "transformers")),
    ]
    return "\n".join(lines + [f"not here  {what}: {why}" for what, why in report["missing"].items()])


def block(part: Part) -> str:
    """One part: its figures with their units, what they are shares of, and what went wrong."""
    title = f"{TITLES[part.name]} ({part.name}, {part.seconds:.0f} s): {part.status}"
    lines = [title + (f": {part.why}" if part.why else "")]
    places = list(dict.fromkeys(figure.at for figure in part.figures))
    if any(places):
        names = list(dict.fromkeys(figure.name for figure in part.figures))
        found = {(figure.name, figure.at): figure for figure in part.figures}
        rows = []
        for name in names:
            cells = [_cell(found[name, at]) if (name, at) in found else "-" for at in places]
            rows.append((name, *cells))
        lines.append(readable.table(rows, ("", *places), width=WIDTH))
        lines += [
            f"  {figure.name} at {figure.at}: {_goal(figure)}" for figure in part.figures if figure.met is not None
        ]
    elif part.figures:
        plain = [(figure.name, value(figure), _shares(figure), _goal(figure)) for figure in part.figures]
        lines.append(readable.table(plain, left=(0, 2, 3), width=None))
    for remark in part.remarks:
        lines.append(textwrap.fill(remark, WIDTH, initial_indent="  . ", subsequent_indent="    "))
    return "\n".join(lines)


def foot(report: dict[str, Any]) -> str:
    """How it went as a whole."""
    states = [part["status"] for part in report["parts"]]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return f"{readable.count(len(states), 'part')}: {counts}; {report['seconds']:.0f} seconds"


def value(figure: Figure) -> str:
    """The number with its unit."""
    if figure.unit == "s":
        return duration(figure.value)
    if figure.unit == "times":
        return f"{figure.value:.3g} times"
    if figure.unit in ("FLOP/s", "B/s", "B"):
        return f"{si(figure.value)}{figure.unit}"
    return f"{figure.value:,.0f} {figure.unit}" if figure.value >= 100 else f"{figure.value:.4g} {figure.unit}"


def _cell(figure: Figure) -> str:
    shares = "".join(f" ({share:.0%})" for share in figure.shares.values())
    return value(figure) + shares


def _shares(figure: Figure) -> str:
    return ", ".join(f"{share:.1%} of {what}" for what, share in figure.shares.items())


def _goal(figure: Figure) -> str:
    return "" if figure.met is None else f"goal {figure.goal}: {'met' if figure.met else 'missed'}"
