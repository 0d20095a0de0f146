"""Who handed in what: STUDENT.ipynb, STUDENT/....ipynb, or nbgrader's submitted/STUDENT/PSET/....ipynb."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from companion_school.course.grading.answers import Unreadable, contents

KINDS = (".ipynb", ".py")
_SEVERAL = "several problem sets: "
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

    What is wrong with a student's files is that student's `fault`. Raises `ValueError` for no such folder, nobody in
    it, or where everybody handed in several problem sets and none is named.
    """
    if not folder.is_dir():
        raise ValueError(
            f"{folder}: expected a folder of submissions, found {'a file' if folder.exists() else 'nothing'}"
        )
    collected = (folder / "submitted").is_dir() or folder.name == "submitted"
    if (folder / "submitted").is_dir():
        folder = folder / "submitted"
    found: dict[str, Handed] = {}
    for handed in _named(_students(folder, assignment, collected), assignment):
        if handed.student in found:
            twice = "a folder and a file of this name; expected one of them"
            handed = Handed(handed.student, (), "", f"found {twice}")
        found[handed.student] = handed
    if not found:
        raise ValueError(f"{folder}: expected STUDENT.ipynb or STUDENT/....ipynb for each student, found neither")
    faults = [handed.fault or "" for handed in found.values()]
    if all(fault.startswith(_SEVERAL) for fault in faults):
        raise ValueError(f"--pset: expected which problem set to grade; {folder} {faults[0].removeprefix(_SEVERAL)}")
    return [found[name] for name in sorted(found)]


def _named(students: Iterator[Handed], assignment: str | None) -> list[Handed]:
    """The students, without what GitHub Classroom puts before the names of all its repositories: week2-ada."""
    found, start = list(students), f"{assignment}-"
    if assignment is None or not all(handed.student.startswith(start) for handed in found):
        return found
    return [replace(handed, student=handed.student.removeprefix(start)) for handed in found]


def left_out(folder: Path) -> list[str]:
    """Files beside the students' that are nobody's, for a word to the instructor."""
    folder = folder / "submitted" if (folder / "submitted").is_dir() else folder
    others = (path for path in folder.iterdir() if path.is_file() and path.suffix not in KINDS)
    return sorted(plain(path.name) for path in others if _is_seen(path))


def plain(name: str) -> str:
    """A file's name as text that can be written anywhere: nothing that a terminal obeys, no bytes that are not text."""
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def _is_seen(path: Path) -> bool:
    return not path.name.startswith((".", "__"))


def _students(folder: Path, assignment: str | None, collected: bool) -> Iterator[Handed]:
    seen = [path for path in folder.iterdir() if _is_seen(path)]
    stems = sorted({path.stem for path in seen if path.suffix in KINDS and (path.is_symlink() or not path.is_dir())})
    for stem in stems:
        yield _handed(stem, [folder / f"{stem}{kind}" for kind in KINDS], None)
    for path in seen:
        if path.is_symlink():
            if path.suffix not in KINDS:
                yield Handed(plain(path.name), (), "", "it is a link, not a folder")
        elif path.is_dir():
            yield handed_by(path.name, path, assignment, collected=collected)


def handed_by(student: str, folder: Path, assignment: str | None = None, *, collected: bool = False) -> Handed:
    """What lies in one student's folder; what is wrong with it is their fault.

    assignment:  the folder to take in it, where there is one.
    collected:   nbgrader has put it there: the time of handing in is in timestamp.txt.
    """
    try:
        home = _home(folder, assignment)
        trusted = collected and home.parent == folder
        return _handed(student, sorted(home.iterdir()), home / "timestamp.txt" if trusted else None)
    except OSError as error:
        return Handed(plain(student), (), "", f"its folder cannot be read ({error.strerror})")
    except ValueError as error:
        return Handed(plain(student), (), "", str(error))


def _home(folder: Path, assignment: str | None) -> Path:
    """The folder of a student's files: theirs, or the one of the problem set in it. A link leads to somebody else's."""
    if assignment is not None and (folder / assignment).is_symlink():
        raise ValueError(f"{plain(assignment)} is a link, not a folder")
    if assignment is not None and (folder / assignment).is_dir():
        return folder / assignment
    inside = sorted(folder.iterdir())
    inner = [path for path in inside if path.is_dir() and _is_seen(path) and not path.is_symlink()]
    if any(path.suffix in KINDS for path in inside) or not inner:
        return folder
    with_notebooks = [path for path in inner if any(file.suffix in KINDS for file in path.iterdir())]
    if len(with_notebooks) > 1:
        raise ValueError(f"{_SEVERAL}holds {', '.join(plain(path.name) for path in with_notebooks[:5])}")
    return with_notebooks[0] if with_notebooks else folder


def _handed(student: str, files: list[Path], timestamp: Path | None) -> Handed:
    student = plain(student)
    there = [file for file in files if _is_seen(file) and (file.exists() or file.is_symlink())]
    of_kind = {kind: [file for file in there if file.suffix == kind] for kind in KINDS}
    chosen = of_kind[".ipynb"] or of_kind[".py"]  # modules beside a notebook belong to the problem set
    links = [plain(file.name) for file in chosen if file.is_symlink() or not file.is_file()]
    if links:
        return Handed(student, (), "", f"{links[0]} is a link or a folder, not a notebook")
    if not chosen:
        others = [plain(file.name) for file in there if file.is_file() and file.name != "timestamp.txt"]
        what = f"only {', '.join(others[:3])}" if others else "nothing"
        return Handed(student, (), "", f"expected a notebook, found {what}")
    latest = max(file.stat().st_mtime for file in chosen)
    return Handed(student, tuple(chosen), _timestamp(timestamp, latest))


def _timestamp(file: Path | None, latest: float) -> str:
    """What nbgrader wrote, if it is a time; else when the newest file was changed, in UTC.

    Only where nbgrader collects (`submitted/STUDENT/PSET/timestamp.txt`) is that file not the student's own word.
    """
    written = None
    if file is not None:
        with contextlib.suppress(Unreadable, UnicodeError):
            written = _TIME.fullmatch(contents(file)[:100].decode().strip())
    return written[0] if written else datetime.fromtimestamp(latest, UTC).strftime("%Y-%m-%d %H:%M:%S")
