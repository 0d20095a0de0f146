"""A run on disk: what was asked for, the tokenizer, a log, and the checkpoints.

    run.json         settings, the text's fingerprint, steps, versions; written before the first update
    tokenizer.json   of a run on text; of a tuned run with the other files that say how it reads conversations
    log.jsonl        one JSON object a line: updates and evaluations
    checkpoints/     the last few and the best, see `companion.training.checkpoints`
    result.json      written last: its presence says that the run is finished
    loss.png
    tensorboard/     with --tensorboard

A line of the log belongs to an update: `update`, `loss` (nats per token), `tokens` (scored), `gradient_norm` (before
clipping), `learning_rate`; with experts `effective_experts` and `dropped`, and what a tuned run's loss says besides
(see `companion.training.trainer.Update`). Three more depend on the machine (`MACHINE_FIELDS`): `seconds`, spent on
updates so far in all sittings, evaluations left out; `tokens_per_second`, over the last few seconds; and `peak_share`,
where the GPU's peak is known. All else is the same, bit for bit, whether the run was interrupted or not. Or a line
belongs to an evaluation: `update`, and its scores.

Whenever the process is killed, a whole checkpoint is there once the first was written, and the log reaches at least as
far. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from companion.data.chat_tokens import TEXT_FILES, dialect_files, files_of_run
from companion.data.tokenizer import BytePairTokenizer
from companion.families.adapters import ADAPTER, load_adapters, merged_model
from companion.families.pretrained import family_of, load_pretrained, pretrained_folder
from companion.files.gguf.folder import is_gguf
from companion.files.models import CONFIG, read_config
from companion.files.published.fetching import at_hand, how_to_get
from companion.ground.atomic import write_atomic, writing
from companion.ground.fields import parse_json, plain
from companion.ground.lock import locked
from companion.ground.reading import read_file
from companion.training.checkpoints import Checkpoints, Saved, Seals, config_of
from companion.training.sealed_records import (
    DIGEST,
    SEAL,
    Record,
    check_record,
    check_result,
    digest_of,
    read_sealed,
    seal_of,
    sealed,
)
from companion.training.settings import NumberWordsSettings, RunSettings, TextSettings, TuneSettings
from companion.training.trainer import Trainer
from companion.transformer import Transformer

MACHINE_FIELDS = ("seconds", "tokens_per_second", "peak_share")
"""Fields of the log that tell of the machine, and differ from one run of the same command to the next."""
_LOCK, _TOKENIZER = ".lock", "tokenizer.json"
_HEAD = 2**20
"""Bytes of a file of weights by which it is known again: its header and more, without reading gigabytes."""


class RunFolder:
    """The files of one run. Nothing is read or written until a method is called."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.checkpoints = Checkpoints(self.path / "checkpoints")

    @property
    def exists(self) -> bool:
        """Whether a run has been begun here: `run.json` is there."""
        return (self.path / "run.json").is_file()

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end and been measured: `result.json` is there."""
        return (self.path / "result.json").is_file()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep all other processes from training into this folder, which is made if it is missing.

        Raises `Busy` if another one does, and `ValueError` if something other than a run is there.
        """
        self.check_ours()
        new = not self.path.exists()
        try:
            with writing(self.path, 1):
                self.path.mkdir(parents=True, exist_ok=True)
            with locked(self.path / _LOCK, str(self.path)):
                yield
        finally:
            if new:
                with suppress(OSError):  # nothing came into it: leave no trace
                    self.path.rmdir()

    def create(self, record: Mapping[str, Any], files: Mapping[str, str]) -> None:
        """Make the folder, with `files` by name. `run.json` comes last: a folder with one has all it needs.

        Raises `ValueError` if a run, or anything else, is there already, and `NotWritten`, with nothing left behind,
        when there is no room.
        """
        self.check_ours()
        if self.exists:
            raise ValueError(f"{self.path}: a run was begun here a moment ago; the same command goes on with it")
        digests = {name: _digest(text.encode()) for name, text in files.items()}
        whole = {**files, "run.json": json.dumps(sealed({**record, "sha256": digests}), indent=2) + "\n"}
        new = not self.path.exists()
        try:
            for name, text in whole.items():
                write_atomic(self.path / name, text)
        except OSError:
            for name in files:
                (self.path / name).unlink(missing_ok=True)
            if new:
                with suppress(OSError):
                    self.path.rmdir()
            raise

    def lengthen(self, settings: RunSettings) -> None:
        """Give the run the number of updates that `settings` ask for, which is larger than it was.

        Its result goes, since the run is not finished any more; everything else stays. Checkpoints keep the seal that
        they were written under.
        """
        record = dict(self.record())
        record |= {"settings": settings.what_matters(), "updates": settings.steps, SEAL: seal_of(record)}
        del record[DIGEST]
        (self.path / "result.json").unlink(missing_ok=True)
        write_atomic(self.path / "run.json", json.dumps(sealed(record), indent=2) + "\n")

    def record(self) -> Record:
        """What `create` was given, and the checksums of the files. Raises `ValueError` when there is no run, or its
        run.json cannot be read, or was changed."""
        if not self.exists:
            raise ValueError(f"{self.path}: expected the folder of a run, found no run.json there; train one first")
        remedy = "put it back from a copy, or begin a new run with another --out"
        record = read_sealed(self.path / "run.json", remedy)
        check_record(record, remedy)
        return record

    @property
    def task(self) -> str:
        """What the run learns: the name of a task, see `companion.training.settings.TASKS`."""
        return str(self.record().get("settings", {}).get("task", TextSettings.task))

    def tokenizer(self) -> BytePairTokenizer:
        """The tokenizer of a run on text.

        Raises `ValueError` when it is missing or damaged, or not the one that the run began with.
        """
        path, remedy = self.path / _TOKENIZER, "put it back from a copy, or begin a new run with another --out"
        try:
            tokenizer = BytePairTokenizer.load(path)
        except ValueError as error:
            raise ValueError(f"{error}; {remedy}") from None
        wanted = self.record().get("sha256", {}).get(_TOKENIZER)  # a run of an earlier version has none
        if wanted not in (None, _digest(path.read_bytes())):
            raise ValueError(f"{path}: expected the tokenizer that this run began with, found another one; {remedy}")
        return tokenizer

    def texts(self) -> dict[str, str]:
        """The files beside run.json that say how a tuned run's model reads conversations.

        Raises `ValueError` when one is missing, or not the one that the run began with.
        """
        wanted, found = self.record().get("sha256", {}), {}
        for name in TEXT_FILES:
            path = self.path / name
            if name in wanted and (not path.is_file() or _digest(path.read_bytes()) != wanted[name]):
                remedy = "put it back from a copy, or begin a new run with another --out"
                raise ValueError(f"{path}: expected the file that this run began with, found none or another; {remedy}")
            if name in wanted:
                found[name] = path.read_text("utf-8")
        return found

    def result(self) -> Record:
        """What `finish` was given. Raises `ValueError` when the run is not finished, or `result.json` is damaged, was
        changed, or is another run's."""
        remedy = "remove it, and the command that trained the run measures it again"
        result = read_sealed(self.path / "result.json", remedy, self._digest())
        check_result(result, remedy)
        return result

    def finish(self, result: dict[str, Any]) -> None:
        """Write `result`, as JSON has it: from then on the run is finished.

        Raises `NotWritten`, with nothing of it there, when there is no room.
        """
        write_atomic(self.path / "result.json", json.dumps(sealed(result, self._digest() or ""), indent=2) + "\n")

    def _digest(self) -> str | None:
        """What seals the other files of the run."""
        return seal_of(self.record()) if self.exists else None

    # Checkpoints

    def checkpoint(self, *, best: bool = False) -> Path | None:
        """The folder of the last whole checkpoint, `None` before the first; or of the best.

        Raises `ValueError` when there is no best one yet, or it is gone.
        """
        return self.checkpoints.best() if best else self.checkpoints.last()

    def model(self, *, best: bool = False) -> Transformer:
        """The model of the last checkpoint, or of the best.

        Raises `ValueError` when there is none, or it is damaged.
        """
        if (folder := self.checkpoint(best=best)) is None:
            raise ValueError(f"{self.path}: expected a run with a checkpoint, but it has none yet; train it further")
        if (folder / ADAPTER).is_file():
            self.checkpoints.check(folder)
            return _on_its_start(self.record(), folder)
        return self.checkpoints.model(folder)

    def save(self, trainer: Trainer, *, keep: int = 2, error: float | None = None) -> Path:
        """Write a checkpoint of `trainer`; keep the last `keep` and the best.

        error:  how good the model was found to be, smaller being better; `None`: it was not measured.

        Raises `NotWritten`, with nothing lost, when there is no room. A collective.
        """
        weights, state = trainer.weights(), trainer.state()

        def write() -> str:
            self._sync_log()
            seals = Seals(self._digest() or "", self._log_digest(trainer.done))
            return str(
                self.checkpoints.write(
                    trainer.model, weights, state, done=trainer.done, keep=keep, error=error, seals=seals
                )
            )

        return Path(trainer.parallel.on_main(write))

    def restore(self, trainer: Trainer, say: Callable[[str], None] = print) -> int:
        """Bring `trainer` to the last whole checkpoint and the log with it; the number of updates done, 0 without one.

        Checkpoints that are damaged are set aside, and `say` is told; so it is of what is gone on with.

        Raises `ValueError` if all checkpoints are damaged, the one is of another model, or the log up to there is not
        the one that was written. A log that is gone is begun again. A collective.
        """
        parallel = trainer.parallel
        found: list[Saved] = []

        def find() -> str | None:
            self.checkpoints.clear_unfinished()
            saved, faults = self.checkpoints.newest_whole()
            if saved is None:
                self._cut_log(0)
                return None
            if saved.config != config_of(trainer.model):
                raise ValueError(
                    f"{saved.folder}: expected a checkpoint of this run's model, got one of another configuration"
                )
            for fault, aside in zip(faults, reversed(self.checkpoints.set_aside(saved.folder)), strict=True):
                say(f"{fault}; going on from the one before, {saved.folder}. The damaged one is now {aside.name}")
            if not (self.path / "log.jsonl").exists():
                if saved.log not in (None, digest_of([])):
                    say(f"{self.path / 'log.jsonl'} is gone: what it said of updates 1 to {saved.done:,} is lost")
            elif saved.log not in (None, self._log_digest(saved.done)):
                raise ValueError(
                    f"{self.path / 'log.jsonl'}: expected the log of updates 1 to {saved.done} as it was written, "
                    "found another: it was changed; put it back from a copy, or remove it, and the run goes on without"
                )
            self._cut_log(saved.done)
            found.append(saved)
            return str(saved.folder)

        folder = parallel.on_main(find)
        if folder is None:
            return 0
        saved = parallel.together(lambda: found[0] if found else self.checkpoints.load(Path(folder)))
        trainer.load(saved.weights, saved.optimizer, saved.done)
        return trainer.done

    # The log

    def log(self, entry: Mapping[str, Any]) -> None:
        """Append one line. Raises `NotWritten`, with nothing of it in the file, when there is no room."""
        line, path = (json.dumps(entry) + "\n").encode(), self.path / "log.jsonl"
        with writing(path, len(line)), open(path, "ab", buffering=0) as file:
            before, rest = os.fstat(file.fileno()).st_size, line
            try:
                while rest:  # a disk that is nearly full takes a part of it
                    rest = rest[file.write(rest) or 0 :]
            except OSError:
                os.truncate(path, before)
                raise

    def entries(self) -> Iterator[dict[str, Any]]:
        """The log's lines; those that a kill cut short, or that were damaged otherwise, are left out."""
        for _, entry in self._lines():
            yield entry

    def _lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Each line that can be read, with the place in the file where it ends."""
        try:
            log = read_file(self.path / "log.jsonl")
        except FileNotFoundError:
            return
        except OSError as error:
            remedy = "put it back from a copy, or remove it, and the run goes on without"
            raise ValueError(f"{self.path / 'log.jsonl'}: cannot be read ({error.strerror}); {remedy}") from None
        end = 0
        for line in log.splitlines(keepends=True):
            end += len(line)
            with suppress(ValueError):
                entry = parse_json(line)
                if isinstance(entry, dict) and type(entry.get("update")) is int and line.endswith(b"\n"):
                    yield end, entry

    def _log_digest(self, done: int) -> str:
        """Of the lines up to update `done`, without what the machine adds."""
        lines = (entry for entry in self.entries() if entry["update"] <= done)
        return digest_of([{k: v for k, v in entry.items() if k not in MACHINE_FIELDS} for entry in lines])

    def _cut_log(self, done: int) -> None:
        """Forget lines of updates after the checkpoint: they will be made, and written, again. Takes no room."""
        kept = max((end for end, entry in self._lines() if entry["update"] <= done), default=0)
        with suppress(FileNotFoundError):
            os.truncate(self.path / "log.jsonl", kept)

    def _sync_log(self) -> None:
        """Flush the log to the disk: it must not fall behind a checkpoint when the power fails."""
        path = self.path / "log.jsonl"
        if path.exists():
            with writing(path, 0), open(path, "ab") as file:
                os.fsync(file.fileno())

    # Files

    def check_ours(self) -> None:
        """Raise `ValueError` unless the folder is missing or empty, or a run is there or was being made when killed."""
        if not self.path.exists() or self.exists:
            return
        if self.path.is_dir():
            found = {entry.name for entry in self.path.iterdir()}
            if found <= {*TEXT_FILES, _LOCK} | {entry.name for entry in self.path.glob(".*.tmp")}:
                return
        raise ValueError(f"--out {self.path}: expected a new or empty folder, or a run; found something else there")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def newest_run(home: str | os.PathLike[str] = "runs", *, task: str | None = None) -> RunFolder:
    """The run below `home` that was begun last, of one task or of any. Raises `ValueError` when there is none."""
    found = [path for path in Path(home).glob("*/run.json")]
    for path in sorted(found, key=lambda path: (path.stat().st_mtime, path), reverse=True):
        folder = RunFolder(path.parent)
        if task is None or folder.task == task:
            return folder
    what = "a run" if task is None else f"a run of the task {task}"
    flags = "" if task in (None, TextSettings.task) else f" --task {task}"
    command = "companion tune" if task == TuneSettings.task else f"companion train{flags}"
    raise ValueError(f"expected {what} in {Path(home)}{os.sep}, found none; make one with `{command}`")


# What a tuned run begins from


@dataclass(frozen=True)
class Start:
    """The folder of a run on text, of a tuned run, or of a published model; or a GGUF file."""

    folder: Path

    flag: str = "--start"
    """By which the folder was named, for messages."""

    @classmethod
    def find(cls, name: str | None, flag: str = "--start") -> Start:
        """Find what `--start`, or another flag, names; `None`: the newest run on text.

        Raises:
            ValueError: for a folder that is neither a run on text nor a published model.
        """
        if name is None:
            return cls(newest_run(task=TextSettings.task).path.absolute())
        folder = Path(name).expanduser().absolute()
        if not folder.is_dir() and (found := at_hand(name)):
            folder = found.folder
        if not folder.is_dir() and not is_gguf(folder):
            expected = f"{plain(name)}: expected the folder of a run or of a published model, found none"
            raise ValueError(f"{flag} {how_to_get(name) or expected}")
        start = cls(folder, flag)
        if start.run is None:
            family_of(start._published)
            read_config(start._published)
        elif start.run.task == NumberWordsSettings.task:
            raise ValueError(f"{flag} {plain(name)}: expected a model that goes on with texts, got a translator")
        return start

    @cached_property
    def run(self) -> RunFolder | None:
        """The run that is there; `None` for a published model."""
        folder = RunFolder(self.folder)
        return folder if folder.exists else None

    @cached_property
    def _published(self) -> Path:
        """The folder of a published model."""
        return pretrained_folder(self.folder)

    @cached_property
    def _weights(self) -> Path:
        """The folder of the weights."""
        if self.run is None:
            return self.folder
        if (last := self.run.checkpoint()) is None:
            raise ValueError(f"{self.flag} {self.folder}: expected a run with a checkpoint, but it has none yet")
        return last

    def model(self) -> Transformer:
        """The model, whole, in fp32, on the CPU. Raises `ValueError` where it is damaged, or not a decoder."""
        if self.run is None:
            model = load_pretrained(self._published, dtype=torch.float32)
        else:
            model = merged_model(self.run.model())
        if model.config.stack != "decoder":
            raise ValueError(f"{self.flag} {self.folder}: expected a decoder, got stack={model.config.stack!r}")
        return model

    def tokenizer(self) -> BytePairTokenizer:
        """Its tokenizer, to train on further text. Raises `ValueError` for one that is no byte-level BPE."""
        if self.run is not None and self.run.task == TextSettings.task:
            return self.run.tokenizer()
        folder = self.folder if self.run is None else self.run.path
        try:
            return BytePairTokenizer.load(folder / _TOKENIZER)
        except ValueError as error:
            raise ValueError(f"{self.flag} {self.folder}: {error}") from None

    def files(self) -> dict[str, str]:
        """How it reads conversations, as `dialect_files` has it."""
        if self.run is not None and self.run.task == TextSettings.task:
            return files_of_run(self.run.tokenizer(), self.run.model().config.context)
        return dialect_files(self._published if self.run is None else self.folder)

    @cached_property
    def fingerprint(self) -> str:
        """Equal for the same weights."""
        found = hashlib.sha256()
        names = (CONFIG, "model*.safetensors", ADAPTER, "adapter*.safetensors")
        paths = [self.folder] if is_gguf(self.folder) else {path for one in names for path in self._weights.glob(one)}
        for path in sorted(paths):
            with open(path, "rb") as file:
                found.update(f"{path.name} {path.stat().st_size} ".encode() + file.read(_HEAD))
        return found.hexdigest()[:16]


def _on_its_start(record: Mapping[str, Any], folder: Path) -> Transformer:
    """The model of a checkpoint that holds adapters alone, on what its run began from.

    Raises `ValueError` where that is gone, or is not what it was.
    """
    path, known = Path(str(record.get("start"))), record["text"]
    assert isinstance(known, Mapping)
    beside = folder.parents[2] / path.name  # both may have been moved, as the folder of all runs
    start = Start.find(str(path if path.exists() or not beside.exists() else beside))
    if start.fingerprint != known.get("start"):
        raise ValueError(f"{folder}: expected the model below its adapters, {start.folder}, as it was; it has changed")
    model = start.model()
    load_adapters(folder, model)
    return model.eval()
