"""Write the template repository of a problem set, and clone the repositories of a class.

Students copy the template themselves or receive it through Classroom 50, which accepts any public template repository.
Students can read and change everything in their repository, including its workflow, so it contains nothing hidden. The
workflow checks only the public cases. The marks come from running `companion grade` on the cloned repositories.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from importlib import metadata
from importlib.resources import files
from pathlib import Path

from companion.ground.atomic import write_atomic
from companion.ground.display import count
from companion_school.course.grading.lateness import Lateness
from companion_school.course.grading.tables import read_table, unquoted
from companion_school.course.points import shares
from companion_school.course.release.documents import document
from companion_school.course.release.problem_set import ProblemSet
from companion_school.course.release.release import source_notebook, student_files

CHECK = ".github/checks/public_checks.py"
_TORCH = "https://download.pytorch.org/whl/cpu"
_ADDRESS = re.compile(r"(https|ssh|file)://[^\s]+|[\w.-]+@[\w.-]+:[\w./~-]+|/[^\s]+")
_MINUTES = 5


def check_place(pset: ProblemSet, folder: Path) -> None:
    """Check that a template repository for `pset` can be written to `folder`.

    Raises:
        ValueError: No exercise has public cases, or `folder` is a file or a folder that is not empty.
    """
    if not any(shares(exercise)[0] for exercise in pset.exercises):
        raise ValueError(
            "--repository: expected exercises with public cases, got none; all cases of these exercises are hidden"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"--repository {folder}: expected a new or empty folder")


def write_template(pset: ProblemSet, secret: bytes, folder: Path, rule: Lateness | None = None) -> None:
    """Write the template repository of a problem set atomically.

    Raises:
        ValueError: As raised by `check_place`.
    """
    check_place(pset, folder)  # the release may have filled the folder since the command checked it
    pset = pset.dealt(secret)
    public = count(sum(shares(exercise)[0] for exercise in pset.exercises), "point")
    asked = [exercise.id for exercise in pset.exercises if shares(exercise)[0]]
    answers = files("companion_school.course.grading").joinpath("answers.py").read_bytes()
    workflow = document("checks.yml").format(torch=_torch(), index=_TORCH, check=CHECK)
    made = {
        **student_files(pset, source_notebook(pset, secret, rule)),
        "README.md": document("repository.md").format(name=pset.name, points=public).encode(),
        "requirements.txt": f"--extra-index-url {_TORCH}\n{_torch()}\nsafetensors\nnumpy\njupyterlab\n".encode(),
        CHECK: document("public_checks.py.txt").format(name=pset.name, ids=asked).encode(),
        ".github/checks/answers.py": answers,
        ".github/workflows/checks.yml": workflow.encode(),
        ".gitignore": b"__pycache__/\n.ipynb_checkpoints/\n",
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder.parent) as unfinished:
        whole = Path(unfinished, "whole")
        for path, content in made.items():
            write_atomic(whole / path, content)
        whole.chmod(0o755)
        if folder.exists():
            folder.rmdir()
        whole.rename(folder)


def _torch() -> str:
    return f"torch=={metadata.version('torch').partition('+')[0]}"


# Cloning a class's repositories


def clone_all(table: Path, to: Path) -> Iterator[tuple[str, str]]:
    """Clone the repositories listed in a table, and update those that are already cloned.

    Args:
        table: CSV file with the columns student_id and repository.
        to: Output folder, in which each student gets a subfolder.

    Yields:
        Each student's id and an error message, which is "" if the clone succeeded.

    Raises:
        ValueError: A column is missing, a student is listed twice, or an entry is not a valid student id or repository
            address. In these cases, nothing is cloned.
    """
    rows = read_table(table)
    if not rows or not {"student_id", "repository"} <= set(rows[0]):
        raise ValueError(f"{table}: expected the columns student_id and repository")
    found: dict[str, str] = {}
    for line, row in enumerate(rows, 2):
        student, address = unquoted(row["student_id"]).strip(), row["repository"].strip()
        if student in found:
            raise ValueError(f"{table}, line {line}, student_id: {student!r} occurs twice")
        if not re.fullmatch(r"[\w@+][\w@.+ -]*", student):
            expected = "must consist of letters, digits, spaces and @ . + - _, and begin with a letter or digit"
            raise ValueError(f"{table}, line {line}, student_id {expected}, got {student!r}")
        if not _ADDRESS.fullmatch(address):
            raise ValueError(f"{table}, line {line}, repository must be an address to clone, got {address!r}")
        found[student] = address
    for student, address in found.items():
        yield student, _clone(address, to / student)


def _clone(address: str, place: Path) -> str:
    """Clone or update a repository, and return an error message, or "" on success."""
    quiet = ["-c", "core.symlinks=false", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false"]
    # These settings prevent git from running anything that a repository contains.
    environment = os.environ | {"GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1",
                                "GIT_ALLOW_PROTOCOL": "https:ssh:file"}  # fmt: skip
    if (place / ".git").is_dir():
        commands = [["-C", str(place), "fetch", "--quiet", "--no-recurse-submodules", "origin"],
                    ["-C", str(place), "reset", "--quiet", "--hard", "FETCH_HEAD"]]  # fmt: skip
    else:
        commands = [["clone", "--quiet", "--no-recurse-submodules", "--", address, str(place)]]
    for command in commands:
        try:
            done = subprocess.run(
                ["git", *quiet, *command], env=environment, capture_output=True, text=True, timeout=60 * _MINUTES
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"git failed: {error}"[:200]
        if done.returncode:
            return " ".join(done.stderr.split())[-200:] or f"git ended with {done.returncode}"
    return ""
