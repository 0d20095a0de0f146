"""Who handed in what: STUDENT.ipynb, STUDENT/....ipynb, or nbgrader's submitted/STUDENT/PSET/....ipynb."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

KINDS = (".ipynb", ".py")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d+)?)?( ?[A-Z]{3,4}|[+-]\d\d:?\d\d)?")


@dataclass(frozen=True)
class Handed:
    """One student's files, and when they came. `fault`: why there is nothing to read."""

    student: str
    files: tuple[Path, ...]
    timestamp: str
    fault: str | None = None


def handed_in(folder: Path, assignment: str | None = None) -> list[Handed]:
    """All students of a folder, by name.

    Args:
        folder: holds one notebook or one folder for each student; or a folder `submitted` that does.
        assignment: which folder to take where a student's holds one for each problem set.

    Raises:
        ValueError: there is no such folder, nobody in it, one student twice, or several problem sets and none is named.
    """
    if not folder.is_dir():
        raise ValueError(
            f"{folder}: expected a folder of submissions, found {'a file' if folder.exists() else 'nothing'}"
        )
    if (folder / "submitted").is_dir():
        folder = folder / "submitted"
    found = sorted(_students(folder, assignment), key=lambda one: one.student)
    if not found:
        raise ValueError(f"{folder}: expected STUDENT.ipynb or STUDENT/....ipynb for each student, found neither")
    for one, other in pairwise(found):
        if one.student == other.student:
            raise ValueError(f"{folder}: expected one submission of {one.student}, found a folder and a file")
    return found


def left_out(folder: Path) -> list[str]:
    """Files beside the students' that are nobody's, for a word to the instructor."""
    folder = folder / "submitted" if (folder / "submitted").is_dir() else folder
    return sorted(one.name for one in folder.iterdir() if one.is_file() and one.suffix not in KINDS and _is_seen(one))


def _is_seen(path: Path) -> bool:
    return not path.name.startswith((".", "__"))


def _students(folder: Path, assignment: str | None) -> Iterator[Handed]:
    seen = [one for one in folder.iterdir() if _is_seen(one)]
    stems = sorted({one.stem for one in seen if one.suffix in KINDS and not one.is_dir()})
    for stem in stems:
        yield _handed(stem, [folder / f"{stem}{kind}" for kind in KINDS], folder)
    for one in seen:
        if one.is_dir() and not one.is_symlink():
            home = _home(one, assignment)
            yield _handed(one.name, sorted(home.iterdir()), home)


def _home(folder: Path, assignment: str | None) -> Path:
    """The folder of a student's files: theirs, or the one of the problem set in it."""
    if assignment is not None and (folder / assignment).is_dir():
        return folder / assignment
    inner = [one for one in sorted(folder.iterdir()) if one.is_dir() and _is_seen(one) and not one.is_symlink()]
    if any(one.suffix in KINDS for one in folder.iterdir()) or not inner:
        return folder
    with_notebooks = [one for one in inner if any(file.suffix in KINDS for file in one.iterdir())]
    if len(with_notebooks) > 1:
        names = ", ".join(one.name for one in with_notebooks)
        raise ValueError(f"--pset: expected which problem set to grade; {folder} holds {names}")
    return with_notebooks[0] if with_notebooks else folder


def _handed(student: str, files: list[Path], home: Path) -> Handed:
    of_kind = {kind: [one for one in files if one.suffix == kind and _is_seen(one) and one.exists()] for kind in KINDS}
    chosen = of_kind[".ipynb"] or of_kind[".py"]  # modules beside a notebook belong to the problem set
    links = [one.name for one in chosen if one.is_symlink() or not one.is_file()]
    if links:
        return Handed(student, (), "", f"{links[0]} is a link or a folder, not a notebook")
    if not chosen:
        others = [one.name for one in files if _is_seen(one) and one.is_file() and one.name != "timestamp.txt"]
        what = f"only {', '.join(others[:3])}" if others else "nothing"
        return Handed(student, (), "", f"expected a notebook, found {what}")
    latest = max(one.stat().st_mtime for one in chosen)
    return Handed(student, tuple(chosen), _timestamp(home / "timestamp.txt", latest))


def _timestamp(file: Path, latest: float) -> str:
    """What nbgrader or the student's form wrote, if it is a time; else when the newest file was changed, in UTC."""
    try:
        written = _TIME.fullmatch(file.read_text("utf-8")[:100].strip()) if not file.is_symlink() else None
    except (OSError, UnicodeError):
        written = None
    return written[0] if written else datetime.fromtimestamp(latest, UTC).strftime("%Y-%m-%d %H:%M:%S")
