"""Find each student's submission: a file, a folder or a zip file, named by the instructor or a learning platform.

    STUDENT.ipynb, STUDENT.zip, STUDENT/....ipynb           one entry for each student
    submitted/STUDENT/PSET/....ipynb                        as collected by nbgrader
    lovelaceada_LATE_1234_5678_week2.ipynb                  as downloaded from Canvas
    Ada Lovelace_1234_assignsubmission_file/week2.ipynb     as downloaded from Moodle
    week2_ada_attempt_2026-11-30-23-59-01_week2.ipynb       as downloaded from Blackboard
    11-22 - Ada Lovelace - Nov 30, 2026 1159 PM/            as downloaded from Brightspace
    submission_1234/ beside submission_metadata.yml         as exported from Gradescope

All entries of a student are combined. If they contain several notebooks, only one of them is graded, which the rule in
`CHOICE` selects.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from companion_school.build.stages import STAGES
from companion_school.course.grading import received
from companion_school.course.grading.archives import unpack

KINDS = (".ipynb", ".py")
CHOICE = (
    "If there are several notebooks, the one named after the problem set is graded. Among several of these, it is the "
    "one uploaded last, by the platform's number, then by the time of its commit or file (to the minute), then by the "
    "number in its name."
)
CHOICE_OF_FOLDER = (
    "If there are several folders with files of the project, the one with the most recently changed file is graded."
)
_SEVERAL = "several problem sets: "
_COPY = re.compile(r"[ _-]*(?:\((\d{1,6})\)|copy(?:[ _-]?(\d{1,6}))?|-(\d{1,3}))$", re.IGNORECASE)
_NBGRADER = ("source", "release", "submitted", "autograded", "feedback", "exchange", "marks")
"""Folders of an nbgrader course, and the folder that `companion grade` writes."""
_DEEPEST, _MOST_FILES, _MOST_ZIPS = 4, 2000, 10


@dataclass(frozen=True)
class Platform:
    """Information in the name of a file or folder downloaded from a learning platform.

    Attributes:
        student: Name of the student, including the platform's number, such as "lovelaceada_1234".
        name: The student's own name for the file; empty for a folder.
        upload: Number of the upload, which increases over time, or 0 if the name has none.
        time: Time of submission, or empty if the name has none.
        late: True if the platform marks the submission as late.
    """

    student: str
    name: str = ""
    upload: int = 0
    time: str = ""
    late: bool = False


_NAMES = (
    re.compile(r"(?P<who>anon_[^_]+)(?P<late>_LATE)?_(?P<upload>\d+)_(?P<name>.+)"),
    re.compile(r"(?P<who>[^_]+)(?P<late>_LATE)?_(?P<id>\d+)_(?P<upload>\d+)_(?P<name>.+)"),
    re.compile(r"(?P<who>[^_]+)_(?P<id>\d+)_assignsubmission_[a-z]+(?:_(?P<name>.*))?"),
    re.compile(r"[^_]+_(?P<who>.+?)_attempt_(?P<time>\d{4}(?:-\d\d){5})(?:_(?P<name>.+)|\.txt)?"),
    re.compile(r"(?P<id>\d+)-\d+ - (?P<who>.+?) ?- (?P<time>\w{3,9} \d\d?, \d{4} \d{3,4} [AP]M)(?: - (?P<name>.+))?"),
)


def platform_name(name: str) -> Platform | None:
    """Parse the name of a file or folder downloaded from a learning platform. Return None for any other name."""
    found = next((match.groupdict() for one in _NAMES if (match := one.fullmatch(name))), None)
    if found is None or name.count("_assignsubmission_") > 1:  # this could be another student's name
        return None
    student = f"{found['who']}_{found['id']}" if found.get("id") else found["who"]
    upload = found.get("upload") or "0"
    return Platform(
        plain(student), found.get("name") or "", int(upload[:18]), found.get("time") or "", bool(found.get("late"))
    )


def platform_number(student: str) -> str | None:
    """Return the platform's number at the end of a student's name, or None if there is none."""
    match = re.search(r"_(\d+)$", student)
    return match[1] if match else None


@dataclass(frozen=True)
class Handed:
    """One student's submission.

    Attributes:
        student: Name of the student.
        files: Files to grade: one notebook, or the files of a project.
        time: Time of submission in ISO 8601 with UTC offset; empty if unknown.
        time_from: Source of the time, or the reason why it is unknown.
        fault: The reason why there is nothing to grade; None if there are files to grade.
        others: Names of files and folders that were handed in but are not graded.
        place: Name of the student's file or folder among the submissions, which a platform uses to match feedback.
    """

    student: str
    files: tuple[Path, ...]
    time: str = ""
    time_from: str = ""
    fault: str | None = None
    others: tuple[str, ...] = ()
    place: str = ""


_Entries = Sequence[tuple[Path, Platform]]  # all files and folders of one student in the folder of submissions


def handed_in(
    folder: Path,
    assignment: str | None = None,
    *,
    project: bool = False,
    times: Mapping[str, str] | None = None,
    zone: str = "UTC",
) -> list[Handed]:
    """Find all students' submissions in a folder or a zip file, sorted by student.

    A problem with a student's files is recorded in that student's `fault` instead of being raised.

    Args:
        folder: Folder that contains a notebook, a folder or a zip file for each student, possibly in a subfolder
            `submitted`.
        assignment: Name of the problem set, which selects a folder if students' folders hold several problem sets.
        project: Whether to look for the files of *Your own transformer* instead of a notebook.
        times: The instructor's table of submission times, by student.
        zone: UTC offset to assume for times without one.

    Raises:
        ValueError: If the folder does not exist or holds no submissions, or all students handed in several problem sets
            and `assignment` selects none of these.
    """
    if folder.suffix.lower() == ".zip" and folder.is_file():
        folder = unpack(folder, scratch(), KINDS, inner_zips=True)
    if not folder.is_dir():
        raise ValueError(
            f"{folder}: expected a folder of submissions, found {'a file' if folder.exists() else 'nothing'}"
        )
    collected = folder != _inner(folder) or folder.name == "submitted"
    folder = _inner(folder)
    known = received.Sources(received.manifest(folder), times or {}, zone)
    by_student = _entries(folder, known.manifest, assignment)
    found = [
        _one(student, entries, assignment, known, project=project, collected=collected)
        for student, entries in sorted(by_student.items())
    ]
    if not found:
        what = "a folder or a zip" if project else "STUDENT.ipynb or STUDENT/....ipynb"
        raise ValueError(f"{folder}: expected {what} for each student, found neither")
    faults = [handed.fault or "" for handed in found]
    if all(fault.startswith(_SEVERAL) for fault in faults):
        raise ValueError(
            f"--pset: required to say which problem set to grade; {folder} {faults[0].removeprefix(_SEVERAL)}"
        )
    return found


def handed_by(student: str, folder: Path, assignment: str | None = None, *, project: bool = False) -> Handed:
    """Find the submission in one student's folder, and record any problem with it in `fault`."""
    entries, known = [(folder, Platform(plain(student)))], received.Sources({}, {}, "UTC")
    return _one(plain(student), entries, assignment, known, project=project, collected=False)


@cache
def scratch() -> Path:
    """Return a temporary folder for unpacked zip files, which is deleted when the process ends."""
    place = Path(tempfile.mkdtemp(prefix="companion-zips-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place


def left_out(folder: Path) -> list[str]:
    """List the files in a folder of submissions that belong to no student, so that the instructor can be informed."""
    folder = _inner(folder)
    if not folder.is_dir():
        return []
    known = (*KINDS, ".zip", ".yml")
    others = (path for path in folder.iterdir() if path.is_file() and path.suffix.lower() not in known)
    return sorted(plain(path.name) for path in others if _is_seen(path))


def _inner(folder: Path) -> Path:
    """Return an nbgrader course's folder `submitted`, or the given folder if `submitted` could be a student."""
    if not (folder / "submitted").is_dir():
        return folder
    others = {path.name for path in folder.iterdir() if path.is_dir() or path.suffix.lower() in (*KINDS, ".zip")}
    others = {name for name in others if not name.startswith((".", "__"))}
    return folder / "submitted" if others <= {*_NBGRADER} or "nbgrader_config.py" in others else folder


def plain(name: str) -> str:
    """Escape characters in a file name that cannot be printed safely, and bytes that are not valid UTF-8."""
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def _is_of_kind(path: Path) -> bool:
    return path.suffix.lower() in KINDS


def _is_seen(path: Path) -> bool:
    return not path.name.startswith((".", "__"))


def _entries(folder: Path, manifest: Mapping[str, tuple[str, str]], assignment: str | None) -> dict[str, _Entries]:
    by_student: dict[str, list[tuple[Path, Platform]]] = {}
    for path in sorted(folder.iterdir()):
        is_folder = path.is_dir() and not path.is_symlink()
        if not _is_seen(path) or not (
            is_folder or path.suffix.lower() in (*KINDS, ".zip") or (path.is_symlink() and not path.suffix)
        ):
            continue
        stem = path.name if is_folder or path.suffix.lower() not in (*KINDS, ".zip") else path.stem
        own = manifest.get(path.name, ("", ""))[0]
        said = Platform(plain(own).replace("/", "_")) if own else platform_name(path.name) or Platform(plain(stem))
        by_student.setdefault(said.student, []).append((path, said))
    start = _common_start(list(by_student), assignment or "")
    return {name[start:]: entries for name, entries in by_student.items()}


def _common_start(names: Sequence[str], assignment: str) -> int:
    """Return the number of characters before the student's name: 6 for week2-ada, 13 for course-week2-ada."""
    begins = {name[: at + len(assignment) + 1] for name in names if (at := name.find(f"{assignment}-")) >= 0}
    [start] = begins if len(begins) == 1 else [""]
    return len(start) if assignment and all(name.startswith(start) and name != start for name in names) else 0


def _one(
    student: str, entries: _Entries, assignment: str | None, known: received.Sources, *, project: bool, collected: bool
) -> Handed:
    home = entries[0][0]
    place = plain(home.name)
    try:
        found: list[tuple[Path, Platform]] = []
        entry_of: dict[Path, Path] = {}
        for path, said in entries:
            files = _files_of(path, assignment)
            found += [(file, said) for file in files]
            entry_of |= dict.fromkeys(files, path)
        chosen, others = _project_files(found) if project else _notebook(found, assignment, home)
        home = entry_of.get(chosen[0], home) if chosen else home
        place = plain(home.name)  # a platform attaches the page to the graded file instead of an earlier upload
    except OSError as error:
        return Handed(student, (), fault=f"its folder cannot be read ({error.strerror or error})", place=place)
    except ValueError as error:
        return Handed(student, (), fault=str(error), place=place)
    stamp = home / str(assignment) / "timestamp.txt" if assignment and collected else None
    named, late = max(said.time for _, said in entries), any(said.late for _, said in entries)
    time, source = known.time_of(student, place, home, chosen, stamp, named, late)
    return Handed(student, tuple(chosen), time, source, others=tuple(others), place=place)


def _files_of(path: Path, assignment: str | None) -> list[Path]:
    """List the files in a student's entry, or only those in the problem set's folder if there is one."""
    if path.is_symlink():
        raise ValueError(f"{plain(path.name)} is a link, not a file or a folder")
    if path.suffix.lower() == ".zip" and path.is_file():
        path = unpack(path, scratch(), KINDS)
    if not path.is_dir():
        return [path]
    if assignment is not None and (path / assignment).is_symlink():
        raise ValueError(f"{plain(assignment)} is a link, not a folder")
    if assignment is not None and (path / assignment).is_dir():
        path = path / assignment
    inside = sorted(path.iterdir())
    files = [file for file in inside if _is_seen(file) and not (file.is_dir() and file.suffix not in KINDS)]
    archives = [file for file in files if file.suffix.lower() == ".zip" and file.is_file()]
    if len(archives) > _MOST_ZIPS:
        raise ValueError(f"it holds {len(archives)} zip files; expected at most {_MOST_ZIPS}")
    for archive in archives:
        files += [file for file in _deep(unpack(archive, scratch(), KINDS)) if _is_of_kind(file)]
    if any(map(_is_of_kind, files)):
        return files
    folders = [one for one in inside if one.is_dir() and _is_seen(one) and not one.is_symlink()]
    holding = [one for one in folders if any(map(_is_of_kind, _deep(one)))]
    if len(holding) > 1 and not any(file.name in _STAGE_FILES for one in holding for file in _deep(one)):
        raise ValueError(f"{_SEVERAL}holds {', '.join(plain(one.name) for one in holding[:5])}")
    return files + [file for one in holding for file in _deep(one)]


_STAGE_FILES = frozenset(stage.file for stage in STAGES.values())


def _deep(folder: Path, depth: int = 0) -> list[Path]:
    """List the files in a folder and its subfolders, up to `_MOST_FILES` files and `_DEEPEST` levels."""
    found: list[Path] = []
    for path in sorted(folder.iterdir())[:_MOST_FILES]:
        if not _is_seen(path):
            continue
        if path.is_dir() and not path.is_symlink() and path.suffix not in KINDS:
            found += _deep(path, depth + 1) if depth < _DEEPEST else []
        else:
            found.append(path)
    return found[:_MOST_FILES]


def _notebook(
    found: Sequence[tuple[Path, Platform]], assignment: str | None, home: Path
) -> tuple[list[Path], list[str]]:
    """Return a list with the one file to grade, and the names of the other candidates."""
    of_kind = {kind: [(file, said) for file, said in found if file.suffix.lower() == kind] for kind in KINDS}
    rivals = of_kind[".ipynb"] or of_kind[".py"]  # Python files beside a notebook are modules, not candidates
    if not rivals:
        others = [plain(file.name) for file, _ in found if file.is_file() and file.name != "timestamp.txt"]
        what = f"only {', '.join(others[:3])}" if others else "nothing"
        raise ValueError(f"expected a notebook, found {what}")
    for file, _ in rivals:
        if not stat.S_ISREG(file.lstat().st_mode):
            raise ValueError(f"{plain(file.name)} is a link or a folder, not a notebook")
    if len(rivals) == 1:
        return [rivals[0][0]], []
    chosen, _ = max(rivals, key=lambda one: (_rank(one, assignment, home), one[0].name))
    return [chosen], [plain(file.name) for file, _ in rivals if file is not chosen]


def _rank(found: tuple[Path, Platform], assignment: str | None, home: Path) -> tuple[bool, int, int, int]:
    """Return the sort key for the rule in `CHOICE`: matching name, upload number, time in minutes, copy number."""
    file, said = found
    stem, wanted = Path(said.name or file.name).stem.lower(), (assignment or "").lower()
    copy = None if stem == wanted else _COPY.search(stem)
    number = int(next((part for part in copy.groups() if part), "1")) if copy else 0
    name = _COPY.sub("", stem).removeprefix("copy of ").strip() if copy or stem.startswith("copy of ") else stem
    committed = received.last_commit(home, [file])
    seconds = received.moment(committed, "time").timestamp() if committed else file.stat().st_mtime
    return name == wanted, said.upload, int(seconds // 60), number


def _under_own_names(found: Sequence[tuple[Path, Platform]]) -> list[Path]:
    """Copy files that a platform has renamed into a new folder `transformer`, under the names that students gave."""
    own = [(file, Path(said.name)) for file, said in sorted(found, key=lambda one: one[1].upload)]
    latest = {f"{_COPY.sub('', name.stem)}.py": file for file, name in own if name.suffix == ".py"}
    if not _STAGE_FILES & {*latest}:
        return []
    folder = Path(tempfile.mkdtemp(dir=scratch()), "transformer")
    folder.mkdir()
    return [Path(shutil.copy2(file, folder / name)) for name, file in latest.items()]


def _project_files(found: Sequence[tuple[Path, Platform]]) -> tuple[list[Path], list[str]]:
    """Return the Python files of the folder that holds the project's files, and the names of other such folders.

    If there are several, the folder with the most recently changed project file is used.
    """
    of_kind = [(file, said) for file, said in found if file.suffix.lower() == ".py"]
    usable = [(file, said) for file, said in of_kind if stat.S_ISREG(file.lstat().st_mode)]
    files = [file for file, _ in usable] + _under_own_names(usable)
    homes = {file.parent for file in files if file.name in _STAGE_FILES}
    if not homes:
        near = [plain(file.name) for file in files if file.name.lower() in _STAGE_FILES]
        hint = f", only {', '.join(plain(file.name) for file in files[:3])}" if files else ""
        hint = f"; {near[0]} has a different name from the file that was handed out" if near else hint
        raise ValueError(f"the submission contains none of the project's files, such as attention.py{hint}")
    latest = {
        home: max(file.stat().st_mtime for file in files if file.parent == home and file.name in _STAGE_FILES)
        for home in homes
    }
    home = max(sorted(homes), key=lambda one: (int(latest[one] // 60), -len(one.parts)))
    others = [f"{plain(one.name)}/" for one in sorted(homes - {home})]
    return sorted(file for file in files if file.parent == home), others
