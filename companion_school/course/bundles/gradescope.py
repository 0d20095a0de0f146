"""A problem set as an autograder for Gradescope: the zip file that an instructor uploads.

    setup.sh           once, when Gradescope makes its image: Python, and what the grader imports
    run_autograder     for each submission: `gradescope_results.py`, in a container of its own
    problem_set.json   what to grade, and what late work costs; beside it the secret
    companion/, companion_school/    the packages, as they are here

Students never get this file. It holds the secret, so only its owner may read what is unpacked (`setup.sh`), and answers
run as another user.

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
_RIGHTS = {"setup.sh": 0o755 << 16, "run_autograder": 0o755 << 16, SECRET: 0o600 << 16}  # where a zip file keeps them
_READ = 0o644 << 16
_WRITTEN = (1980, 1, 1, 0, 0, 0)  # the first day that a zip file knows: the same bytes each time


def check_place(file: Path) -> None:
    """Raises `ValueError` where no such file should be written."""
    if file.suffix != ".zip":
        raise ValueError(f"--gradescope {file}: expected the name of a zip file, as in week2.zip")
    if file.exists():
        raise ValueError(f"--gradescope {file}: it is there already; move it away, or choose another name")


def write_bundle(
    name: str, ids: Sequence[str], settings: Mapping[str, str], secret: bytes, file: Path, items: bytes = b""
) -> None:
    """Write the autograder of a problem set or a project.

    Args:
        name: what it is called.
        ids: the numbers of what it asks for; none for a project.
        settings: what its PSET.toml says.
        secret: decides the hidden cases.
        file: the zip file.
        items: the file of an instructor's own written answers.

    Raises:
        ValueError: no such file should be written.
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
    file.chmod(0o600)  # the secret is in it


def requirements() -> list[str]:
    """Return what the library and the school import, in the versions that are installed here: `torch==2.13.0`."""
    needed = [one for one in (*asked_by(), *asked_by("school")) if one.name not in (NAME, SCHOOL)]
    extras = {one.name: f"[{','.join(sorted(one.extras))}]" if one.extras else "" for one in needed}
    versions = {name: metadata.version(name).partition("+")[0] for name in extras}
    return [f"{name}{extras[name]}=={versions[name]}" for name in sorted(extras)]


def _packages() -> dict[str, bytes]:
    """Return the contents of every file of the library and the school, by its path from their common folder."""
    roots = [Path(str(package.__file__)).resolve().parent for package in (companion, companion_school)]
    return {
        f"{root.name}/{path.relative_to(root).as_posix()}": path.read_bytes()
        for root in roots
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
