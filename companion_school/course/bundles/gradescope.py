"""Gradescope autograder for a problem set, in the form of a zip file that an instructor uploads.

The zip file holds:

    setup.sh           run once when Gradescope builds its image; installs Python and what the grader imports
    run_autograder     run for each submission in its own container; calls `gradescope_results.py`
    problem_set.json   what to grade and how late work is penalized
    secret.seed        the instructor's secret
    companion/, companion_school/    copies of the installed packages

Students never receive this file, because it contains the secret. For the same reason, `setup.sh` makes the unpacked
files readable only by their owner, and students' answers run as a different user.

Source: Gradescope, Autograder Specifications, gradescope-autograders.readthedocs.io/en/latest/specs.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

import companion
import companion_school
from companion.ground.atomic import write_atomic
from companion.ground.installed import NAME, SCHOOL, asked_by
from companion_school.course.release.documents import document

SET, SECRET, ITEMS = "problem_set.json", "secret.seed", "items.toml"
# Zip files store a file's mode in the upper 16 bits.
_RIGHTS = {"setup.sh": 0o755 << 16, "run_autograder": 0o755 << 16, SECRET: 0o600 << 16}
_READ = 0o644 << 16
_WRITTEN = (1980, 1, 1, 0, 0, 0)  # the earliest date that zip files can store; a fixed date makes builds reproducible


def check_place(file: Path) -> None:
    """Check that the autograder can be written to `file`.

    Raises:
        ValueError: The name does not end in .zip, or the file exists already.
    """
    if file.suffix != ".zip":
        raise ValueError(f"--gradescope {file}: expected the name of a zip file, as in week2.zip")
    if file.exists():
        raise ValueError(f"--gradescope {file}: it already exists; move it elsewhere or choose another name")


def write_bundle(
    name: str, ids: Sequence[str], settings: Mapping[str, str], secret: bytes, file: Path, items: bytes = b""
) -> None:
    """Write the autograder for a problem set or a project.

    Args:
        name: Name of the problem set or project.
        ids: Numbers of its exercises, questions and written answers; empty for a project.
        settings: Contents of its PSET.toml.
        secret: The instructor's secret, from which the hidden cases are derived.
        file: The zip file to write.
        items: Contents of the file that defines the instructor's own written answers; empty if there are none.

    Raises:
        ValueError: As raised by `check_place`.
    """
    check_place(file)
    told = {**settings, "assignment": name, "exercises": list(ids)}
    contents = {
        "setup.sh": document("setup.sh.txt").encode(),
        "run_autograder": document("run_autograder.txt").encode(),
        "requirements.txt": "".join(f"{line}\n" for line in requirements()).encode(),
        SET: json.dumps(told).encode(),
        SECRET: secret,
        **({ITEMS: items} if items else {}),
        **_packages(),
    }
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as packed:
        for path, content in contents.items():
            info = zipfile.ZipInfo(path, _WRITTEN)
            info.external_attr, info.compress_type = _RIGHTS.get(path, _READ), zipfile.ZIP_DEFLATED
            packed.writestr(info, content)
    write_atomic(file, made.getvalue())
    file.chmod(0o600)  # this file contains the secret


def requirements() -> list[str]:
    """Return the dependencies of both packages, pinned to the installed versions, as in `torch==2.13.0`."""
    needed = [one for one in (*asked_by(), *asked_by("school")) if one.name not in (NAME, SCHOOL)]
    extras = {one.name: f"[{','.join(sorted(one.extras))}]" if one.extras else "" for one in needed}
    versions = {name: metadata.version(name).partition("+")[0] for name in extras}
    return [f"{name}{extras[name]}=={versions[name]}" for name in sorted(extras)]


def _packages() -> dict[str, bytes]:
    roots = [Path(str(package.__file__)).resolve().parent for package in (companion, companion_school)]
    return {
        f"{root.name}/{path.relative_to(root).as_posix()}": path.read_bytes()
        for root in roots
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
