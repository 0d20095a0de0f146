"""The table on the start page, which shows the path through the course and the reader's progress.

The path is stored in the metadata of the start page, `start.ipynb`. `make notebooks` writes it there; a problem set
released by an instructor has a path of its own. If the start page's file is not available, as in a hosted notebook, the
table uses the path of the whole course from `path.json` in the package. The progress is read each time the table is
shown.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat
from IPython.display import HTML, display

from companion.ground.atomic import write_atomic
from companion_school.build.stages import STAGES
from companion_school.study.figure_html import WIDEST
from companion_school.study.palette import DARK, DARK_PAGE, LIGHT_PAGE, PALETTE
from companion_school.study.where_next import Done, course, done, is_read, where_next

FILE = "start.ipynb"
CELL = "path"  # name of the cell that shows the table

_FIRST_CELL = (
    "<b>Your first cell</b> is the grey field above. Click into it and press <b>Shift+Enter</b>. While "
    "<code>[*]</code> is shown beside it, Python is working; a number means that it is done. Whenever you run this "
    "cell again, it shows what you have done and where to go on."
)
_COLORS = "--bar:{green};--back:{faint};--edge:{edge};--go:{blue};--page:{page}"
_HERE = ".ext-path.ext-path"  # repeat the class to override JupyterLab's own rules for tables
_STYLE = (
    f".ext-path{{{_COLORS.format_map(PALETTE | LIGHT_PAGE)};max-width:{WIDEST}px}}"
    f"[data-jp-theme-light=false] .ext-path{{{_COLORS.format_map(DARK | DARK_PAGE)}}}"
    f"{_HERE} .ext-today a{{display:inline-block;padding:.45em 1.1em;margin:.2em 0;border-radius:6px;font-size:16px;"
    "text-decoration:none;background:var(--go);color:var(--page)}"
    f"{_HERE} summary{{cursor:pointer;margin:.8em 0}}"
    f"{_HERE} table{{width:100%;table-layout:auto;margin:0 0 1em;font-size:14px;border-collapse:collapse}}"
    f"{_HERE} :is(td,th){{text-align:left;vertical-align:top;padding:.4em .7em}}"
    f"{_HERE} :is(td,th):not(:first-child){{white-space:nowrap;width:1%}}"
    ".ext-path i{display:inline-block;width:5em;height:.6em;border-radius:3px;background:var(--back);"
    "box-shadow:0 0 0 1px var(--edge);margin:0 .6em 0 1px;overflow:hidden}"
    ".ext-path i b{display:block;height:100%;background:var(--bar)}"
)


def show() -> None:
    """Show the table for the start page in this folder or, if there is none, for the whole course.

    Raises:
        ValueError: The file `start.ipynb` in this folder is not a start page.
    """
    page = Path(FILE)
    display(HTML(table(read(page) if page.exists() else course(), done())))


def read(page: Path) -> list[dict[str, Any]]:
    """Read the lessons from the metadata of a start page.

    Raises:
        ValueError: The file is not a start page.
    """
    try:
        return list(nbformat.read(page, as_version=4).metadata["path"])
    except (OSError, KeyError, ValueError) as error:
        raise ValueError(f"{page}: expected the start page of the course ({type(error).__name__})") from None


def fill(page: Path) -> None:
    """Update the table in the output of a start page as if its cell had just been run."""
    notebook = nbformat.read(page, as_version=4)
    for cell in notebook.cells:
        if cell.metadata.get("name") == CELL:
            data = {"text/html": table(notebook.metadata["path"], done()), "text/plain": "<the path>"}
            cell.outputs = [nbformat.v4.new_output("display_data", data=data)]
    write_atomic(page, nbformat.writes(notebook) + "\n")


def table(path: Sequence[Mapping[str, Any]], reader: Done) -> str:
    """Return the table of lessons as HTML.

    Args:
        path: The lessons, each with `number`, `title`, `file`, `question`, `minutes`, `sittings` (each with `title`,
            `cell`, `minutes` and `questions`), `exercises` (their ids) and `exercise_file`.
        reader: The reader's progress.
    """
    rows = "".join(_row(lesson, reader) for lesson in path)
    head = "".join(f'<th scope="col">{name}</th>' for name in ("lesson", "minutes", "what you have done"))
    hours = sum(lesson["minutes"] for lesson in path) / 60
    onward = where_next(path, reader, _link, html.escape)
    first = "" if reader.exercises or reader.questions or reader.stages else f"<p>{_FIRST_CELL}</p>"
    return (
        f'<style>{_STYLE}</style><div class="ext-path"><p class="ext-today"><b>{onward}</b></p>{first}'
        f"<p>{_written(reader)}</p><details><summary>All {len(path)} lessons, and what you have done: "
        f"{hours:.0f} hours without the exercises</summary>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></details></div>"
    )


def _row(lesson: Mapping[str, Any], reader: Done) -> str:
    asked = [id for sitting in lesson["sittings"] for id in sitting["questions"]]
    minutes = " + ".join(str(sitting["minutes"]) for sitting in lesson["sittings"]) or str(lesson["minutes"])
    bars = [
        _bar("sittings", [is_read(sitting, reader) for sitting in lesson["sittings"]]),
        _bar("questions", [id in reader.questions for id in asked]),
        _bar(_link(lesson["exercise_file"], "exercises"), [id in reader.exercises for id in lesson["exercises"]]),
    ]
    title = _link(lesson["file"], f"{lesson['number']} {html.escape(lesson['title'])}")
    return (
        f"<tr><td>{title}<br>{html.escape(lesson['question'])}</td><td>{minutes}</td>"
        f"<td>{'<br>'.join(filter(None, bars))}</td></tr>"
    )


def _bar(name: str, parts: Iterable[bool]) -> str:
    """Return a progress bar with a text, or "" if there is nothing to do."""
    marks = list(parts)
    if not marks:
        return ""
    share = f"{100 * sum(marks) / len(marks):.0f}%"
    return f'<i aria-hidden="true"><b style="width:{share}"></b></i>{sum(marks)} of {len(marks)} {name}'


def _link(file: str, text: str) -> str:
    return f'<a href="{html.escape(file)}">{text}</a>'


def _written(reader: Done) -> str:
    """Describe how much of the reader's own transformer is built, and link to the next stage."""
    bar = _bar("stages of your own transformer", [number in reader.stages for number in STAGES])
    stage = next((stage for number, stage in STAGES.items() if number not in reader.stages), None)
    if stage is None:
        return f"{bar}. All of it stands."
    link = _link(f"build/{stage.number:02d}_{stage.module}.ipynb", f"stage {stage.number}, {stage.title}")
    lessons = " and ".join(f"{lesson:02d}" for lesson in stage.lessons)
    return f"{bar}. Next: {link}, with lesson{'s' * (len(stage.lessons) > 1)} {lessons}."
