"""A run can be stopped anywhere, in any way, and ends with the same weights."""

import json
import os
import signal
import threading

import pytest
import torch

from companion.checkpoints import load_model
from companion.data.batches import EvaluationBatches
from companion.data.tokenizer import BytePairTokenizer
from companion.training.fit import fit, seconds_per_update
from companion.training.folder import RunFolder, newest_run
from companion.training.loop import Diverged, Trainer


class Killed(Exception):
    """Stands for the process's end: whatever was not on disk is gone."""


def run(trainer: Trainer, folder: RunFolder, **options) -> bool:
    batches = EvaluationBatches([trainer.batches.tokens[:40]], context=9)
    options = {"evaluate_every": 4, "save_seconds": 0.0, "progress": False} | options
    return fit(trainer, lambda: trainer.evaluate(batches, 39), folder=folder, **options)


def same(one: Trainer, other: Trainer) -> bool:
    pairs = zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True)
    state = other.state()
    return all(torch.equal(p, q) for p, q in pairs) and all(torch.equal(t, state[n]) for n, t in one.state().items())


def lines(folder: RunFolder) -> list[dict]:
    return [json.loads(line) for line in (folder.path / "log.jsonl").read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run, to compare with: made once, by the first test that asks."""
    return tmp_path_factory.mktemp("whole"), {}


def uninterrupted(whole, make_trainer) -> tuple[Trainer, list[dict]]:
    path, kept = whole
    if not kept:
        trainer, folder = make_trainer(), RunFolder(path / "run")
        folder.path.mkdir()
        assert run(trainer, folder)
        kept.update(trainer=trainer, log=lines(folder))
    return kept["trainer"], kept["log"]


@pytest.mark.parametrize(  # a checkpoint after every update, or at evaluations (every fourth) alone
    ("at", "save_seconds"), [(1, 0.0), (4, 0.0), (9, 0.0), (3, 1e9), (5, 1e9), (8, 1e9)]
)
def test_killed_in_any_update_and_run_again_the_weights_are_the_same_bit_for_bit(
    at, save_seconds, tmp_path, make_trainer, whole
) -> None:
    wanted, log = uninterrupted(whole, make_trainer)
    folder = RunFolder(tmp_path)
    trainer = make_trainer()
    step = trainer.optimizer.step

    def dies() -> None:
        step()  # the weights have moved and the books have not
        if trainer.done == at - 1:
            raise Killed

    trainer.optimizer.step = dies
    with pytest.raises(Killed):
        run(trainer, folder, save_seconds=save_seconds)
    again = make_trainer(updates=9)
    assert run(again, folder, save_seconds=save_seconds)
    assert again.done == 9 and same(again, wanted)
    assert lines(folder) == log


@pytest.mark.parametrize("moment", ["save_model", "save_tensors", "write_atomic"])
def test_killed_while_a_checkpoint_is_written_the_one_before_is_used(
    moment, tmp_path, make_trainer, whole, monkeypatch
) -> None:
    from companion import checkpoints

    wanted, _ = uninterrupted(whole, make_trainer)
    folder = RunFolder(tmp_path)
    real, calls = getattr(checkpoints, moment), [0]

    def dies(*args, **kwargs):
        calls[0] += 1
        if calls[0] == 4:
            raise Killed
        return real(*args, **kwargs)

    monkeypatch.setattr(checkpoints, moment, dies)
    with pytest.raises(Killed):
        run(make_trainer(), folder)
    monkeypatch.undo()
    before = folder.checkpoint()
    assert before is not None and load_model(before).config == wanted.model.config
    again = make_trainer()
    assert run(again, folder) and same(again, wanted)
    assert [entry.name for entry in (tmp_path / "checkpoints").iterdir()] == ["step-00000009"]


def test_killed_between_a_new_checkpoint_and_the_removal_of_the_old_the_new_one_is_used(
    tmp_path, make_trainer, monkeypatch
) -> None:
    folder = RunFolder(tmp_path)
    trainer = make_trainer()
    trainer.update()
    folder.save(trainer)
    trainer.update()
    monkeypatch.setattr("companion.training.folder.shutil.rmtree", lambda path: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        folder.save(trainer)
    monkeypatch.undo()
    assert len(list((tmp_path / "checkpoints").glob("step-*"))) == 2
    again = make_trainer()
    assert folder.restore(again) == 2 and same(again, trainer)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_finishes_the_update_saves_and_goes_on_to_the_same_weights(
    number, tmp_path, make_trainer, whole
) -> None:
    wanted, log = uninterrupted(whole, make_trainer)
    folder, trainer = RunFolder(tmp_path), make_trainer()
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    update = trainer.update

    def interrupted():
        if trainer.done == 5:
            os.kill(os.getpid(), number)
        return update()

    trainer.update = interrupted
    assert not run(trainer, folder, save_seconds=1e9)
    assert trainer.done == 6 and folder.checkpoint().name == "step-00000006"
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    again = make_trainer()
    assert run(again, folder) and same(again, wanted)
    assert lines(folder) == log


def test_training_works_outside_the_main_thread_where_there_are_no_signals(tmp_path, make_trainer) -> None:
    results = []
    thread = threading.Thread(target=lambda: results.append(run(make_trainer(updates=2), RunFolder(tmp_path))))
    thread.start()
    thread.join()
    assert results == [True]


def test_a_diverged_run_keeps_its_last_good_state(tmp_path, make_trainer) -> None:
    folder, trainer = RunFolder(tmp_path), make_trainer()
    loss = trainer.loss

    def breaks(model, *batch):
        scored = loss(model, *batch)
        return scored._replace(nats=scored.nats * float("inf")) if trainer.done == 5 else scored

    trainer.loss = breaks
    with pytest.raises(Diverged, match="at update 6"):
        run(trainer, folder)
    kept = load_model(folder.checkpoint())
    assert folder.checkpoint().name == "step-00000005"
    assert all(torch.isfinite(p).all() for p in kept.parameters())


def test_the_log_has_every_update_and_evaluation_and_the_bar_is_not_in_it(tmp_path, make_trainer) -> None:
    folder, seen = RunFolder(tmp_path), []
    assert run(make_trainer(), folder, after_evaluation=lambda update, evaluation: seen.append((update, evaluation)))
    entries = lines(folder)
    assert [e["update"] for e in entries if "loss" in e] == list(range(1, 10))
    assert [e["update"] for e in entries if "bits_per_byte" in e] == [4, 8, 9] == [update for update, _ in seen]
    assert set(entries[0]) == {"update", "loss", "tokens", "gradient_norm", "learning_rate"}
    with open(tmp_path / "log.jsonl", "a") as file:
        file.write('{"update": 10, "lo')  # a kill in the middle of a line
    assert list(folder.entries()) == entries


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "config.json", "state.json"])
def test_a_checkpoint_cut_in_half_is_refused_by_name(name, tmp_path, make_trainer) -> None:
    folder, trainer = RunFolder(tmp_path), make_trainer()
    trainer.update()
    file = folder.save(trainer) / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    fresh = make_trainer()
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        folder.restore(fresh)
    assert fresh.done == 0 and not fresh.state()


def test_a_checkpoint_of_another_model_is_refused(tmp_path, make_trainer) -> None:
    folder, trainer = RunFolder(tmp_path), make_trainer()
    trainer.update()
    folder.save(trainer)
    other = Trainer(type(trainer.model)(trainer.model.config.with_(layers=1)), trainer.batches, trainer.config)
    with pytest.raises(ValueError, match="one of another configuration"):
        folder.restore(other)


def test_a_run_folder_is_not_made_where_something_else_is(tmp_path) -> None:
    files = {"tokenizer.json": BytePairTokenizer.train(["text"], vocab=257).to_json()}
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ValueError, match="expected a new or empty folder"):
        RunFolder(tmp_path).create({}, files)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]
    new = RunFolder(tmp_path / "new" / "run")
    new.create({"updates": 3}, files)
    assert new.exists and not new.finished and new.record() == {"updates": 3} and new.checkpoint() is None
    with pytest.raises(ValueError, match="has none yet"):
        new.model()
    assert newest_run(tmp_path / "new").path == new.path
    with pytest.raises(ValueError, match="found none; make one with `companion train`"):
        newest_run(tmp_path / "nowhere")
    (new.path / "run.json").write_text('{"upda')
    with pytest.raises(ValueError, match=r"run\.json: cannot be read"):
        new.record()


def test_the_speed_of_an_update_is_measured(make_trainer) -> None:
    trainer = make_trainer(updates=3)
    assert 0 < seconds_per_update(trainer, seconds=0.05) < 5
