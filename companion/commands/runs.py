"""Helpers shared by several commands: find a run by its folder, find the newest run, and read a configuration file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from companion.ground.fields import plain, why
from companion.ground.reading import read_text
from companion.training.settings import NumberWordsSettings, RunSettings, TuneSettings

if TYPE_CHECKING:
    from companion.config.model import ModelConfig
    from companion.training.run_folder import RunFolder


def run_folder(path: str | None, kind: type[RunSettings] | None = None) -> RunFolder:
    """Return the run in a folder; without a folder, return the newest run and print its name to standard error.

    Args:
        path: The folder (default: the newest run).
        kind: The settings class of the task that the run must have (default: any).

    Raises:
        ValueError: If there is no run, or the run has a different task.
    """
    from companion.training.run_folder import RunFolder, newest_run

    if path is not None:
        folder = RunFolder(path)
        folder.record()
        if kind is not None and folder.task != kind.task:
            commands = {NumberWordsSettings.task: "companion translate", TuneSettings.task: "companion chat"}
            use = commands.get(folder.task, "companion generate")
            raise ValueError(f"--run {path}: expected a run of the task {kind.task}, got {folder.task}; try `{use}`")
        return folder
    folder = newest_run(task=None if kind is None else kind.task)
    print(f"run: {folder.path}", file=sys.stderr)
    return folder


def read_config(name: str) -> ModelConfig:
    """Return the configuration in the file that `--config` names.

    Raises:
        ValueError: If the file cannot be read or does not describe a model.
    """
    from companion.config.model import ModelConfig

    path = Path(name)
    try:
        if path.exists() and not path.is_file():
            raise ValueError("expected a file, found something else")
        return ModelConfig.from_json(read_text(path))
    except OSError as error:
        raise ValueError(f"--config {plain(name)}: cannot be read ({error.strerror})") from None
    except UnicodeError as error:
        raise ValueError(f"--config {path}: expected a JSON file, got a file that is not text ({why(error)})") from None
    except ValueError as error:
        raise ValueError(f"--config {path}: {error}") from None
