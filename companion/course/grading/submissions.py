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

    folder:      holds one notebook or one folder for each student; or a folder `submitted` that does.
    assignment:  which folder to take where a student's holds one for each problem set.

    Raises `ValueError` for no such folder, nobody in it, one student twice, or several problem sets and none named.
    """
    if not folder.is_dir():
        raise ValueError(
            f"{folder}: expected a folder of submissions, found {'a file' if folder.exists() else 'nothing'}"
        )
    if (folder / "submitted").is_dir():
        folder = folder / "submitted"
    found = sorted(_students(folder, assignment), key=lambda handed: handed.student)
    if not found:
        raise ValueError(f"{folder}: expected STUDENT.ipynb or STUDENT/....ipynb for each student, found neither")
    for handed, following in pairwise(found):
        if handed.student == following.student:
            raise ValueError(f"{folder}: expected one submission of {handed.student}, found a folder and a file")
    return found


def left_out(folder: Path) -> list[str]:
    """Files beside the students' that are nobody's, for a word to the instructor."""
    folder = folder / "submitted" if (folder / "submitted").is_dir() else folder
    return sorted(
        path.name for path in folder.iterdir() if path.is_file() and path.suffix not in KINDS and _is_seen(path)
    )


def _is_seen(path: Path) -> bool:
    return not path.name.startswith((".", "__"))


def _students(folder: Path, assignment: str | None) -> Iterator[Handed]:
    seen = [path for path in folder.iterdir() if _is_seen(path)]
    stems = sorted({path.stem for path in seen if path.suffix in KINDS and not path.is_dir()})
    for stem in stems:
        yield _handed(stem, [folder / f"{stem}{kind}" for kind in KINDS], folder)
    for path in seen:
        if path.is_dir() and not path.is_symlink():
            home = _home(path, assignment)
            yield _handed(path.name, sorted(home.iterdir()), home)


def _home(folder: Path, assignment: str | None) -> Path:
    """The folder of a student's files: theirs, or the one of the problem set in it."""
    if assignment is not None and (folder / assignment).is_dir():
        return folder / assignment
    inner = [
        inside
        for inside in sorted(folder.iterdir())
        if inside.is_dir() and _is_seen(inside) and not inside.is_symlink()
    ]
    if any(inside.suffix in KINDS for inside in folder.iterdir()) or not inner:
        return folder
    with_notebooks = [path for path in inner if any(file.suffix in KINDS for file in path.iterdir())]
    if len(with_notebooks) > 1:
        names = ", ".join(path.name for path in with_notebooks)
        raise ValueError(f"--pset: expected which problem set to grade; {folder} holds {names}")
    return with_notebooks[0] if with_notebooks else folder


def _handed(student: str, files: list[Path], home: Path) -> Handed:
    of_kind = {
        kind: [file for file in files if file.suffix == kind and _is_seen(file) and file.exists()] for kind in KINDS
    }
    chosen = of_kind[".ipynb"] or of_kind[".py"]  # modules beside a notebook belong to the problem set
    links = [file.name for file in chosen if file.is_symlink() or not file.is_file()]
    if links:
        return Handed(student, (), "", f"{links[0]} is a link or a folder, not a notebook")
    if not chosen:
        others = [file.name for file in files if _is_seen(file) and file.is_file() and file.name != "timestamp.txt"]
        what = f"only {', '.join(others[:3])}" if others else "nothing"
        return Handed(student, (), "", f"expected a notebook, found {what}")
    latest = max(file.stat().st_mtime for file in chosen)
    return Handed(student, tuple(chosen), _timestamp(home / "timestamp.txt", latest))


def _timestamp(file: Path, latest: float) -> str:
    """What nbgrader or the student's form wrote, if it is a time; else when the newest file was changed, in UTC."""
    try:
        written = _TIME.fullmatch(file.read_text("utf-8")[:100].strip()) if not file.is_symlink() else None
    except (OSError, UnicodeError):
        written = None
    return written[0] if written else datetime.fromtimestamp(latest, UTC).strftime("%Y-%m-%d %H:%M:%S")
