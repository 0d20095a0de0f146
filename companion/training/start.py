"""What a tuned run begins from: another run, or a published model; its weights, and how it reads conversations."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from companion.data.dialect import dialect_files, files_of_run
from companion.families.adapters import ADAPTER, load_adapters, merged
from companion.families.pretrained import family_of, load_pretrained
from companion.files.models import CONFIG, read_config
from companion.ground.fields import plain
from companion.training.run_folder import RunFolder, newest_run
from companion.training.settings import NumberWordsSettings, TextSettings
from companion.transformer import Transformer

_HEAD = 2**20
"""Bytes of a file of weights by which it is known again: its header and more, without reading gigabytes."""


@dataclass(frozen=True)
class Start:
    """The folder of a run on text, of a tuned run, or of a published model."""

    folder: Path

    @classmethod
    def find(cls, name: str | None) -> Start:
        """What `--start` names; `None`: the newest run on text. Raises `ValueError` for a folder that is neither."""
        if name is None:
            return cls(newest_run(task=TextSettings.task).path.absolute())
        folder = Path(name).expanduser().absolute()
        if not folder.is_dir():
            raise ValueError(f"--start {plain(name)}: expected the folder of a run or of a published model, found none")
        start = cls(folder)
        if start.run is None:
            family_of(folder)
            read_config(folder)
        elif start.run.task == NumberWordsSettings.task:
            raise ValueError(f"--start {plain(name)}: expected a model that goes on with texts, got a translator")
        return start

    @cached_property
    def run(self) -> RunFolder | None:
        """The run that is there; `None` for a published model."""
        folder = RunFolder(self.folder)
        return folder if folder.exists else None

    @cached_property
    def _weights(self) -> Path:
        """The folder of the weights."""
        if self.run is None:
            return self.folder
        if (last := self.run.checkpoint()) is None:
            raise ValueError(f"--start {self.folder}: expected a run with a checkpoint, but it has none yet")
        return last

    def model(self) -> Transformer:
        """The model, whole, in fp32, on the CPU. Raises `ValueError` where it is damaged, or not a decoder."""
        if self.run is None:
            model = load_pretrained(self.folder, dtype=torch.float32)
        else:
            model = merged(self.run.model())
        if model.config.stack != "decoder":
            raise ValueError(f"--start {self.folder}: expected a decoder, got stack={model.config.stack!r}")
        return model

    def files(self) -> dict[str, str]:
        """How it reads conversations, as `dialect_files` has it."""
        if self.run is not None and self.run.task == TextSettings.task:
            return files_of_run(self.run.tokenizer(), self.run.model().config.context)
        return dialect_files(self.folder)

    @cached_property
    def fingerprint(self) -> str:
        """Equal for the same weights."""
        found = hashlib.sha256()
        names = (CONFIG, "model*.safetensors", ADAPTER, "adapter*.safetensors")
        for path in sorted({path for name in names for path in self._weights.glob(name)}):
            with open(path, "rb") as file:
                found.update(f"{path.name} {path.stat().st_size} ".encode() + file.read(_HEAD))
        return found.hexdigest()[:16]


def with_adapters(record: Mapping[str, object], folder: Path) -> Transformer:
    """The model of a checkpoint that holds adapters alone, on what its run began from.

    Raises `ValueError` where that is gone, or is not what it was.
    """
    settings, known = record["settings"], record["text"]
    assert isinstance(settings, Mapping) and isinstance(known, Mapping)
    start = Start.find(str(settings["start"]))
    if start.fingerprint != known.get("start"):
        raise ValueError(f"{folder}: expected the model below its adapters, {start.folder}, as it was; it has changed")
    model = start.model()
    load_adapters(folder, model)
    return model.eval()


