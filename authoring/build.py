"""Build the notebooks: each source in authoring/lessons/ is executed and written to notebooks/ under the same name.

Sources in authoring/deeper/ go to notebooks/deeper/, and those in authoring/stages/ to notebooks/build/.

    python -m authoring.build [--all] [--check] [LESSON ...]

The same source, packages and libraries always yield the same bytes, because cell ids are computed from the text and
nothing that depends on time or chance is stored.

A notebook is executed if its code has changed, or if the last run of `make test-notebooks` found a cell whose output
has changed. The result of that run is stored only in pytest's cache, so that no committed file depends on a package's
version. Changes to questions need no execution, because their output follows from the source. The same is true of
changes to the scripts and styles in the outputs of figures (figure_updates.py).

The line {{ exercises }} is replaced with a table of the lesson's exercises (exercises.py). The questions of all lessons
are collected in companion_school/questions/questions.json.

`--check` executes nothing. It reports each notebook that is out of date, and where it differs from its source.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from authoring import figure_contract, figure_updates, lesson_contract, quoted_outputs
from authoring.lesson import ROOT, Lesson, lessons, stages, with_deeper
from authoring.notation import meanings
from authoring.notebook_contract import Fault, Known, fault
from authoring.question import SourceError, cell_of
from companion.ground.atomic import write_atomic
from companion_school import questions
from companion_school.course.release.notebook_cells import KERNEL
from companion_school.questions.asking import Shown

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
CELL_TIMEOUT = 900  # seconds
QUESTIONS = Path(questions.__file__).with_name("questions.json")
LAST_FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
"""Tests that failed in the last run of pytest, including cells checked by nbval. The file is not in git."""
# Every kernel runs with one thread and a fixed hash seed, without the builder's settings for plots and the terminal.
KERNEL_ENVIRONMENT = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
FORGOTTEN_ENVIRONMENT = ("MPLBACKEND", "MATPLOTLIBRC", "COLUMNS", "FORCE_COLOR", "PYTHONSTARTUP", "PYTHONWARNINGS")


class BuildError(Exception):
    """Raised if a lesson cannot be built. The message names the lesson, the location and the reason."""


def _code(cells: Sequence[NotebookNode]) -> list[NotebookNode]:
    return [cell for cell in cells if cell.cell_type == "code"]


def _cell_digest(cell: NotebookNode) -> str:
    text = json.dumps([cell.source, cell.execution_count, cell.outputs], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _assemble(cells: list[NotebookNode]) -> str:
    record = {"cells": [_cell_digest(cell) for cell in _code(cells)]}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={**KERNEL, "build": record})
    notebook.nbformat_minor = 5
    return nbformat.writes(notebook) + "\n"


# --- detecting changes


@dataclass(frozen=True)
class Difference:
    """The first place where a notebook is out of date.

    Attributes:
        what: Description of the difference.
        cell: Number of the cell, counted from 1.
        line: Line in the source.
        runs: Whether updating the notebook requires executing its cells.
    """

    what: str
    cell: int | None = None
    line: int | None = None
    runs: bool = True

    def __str__(self) -> str:
        where = "" if self.cell is None else f"cell {self.cell}" + (f" (source line {self.line})" if self.line else "")
        return f"{where}: {self.what}" if where else self.what


def difference(lesson: Lesson) -> Difference | None:
    """Return the first place where a notebook differs from its source, or `None`. Nothing is executed."""
    lesson = lesson.again()
    if not lesson.source.exists():
        return Difference(f"there is a notebook, but no source {lesson.source.name} in {lesson.source.parent.name}/")
    if not lesson.notebook.exists():
        return Difference("has never been built")
    text = lesson.notebook.read_text(encoding="utf-8")
    try:
        stored = nbformat.reads(text, as_version=4)
        record = stored.metadata["build"]["cells"]
    except (nbformat.reader.NotJSONError, nbformat.ValidationError, AttributeError, KeyError, TypeError) as error:
        return Difference(f"is not a notebook that was built here ({type(error).__name__})")
    found = _code_difference(lesson, stored.cells, record) or _prose_difference(lesson, stored.cells)
    found = found or _question_difference(lesson, stored.cells) or _figure_difference(lesson, stored.cells)
    if found:
        return found
    if text != _assemble(_with_outputs(lesson, stored.cells)):
        return Difference("its metadata or its form was changed after it was built (saved from Jupyter?)", runs=False)
    return None


def _code_difference(lesson: Lesson, stored: list[NotebookNode], record: list[str]) -> Difference | None:
    old = _code(stored)
    numbers = [number for number, cell in enumerate(lesson.cells, 1) if cell.cell_type == "code"]
    for index, number in enumerate(numbers):
        line = lesson.lines[number - 1]
        if index >= len(old):
            return Difference("this code cell is not in the notebook", number, line)
        if lesson.cells[number - 1].source != old[index].source:
            return Difference("the code in the notebook is not the code in the source", number, line)
        if index >= len(record) or record[index] != _cell_digest(old[index]):
            return Difference("the stored output was changed after it was built", number, line)
    if len(old) > len(numbers):
        number = stored.index(old[len(numbers)]) + 1
        return Difference("the notebook has a code cell that is not in the source", number)
    return None


def _prose_difference(lesson: Lesson, stored: list[NotebookNode]) -> Difference | None:
    for number, (cell, line) in enumerate(zip(lesson.cells, lesson.lines, strict=True), 1):
        old = stored[number - 1] if number <= len(stored) else None
        if old is None or (cell.cell_type, cell.source) != (old.cell_type, old.source):
            shift = _first_changed_line(cell.source, old.source if old is not None else "")
            what = "the text in the notebook is not the text in the source"
            for table in (row for at, row in lesson.tables if at == number and row <= shift):
                what, shift = "the exercises in the notebook are not those of companion_school/exercises", table
            return Difference(what, number, line + shift, False)
        if cell.id != old.get("id") or cell.metadata != old.metadata:
            return Difference("the cell's id, tags or name differ from the source", number, line, runs=False)
    if len(stored) > len(lesson.cells):
        return Difference("the notebook has a cell that is not in the source", len(lesson.cells) + 1, runs=False)
    return None


def _question_difference(lesson: Lesson, stored: list[NotebookNode]) -> Difference | None:
    shown = _shown(lesson)
    for number, (cell, old) in enumerate(zip(lesson.cells, stored, strict=True), 1):
        if cell.source in shown and [output.get("data") for output in old.outputs] != [shown[cell.source]]:
            what = "the question in the notebook is not the question in the source"
            return Difference(what, number, lesson.lines[number - 1], runs=False)
    return None


def _figure_difference(lesson: Lesson, stored: list[NotebookNode]) -> Difference | None:
    for number, (cell, line) in enumerate(zip(stored, lesson.lines, strict=True), 1):
        if cell.cell_type == "code" and figure_updates.up_to_date(cell.outputs) != cell.outputs:
            return Difference("the script or the style of its figure is not the package's", number, line, runs=False)
    return None


def _shown(lesson: Lesson) -> dict[str, dict[str, str]]:
    """Return the outputs of the questions, keyed by the code of their cells."""
    shown = ((cell_of(question), Shown(question)) for question in lesson.questions)
    return {code: {"text/html": one._repr_html_(), "text/plain": repr(one)} for code, one in shown}


def _first_changed_line(new: str, old: str) -> int:
    lines = zip(new.split("\n"), old.split("\n"), strict=False)
    return next((index for index, (a, b) in enumerate(lines) if a != b), 0)


def _with_outputs(lesson: Lesson, executed: list[NotebookNode]) -> list[NotebookNode]:
    """Return the source's cells with the outputs of the same code cells, and with up-to-date questions and figures."""
    old, shown = iter(_code(executed)), _shown(lesson)
    merged = []
    for cell in lesson.cells:
        copy = NotebookNode(cell)
        if cell.cell_type == "code":
            match = next(old)
            copy.outputs, copy.execution_count = figure_updates.up_to_date(match.outputs), match.execution_count
            if data := shown.get(cell.source):
                result = nbformat.v4.new_output("execute_result", data=data, execution_count=match.execution_count)
                copy.outputs = [result]
        merged.append(copy)
    return merged


def prints_otherwise(lesson: Lesson) -> bool:
    """Return whether a run of nbval after the notebook was built found cells whose output has changed."""
    if not LAST_FAILED.exists() or LAST_FAILED.stat().st_mtime <= lesson.notebook.stat().st_mtime:
        return False
    name = lesson.notebook.relative_to(LAST_FAILED.parents[3]).as_posix()
    return any(failed.partition("::")[0] == name for failed in json.loads(LAST_FAILED.read_text(encoding="utf-8")))


# --- building


def refused(lesson: Lesson, known: Known) -> list[Fault]:
    """Return the faults in a source that prevent a build: too much reading, or a letter with two meanings."""
    if lesson.is_stage:
        return []
    rules = [lesson_contract.second_meaning] if lesson.is_deeper else lesson_contract.BEFORE_BUILDING
    return [found for rule in rules for found in rule(lesson, known)]


def _refuse(lesson: Lesson, faults: Sequence[Fault]) -> None:
    if faults:
        raise BuildError("\n".join(f"{lesson.name}: {lesson.source.name}, {found}" for found in faults))


def _handle_faults(lesson: Lesson, cells: Sequence[NotebookNode]) -> list[Fault]:
    """Return the faults of interactive figures in executed cells, which are mainly missing still pictures."""
    return [
        fault(lesson, what, number)
        for number, cell in enumerate(cells, 1)
        for output in cell.get("outputs", [])
        for what in figure_contract.faults("".join(output.get("data", {}).get("text/html", "")))
    ]


def execute(lesson: Lesson) -> list[NotebookNode]:
    """Execute the cells in order, in a fresh kernel that runs in the notebook's folder, and return them.

    Raises:
        BuildError: If a cell failed, took more than `CELL_TIMEOUT` seconds, or killed the kernel.
    """
    notebook = nbformat.v4.new_notebook(cells=lesson.cells, metadata=KERNEL)
    at = [-1]
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--log-level=40"],  # hide the kernel's advice
        resources={"metadata": {"path": str(lesson.notebook.parent)}},
        on_cell_execute=lambda cell, cell_index: at.__setitem__(0, cell_index),
    )
    environment = {k: v for k, v in os.environ.items() if k not in FORGOTTEN_ENVIRONMENT} | KERNEL_ENVIRONMENT
    try:
        client.execute(env=environment)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        number = at[0] + 1
        reason = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
        where = f"cell {number} ({lesson.source.name}, line {lesson.lines[number - 1]})"
        raise BuildError(f"{lesson.name}: {where} failed\n{reason}") from error
    for cell in _code(notebook.cells):
        for output in cell.outputs:
            output.get("data", {}).pop(WIDGET_VIEW, None)  # it contains a random id
    return notebook.cells


def build(lesson: Lesson, *, rerun: bool = False, known: Known | None = None) -> str:
    """Bring a notebook up to date, and return a line that says what was done.

    The old notebook is replaced only when the new one is complete.

    Raises:
        BuildError: If the source is missing, breaks a rule that prevents a build, or a cell failed.
    """
    if not lesson.source.exists():
        raise BuildError(f"{lesson.name}: {difference(lesson)}; delete the notebook or restore its source")
    start, lesson = time.monotonic(), lesson.again()
    _refuse(lesson, refused(lesson, known or Known()))
    lesson.notebook.parent.mkdir(exist_ok=True)
    stale = difference(lesson)
    stored = None
    if lesson.notebook.exists() and not (stale and stale.runs):
        stored = nbformat.read(lesson.notebook, as_version=4)
    if rerun or stored is None:
        cells, how = _with_outputs(lesson, execute(lesson)), "executed"
    elif stale:
        cells, how = _with_outputs(lesson, stored.cells), "outputs kept"
    else:
        return f"{lesson.name}: up to date"
    _refuse(lesson, _handle_faults(lesson, cells))
    _refuse(lesson, [Fault(what, None, line) for line, what in quoted_outputs.faults(lesson.said, cells)])
    text = _assemble(cells)
    old = lesson.notebook.read_text(encoding="utf-8") if lesson.notebook.exists() else None
    if text != old:
        write_atomic(lesson.notebook, text)
    # make the notebook newer than pytest's cache, because the cells that failed have been executed again
    lesson.notebook.touch()
    size, seconds = len(text.encode()) / 1024, time.monotonic() - start
    state = "written" if text != old else "unchanged"
    return f"{lesson.name}: {how}, {state}, {len(_code(cells))} code cells, {size:.0f} KiB, {seconds:.1f} s"


def collected(some: Sequence[Lesson]) -> str:
    """Return the content of questions.json, which contains the questions of all lessons."""
    there = [part for part in with_deeper(some) if part.source.exists()]
    asked = [dataclasses.asdict(question) for part in there for question in part.questions]
    return json.dumps(asked, ensure_ascii=False, indent=1) + "\n"


def _collect(some: Sequence[Lesson], check: bool) -> bool:
    """Update questions.json or, if `check` is true, only report that it is stale. Return whether it is current."""
    text = collected(some)
    if QUESTIONS.read_text(encoding="utf-8") == text:
        return True
    if not check:
        write_atomic(QUESTIONS, text)
    print(f"{QUESTIONS.name}: " + ("STALE. Run: make notebooks" if check else "written"))
    return not check


def _check_all(chosen: list[Lesson]) -> bool:
    fine = True
    for lesson in chosen:
        try:
            found = difference(lesson)
            told = f"STALE, {found}. Run: make notebooks" if found else "ok"
        except SourceError as error:
            told = str(error)
        fine &= told == "ok"
        print(f"{lesson.name}: {told}")
    return fine


def _build_all(chosen: list[Lesson], rerun: bool, jobs: int, known: Known) -> bool:
    def attempt(lesson: Lesson) -> bool:
        try:
            again = rerun or (lesson.notebook.exists() and prints_otherwise(lesson))
            line, fine = build(lesson, rerun=again, known=known), True
        except (SourceError, BuildError) as error:
            said = error if isinstance(error, BuildError) else f"{lesson.name}: {error}"
            line, fine = f"{said}\n{lesson.name}: FAILED; the notebook is as it was", False
        print(line, flush=True)
        return fine

    with ThreadPoolExecutor(jobs) as pool:
        return all(list(pool.map(attempt, chosen)))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m authoring.build", description="Build the notebooks from authoring/lessons/*.md."
    )
    parser.add_argument("lessons", nargs="*", metavar="LESSON", help="number or beginning of the name (default: all)")
    parser.add_argument(
        "--check", action="store_true", help="execute nothing, only report which notebook is stale and why"
    )
    parser.add_argument("--all", action="store_true", help="execute every lesson, even if it did not change")
    parser.add_argument(
        "--jobs",
        type=int,
        default=min(2, os.cpu_count() or 1),
        help="number of lessons executed in parallel (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    there = lessons()
    every, wanted = (*there, *stages()), tuple(options.lessons)
    chosen = [x for x in every if not wanted or x.name.startswith(wanted)]
    if not chosen:
        parser.error(f"no lesson begins with {' or '.join(options.lessons) or 'a number'}")
    try:
        known = Known(symbols=meanings())
        chosen = with_deeper(chosen)
        for lesson in chosen if not options.check else []:
            if lesson.source.exists():
                _refuse(lesson, refused(lesson, known))
        fine = _collect(there, options.check)
    except (SourceError, BuildError) as error:
        print(f"{error}\nnothing was built")
        return 1
    fine &= _check_all(chosen) if options.check else _build_all(chosen, options.all, options.jobs, known)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
