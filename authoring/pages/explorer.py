"""explorer.md: the models that run on a page of the site, and how to open the explorer without the site."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from authoring.lesson import Lesson
from companion_school.explorer.page_files import SHIPPED
from companion_school.records import record

FILE = "explorer.md"
SOURCE = Path(__file__).with_name("explorer.md")


def render(lessons: Sequence[Lesson]) -> str:
    """Return the page's text, including the table of models."""
    return SOURCE.read_text(encoding="utf-8").replace("{{ models }}", models())


def models() -> str:
    """Return a table of the models' sizes, and of their losses on unseen texts before and after rounding to 8 bits."""
    found = record("live")
    rows = ["| model | weights | file | bits per byte | in 8 bits |", "|---|---:|---:|---:|---:|"]
    for model in SHIPPED:
        made = found[model.name]
        size, before, after = f"{made['bytes'] / 1e6:.2f} MB", made["bits_before"], made["bits_after"]
        rows.append(f"| {model.title} | {made['weights']:,} | {size} | {before:.5f} | {after:.5f} |")
    said = found["translator"]
    right = f"The translator writes {said['exact_after']} of {said['measured']} names without a mistake, all unseen"
    ends = f"{right} (before rounding: {said['exact_before']})."
    short = (
        f"The twin with experts was trained for {found['experts']['plan']['updates']:,} updates and the story model for"
    )
    long = record("story")["runs"][0]["plan"]["updates"]
    return "\n".join([*rows, "", f"{ends} {short} {long:,}, so these losses do not show which of them is better."])
