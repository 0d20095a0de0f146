"""The learner's folder, `my/transformer`, with stubs, references taken from the course, and the state of each stage.

Code written by the learner is never overwritten. Instead, new text is written to a separate file beside it, and a
message says so.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from companion.ground.atomic import write_atomic
from companion.ground.display import table as aligned
from companion.ground.fields import shown, why
from companion.ground.reading import text_of
from companion_school.build.stages import STAGES, Stage
from companion_school.build.stubs import definitions, is_untouched, names, reference, stub

NAME = Path("my") / "transformer"
VARIABLE = "COMPANION_BUILD"
RECORD = ".stages.json"
TAKEN = "# taken: the course's reference, not yours"
_LARGEST = 2**20  # maximum size of a learner's file, in bytes
_STUB, _WRITTEN, _PASSED, _TAKEN, _NONE = "to write", "not checked", "right", "taken", "no file"


@dataclass(frozen=True)
class _Kept:
    """What is known about a file: digests of its stub and of the text that passed the check, and the check's date."""

    laid: str | None = None
    passed: str | None = None
    on: str | None = None


def find_folder(named: str | os.PathLike[str] | None = None, start: Path | None = None) -> Path:
    """Return the path of the learner's folder, which need not exist yet.

    Args:
        named: The folder given on the command line, if any (default: the environment variable COMPANION_BUILD, if it is
            set).
        start: Folder in which the search begins (default: the current folder). This folder and its parents are searched
            for a record of stages, for `my/transformer`, and for a `transformer` folder with a record, as in a project
            handed out to students.

    Returns:
        The folder that was found; otherwise, `my/transformer` in the nearest folder that contains `my` or the course's
        `notebooks`; otherwise, `my/transformer` in `start`.

    Raises:
        ValueError: If the command line or the environment variable names a file instead of a folder.
    """
    chosen = named or os.environ.get(VARIABLE)
    if chosen:
        folder = Path(chosen)
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{shown(str(folder))}: expected a folder for your transformer, found a file")
        return folder
    start = (start or Path.cwd()).resolve()
    for place in (start, *start.parents):
        if (place / RECORD).is_file():
            return place
        if (place / NAME).is_dir():
            return place / NAME
        if (place / NAME.name / RECORD).is_file():
            return place / NAME.name
        if (place / NAME.parent).is_dir() or (place / "notebooks" / ".lab").is_dir():
            return place / NAME
    return start / NAME


def lay_stubs(folder: Path, stages: Iterable[Stage] = STAGES.values()) -> list[str]:
    """Write the stubs of stages into a folder, and create the folder if it does not exist.

    An untouched stub from an earlier version is replaced. If the learner has changed the file, the new stub is written
    to a separate file beside it, once per version.

    Returns:
        A line for each file that was written.
    """
    known, said = _read_record(folder), []
    for stage in stages:
        new, file = stub(stage.number), folder / stage.file
        kept = known.get(stage.file, _Kept())
        if file.exists() and (kept.laid == _digest(new) or _is_taken(_text(file)) or kept.laid is None):
            continue
        target = file
        if file.exists() and _digest(_text(file)) != kept.laid:
            target = folder / f"{stage.module}.new.py"
            said.append(f"{file.name} is yours and was not changed; the new stub is {target.name} next to it")
        else:
            said.append(f"{file.name}: the stub of stage {stage.number}, {stage.title}")
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(target, new)
        known[stage.file] = replace(kept, laid=_digest(new))
    if said:
        _write_record(folder, known)
    return said


def take(folder: Path, stages: Iterable[Stage]) -> list[str]:
    """Write the references of stages into a folder, replacing files that the learner has not begun.

    If the learner has begun a file, the reference is written beside it, as `MODULE.taken.py`.

    Returns:
        A line for each file that was written.
    """
    said = lay_stubs(folder)
    for stage in stages:
        text = f"{TAKEN}\n{reference(stage.number)}"
        file = folder / stage.file
        now = _text(file) if file.exists() else ""
        if not now or is_untouched(stage.number, now) or _is_taken(now):
            write_atomic(file, text)
            said.append(f"{file.name}: taken, the course's reference of stage {stage.number}")
        else:
            beside = folder / f"{stage.module}.taken.py"
            write_atomic(beside, text)
            said.append(f"{file.name} is yours and was not changed; the reference is {beside.name} next to it")
    return said


def read_sources(folder: Path) -> dict[str, str]:
    """Read all Python files in a folder that can be imported, and return their texts by module name.

    Raises:
        ValueError: If a file cannot be read, is too large or is not UTF-8.
    """
    found = {}
    for file in sorted(folder.glob("*.py")):
        if file.stem.isidentifier():
            found[file.stem] = _text(file)
    return found


def unfinished(folder: Path, stages: str, error: Exception) -> ValueError:
    """Return an exception that says which stages must be finished first and includes the message of `error`."""
    return ValueError(f"{folder}: expected {stages} to be finished" + (f"; {error}" if str(error) else ""))


def note_passed(folder: Path, stage: Stage, passed: bool) -> None:
    """Record whether the current version of a stage's file passed its check."""
    known, file = _read_record(folder), folder / stage.file
    kept = known.get(stage.file, _Kept())
    now = _digest(_text(file)) if passed and file.exists() else None
    _write_record(folder, known | {stage.file: replace(kept, passed=now, on=date.today().isoformat() if now else None)})


def state(folder: Path, stage: Stage) -> str:
    """Describe the state of a stage in a few words."""
    file, kept = folder / stage.file, _read_record(folder).get(stage.file, _Kept())
    if not file.exists():
        return _NONE
    text = _text(file)
    if is_untouched(stage.number, text):
        return _STUB
    taken = _TAKEN if _is_taken(text) else ""
    if kept.passed == _digest(text):
        return ", ".join(filter(None, [taken, f"{_PASSED}, on {kept.on}"]))
    return taken or (f"changed since it was {_PASSED}" if kept.passed else _WRITTEN)


def is_done(folder: Path, stage: Stage) -> bool:
    """Return True if the current version of a stage's file has passed its check or was taken from the course."""
    return state(folder, stage).startswith((_PASSED, _TAKEN))


def compare(folder: Path, stage: Stage) -> str:
    """Show the learner's version and the course's version of each definition of a stage.

    Raises:
        ValueError: If the learner's file has not passed its check.
    """
    if not is_done(folder, stage):
        raise ValueError(f"{stage.file}: this file has not passed its check; run companion build check {stage.number}")
    mine, theirs = definitions(_text(folder / stage.file)), definitions(reference(stage.number))
    parts = []
    for name in names(stage.number):
        if name in mine:
            parts += [_counted(f"{name}, yours", mine[name]), _counted(f"{name}, the course's", theirs[name])]
    return "\n\n".join(parts)


def _counted(title: str, code: str) -> str:
    lines = [line for line in code.splitlines() if line.strip()]
    return f"# {title} ({len(lines)} lines)\n{code}"


def overview(folder: Path) -> str:
    """Format a table of the stages with their states, followed by the estimated remaining time and the next step."""
    rows, left, following = [], 0, None
    for stage in STAGES.values():
        now, done = state(folder, stage), is_done(folder, stage)
        left += 0 if done else stage.minutes
        following = following or (None if done else stage)
        lessons = ", ".join(f"{lesson:02d}" for lesson in stage.lessons)
        rows.append(
            (
                str(stage.number),
                stage.file,
                stage.title,
                f"{stage.minutes} min",
                f"lesson{'s' * (len(stage.lessons) > 1)} {lessons}",
                now,
            )
        )
    lines = [f"Your own transformer, in {folder}", "", aligned(rows, left=(1, 2, 4, 5), width=None), ""]
    if not folder.exists():
        lines.append("There are no files yet. Next:  companion build start  writes the stubs")
    elif following is None:
        lines.append("All stages are done. Let your model tell stories:  companion build story")
        lines.append("How fast does it learn?                  companion build race --minutes 1")
    else:
        lines.append(
            f"About {left / 60:.0f} hours left. Next: write {folder / following.file}, then  "
            f"companion build check {following.number}"
        )
    return "\n".join(lines)


def _is_taken(text: str) -> bool:
    return text.startswith(TAKEN)


def _text(file: Path) -> str:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error.strerror})") from None
    if len(data) > _LARGEST:
        raise ValueError(f"{file}: expected a Python file of at most 1 MiB, got {len(data):,} bytes")
    try:
        return text_of(data)
    except UnicodeError as error:
        raise ValueError(f"{file}: expected text in UTF-8, found invalid bytes ({why(error)})") from None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read_record(folder: Path) -> dict[str, _Kept]:
    file = folder / RECORD
    try:
        known: Mapping[str, Any] = json.loads(file.read_text("utf-8"))
        return {str(name): _Kept(**value) for name, value in known.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError):
        what = "expected the record of your stages; if you remove it, you lose only the record of your checks"
        raise ValueError(f"{file}: {what}") from None


def _write_record(folder: Path, known: Mapping[str, _Kept]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / RECORD, json.dumps({name: asdict(kept) for name, kept in known.items()}, indent=1))
