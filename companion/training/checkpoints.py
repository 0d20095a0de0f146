"""Checkpoints of a run: the last few and the best one. All of them are complete, no matter when the process is killed.

    checkpoints/
        step-00000400/            the best so far, according to state.json of the last one
        step-00000950/
        step-00001000/            the last
            model.safetensors, config.json     what `companion.files.models.load_model` reads; for a run that trains
                                               adapters, only these: adapter_model.safetensors, adapter_config.json
            optimizer.safetensors              both moments and the step count of every parameter, or its momentum
            state.json                         updates done, its score, which checkpoint is the best, checksums

A checkpoint is written into a hidden folder, flushed to disk, and renamed. Only then are older checkpoints hidden and
removed. A folder with a visible name is therefore a complete checkpoint. If it is damaged later, its checksums
(SHA-256) reveal the damage. The last checkpoint records which one is the best. Unlike a link, this record survives
copying the folder, and a killed process cannot leave it inconsistent.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from companion.config.model import ModelConfig
from companion.families.adapters import ADAPTER, ADAPTER_WEIGHTS, adapter_config, save_adapters
from companion.files.models import CONFIG, WEIGHTS, load_model, load_tensors, read_config, save_model, save_tensors
from companion.ground.atomic import sync_folder, write_atomic, writing
from companion.ground.fields import shown
from companion.layers.low_rank import low_rank_layers
from companion.training.checksummed_records import Record, checksum_of, checksummed, read_checksummed
from companion.transformer import Transformer

OPTIMIZER, STATE = "optimizer.safetensors", "state.json"
_ROOM = 64 * 1024
"""Maximum number of bytes of a checkpoint besides its tensors."""


class Saved(NamedTuple):
    """The contents and the folder of a checkpoint. `config` is the configuration of its model or of its adapters."""

    folder: Path
    config: ModelConfig | dict[str, Any]
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    done: int
    log: str


class Checkpoints:
    """Checkpoints in the folder `home`, which need not exist. Nothing is cached in memory."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def all(self) -> list[Path]:
        """Return the folders of all checkpoints, oldest first."""
        return sorted(path for path in self.home.glob("step-*") if path.is_dir())

    def last(self) -> Path | None:
        """Return the folder of the last checkpoint, or `None` if there is none."""
        return found[-1] if (found := self.all()) else None

    def best(self) -> Path:
        """Return the folder of the best checkpoint.

        Raises:
            ValueError: if no checkpoint has been measured yet, or if the best one no longer exists.
        """
        last = self.last()
        if last is None or (best := _state(last)["best"]) is None:
            raise ValueError(f"{self.home}: no checkpoint has been evaluated yet")
        if not (folder := self.home / _name(best["update"])).is_dir():
            raise ValueError(f"{folder}: the best checkpoint is missing; it was deleted")
        return folder

    def model(self, folder: Path) -> Transformer:
        """Load the model in a checkpoint that has no adapters. Raises `ValueError` if the checkpoint is damaged."""
        model = load_model(folder)
        _check(folder, _state(folder), (WEIGHTS, CONFIG))
        return model

    def check(self, folder: Path) -> None:
        """Raise `ValueError` if a checkpoint's weights, or the file that describes them, have changed."""
        _check(folder, _state(folder), _files(folder))

    def write(
        self,
        model: Transformer,
        weights: Mapping[str, Tensor],
        optimizer: Mapping[str, Tensor],
        *,
        done: int,
        keep: int,
        run: str,
        log: str,
        error: float | None = None,
    ) -> Path:
        """Write the checkpoint after update `done`, then remove all but the last `keep` and the best.

        Args:
            model: the model, for its configuration.
            weights: its weights by name.
            optimizer: the optimizer state, keyed by name.
            done: number of updates made so far.
            keep: number of recent checkpoints to keep.
            run: digest of run.json, or "" without this file.
            log: digest of the log so far.
            error: score of the model, where smaller is better; a checkpoint with `None` was not measured and cannot be
                the best.

        Raises:
            NotWritten: if the disk is full, or writing fails for another reason. Older checkpoints are not affected.
        """
        final = self.home / _name(done)
        before = self.last()
        needed = sum(tensor.nbytes for tensors in (weights, optimizer) for tensor in tensors.values()) + _ROOM
        with writing(final, needed):
            self.home.mkdir(parents=True, exist_ok=True)
            self.clear_unfinished()
            if before != final:
                draft = self.home / f".{final.name}.tmp"
                try:
                    draft.mkdir()
                    if low_rank_layers(model):
                        save_adapters(draft, model)
                    else:
                        save_model(draft, model, weights=weights)
                    save_tensors(draft / OPTIMIZER, optimizer)
                    state = {
                        "done": done,
                        "best": self._better(done, error, _best(before)),
                        "sha256": {name: _digest(draft / name) for name in (*_files(draft), OPTIMIZER)},
                        "log": log,
                    }
                    write_atomic(draft / STATE, json.dumps(checksummed(state, run), indent=2) + "\n")
                    draft.rename(final)
                finally:
                    shutil.rmtree(draft, ignore_errors=True)
                sync_folder(self.home)
        self._remove_old(keep)
        return final

    def newest_whole(self) -> tuple[Saved | None, list[str]]:
        """Load the last complete checkpoint (`None` if there are no checkpoints).

        Returns:
            The checkpoint, and one message for each later checkpoint, newest first, that names what is damaged.

        Raises:
            ValueError: if there are checkpoints and all of them are damaged.
        """
        faults: list[str] = []
        for folder in reversed(self.all()):
            try:
                return self.load(folder), faults
            except ValueError as error:
                faults.append(str(error))
        if faults:
            raise ValueError(
                f"{self.home}: no checkpoint is complete, so the run cannot be resumed: {'; '.join(faults)}. Restore "
                "one from a backup, or delete this folder to train again from the first update"
            )
        return None, faults

    def load(self, folder: Path) -> Saved:
        """Read a checkpoint. Raises a `ValueError` that names the damaged file."""
        file, about = _files(folder)
        weights, optimizer = load_tensors(folder / file), load_tensors(folder / OPTIMIZER)
        config: ModelConfig | dict[str, Any] = read_config(folder, about)
        if about == CONFIG:
            try:
                config = ModelConfig.from_json(json.dumps(config))
            except ValueError as error:
                raise ValueError(f"{folder / CONFIG}: {error}") from None
        state = _state(folder)
        _check(folder, state, (file, about, OPTIMIZER))
        return Saved(folder, config, weights, optimizer, state["done"], state["log"])

    def set_aside(self, after: Path) -> list[Path]:
        """Rename the damaged checkpoints that come after `after`, so that they are no longer found.

        Returns:
            Their new paths.
        """
        moved = []
        for folder in self.all():
            if folder > after:
                aside = folder.with_name(folder.name.replace("step", "damaged"))
                shutil.rmtree(aside, ignore_errors=True)
                moved.append(folder.rename(aside))
        return moved

    def clear_unfinished(self) -> None:
        """Remove what a killed process left behind: unfinished checkpoints, and old ones that were being removed."""
        for path in self.home.glob(".step-*"):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def _better(self, done: int, error: float | None, best: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return the best checkpoint so far.

        If several are equally good, the result is the latest of them, which was trained longest.
        """
        if error is None or not math.isfinite(error):
            return best
        if best is None or error <= best["error"] or not (self.home / _name(best["update"])).is_dir():
            return {"update": done, "error": error}
        return best

    def _remove_old(self, keep: int) -> None:
        *old, last = self.all()
        best = _best(last)
        for folder in old[: len(old) - (keep - 1)]:
            if best is None or folder.name != _name(best["update"]):
                with suppress(OSError):  # the disk may be too full for renaming
                    # Hide it first, so that every visible checkpoint is complete even if the removal is interrupted.
                    folder = folder.rename(self.home / f".{folder.name}.old")
                shutil.rmtree(folder)


def config_of(model: Transformer) -> ModelConfig | dict[str, Any]:
    """Return the `Saved.config` of a checkpoint of this model."""
    return adapter_config(model) if low_rank_layers(model) else model.config


def _files(folder: Path) -> tuple[str, str]:
    """Return the names of two files: the one with a checkpoint's weights, and the one that describes them."""
    adapters = any((folder / name).is_file() for name in (ADAPTER, ADAPTER_WEIGHTS))
    return (ADAPTER_WEIGHTS, ADAPTER) if adapters else (WEIGHTS, CONFIG)


def _name(done: int) -> str:
    return f"step-{done:08d}"


def _best(folder: Path | None) -> dict[str, Any] | None:
    """Return a checkpoint's record of the best checkpoint, or `None` if the record cannot be read."""
    with suppress(ValueError):
        return None if folder is None else _state(folder)["best"]
    return None


def _state(folder: Path) -> Record:
    path = folder / STATE
    if not path.exists():
        raise ValueError(f"{path}: the checkpoint is damaged (the file is missing)")
    try:
        run = folder.parent.parent / "run.json"
        digest = checksum_of(read_checksummed(run, "restore it from a backup")) if run.is_file() else ""
        state = read_checksummed(path, "the checkpoint is damaged", digest)
        if _name(state["done"]) != folder.name:
            raise ValueError(f"done={shown(state['done'])}: expected it to match the folder's name, {folder.name}")
        if not isinstance(state["best"], dict | None):
            raise ValueError(f"best={shown(state['best'])}: expected an object or null")
        return state
    except (ValueError, TypeError) as error:
        why = str(error).removeprefix(f"{path}: ")
        raise ValueError(f"{path}: the checkpoint is damaged ({why})") from None


def _check(folder: Path, state: Mapping[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        if _digest(folder / name) != state["sha256"].get(name):
            raise ValueError(f"{folder / name}: the checkpoint is damaged (the file does not match its checksum)")


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
