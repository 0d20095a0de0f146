"""Determine when work was handed in, based on the instructor's table, nbgrader, a platform's manifest or names, or git.

A file's modification time is not used, because cloning, copying and downloading reset it. If no source gives a time,
the time is unknown, and there is no penalty for lateness.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from companion_school.course.grading.answers import Unreadable, contents
from companion_school.course.grading.tables import Row, read_table, unquoted

UNKNOWN, CALLED_LATE = "unknown", "Canvas marks it as late, but does not say by how much"
_MOST_MEMORY, _MOST_SECONDS = 2 * 2**30, 10
_FORMS = (
    "%Y-%m-%d-%H-%M-%S",
    "%b %d, %Y %I%M %p",
    "%B %d, %Y %I%M %p",
    "%A, %d %B %Y, %I:%M %p",
    "%A, %d %B %Y, %H:%M",
)
_OBJECT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_BRANCH = re.compile(r"refs/[\w./+-]+")


def moment(text: str, what: str, zone: str = "UTC") -> datetime:
    """Parse a time in ISO 8601 or in a format that learning platforms use in English.

    Args:
        text: The time.
        what: Start of the error message.
        zone: UTC offset, such as "+01:00", to assume if the text has none.

    Raises:
        ValueError: If the text cannot be parsed as a time.
    """
    written = re.sub(r" ?(UTC|GMT|Z)$", "+00:00", text.strip())
    found = None
    with contextlib.suppress(ValueError):
        found = datetime.fromisoformat(written)
    for form in _FORMS if found is None else ():
        with contextlib.suppress(ValueError):
            found = found or datetime.strptime(written, form)
    if found is None or not 1970 < found.year < 2200:  # a commit may have any year up to 9999
        raise ValueError(f"{what} must be a time such as 2026-11-30T23:59 or 2026-11-30T23:59+02:00, got {text[:60]!r}")
    offset = UTC if zone == "UTC" else datetime.fromisoformat(f"2000-01-01T00:00{zone}").tzinfo
    return found if found.tzinfo else found.replace(tzinfo=offset)


@dataclass(frozen=True)
class Sources:
    """Sources of submission times.

    Attributes:
        manifest: Student and submission time for each folder in a Gradescope export.
        table: The instructor's table of times, keyed by student.
        zone: UTC offset to assume for times without one.
    """

    manifest: Mapping[str, tuple[str, str]]
    table: Mapping[str, str]
    zone: str

    def time_of(
        self, student: str, place: str, home: Path, files: Sequence[Path], stamp: Path | None, named: str, late: bool
    ) -> tuple[str, str]:
        """Find a student's submission time.

        The sources are tried in this order: the instructor's table, nbgrader, Gradescope's metadata, the name of the
        file or folder, git.

        Args:
            student: Name of the student.
            place: Name of the student's file or folder among the submissions.
            home: Path of that file or folder.
            files: The files to grade.
            stamp: File in which nbgrader recorded the time; None if nbgrader did not collect the folder.
            named: Time given in the name of the file or folder; empty if there is none.
            late: True if the name says that the submission was late.

        Returns:
            The time in ISO 8601 and its source. If the time is unknown, the first item is empty, and the second gives
            the reason instead of the source.
        """
        told = [
            (self.table.get(student, "") or self.table.get(place, ""), "the instructor's table of times"),
            (_stamped(stamp), "nbgrader"),
            (self.manifest.get(place, ("", ""))[1], "Gradescope's list"),
            (named, "the name that the platform gave it"),
            (last_commit(home, files), "the last commit of the graded files"),
        ]
        for time, source in told:
            with contextlib.suppress(ValueError, OverflowError):
                if time:
                    return moment(time, "time", self.zone).isoformat(sep=" ", timespec="seconds"), source
        return "", CALLED_LATE if late else UNKNOWN


def read_times(file: Path) -> dict[str, str]:
    """Read the instructor's table of times, a CSV file with the columns student_id and time.

    Moodle's grading worksheet in English, with Identifier and "Last modified (submission)", is accepted too.

    Returns:
        Times, keyed by student; students without a time are omitted.

    Raises:
        ValueError: If a column is missing, a student with a time is listed again, or a time is malformed.
    """
    rows = read_table(file)
    columns = set(rows[0]) if rows else set()
    id, time = next((pair for pair in (("student_id", "time"), _MOODLE) if set(pair) <= columns), ("", ""))
    if not id:
        raise ValueError(f"--times {file}: expected the columns student_id and time, got {', '.join(sorted(columns))}")
    found: dict[str, str] = {}
    for number, row in enumerate(rows, 2):
        student, told = _student(row, id), row[time].strip()
        if student in found:
            raise ValueError(f"--times {file}, line {number}: {student} occurs twice")
        if told in ("", "-"):
            continue
        moment(told, f"--times {file}, line {number}, time")
        found[student] = told
    return found


_MOODLE = ("Identifier", "Last modified (submission)")


def _student(row: Row, id: str) -> str:
    if id != "Identifier":
        return unquoted(row[id]).strip()
    return f"{row.get('Full name', '')}_{row[id].rpartition(' ')[2]}" if row.get("Full name") else row[id]


def manifest(folder: Path) -> dict[str, tuple[str, str]]:
    """Read the submitters and the time of each submission folder from the metadata of a Gradescope export.

    Returns:
        Submitters and time, keyed by folder name; empty if the export has no such metadata.

    Raises:
        ValueError: If the metadata file is malformed.
    """
    file = folder / "submission_metadata.yml"
    if not file.is_file() or file.is_symlink():
        return {}
    try:
        told: Any = yaml.safe_load(contents(file).decode())
        return {
            str(name): (_submitters(about), str(about.get(":created_at", "")).replace(" Z", "+00:00"))
            for name, about in told.items()
        }
    except (Unreadable, UnicodeError, yaml.YAMLError, AttributeError, TypeError) as error:
        raise ValueError(f"{file}: expected Gradescope's list of submissions ({str(error)[:100]})") from None


def _submitters(about: Mapping[str, Any]) -> str:
    people = about.get(":submitters") or []
    names = [str(one.get(":email") or one.get(":sid") or one.get(":name")) for one in people]
    return " and ".join(sorted(names))


def _stamped(file: Path | None) -> str:
    """Read the time that nbgrader recorded, or return "" if there is none.

    The caller passes a file only if nbgrader collected the folder, because the student could have written the file in
    any other folder.
    """
    if file is not None and file.exists():
        with contextlib.suppress(Unreadable, UnicodeError):
            return contents(file)[:100].decode().strip()
    return ""


# git


def last_commit(home: Path, files: Sequence[Path]) -> str:
    """Return the time of the last commit to the graded files in a clone of a student's repository.

    The clone is not trusted: its configuration is ignored, and only its references and objects are read. If the files
    differ from the checked-out commit, the time is unknown. Committers set this time themselves and can forge it.

    Args:
        home: Folder of the clone.
        files: The graded files.

    Returns:
        The committer's time in ISO 8601; empty if it is unknown.
    """
    if not (home / ".git").is_dir() or (home / ".git").is_symlink() or not files:
        return ""
    if home in _SLOW:
        return ""
    try:
        head = _head(home / ".git")
        names = [file.relative_to(home).as_posix() for file in files]
        if not head or not _is_committed(home, head, files, names):
            return ""
        return _git(home, "rev-list", "-1", "--format=%cI", head, "--", *names).rpartition("\n")[2]
    except subprocess.SubprocessError:
        _SLOW.add(home)  # if git fails or times out for one file, it is not run for the others
        return ""
    except (Unreadable, ValueError, OSError):
        return ""


_SLOW: set[Path] = set()


def _head(repository: Path) -> str:
    """Return the id of the checked-out commit, or "" if it is unknown."""
    told = contents(repository / "HEAD")[:1000].decode().strip()
    branch = told.removeprefix("ref: ")
    if branch != told:
        if not _BRANCH.fullmatch(branch) or ".." in branch:
            return ""
        if (repository / branch).is_file():
            told = contents(repository / branch)[:100].decode().strip()
        else:
            packed = contents(repository / "packed-refs").decode().splitlines()
            told = next((line.split()[0] for line in packed if line.endswith(f" {branch}")), "")
    return told if _OBJECT.fullmatch(told) else ""


def _is_committed(home: Path, head: str, files: Sequence[Path], names: Sequence[str]) -> bool:
    listed = _git(home, "ls-tree", "-r", "-z", "--full-tree", head, "--", *names)
    there = {name: about.split()[2] for about, name in (line.split("\t", 1) for line in listed.split("\0") if line)}
    for file, name in zip(files, names, strict=True):
        data = contents(file)
        made = hashlib.sha1 if len(head) == 40 else hashlib.sha256
        if there.get(name) != made(b"blob %d\0" % len(data) + data).hexdigest():
            return False
    return True


@cache
def _empty_repository() -> Path:
    place = Path(tempfile.mkdtemp(prefix="companion-git-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    for folder in ("objects", "refs"):
        (place / folder).mkdir()
    (place / "HEAD").write_text("ref: refs/heads/none\n")
    return place


def _git(home: Path, *command: str) -> str:
    """Run a git command in a new, empty repository that borrows the clone's objects, and return its output."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    own |= {
        "GIT_DIR": str(_empty_repository()),
        "GIT_OBJECT_DIRECTORY": str((home / ".git" / "objects").resolve()),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_NO_LAZY_FETCH": "1",
    }
    # The repository is not trusted: its tree or history could be designed to use up all memory or to keep git running
    # forever.
    bounded = ["/bin/sh", "-c", f'ulimit -v {_MOST_MEMORY >> 10}; ulimit -t {_MOST_SECONDS}; exec "$@"', "sh"]
    done = subprocess.run(
        [*bounded, "git", *command], env=own, cwd=os.sep, capture_output=True, timeout=2 * _MOST_SECONDS, check=True
    )
    return done.stdout.decode("utf-8", "surrogateescape").strip("\n")
