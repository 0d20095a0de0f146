"""A run survives a damaged checkpoint, a full disk, a second process, and changed files."""

import errno
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from companion.data.batches import EvaluationBatches
from companion.files.models import load_model
from companion.ground.atomic import NotWritten
from companion.ground.lock import Busy
from companion.training import checkpoints as saved_module
from companion.training.evaluation import evaluate
from companion.training.run_folder import MACHINE_FIELDS, RunFolder
from companion.training.run_loop import fit

FILES = ["model.safetensors", "optimizer.safetensors", "config.json", "state.json"]


def names(folder: RunFolder) -> list[str]:
    return sorted(entry.name for entry in (folder.path / "checkpoints").iterdir())


def run(trainer, folder: RunFolder, **options) -> bool:
    batches = EvaluationBatches([trainer.batches.tokens[:40]], context=9)
    options = {"evaluate_every": 4, "save_seconds": 0.0, "progress": False} | options
    return fit(trainer, lambda model: evaluate(model, batches, 39), folder=folder, **options)


def same(one, other) -> bool:
    pairs = zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True)
    state = other.state()
    return all(torch.equal(p, q) for p, q in pairs) and all(torch.equal(t, state[n]) for n, t in one.state().items())


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    """Do not wait for the disk, because no test loses power."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def trained(folder: RunFolder, make_trainer, errors, *, keep: int = 2):
    """Make a run with a checkpoint for each of `errors`, which were measured after 1, 2, ... updates."""
    trainer = make_trainer()
    for error in errors:
        trainer.update()
        folder.log({"update": trainer.done, "loss": 1.0})
        folder.save(trainer, keep=keep, error=error)
    return trainer


# the checkpoints that are stored


@pytest.mark.parametrize(
    ("errors", "keep", "left", "best"),
    [
        ([3.0, 2.0, 1.0, 0.5], 2, [3, 4], 4),
        ([3.0, 1.0, 2.0, 2.5, 2.2], 2, [2, 4, 5], 2),  # the best one is older than the last two
        ([3.0, 1.0, None, None, None], 1, [2, 5], 2),  # saved without an evaluation
        ([3.0, 1.0, 2.0, 1.0], 1, [4], 4),  # equally good, and trained longer
        ([None, float("nan"), 4.0, float("inf")], 3, [2, 3, 4], 3),  # a value that is not finite is never the best
        ([2.0, 3.0, 4.0, 5.0], 9, [1, 2, 3, 4], 1),
    ],
)
def test_the_last_checkpoints_and_the_best_are_kept(errors, keep, left, best, tmp_path, make_trainer) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    trainer = trained(folder, make_trainer, errors, keep=keep)
    assert names(folder) == [f"step-{done:08d}" for done in left]
    assert folder.checkpoint(best=True).name == f"step-{best:08d}"
    expected = folder.model(best=True).state_dict()
    assert all(torch.equal(expected[name], p) for name, p in trainer.model.state_dict().items()) == (best == left[-1])
    moved = RunFolder(shutil.copytree(folder.path, tmp_path / "copy"))  # the mark of the best checkpoint is copied too
    assert moved.checkpoint(best=True).name == f"step-{best:08d}"


def test_no_best_before_a_measurement_and_none_that_was_removed(tmp_path, make_trainer) -> None:
    folder = RunFolder(tmp_path)
    with pytest.raises(ValueError, match="no checkpoint has been evaluated yet"):
        folder.model(best=True)
    trained(folder, make_trainer, [None])
    with pytest.raises(ValueError, match="no checkpoint has been evaluated yet"):
        folder.model(best=True)
    shutil.rmtree(tmp_path / "checkpoints")
    trained(folder, make_trainer, [1.0, 2.0], keep=1)
    shutil.rmtree(tmp_path / "checkpoints" / "step-00000001")
    with pytest.raises(ValueError, match="step-00000001: the best checkpoint is missing"):
        folder.model(best=True)


def test_a_run_that_is_killed_after_an_evaluation_still_knows_its_best(tmp_path, make_trainer) -> None:
    folder = RunFolder(tmp_path)
    trained(folder, make_trainer, [3.0, 1.0, 2.0])
    again = make_trainer()
    folder.restore(again)
    for _ in range(3):
        again.update()
        folder.save(again, error=2.0)
    assert folder.checkpoint(best=True).name == "step-00000002"


def test_what_a_kill_leaves_half_removed_is_no_checkpoint(tmp_path, make_trainer, monkeypatch) -> None:
    folder = RunFolder(tmp_path)
    trained(folder, make_trainer, [None, None])

    trainer, real = make_trainer(), shutil.rmtree
    folder.restore(trainer)
    trainer.update()

    def stops(path, **options):
        if trainer.done == 3 and (Path(path) / "config.json").exists():
            (Path(path) / "config.json").unlink()
            raise KeyboardInterrupt
        real(path, **options)

    monkeypatch.setattr(saved_module.shutil, "rmtree", stops)
    with pytest.raises(KeyboardInterrupt):
        folder.save(trainer)
    monkeypatch.undo()
    assert names(folder) == [".step-00000001.old", "step-00000002", "step-00000003"]
    again = make_trainer()
    assert folder.restore(again) == 3 and same(again, trainer)
    assert names(folder) == ["step-00000002", "step-00000003"]


# damaged checkpoints


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    """Change a bit near the end, so that the file keeps its format but not its content."""
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "name"),
    [*((cut, name) for name in FILES), *((Path.unlink, name) for name in FILES), *((flip, name) for name in FILES[:3])],
)
def test_from_a_damaged_checkpoint_the_run_falls_back_to_the_one_before(damage, name, tmp_path, make_trainer) -> None:
    folder, said = RunFolder(tmp_path), []
    trainer = trained(folder, make_trainer, [3.0, 2.0, 1.0])
    damage(folder.checkpoint() / name)
    again = make_trainer()
    assert folder.restore(again, said.append) == 2
    (line,) = said
    assert all(part in line for part in ("step-00000003", name, "resuming from the previous one", "step-00000002"))
    assert names(folder) == ["damaged-00000003", "step-00000002"]
    assert [entry["update"] for entry in folder.entries()] == [1, 2]
    again.update()
    folder.save(again, error=1.0)
    assert same(again, trainer) and folder.checkpoint(best=True).name == "step-00000003"
    assert folder.restore(make_trainer(), said.append) == 3 and len(said) == 1


def test_two_damaged_in_a_row_and_then_all(tmp_path, make_trainer) -> None:
    folder, said = RunFolder(tmp_path), []
    trained(folder, make_trainer, [None] * 4, keep=3)
    for number in (3, 4):
        flip(tmp_path / f"checkpoints/step-{number:08d}/model.safetensors")
    fresh = make_trainer()
    assert folder.restore(fresh, said.append) == 2 and len(said) == 2
    assert "step-00000004" in said[0] and "step-00000003" in said[1]
    flip(folder.checkpoint() / "optimizer.safetensors")
    fresh, before = make_trainer(), names(folder)
    with pytest.raises(ValueError, match=r"no checkpoint is complete.*step-00000002.*or delete this folder"):
        folder.restore(fresh)
    assert fresh.done == 0 and not fresh.state() and names(folder) == before
    shutil.rmtree(tmp_path / "checkpoints")  # as the message suggests
    assert folder.restore(fresh) == 0 and list(folder.entries()) == []


def test_a_model_whose_bytes_changed_is_not_put_to_use(tmp_path, make_trainer) -> None:
    folder = RunFolder(tmp_path)
    trained(folder, make_trainer, [1.0])
    flip(folder.checkpoint() / "model.safetensors")
    load_model(folder.checkpoint())  # its format is valid
    with pytest.raises(ValueError, match="model.safetensors: the checkpoint is damaged"):
        folder.model()


# a full disk


class FullDisk:
    """Make the `number`-th file operation that needs space in a folder fail; `met` tells if it was reached."""

    def __init__(self) -> None:
        self.number, self.count, self.home = 0, 0, None
        sys.addaudithook(self._hook)

    @contextmanager
    def at(self, number: int, home: Path):
        self.number, self.count, self.home = number, 0, home
        try:
            yield
        finally:
            self.home = None

    @property
    def met(self) -> bool:
        return self.count >= self.number

    def take(self, path) -> None:
        if self.home is not None and (Path(path) == self.home or self.home in Path(path).parents):
            self.count += 1
            if self.count == self.number:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def _hook(self, event: str, operands: tuple) -> None:
        if self.home is None or not operands or not isinstance(operands[0], str | os.PathLike):
            return
        if event in ("os.mkdir", "os.rename") or (event == "open" and operands[2] & (os.O_WRONLY | os.O_RDWR)):
            self.take(operands[0])


@pytest.fixture(scope="module")
def disk() -> FullDisk:
    return FullDisk()


def test_a_disk_that_is_full_at_any_write_loses_nothing(tmp_path, make_trainer, monkeypatch, disk) -> None:
    """Each write fails in turn: folder, lock, run.json, log, each file of each checkpoint, and the result."""
    import companion.files.models as files

    real = files.save_file

    def save_file(tensors, path, metadata=None):
        try:
            disk.take(path)
        except OSError as error:
            Path(path).write_bytes(b"half")
            raise SafetensorError(f"Error while serializing: I/O error: {error.strerror} (os error 28)") from None
        real(tensors, path, metadata)

    monkeypatch.setattr(files, "save_file", save_file)

    def whole(folder: RunFolder):
        trainer = make_trainer(updates=2, accumulate=1)
        with folder.lock():
            if not folder.exists:
                folder.create({"updates": 3}, {"tokenizer.json": "{}"})
            assert run(trainer, folder, evaluate_every=2, keep=1)
            folder.finish({"done": True})
        return trainer

    wanted, number, met = whole(RunFolder(tmp_path / "wanted")), 0, set()
    while True:
        number += 1
        folder = RunFolder(tmp_path / f"run-{number}")
        with disk.at(number, folder.path):
            try:
                whole(folder)
                if not disk.met:
                    break
                continue  # removing an old checkpoint works without renaming it first
            except OSError as error:
                assert isinstance(error, NotWritten) and error.errno == errno.ENOSPC
                named = re.match(
                    rf"{folder.path}(\S*) could not be written: no space left on device; it takes [\d.]+ ", str(error)
                )
                assert named and ", and " in str(error) and str(error).endswith(" are free")
                met.add(re.sub(r"\d+", "N", named[1]))
        left = [str(path.relative_to(folder.path)) for path in folder.path.rglob("*")]
        assert not any(part.startswith(".") for name in left for part in Path(name).parts), left
        assert folder.exists or not folder.path.exists()
        assert not folder.finished
        assert all(folder.checkpoints.load(checkpoint).done for checkpoint in folder.checkpoints.all())
        log = folder.path / "log.jsonl"
        assert not log.exists() or log.read_bytes() in (b"", *[log.read_bytes()] * log.read_bytes().endswith(b"\n"))
        again = whole(folder)
        assert again.done == 2 and same(again, wanted) and folder.finished
    assert number > 30
    assert met >= {"", "/.lock", "/tokenizer.json", "/run.json", "/log.jsonl", "/checkpoints/step-N", "/result.json"}


def test_the_log_gives_back_the_part_of_a_line_that_still_fitted(tmp_path) -> None:
    """A system limit on the size of files replaces the full disk, so that the write really is cut short."""
    folder = RunFolder(tmp_path)
    folder.log({"update": 1, "loss": 2.0})
    before = (tmp_path / "log.jsonl").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 9, hard))
    try:
        with pytest.raises(NotWritten, match=r"log\.jsonl could not be written: file too large"):
            folder.log({"update": 2, "loss": 3.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "log.jsonl").read_bytes() == before


def test_weights_that_do_not_fit_leave_the_checkpoint_before(tmp_path, make_trainer) -> None:
    folder = RunFolder(tmp_path)
    trainer = trained(folder, make_trainer, [1.0])
    trainer.update()
    size = (folder.checkpoint() / "model.safetensors").stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, hard))
    try:
        with pytest.raises(NotWritten, match="step-00000002 could not be written: file too large"):
            folder.save(trainer)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(folder) == ["step-00000001"] and folder.restore(make_trainer()) == 1


# the log


def test_a_log_that_is_ahead_or_damaged_is_cut_to_the_checkpoint(tmp_path, make_trainer) -> None:
    folder, log = RunFolder(tmp_path), tmp_path / "log.jsonl"
    trained(folder, make_trainer, [None, None])
    good = log.read_bytes()
    log.write_bytes(good + b'{"update": 3, "loss": 1.0}\n{"update": 2, "lo')
    folder.restore(make_trainer())
    assert log.read_bytes() == good
    log.write_bytes(good.replace(b'{"update": 1', b'{"upd\x00te": 1'))
    assert [entry["update"] for entry in folder.entries()] == [2]
    log.unlink()
    assert folder.restore(make_trainer()) == 2 and list(folder.entries()) == []


def test_the_seconds_of_all_sittings_add_up(tmp_path, make_trainer) -> None:
    folder, trainer = RunFolder(tmp_path), make_trainer()
    update = trainer.update

    def stopped():
        if trainer.done == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return update()

    trainer.update = stopped
    assert not run(trainer, folder)
    assert run(make_trainer(), folder)
    entries = [entry for entry in folder.entries() if "loss" in entry]
    seconds = [entry["seconds"] for entry in entries]
    assert len(seconds) == 9 and seconds == sorted(seconds) and seconds[0] > 0
    assert all(entry["tokens_per_second"] > 0 and "peak_share" not in entry for entry in entries)
    assert set(MACHINE_FIELDS) & entries[0].keys() == {"seconds", "tokens_per_second"}


# one process at a time


def test_a_second_process_is_refused_until_the_first_is_gone_or_killed(tmp_path) -> None:
    folder = RunFolder(tmp_path / "run")
    script = (
        "import sys, time\nfrom companion.training.run_folder import RunFolder\n"
        f"with RunFolder({str(folder.path)!r}).lock():\n    print('mine', flush=True)\n    time.sleep(600)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout.readline() == b"mine\n"
            with pytest.raises(Busy, match=rf"another process \({process.pid} on .*\) is training in this folder"):
                folder.lock().__enter__()
        finally:
            process.kill()
    assert (folder.path / ".lock").exists()  # after a kill the file remains
    with folder.lock():
        assert (folder.path / ".lock").exists()
        folder.create({"updates": 1}, {})
    assert sorted(entry.name for entry in folder.path.iterdir()) == ["run.json"]


def test_a_lock_whose_holder_is_just_ending_is_taken_with_a_file_of_its_own(tmp_path, monkeypatch) -> None:
    """Its holder may end between the opening of the file and the locking; then the locked file no longer exists."""
    monkeypatch.setattr("companion.ground.lock._PATIENCE", 60.0)
    folder, taken = RunFolder(tmp_path), []

    def second() -> None:
        with folder.lock():
            taken.append((tmp_path / ".lock").exists())

    thread = threading.Thread(target=second)
    with folder.lock():
        thread.start()
        thread.join(0.2)
        assert not taken
    thread.join()
    assert taken == [True] and not (tmp_path / ".lock").exists()


def test_a_lock_is_not_left_where_nothing_came_of_the_run(tmp_path) -> None:
    with pytest.raises(ValueError, match="nothing"), RunFolder(tmp_path / "runs" / "new").lock():
        raise ValueError("nothing")
    assert not (tmp_path / "runs" / "new").exists()
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ValueError, match="expected a new or empty folder"), RunFolder(tmp_path).lock():
        pass
    assert not (tmp_path / ".lock").exists()


def test_a_run_that_another_process_began_meanwhile_is_not_written_over(tmp_path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create({"updates": 3}, {"tokenizer.json": "{}"})
    with pytest.raises(ValueError, match="another process has just started a run here"):
        folder.create({"updates": 4}, {"tokenizer.json": "[]"})
    assert folder.record()["updates"] == 3
