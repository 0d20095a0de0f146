"""A run can be stopped anywhere and in any way, and still ends with the same weights."""

import json
import os
import re
import signal
import struct
import threading
from functools import partial

import pytest
import torch

from companion.config.model import MoEConfig
from companion.costs.account import train_flops
from companion.data.batches import EvaluationBatches
from companion.data.tokenizer import BytePairTokenizer
from companion.files.models import load_model
from companion.training import checkpoints as saved
from companion.training.evaluation import evaluate
from companion.training.plot import plot_exact_match, plot_loss
from companion.training.run_folder import MACHINE_FIELDS, RunFolder, newest_run
from companion.training.run_loop import fit, seconds_per_update
from companion.training.trainer import Diverged, Trainer


class Killed(Exception):
    """Stand-in for the end of the process, after which only files remain."""


def run(trainer: Trainer, folder: RunFolder, **options) -> bool:
    batches = EvaluationBatches([trainer.batches.tokens[:40]], context=9)
    options = {"evaluate_every": 4, "save_seconds": 0.0, "progress": False} | options
    return fit(trainer, lambda model: evaluate(model, batches, 39), folder=folder, **options)


def same(one: Trainer, other: Trainer) -> bool:
    pairs = zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True)
    state = other.state()
    return all(torch.equal(p, q) for p, q in pairs) and all(torch.equal(t, state[n]) for n, t in one.state().items())


def lines(folder: RunFolder) -> list[dict]:
    """Return the log without what depends on the machine."""
    entries = [json.loads(line) for line in (folder.path / "log.jsonl").read_text("utf-8").splitlines()]
    return [{name: value for name, value in entry.items() if name not in MACHINE_FIELDS} for entry in entries]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return an uninterrupted run to compare with, which the first test that needs it creates."""
    return tmp_path_factory.mktemp("whole"), {}


def uninterrupted(whole, make_trainer) -> tuple[Trainer, list[dict]]:
    path, kept = whole
    if not kept:
        trainer, folder = make_trainer(), RunFolder(path / "run")
        folder.path.mkdir()
        assert run(trainer, folder)
        kept.update(trainer=trainer, log=lines(folder))
    return kept["trainer"], kept["log"]


@pytest.mark.parametrize(  # a checkpoint after every update, or only at evaluations (every fourth update)
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
        step()  # the weights have changed, but the records have not
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
    wanted, _ = uninterrupted(whole, make_trainer)
    folder = RunFolder(tmp_path)
    real, calls = getattr(saved, moment), [0]

    def dies(*args, **kwargs):
        calls[0] += 1
        if calls[0] == 4:
            raise Killed
        return real(*args, **kwargs)

    monkeypatch.setattr(saved, moment, dies)
    with pytest.raises(Killed):
        run(make_trainer(), folder)
    monkeypatch.undo()
    before = folder.checkpoint()
    assert before is not None and load_model(before).config == wanted.model.config
    again = make_trainer()
    assert run(again, folder, keep=1) and same(again, wanted)
    last, best = folder.checkpoint(), folder.checkpoint(best=True)
    assert last.name == "step-00000009" and set((tmp_path / "checkpoints").iterdir()) == {last, best}


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


def test_weights_that_an_update_ruined_are_found_by_the_evaluation_behind_it(tmp_path, make_trainer) -> None:
    """It is found before the next loss could reveal it."""
    folder, trainer = RunFolder(tmp_path), make_trainer()
    step = trainer.optimizer.step

    def ruins(*arguments, **options):
        step(*arguments, **options)
        if trainer.done == 3:
            with torch.no_grad():
                next(trainer.model.parameters()).fill_(float("inf"))

    trainer.optimizer.step = ruins
    with pytest.raises(Diverged, match="held-out data is not a number, after update 4"):
        run(trainer, folder)
    assert all(torch.isfinite(p).all() for p in load_model(folder.checkpoint()).parameters())


def test_the_log_has_every_update_and_evaluation_and_the_bar_is_not_in_it(tmp_path, make_trainer) -> None:
    folder, seen = RunFolder(tmp_path), []
    assert run(make_trainer(), folder, after_evaluation=lambda update, evaluation, model: seen.append(update))
    entries = lines(folder)
    assert [e["update"] for e in entries if "loss" in e] == list(range(1, 10))
    assert [e["update"] for e in entries if "bits_per_byte" in e] == [4, 8, 9] == seen
    assert set(entries[0]) == {"update", "loss", "tokens", "gradient_norm", "learning_rate"}
    assert set(next(folder.entries())) == set(entries[0]) | {"seconds", "tokens_per_second"}
    with open(tmp_path / "log.jsonl", "a") as file:
        file.write('{"update": 10, "lo')  # the process was killed in the middle of a line
    assert [entry["update"] for entry in folder.entries()] == [entry["update"] for entry in entries]


def test_a_checkpoint_of_another_model_is_refused(tmp_path, make_trainer) -> None:
    folder, trainer = RunFolder(tmp_path), make_trainer()
    trainer.update()
    folder.save(trainer)
    other = Trainer(type(trainer.model)(trainer.model.config.with_(layers=1)), trainer.batches, trainer.config)
    with pytest.raises(ValueError, match="one with a different configuration"):
        folder.restore(other)


def test_a_run_folder_is_not_made_where_something_else_is(tmp_path) -> None:
    files = {"tokenizer.json": BytePairTokenizer.train(["text"], vocab=257).to_json()}
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ValueError, match="expected a new or empty folder"):
        RunFolder(tmp_path).create({}, files)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]
    new = RunFolder(tmp_path / "new" / "run")
    new.create({"updates": 3}, files)
    assert new.exists and not new.finished and new.record()["updates"] == 3 and new.checkpoint() is None
    with pytest.raises(ValueError, match="has no checkpoint yet"):
        new.model()
    assert newest_run(tmp_path / "new").path == new.path
    with pytest.raises(ValueError, match="found none; create one with `companion train`"):
        newest_run(tmp_path / "nowhere")
    (new.path / "run.json").write_text('{"upda')
    with pytest.raises(ValueError, match=r"run\.json: cannot be read"):
        new.record()


def test_the_bar_and_the_log_tell_speed_and_share_of_peak(tmp_path, make_trainer, capsys) -> None:
    folder, trainer = RunFolder(tmp_path), make_trainer()
    config = trainer.model.config
    peak = 1e9  # FLOPs per second
    assert run(trainer, folder, progress=True, peak=peak)
    bar = capsys.readouterr().err.split("\r")[-1]
    assert "9/9 updates" in bar and " tokens/s, " in bar and "% of peak" in bar and "experts" not in bar
    for entry in folder.entries():
        if "loss" in entry:
            share = entry["tokens_per_second"] * train_flops(config, config.context) / config.context / peak
            assert entry["peak_share"] == pytest.approx(share, abs=1e-4) and entry["peak_share"] > 0


def test_the_bar_tells_how_many_experts_are_in_use(make_trainer, capsys) -> None:
    plain = make_trainer(updates=2)
    model = type(plain.model)(plain.model.config.with_(moe=MoEConfig(5, 2)))
    assert fit(
        Trainer(model, plain.batches, plain.config),
        lambda model: evaluate(model, EvaluationBatches([plain.batches.tokens[:40]], context=9), 39),
        evaluate_every=2,
        progress=True,
    )
    assert re.search(r"tokens/s, [1-5]\.\d of 5 experts in use, ", capsys.readouterr().err)


def test_the_picture_of_a_run_shows_the_load_of_its_experts(tmp_path) -> None:
    entries = [{"update": i, "loss": 3.0 / i, "tokens": 9} for i in range(1, 6)]
    entries += [{"update": 5, "bits_per_byte": 2.0, "exact_match": 0.4}]
    loaded = [{**entry, "effective_experts": 3.5, "dropped": 0.1} if "loss" in entry else entry for entry in entries]
    heights = {}
    for name, log in (("plain", entries), ("experts", loaded), ("one line", entries[:1])):
        for draw in (partial(plot_loss, bytes_per_token=2.0, baselines={"xz": 1.5}), plot_exact_match):
            path = tmp_path / f"{name}.png"
            assert draw(log, path)
            heights[name, draw is plot_exact_match] = struct.unpack(">II", path.read_bytes()[16:24])[1]
    assert all(heights["experts", kind] == heights["plain", kind] + 180 for kind in (False, True))
    assert heights["one line", False] == heights["plain", False]


def test_the_speed_of_an_update_is_measured(make_trainer) -> None:
    trainer = make_trainer(updates=3)
    assert 0 < seconds_per_update(trainer, seconds=0.05) < 5
