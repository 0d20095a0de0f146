"""Whether a run in a folder is the one that a command asks for: its settings, its data, its model."""

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
        hint = f"{folder.path} is as it was: with that put right, the same command goes on"
        raise ValueError(f"{error}\n{hint}") from None


def check_same_settings(folder: RunFolder, settings: RunSettings) -> None:
    record = folder.record()
    changed = differences(recorded(record), settings)
    if changed:
        lines = "\n  ".join(changed)
        if record["settings"].get("data") == []:
            lines += "\n  (when it began, the default text was the language reference: --data python goes on with it)"
        raise ValueError(
            f"{folder.path} holds a run with other settings:\n  {lines}\nexpected the same ones to go on with it, "
            f"or another --out to begin a new run, as in --out {_unused(folder.path)}"
        )


def check_same_model(folder: RunFolder, record: dict[str, Any], task: Task) -> None:
    """A file of --model may have changed since the run began; its settings have its name alone. A field that there was
    not yet when the run began means what it means by default."""
    from companion.config.model import ModelConfig

    if "model" in record and ModelConfig.from_json(json.dumps(record["model"])) != task.config:
        name = f"--model {task.settings.model}" if isinstance(task.settings, Settings) else "--start"
        raise ValueError(
            f"{name}: expected the model that {folder.path} began with, got another; put the "
            "file back, or name another --out"
        )


def _unused(path: Path) -> Path:
    """A name beside `path` that nothing has yet."""
    return next(new for number in count(2) if not (new := path.with_name(f"{path.name}-{number}")).exists())


def check_same_data(folder: RunFolder, record: dict[str, Any], task: Task) -> None:
    from companion.training.tasks.text import TextTask

    if record["text"]["fingerprint"] != task.fingerprint:
        # A file that is no longer text is left out without an error: here is the place to hear of it.
        notes = task.text.corpus.notes if isinstance(task, TextTask) else ()
        then = record["text"]["title"]
        changed = "has changed since" if then == task.title else f"is not {then}, which it began with"
        raise ValueError(
            f"{folder.path} holds a run on other data: {task.title} {changed}; expected the same to go on, or "
            f"another --out to begin a new run, as in --out {_unused(folder.path)}"
            + "".join(f"\n  as it is now: {note}" for note in notes)
        )
