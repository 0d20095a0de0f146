"""Check that a run in a folder has the settings, the data and the model that a command specifies."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from companion.training.settings import RunSettings, Settings, differences, recorded

if TYPE_CHECKING:
    from companion.training.run_folder import RunFolder
    from companion.training.tasks.task import Task


def with_its_data(folder: RunFolder, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except ValueError as error:
        hint = f"{folder.path} has not changed; once that is fixed, the same command resumes it"
        raise ValueError(f"{error}\n{hint}") from None


def check_same_settings(folder: RunFolder, settings: RunSettings) -> None:
    record = folder.record()
    changed = differences(recorded(record), settings)
    if changed:
        lines = "\n  ".join(changed)
        if record["settings"].get("data") == []:
            lines += "\n  (when it began, the default text was the language reference: --data python goes on with it)"
        raise ValueError(
            f"{folder.path} holds a run with other settings:\n  {lines}\nuse the same settings to resume it, "
            f"or another --out to start a new run, as in --out {_unused(folder.path)}"
        )


def check_same_model(folder: RunFolder, record: dict[str, Any], task: Task) -> None:
    """Raise `ValueError` if the run in a folder began with another model.

    The settings contain only the name of the --model file, whose content may have changed since the run began. A field
    of the configuration that did not exist when the run began has its default value.
    """
    from companion.config.model import ModelConfig

    if "model" in record and ModelConfig.from_json(json.dumps(record["model"])) != task.config:
        name = f"--model {task.settings.model}" if isinstance(task.settings, Settings) else "--start"
        raise ValueError(
            f"{name}: the run in {folder.path} started with a different file; restore the original "
            "file or choose another --out"
        )


def _unused(path: Path) -> Path:
    """Return an unused path in the same folder as `path`, with a number appended to its name."""
    return next(new for number in count(2) if not (new := path.with_name(f"{path.name}-{number}")).exists())


def check_same_data(folder: RunFolder, record: dict[str, Any], task: Task) -> None:
    from companion.training.tasks.text import TextTask
    from companion.training.tasks.tune import TuneTask

    if isinstance(task, TuneTask) and record["text"].get("start") != task.start.fingerprint:
        raise ValueError(
            f"--start {task.start.folder}: the run in {folder.path} started from {record['start']}, got "
            f"another; choose another --out to start a new run, as in --out {_unused(folder.path)}"
        )
    if record["text"]["fingerprint"] != task.fingerprint:
        # A file that is no longer text is left out without an error, so the message has to mention it.
        notes = task.text.corpus.notes if isinstance(task, TextTask) else ()
        then = record["text"]["title"]
        changed = "has changed since" if then == task.title else f"is not {then}, which it began with"
        raise ValueError(
            f"{folder.path} holds a run on different data: {task.title} {changed}; use the same data to resume it, or "
            f"another --out to start a new run, such as --out {_unused(folder.path)}"
            + "".join(f"\n  as it is now: {note}" for note in notes)
        )
