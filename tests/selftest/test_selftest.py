"""The self-test: a run that is killed loses nothing, and one that did lose something would be caught."""

import json
import random
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from companion.commands.main import main
from companion.selftest.kills import Kill, Outcome, Reference, _Test, selftest
from companion.selftest.victim import Plan
from companion.training.checkpoints import Saved, Seals
from companion.training.run_folder import RunFolder
from companion.training.sealed_records import DIGEST, sealed
from companion.transformer import Transformer

ENOUGH, SEED = 16, 2493
"""Updates of a shortened run, and moments that come after its first checkpoint, however slow the machine is: the first
kill counts file operations alone."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> tuple[Path, Outcome]:
    """A shortened self-test, with its folder."""
    home = tmp_path_factory.mktemp("selftest") / "kept"
    return home, selftest(3, home=home, updates=ENOUGH, seed=SEED, progress=False)


def test_three_kills_lose_nothing(kept) -> None:
    home, found = kept
    assert found.holds, found.table()
    assert len(found.kills) == 3 and found.runs == {1: ""}
    assert sum(kill.checkpoint is not None for kill in found.kills) >= 2, "they came before the first checkpoint"
    table = found.table()
    assert "3 of 3 kills left a state to go on from, with the weights of its update." in table
    assert "1 of 1 runs ended with the same weights" in table and "All holds" in table
    assert (home / "whole" / "result.json").is_file() and not list((home / "run-1").rglob(".*"))


def test_what_would_be_lost_is_found(kept, tmp_path) -> None:
    home = tmp_path / "kept"
    shutil.copytree(kept[0], home)
    test = _Test(home, 1, ENOUGH, (), random.Random(0), False)
    lines = map(str.split, (home / "digests").read_text().splitlines())
    reference = Reference(RunFolder(home / "whole"), {int(number): digest for number, digest in lines})
    run = test.folder(1)
    assert test.differences(1, reference) == "" and test.left(run, reference) == (ENOUGH, "")
    saved = run.checkpoints.load(run.checkpoint())
    first = next(iter(saved.weights))
    saved.weights[first].view(-1)[0] += 1e-7
    shutil.rmtree(run.path / "checkpoints")
    seals = Seals(run.record()[DIGEST])
    run.checkpoints.write(run_model(saved), saved.weights, saved.optimizer, done=ENOUGH, keep=1, seals=seals)
    assert test.left(run, reference) == (ENOUGH, "NO") and test.differences(1, reference) == "the weights differ"
    log = (run.path / "log.jsonl").read_text()
    (run.path / "log.jsonl").write_text(log.replace('"tokens": ', '"tokens": 1', 1))
    other = {name: value for name, value in run.result().items() if name != DIGEST} | {"updates": 1}
    (run.path / "result.json").write_text(json.dumps(sealed(other, seals.run)))
    assert test.differences(1, reference) == "the weights, the log, the result differ"
    (run.checkpoint() / "model.safetensors").write_bytes(b"half")
    done, fault = test.left(run, reference)
    assert done is None and "expected a whole safetensors file" in fault


def run_model(saved: Saved) -> Transformer:
    model = Transformer(saved.config)
    model.load_state_dict(saved.weights)
    return model


def test_what_was_found_as_a_table_and_as_json() -> None:
    found = Outcome(2, 60, [Kill(1, "rename checkpoints/.step-00000007.tmp", 0.012, "rank 1", 6)], {1: ""}, 3e-7, 12.0)
    assert found.holds
    assert "12 ms after rename checkpoints/.step-00000007.tmp" in found.table() and "rank 1" in found.table()
    assert "differ by 3.0e-07 at most, within 1e-05" in found.table()
    data = json.loads(found.to_json())
    assert data["holds"] is True and data["kills"][0]["checkpoint"] == 6 and data["tolerance"] == 1e-5
    found.other = 2e-5
    assert not found.holds and "NOT within 1e-05" in found.table()
    for fault in (
        Outcome(1, 60, [Kill(1, "open log.jsonl", 0.0, "", 6, "NO")], {1: ""}),
        Outcome(1, 60, [], {1: "the log differ"}),
    ):
        assert not fault.holds and "NOT all holds" in fault.table()
        assert json.loads(fault.to_json())["holds"] is False


def test_the_exit_code_says_whether_all_holds(monkeypatch, capsys) -> None:
    for code, runs in ((0, {1: ""}), (1, {1: "the weights differ"})):
        monkeypatch.setattr("companion.selftest.kills.selftest", lambda *_, runs=runs, **__: Outcome(1, 60, [], runs))
        assert main(["selftest", "--json"]) == code
        assert json.loads(capsys.readouterr().out)["holds"] is (code == 0)


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        ([], []),
        (["--shard"], ["--shard"]),
        (["--expert-parallel", "2"], ["--expert-parallel", "2"]),
        (["--shard", "--expert-parallel", "4"], ["--shard", "--expert-parallel", "4"]),
    ],
)
def test_how_processes_share_the_work_reaches_the_command(given, flags, tmp_path, monkeypatch, capsys) -> None:
    told = {}

    def noted(kills, **keywords):
        told.update(keywords)
        return Outcome(4, 60, [], {1: ""})

    monkeypatch.setattr("companion.selftest.kills.selftest", noted)
    assert main(["selftest", "--processes", "4", *given]) == 0
    assert told["processes"] == 4 and told["flags"] == flags
    test = _Test(tmp_path, 4, ENOUGH, told["flags"], random.Random(0), False)
    one, several = (test.command(test.folder(1), Plan("notes"), number, False) for number in (1, 4))
    assert several[several.index("--device") + 2 :] == flags and "torch.distributed.run" in several
    assert one[one.index("--device") + 2 :] == []  # the one process that goes on has all of the model


def test_a_kill_of_all_reaches_processes_in_groups_of_their_own(tmp_path) -> None:
    test = _Test(tmp_path, 2, ENOUGH, (), random.Random(0), False)
    (tmp_path / "notes").mkdir()
    sleep = "import time; time.sleep(60)"
    starts = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {sleep!r}], "  # as torchrun does
    command = [sys.executable, "-c", f"{starts}start_new_session=True).pid, flush=True); {sleep}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        (tmp_path / "notes" / "pid-1").write_bytes(process.stdout.readline())
        test.kill(process)
        assert test.ended(process) != 0
        ended, _, _ = select.select([process.stdout], [], [], 20)  # the end of the output that both had
        assert ended and process.stdout.read() == b""


def test_bad_flags_and_the_help_that_teaches(tmp_path, capsys) -> None:
    (tmp_path / "thesis.txt").touch()
    for flags, message in (
        (["--kills", "0"], "--kills 0: expected a whole number >= 1"),
        (["--processes", "0"], "--processes 0: expected a whole number >= 1"),
        (["--shard"], "--shard: expected --processes 2 or more beside it, got one process"),
        (["--expert-parallel", "2"], "--expert-parallel 2: expected --processes 2 or more beside it, got one process"),
        (["--processes", "2", "--expert-parallel", "3"], "--expert-parallel 3: expected 2 or more, a divisor of the 4"),
        (["--processes", "2", "--expert-parallel", "1"], "--expert-parallel 1: expected 2 or more, a divisor of the 4"),
        (["--processes", "6", "--expert-parallel", "4"], "expected a divisor of the number of --processes, 6"),
        (["--out", str(tmp_path)], "expected a new or empty folder, found something there"),
    ):
        assert main(["selftest", *flags]) == 2
        assert message in capsys.readouterr().err
    assert main(["selftest", "--help"]) == 0
    said = capsys.readouterr().out
    assert "examples:\n  companion selftest" in said and "bit for bit" in said
    assert "--processes 2 --shard" in said and "--expert-parallel N" in said
