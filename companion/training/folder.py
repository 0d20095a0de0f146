"""A run on disk: what was asked for, the tokenizer, a log, and the last checkpoint.

    run.json         settings, the text's fingerprint, steps, versions; written before the first update
    tokenizer.json   of a run on text
    log.jsonl        one JSON object a line: updates and evaluations
    checkpoints/step-00000500/   model.safetensors, config.json, optimizer.safetensors, state.json
    result.json      written last: its presence says that the run is finished
    loss.png

A checkpoint is written beside its name and then renamed, and only then is the one before it removed: whenever the
process is killed, one whole checkpoint is there. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from companion import checkpoints
from companion.data.tokenizer import BytePairTokenizer
from companion.training.loop import Trainer
from companion.training.settings import TextSettings
from companion.transformer import Transformer


class RunFolder:
    """The files of one run. Nothing is read or written until a method is called."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def exists(self) -> bool:
        return (self.path / "run.json").is_file()

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").is_file()

    def create(self, record: dict[str, Any], files: Mapping[str, str]) -> None:
        """Make the folder, with `files` by name. `run.json` comes last: a folder with one has all it needs."""
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())) and not self._is_begun():
            raise ValueError(f"--out {self.path}: expected a new or empty folder, or a run; found something else there")
        self.path.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            checkpoints.write_atomic(self.path / name, text)
        self._write_json("run.json", record)

    def record(self) -> dict[str, Any]:
        """What `create` was given. Raises `ValueError` when there is no run, or it cannot be read."""
        if not self.exists:
            raise ValueError(f"{self.path}: expected the folder of a run, found no run.json there; train one first")
        return self._read_json("run.json")

    @property
    def task(self) -> str:
        """What the run learns: the name of a task, see `companion.training.settings.TASKS`."""
        settings = self.record().get("settings")
        return str(settings.get("task", TextSettings.task)) if isinstance(settings, dict) else TextSettings.task

    def tokenizer(self) -> BytePairTokenizer:
        return BytePairTokenizer.load(self.path / "tokenizer.json")

    def result(self) -> dict[str, Any]:
        return self._read_json("result.json")

    def finish(self, result: dict[str, Any]) -> None:
        self._write_json("result.json", result)

    # Checkpoints

    def checkpoint(self) -> Path | None:
        """The folder of the last whole checkpoint; `None` before the first."""
        found = sorted((self.path / "checkpoints").glob("step-*"))
        return found[-1] if found else None

    def model(self) -> Transformer:
        """The model of the last checkpoint. Raises `ValueError` when there is none, or it is damaged."""
        if (folder := self.checkpoint()) is None:
            raise ValueError(f"{self.path}: expected a run with a checkpoint, but it has none yet; train it further")
        return checkpoints.load_model(folder)

    def save(self, trainer: Trainer) -> Path:
        """Write a checkpoint of `trainer` and remove the one before it."""
        home = self.path / "checkpoints"
        home.mkdir(parents=True, exist_ok=True)
        self._clear_unfinished()
        final = home / f"step-{trainer.done:08d}"
        if not final.exists():
            temporary = home / f".{final.name}.tmp"
            temporary.mkdir()
            checkpoints.save_model(temporary, trainer.model)
            checkpoints.save_tensors(temporary / "optimizer.safetensors", trainer.state())
            checkpoints.write_atomic(temporary / "state.json", json.dumps({"done": trainer.done}) + "\n")
            temporary.rename(final)
        for old in home.glob("step-*"):
            if old != final:
                shutil.rmtree(old)
        return final

    def restore(self, trainer: Trainer) -> int:
        """Bring `trainer` to the last checkpoint and the log with it; the number of updates done, 0 without one.

        Raises `ValueError` for a checkpoint that is damaged or of another model.
        """
        self._clear_unfinished()
        folder = self.checkpoint()
        if folder is None:
            self._cut_log(0)
            return 0
        saved = checkpoints.load_model(folder)
        if saved.config != trainer.model.config:
            raise ValueError(f"{folder}: expected a checkpoint of this run's model, got one of another configuration")
        tensors = checkpoints.load_tensors(folder / "optimizer.safetensors")
        try:
            done = int(json.loads((folder / "state.json").read_text("utf-8"))["done"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{folder / 'state.json'}: the checkpoint is damaged ({error})") from None
        trainer.model.load_state_dict(saved.state_dict())
        trainer.load_state(tensors, done)
        self._cut_log(done)
        return trainer.done

    # The log

    def log(self, entry: dict[str, Any]) -> None:
        """Append one line."""
        with open(self.path / "log.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def entries(self) -> Iterator[dict[str, Any]]:
        """The log's lines; a last one that a kill cut short is left out."""
        try:
            lines = (self.path / "log.jsonl").read_text("utf-8").splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            try:
                yield json.loads(line)
            except ValueError:
                return

    def _cut_log(self, done: int) -> None:
        """Forget lines of updates after the checkpoint: they will be made, and written, again."""
        lines = [json.dumps(entry) + "\n" for entry in self.entries() if entry["update"] <= done]
        if (self.path / "log.jsonl").exists():
            checkpoints.write_atomic(self.path / "log.jsonl", "".join(lines))

    # Files

    def _is_begun(self) -> bool:
        """Whether a run was here, or was being made when it was killed."""
        return self.exists or {entry.name for entry in self.path.iterdir()} <= {"tokenizer.json"} | {
            entry.name for entry in self.path.glob(".*.tmp")
        }

    def _clear_unfinished(self) -> None:
        for folder in (self.path / "checkpoints").glob(".step-*"):
            shutil.rmtree(folder)

    def _write_json(self, name: str, value: dict[str, Any]) -> None:
        checkpoints.write_atomic(self.path / name, json.dumps(value, indent=2) + "\n")

    def _read_json(self, name: str) -> dict[str, Any]:
        path = self.path / name
        try:
            value = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{path}: cannot be read ({error})") from None
        if not isinstance(value, dict):
            raise ValueError(f"{path}: expected a JSON object, got {type(value).__name__}")
        return value


def newest_run(home: str | os.PathLike[str] = "runs", *, task: str | None = None) -> RunFolder:
    """The run below `home` that was begun last, of one task or of any. Raises `ValueError` when there is none."""
    found = [path for path in Path(home).glob("*/run.json")]
    for path in sorted(found, key=lambda path: (path.stat().st_mtime, path), reverse=True):
        folder = RunFolder(path.parent)
        if task is None or folder.task == task:
            return folder
    what = "a run" if task is None else f"a run of the task {task}"
    flags = "" if task in (None, TextSettings.task) else f" --task {task}"
    raise ValueError(f"expected {what} in {Path(home)}{os.sep}, found none; make one with `companion train{flags}`")
