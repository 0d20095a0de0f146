"""A training run that is killed repeatedly, before various file operations, loses nothing.

After each kill the last checkpoint is complete and has the weights of an uninterrupted run at the same update. At the
end the weights, the optimizer, the log and the result are those of the uninterrupted run, bit for bit.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from training.victim import digest

from companion.training.run_folder import MACHINE_FIELDS, RunFolder

VICTIM = Path(__file__).with_name("victim.py")
UPDATES = 16
SIZES = "--d-model 32 --layers 2 --heads 2 --kv-heads 1 --context 32 --vocab 300 --experts 4 --batch 4 --accumulate 2"
SETTINGS = f"{SIZES} --dropout 0.1 --warmup 5 --device cpu --steps {UPDATES}"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    for name in ("Ada", "Blaise", "Carl", "Emmy", "Grace", "Kurt", "Sofya", "Srinivasa"):
        walks = [f"{name} walked {i} miles to the {end}." for i in range(9) for end in ("sea", "hill", "old mill")]
        (folder / f"{name}.txt").write_text("\n".join([f"The walks of {name}\n", *walks * 3]), "utf-8")
    return folder


def train(text, run, seconds, **plan):
    """Run a process that trains; return its exit code and output."""
    command = [sys.executable, VICTIM, json.dumps(plan), "train", "--data", text, "--out", run, *SETTINGS.split()]
    done = subprocess.run([*map(str, command), "--save-seconds", seconds], capture_output=True, text=True, timeout=300)
    return done.returncode, done.stderr


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    """Return the uninterrupted run, and digests of its weights after each update."""
    home = tmp_path_factory.mktemp("whole")
    code, said = train(text, home / "run", "600", digests=str(home / "digests"))
    assert code == 0, said
    lines = (home / "digests").read_text().splitlines()
    return RunFolder(home / "run"), {int(done): found for done, found in map(str.split, lines)}


def last(run):
    return run.checkpoints.load(run.checkpoint())


def log(run):
    return [{name: value for name, value in entry.items() if name not in MACHINE_FIELDS} for entry in run.entries()]


def same_end(run, other):
    """Return the parts in which two finished runs differ."""
    ours, theirs = last(run), last(other)
    parts = {
        "weights": digest(ours.weights) == digest(theirs.weights),
        "optimizer": digest(ours.optimizer) == digest(theirs.optimizer),
        "log": log(run) == log(other),
        "result": run.result() == other.result(),
    }
    return [name for name, same in parts.items() if not same]


@pytest.mark.parametrize("seconds, moments", [("0", (90, 200, 7, 150)), ("600", (15, 40))])
def test_a_run_that_is_killed_again_and_again_loses_nothing(seconds, moments, text, whole, tmp_path):
    """With a checkpoint after every update, most kills hit one being written; otherwise the log is ahead of it."""
    run, (reference, digests) = RunFolder(tmp_path / "run"), whole
    checkpoints = []
    for moment in moments:
        code, said = train(text, run.path, seconds, moment=moment)
        assert code not in (0, 1, 2), said
        if run.checkpoint() is not None:
            saved = last(run)
            assert digest(saved.weights) == digests[saved.done]
            checkpoints.append(saved.done)
    assert checkpoints == sorted(checkpoints) and (seconds != "0" or len({*checkpoints}) > 1)
    code, said = train(text, run.path, seconds)
    assert code == 0, said
    assert same_end(run, reference) == [] and not list(run.path.rglob(".*.tmp"))


def test_a_run_that_lost_something_would_be_noticed(whole, tmp_path):
    reference, _ = whole
    shutil.copytree(reference.path, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    assert same_end(run, reference) == []
    lines = (run.path / "log.jsonl").read_text("utf-8").splitlines(keepends=True)
    os.truncate(run.path / "log.jsonl", sum(map(len, lines[:-1])))
    assert same_end(run, reference) == ["log"]
