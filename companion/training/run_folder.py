"""A run on disk: its settings, the tokenizer, a log, and the checkpoints.

    run.json         settings, fingerprint of the text, steps, versions; written before the first update
    tokenizer.json   for a run on text; a fine-tuning run also has the files that define its conversation format
    log.jsonl        one JSON object per line: updates and evaluations
    checkpoints/     the last few and the best, see `companion.training.checkpoints`
    result.json      written last: its presence means that the run is finished
    loss.png
    tensorboard/     with --tensorboard

Each line of the log belongs to either an update or an evaluation. An update has `update`, `loss` (nats per token),
`tokens` (scored), `gradient_norm` (before clipping), `learning_rate`, `effective_experts` and `dropped` if there are
experts, and additional metrics of a fine-tuning run's loss (see `companion.training.trainer.Update`). Three more fields
depend on the machine (`MACHINE_FIELDS`): `seconds` is the time spent on updates so far, including earlier sessions but
not evaluations; `tokens_per_second` is measured over the last few seconds; and `peak_share` is present if the GPU's
peak is known. All other fields are the same, bit for bit, whether or not the run was interrupted. An evaluation has
`update` and its scores.

Once the first checkpoint has been written, there is always a complete checkpoint, even if the process is killed, and
the log reaches at least as far as that checkpoint. Nothing is ever unpickled.
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
from companion.training.checkpoints import Checkpoints, Saved, config_of
from companion.training.checksummed_records import (
    DIGEST,
    SEAL,
    Record,
    checksum_of,
    checksummed,
    digest_of,
    read_checksummed,
)
from companion.training.settings import NumberWordsSettings, RunSettings, TextSettings, TuneSettings
from companion.training.trainer import Trainer
from companion.transformer import Transformer

MACHINE_FIELDS = ("seconds", "tokens_per_second", "peak_share")
"""Fields of the log that depend on the machine, and differ between runs of the same command."""
_LOCK, _TOKENIZER = ".lock", "tokenizer.json"
_REMEDY = "restore it from a backup, or start a new run with another --out"
_HEAD = 2**20
"""Number of bytes at the start of a file of weights that identify it; they include the header and are read quickly."""


class RunFolder:
    """Files of one run. Nothing is read or written until a method is called."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.checkpoints = Checkpoints(self.path / "checkpoints")

    @property
    def exists(self) -> bool:
        """True if the folder contains a run, that is, if `run.json` exists."""
        return (self.path / "run.json").is_file()

    @property
    def finished(self) -> bool:
        """True if the run is complete and measured, that is, if `result.json` exists."""
        return (self.path / "result.json").is_file()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep all other processes from training in this folder, which is created if it is missing.

        Raises:
            Busy: if another process holds the lock.
            ValueError: if the folder contains something other than a run.
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
                with suppress(OSError):  # remove the folder if it is still empty
                    self.path.rmdir()

    def create(self, record: Mapping[str, Any], files: Mapping[str, str]) -> None:
        """Create the folder and write `files` by name; `run.json` is written last, so a folder that has it is complete.

        Raises:
            ValueError: if the folder already contains a run or other files.
            NotWritten: if the disk is full. No files are left behind.
        """
        self.check_ours()
        if self.exists:
            raise ValueError(f"{self.path}: another process has just started a run here; the same command resumes it")
        digests = {name: _digest(text.encode()) for name, text in files.items()}
        whole = {**files, "run.json": json.dumps(checksummed({**record, "sha256": digests}), indent=2) + "\n"}
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
        """Extend the run to the number of updates in `settings`, which must be larger than before.

        The result is deleted, because the run is no longer finished; everything else stays. Checkpoints keep the digest
        that they were written with.
        """
        record = dict(self.record())
        record |= {"settings": settings.what_matters(), "updates": settings.steps, SEAL: checksum_of(record)}
        del record[DIGEST]
        (self.path / "result.json").unlink(missing_ok=True)
        write_atomic(self.path / "run.json", json.dumps(checksummed(record), indent=2) + "\n")

    def record(self) -> Record:
        """Return the record that was given to `create`, including the checksums of the files.

        Raises:
            ValueError: if there is no run, or if its run.json cannot be read or was changed.
        """
        if not self.exists:
            raise ValueError(f"{self.path}: expected the folder of a run, but it has no run.json; train a model first")
        return read_checksummed(self.path / "run.json", _REMEDY)

    @property
    def task(self) -> str:
        """Name of the run's task (see `companion.training.settings.TASKS`)."""
        return str(self.record()["settings"]["task"])

    def tokenizer(self) -> BytePairTokenizer:
        """Return the tokenizer of a text run.

        Raises:
            ValueError: if the tokenizer is missing, damaged, or not the one that the run began with.
        """
        path = self.path / _TOKENIZER
        try:
            tokenizer = BytePairTokenizer.load(path)
        except ValueError as error:
            raise ValueError(f"{error}; {_REMEDY}") from None
        if self.record()["sha256"].get(_TOKENIZER) != _digest(path.read_bytes()):
            raise ValueError(f"{path}: this is not the tokenizer that the run started with; {_REMEDY}")
        return tokenizer

    def texts(self) -> dict[str, str]:
        """Return the files that define the conversation format of a fine-tuning run.

        Raises:
            ValueError: if a file is missing, or is not the one that the run began with.
        """
        wanted, found = self.record()["sha256"], {}
        for name in [name for name in TEXT_FILES if name in wanted]:  # ignore any other path that the record may name
            path = self.path / name
            if not path.is_file() or _digest(path.read_bytes()) != wanted[name]:
                raise ValueError(f"{path}: the file that this run started with is missing or was changed; {_REMEDY}")
            found[name] = path.read_text("utf-8")
        return found

    def result(self) -> Record:
        """Return the result that was given to `finish`.

        Raises:
            ValueError: if the run is not finished, or if `result.json` is damaged, was changed, or belongs to another
                run.
        """
        remedy = "remove it, and the command that trained the run measures it again"
        return read_checksummed(self.path / "result.json", remedy, self._digest())

    def finish(self, result: dict[str, Any]) -> None:
        """Write `result` as JSON, which marks the run as finished.

        Raises:
            NotWritten: if the disk is full; no partial file remains.
        """
        write_atomic(self.path / "result.json", json.dumps(checksummed(result, self._digest()), indent=2) + "\n")

    def _digest(self) -> str:
        """Return the digest that the run's other files include, or an empty string without run.json."""
        return checksum_of(self.record()) if self.exists else ""

    # Checkpoints

    def checkpoint(self, *, best: bool = False) -> Path | None:
        """Return the folder of the last complete checkpoint (or `None`), or of the best one.

        Raises:
            ValueError: if there is no best checkpoint yet, or if it no longer exists.
        """
        return self.checkpoints.best() if best else self.checkpoints.last()

    def model(self, *, best: bool = False) -> Transformer:
        """Load the model of the last checkpoint or of the best one.

        Raises:
            ValueError: if there is no checkpoint, or if it is damaged.
        """
        if (folder := self.checkpoint(best=best)) is None:
            raise ValueError(f"{self.path}: this run has no checkpoint yet; train it further")
        if (folder / ADAPTER).is_file():
            self.checkpoints.check(folder)
            return _on_its_start(self.record(), folder)
        return self.checkpoints.model(folder)

    def save(self, trainer: Trainer, *, keep: int = 2, error: float | None = None) -> Path:
        """Write a checkpoint of `trainer`, and delete all others except the last `keep` and the best (a collective).

        Args:
            trainer: the trainer whose state is written.
            keep: number of recent checkpoints to keep.
            error: score of the model, where smaller is better, or `None` if it was not measured.

        Raises:
            NotWritten: if the disk is full. Older checkpoints are not affected.
        """
        weights, state = trainer.weights(), trainer.state()

        def write() -> str:
            self._sync_log()
            done, run, log = trainer.done, self._digest(), self._log_digest(trainer.done)
            return str(
                self.checkpoints.write(
                    trainer.model, weights, state, done=done, keep=keep, run=run, log=log, error=error
                )
            )

        return Path(trainer.parallel.on_main(write))

    def restore(self, trainer: Trainer, say: Callable[[str], None] = print) -> int:
        """Restore `trainer` from the last complete checkpoint, and truncate the log to match (a collective).

        Damaged checkpoints are set aside. If the log is missing, a new one is started. `say` is called with a message
        about each of these events.

        Returns:
            The number of updates done, which is 0 without a checkpoint.

        Raises:
            ValueError: if all checkpoints are damaged, if the checkpoint belongs to another model, or if the log up to
                the checkpoint was changed.
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
                    f"{saved.folder}: expected a checkpoint of this run's model, got one with a different configuration"
                )
            for fault, aside in zip(faults, reversed(self.checkpoints.set_aside(saved.folder)), strict=True):
                say(f"{fault}; resuming from the previous one, {saved.folder}. The damaged one is now {aside.name}")
            if not (self.path / "log.jsonl").exists():
                if saved.log != digest_of([]):
                    say(f"{self.path / 'log.jsonl'} is missing, so the log of updates 1 to {saved.done:,} is lost")
            elif saved.log != self._log_digest(saved.done):
                raise ValueError(
                    f"{self.path / 'log.jsonl'}: the log of updates 1 to {saved.done} was changed after it was "
                    "written; restore it from a backup, or delete it, and the run continues without it"
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
        """Append one line. If the disk is full, raise `NotWritten` and leave no part of the line in the file."""
        line, path = (json.dumps(entry) + "\n").encode(), self.path / "log.jsonl"
        with writing(path, len(line)), open(path, "ab", buffering=0) as file:
            before, rest = os.fstat(file.fileno()).st_size, line
            try:
                while rest:  # if the disk is nearly full, one call may write only a part
                    rest = rest[file.write(rest) or 0 :]
            except OSError:
                os.truncate(path, before)
                raise

    def entries(self) -> Iterator[dict[str, Any]]:
        """Iterate over the log's lines, except for those that are truncated or otherwise damaged."""
        return (entry for _, entry in self._lines())

    def _lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield each readable line, and the offset in the file at which it ends."""
        try:
            log = read_file(self.path / "log.jsonl")
        except FileNotFoundError:
            return
        except OSError as error:
            remedy = "restore it from a backup, or delete it, and the run continues without it"
            raise ValueError(f"{self.path / 'log.jsonl'}: cannot be read ({error.strerror}); {remedy}") from None
        end = 0
        for line in log.splitlines(keepends=True):
            end += len(line)
            with suppress(ValueError):
                entry = parse_json(line)
                if isinstance(entry, dict) and type(entry.get("update")) is int and line.endswith(b"\n"):
                    yield end, entry

    def _log_digest(self, done: int) -> str:
        """Return the digest of the lines up to update `done`, without the fields that depend on the machine."""
        lines = (entry for entry in self.entries() if entry["update"] <= done)
        return digest_of([{k: v for k, v in entry.items() if k not in MACHINE_FIELDS} for entry in lines])

    def _cut_log(self, done: int) -> None:
        """Remove the lines of updates after the checkpoint, which the resumed run will repeat and log again.

        Cutting the log needs no disk space.
        """
        kept = max((end for end, entry in self._lines() if entry["update"] <= done), default=0)
        with suppress(FileNotFoundError):
            os.truncate(self.path / "log.jsonl", kept)

    def _sync_log(self) -> None:
        """Flush the log to disk, so that the log is never older than a checkpoint, even after a power failure."""
        path = self.path / "log.jsonl"
        if path.exists():
            with writing(path, 0), open(path, "ab") as file:
                os.fsync(file.fileno())

    # Files

    def check_ours(self) -> None:
        """Raise `ValueError` if the folder contains something other than a run.

        A run that was killed while it was being created is accepted.
        """
        if not self.path.exists() or self.exists:
            return
        if self.path.is_dir():
            found = {entry.name for entry in self.path.iterdir()}
            if found <= {*TEXT_FILES, _LOCK} | {entry.name for entry in self.path.glob(".*.tmp")}:
                return
        raise ValueError(f"--out {self.path}: expected a new or empty folder, or a run, but it contains other files")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def newest_run(home: str | os.PathLike[str] = "runs", *, task: str | None = None) -> RunFolder:
    """Return the most recently started run below `home`, of the given task or of any task.

    Raises:
        ValueError: if there is no such run.
    """
    for path in sorted(Path(home).glob("*/run.json"), key=lambda path: (path.stat().st_mtime, path), reverse=True):
        folder = RunFolder(path.parent)
        if task is None or folder.task == task:
            return folder
    what = "a run" if task is None else f"a run of the task {task}"
    flags = "" if task in (None, TextSettings.task) else f" --task {task}"
    command = "companion tune" if task == TuneSettings.task else f"companion train{flags}"
    raise ValueError(f"expected {what} in {Path(home)}{os.sep}, found none; create one with `{command}`")


# Starting points of fine-tuning runs


@dataclass(frozen=True)
class Start:
    """Starting point of a run.

    The starting point may be the folder of a text run, a fine-tuning run or a published model, or a GGUF file.
    """

    folder: Path

    flag: str = "--start"
    """Name of the flag that gave the folder, for messages."""

    @classmethod
    def find(cls, name: str | None, flag: str = "--start") -> Start:
        """Find the starting point with this name: a folder, a GGUF file, or a model that was fetched. `None` means the
        newest text run. `flag` is the flag that the name came from, for messages.

        Raises:
            ValueError: if there is no such model or run, if its config.json cannot be read, or if it is a translation
                model.
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
            raise ValueError(f"{flag} {plain(name)}: expected a model that continues texts, got one that translates")
        return start

    @cached_property
    def run(self) -> RunFolder | None:
        """The run in the folder, or `None` for a published model."""
        folder = RunFolder(self.folder)
        return folder if folder.exists else None

    @cached_property
    def _published(self) -> Path:
        return pretrained_folder(self.folder)

    @cached_property
    def _weights(self) -> Path:
        """Folder of the weights."""
        if self.run is None:
            return self.folder
        if (last := self.run.checkpoint()) is None:
            raise ValueError(f"{self.flag} {self.folder}: this run has no checkpoint yet")
        return last

    def model(self) -> Transformer:
        """Load the complete model, in fp32 on the CPU. Raises `ValueError` if the model is damaged or not a decoder."""
        if self.run is None:
            model = load_pretrained(self._published, dtype=torch.float32)
        else:
            model = merged_model(self.run.model())
        if model.config.stack != "decoder":
            raise ValueError(f"{self.flag} {self.folder}: expected a decoder, got stack={model.config.stack!r}")
        return model

    def tokenizer(self) -> BytePairTokenizer:
        """Return the model's tokenizer for training on more text. Raises `ValueError` unless it is a byte-level BPE."""
        if self.run is not None and self.run.task == TextSettings.task:
            return self.run.tokenizer()
        folder = self.folder if self.run is None else self.run.path
        try:
            return BytePairTokenizer.load(folder / _TOKENIZER)
        except ValueError as error:
            raise ValueError(f"{self.flag} {self.folder}: {error}") from None

    def files(self) -> dict[str, str]:
        """Return the files that define the model's conversation format, like `dialect_files`."""
        if self.run is not None and self.run.task == TextSettings.task:
            return files_of_run(self.run.tokenizer(), self.run.model().config.context)
        return dialect_files(self._published if self.run is None else self.folder)

    @cached_property
    def fingerprint(self) -> str:
        """A hash that identifies the weights."""
        found = hashlib.sha256()
        names = (CONFIG, "model*.safetensors", ADAPTER, "adapter*.safetensors")
        paths = [self.folder] if is_gguf(self.folder) else {path for one in names for path in self._weights.glob(one)}
        for path in sorted(paths):
            with open(path, "rb") as file:
                found.update(f"{path.name} {path.stat().st_size} ".encode() + file.read(_HEAD))
        return found.hexdigest()[:16]


def _on_its_start(record: Mapping[str, Any], folder: Path) -> Transformer:
    """Load the model of a checkpoint that contains only adapters, which are added to the run's initial model."""
    path, known = Path(str(record.get("start"))), record["text"]
    assert isinstance(known, Mapping)
    beside = folder.parents[2] / path.name  # both may have been moved together with the folder of all runs
    start = Start.find(str(path if path.exists() or not beside.exists() else beside))
    if start.fingerprint != known.get("start"):
        raise ValueError(f"{folder}: the base model of its adapters, {start.folder}, has changed")
    model = start.model()
    load_adapters(folder, model)
    return model.eval()
