"""One, two and four processes have the same losses and weights, whatever they share, and stop together."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from processes import HALF, KINDS, UPDATES, Kind, environment, evaluated, everything, launch, load, make, title, train

from companion.commands.main import main
from companion.files.models import load_tensors
from companion.layers.moe import MoE
from companion.training.distributed.data_parallel import Processes, _WholeDraws
from companion.training.distributed.launch import _own_device, command, is_lost, start_processes
from companion.training.distributed.parallel import Parallel
from companion.training.settings import TextSettings, recorded

LOSSES = 1e-5
"""Largest difference of a loss, in nats per token, between numbers of processes. Measured: below 1e-6."""
WEIGHTS = 2e-6
"""Largest difference of a weight after all updates. Measured: below 2e-7."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def runs(home: Path) -> dict[int, tuple[Path, list[tuple[int, str]]]]:
    """Run two processes, and then four, which resume from them; return the folder and how each process ended."""
    ended = launch({2: "agree stop equal", 4: "equal lose"}, home)
    return {world: (home / str(world), how) for world, how in ended.items()}


@pytest.fixture(scope="module")
def alone() -> dict[tuple[str, int], tuple[list[dict], dict[str, torch.Tensor]]]:
    """Return the results of one process by model and number of micro-batches."""
    made = {}
    for name, accumulate in (("text", 2), ("experts", 2), ("experts", 1), ("translation", 2)):
        trainer = make(name, accumulate=accumulate)
        made[name, accumulate] = train(trainer), everything(trainer)
    return made


def expect_equal(folder: Path, wanted: tuple[list[dict], dict[str, torch.Tensor]]) -> None:
    updates = json.loads((folder / "updates.json").read_text())
    for mine, one in zip(updates, wanted[0][-len(updates) :], strict=True):
        assert mine["number"] == one["number"] and mine["tokens"] == one["tokens"]
        assert mine["loss"] == pytest.approx(one["loss"], abs=LOSSES)
        assert mine["gradient_norm"] == pytest.approx(one["gradient_norm"], abs=LOSSES, rel=LOSSES)
        assert mine["effective_experts"] == one["effective_experts"] and mine["dropped"] == one["dropped"]
    kept = load_tensors(folder / "end.safetensors")
    assert kept.keys() == wanted[1].keys()
    for name, tensor in wanted[1].items():
        torch.testing.assert_close(
            kept[name], tensor, rtol=1e-5, atol=WEIGHTS, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize(
    ("world", "kind"), [(world, kind) for world, kinds in KINDS.items() for kind in kinds], ids=lambda x: str(x)
)
def test_several_processes_train_like_one(world: int, kind: Kind, runs, alone) -> None:
    folder, _ = runs[world]
    accumulate = 1 if title(kind) == "experts-ddp" else 2
    wanted = alone[kind[0], accumulate]
    expect_equal(folder / "equal" / title(kind), wanted)
    losses = [update["loss"] for update in wanted[0]]
    assert (
        len(losses) == UPDATES and max(losses) - min(losses) > 0.1
    )  # it does change, so that equality proves something
    if kind[0] == "experts":
        assert all(0 < update["dropped"] < 1 for update in wanted[0])


def test_a_run_goes_on_with_as_many_processes_bit_for_bit(runs) -> None:
    folder = runs[2][0] / "equal"
    whole, again = (load_tensors(folder / name / "end.safetensors") for name in ("experts-shard-2", "resumed"))
    assert whole.keys() == again.keys()
    for name, tensor in whole.items():
        assert torch.equal(tensor, again[name]), name


def test_a_run_goes_on_with_other_numbers_of_processes(runs, alone) -> None:
    """Two processes distribute the experts and shard the rest; then four resume with data parallelism, or one."""
    expect_equal(runs[4][0] / "equal" / "resumed", alone["experts", 2])
    half = load_tensors(runs[2][0] / "equal" / "experts-shard-2" / "half" / "end.safetensors")
    trainer = make("experts")
    load(trainer, half, HALF)
    train(trainer)
    for name, tensor in everything(trainer).items():
        torch.testing.assert_close(tensor, alone["experts", 2][1][name], rtol=1e-5, atol=WEIGHTS)


def test_processes_tell_each_other_and_fail_together(runs) -> None:
    folder, ended = runs[2]
    assert [code for code, _ in ended] == [0, 0], ended
    seen = [json.loads((folder / "agree" / f"{rank}.json").read_text()) for rank in range(2)]
    for rank, here in enumerate(seen):
        assert here["flags"] == [False, True, True]
        assert here["told"] == {"from": 0, "text": "é", "nothing": None, "number": 0.1}
        assert here["main"] == [0, "made"] and here["own"] == rank
        # An update in which only one process has a loss that is not finite reaches no process's weights.
        assert here["diverged"][0] == 2 and here["diverged"][1].startswith("the loss is nan at update 3")
    assert seen[0]["on_main"] == ["ValueError", "bad input"] and seen[1]["on_main"] == 2
    assert seen[0]["disk"] == ["OSError", "full"] and seen[1]["disk"] == 1
    assert seen[0]["all"] == ["ValueError", "everywhere"] and seen[1]["all"] == 2
    assert seen[0]["one"] == ["ValueError", "process 1 of 2: here alone"] and seen[1]["one"] == 2


def test_the_main_process_measures_the_whole_of_a_sharded_model(runs) -> None:
    folder, _ = runs[2]
    measured = [json.loads((folder / "agree" / f"{rank}.json").read_text())["evaluation"] for rank in range(2)]
    one = evaluated(None)
    assert measured[0] == measured[1]
    assert measured[0]["nats"] == pytest.approx(one.nats, abs=1e-3) and measured[0]["tokens"] == one.tokens


def test_ctrl_c_in_one_process_stops_all_after_the_same_update(runs) -> None:
    folder, _ = runs[2]
    assert [json.loads((folder / "stop" / f"{rank}.json").read_text()) for rank in range(2)] == [[False, 4]] * 2
    assert [path.name for path in (folder / "stop" / "run" / "checkpoints").glob("step-*")] == ["step-00000004"]


def test_when_a_process_is_killed_the_others_end_at_once_and_one_says_so(runs) -> None:
    folder, ended = runs[4]
    assert [code for code, _ in ended] == [1, 1, 1, -signal.SIGKILL]
    assert sum(text.count("another process of this run is gone") for _, text in ended) == 1
    for rank in range(3):
        assert float((folder / "lose" / f"{rank}.seconds").read_text()) < 20


def test_what_processes_draw_are_rows_of_what_one_would_draw() -> None:
    """This covers dropout, dropout inside attention, and a router's noise; what has no rows is the same for all."""
    x, q = torch.randn(5, 3, 4), torch.randn(5, 3, 6, 4)
    k, v = torch.randn(5, 1, 7, 4), torch.randn(5, 1, 7, 4)

    def draw(rows: slice) -> list[torch.Tensor]:
        return [
            F.dropout(x[rows], 0.3),
            torch.randn_like(x[rows]),
            F.scaled_dot_product_attention(q[rows], k[rows], v[rows], dropout_p=0.3, enable_gqa=True),
            F.dropout(torch.ones(9), 0.5),
        ]

    torch.manual_seed(3)
    *whole, attended, shared = draw(slice(None))
    for start_, stop in ((0, 2), (2, 5)):
        torch.manual_seed(3)
        with _WholeDraws(start_, stop, 5):
            *parts, found, same = draw(slice(start_, stop))
        for part, all_of in zip(parts, whole, strict=True):
            assert torch.equal(part, all_of[start_:stop])
        # Dropping another weight would change a number by tenths; products of fewer rows may be summed in another
        # order.
        torch.testing.assert_close(found, attended[start_:stop])
        assert torch.equal(same, shared)


@pytest.mark.parametrize(("rows", "world"), [(5, 2), (5, 3), (5, 5), (16, 4), (7, 1)])
def test_the_rows_of_a_batch_are_shared_out_evenly_and_each_once(rows: int, world: int) -> None:
    batch = (torch.arange(rows * 3).view(rows, 3), torch.arange(rows))
    parts = []
    for rank in range(world):
        one = Processes.__new__(Processes)
        one.rank, one.world = rank, world
        parts.append(one.share(batch))
    for whole, pieces in zip(batch, zip(*parts, strict=True), strict=True):
        assert torch.equal(torch.cat(pieces), whole)
        assert max(map(len, pieces)) - min(map(len, pieces)) <= 1
    with pytest.raises(ValueError, match=f"--batch {world}: expected at least {world + 1}, one example per process"):
        one.world = world + 1
        one.share((torch.zeros(world, 2),))


def test_one_process_needs_no_other() -> None:
    alone = Parallel()
    assert alone.main and alone.agree(True) and not alone.agree(False) and str(alone) == "1 process"
    assert alone.on_main(lambda: {1}) == {1} and alone.together(lambda: 2) == 2 and alone.broadcast(3) == 3
    with start_processes(torch.device("cpu")) as parallel:
        assert type(parallel) is Parallel and not torch.distributed.is_initialized()


def test_the_weights_of_another_model_are_refused_and_nothing_is_changed() -> None:
    trainer = make("text")
    train(trainer, 2)
    before = {name: tensor.clone() for name, tensor in everything(trainer).items()}
    fits = {name: torch.zeros_like(tensor) for name, tensor in before.items()}
    name = next(iter(trainer.weights()))
    for wrong, message in (
        ({n: t for n, t in fits.items() if n != f"weights/{name}"}, "weights: expected this model's weights"),
        (fits | {f"weights/{name}": torch.zeros(2)}, f"{name}: expected a tensor of shape"),
        (fits | {f"exp_avg.{name}": torch.zeros(2)}, f"exp_avg.{name}: expected a tensor of shape"),
        ({n: t for n, t in fits.items() if n != f"step.{name}"}, f"expected both moments and the count of {name}"),
    ):
        with pytest.raises(ValueError, match=message):
            load(trainer, wrong, 1)
        assert trainer.done == 2
        assert all(torch.equal(tensor, before[n]) for n, tensor in everything(trainer).items())


# The command


@pytest.fixture
def as_launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in environment(1, 4, 29500).items():
        monkeypatch.setenv(name, value)
    yield


def test_flags_for_several_processes_alone_show_the_command(capsys, tmp_path: Path) -> None:
    out = ["--steps", "5", "--out", str(tmp_path / "run")]
    assert main(["train", "--shard", *out]) == 2
    error = capsys.readouterr().err
    assert "--shard: expected several processes, got one" in error
    assert f"torchrun --nproc-per-node 2 -m companion train --shard --steps 5 --out {tmp_path / 'run'}" in error
    assert main(["train", "--experts", "8", "--expert-parallel", "4", *out]) == 2
    assert "torchrun --nproc-per-node 4 -m companion train --experts 8" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_shared_out_is_named() -> None:
    with pytest.raises(
        ValueError, match="--expert-parallel 3: expected a divisor of the number of --experts; there are 8"
    ):
        TextSettings(experts=8, expert_parallel=3)
    with pytest.raises(ValueError, match="--expert-parallel 2: expected .*; there are none"):
        TextSettings(expert_parallel=2)
    with pytest.raises(ValueError, match="--expert-parallel 1: expected a whole number >= 2"):
        TextSettings(experts=4, expert_parallel=1)


def test_how_many_processes_is_no_part_of_what_a_run_is() -> None:
    many, one = TextSettings(experts=4, shard=True, expert_parallel=2), TextSettings(experts=4)
    assert many.what_matters() == one.what_matters()
    assert recorded({"settings": many.what_matters()}) == one


def test_processes_need_a_device_each(as_launched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match="expected a GPU for each of the 4 processes on this machine, found 2"):
        _own_device(torch.device("cuda"))
    with pytest.raises(ValueError, match="--device cuda:1: expected cpu, cuda or auto with several processes"):
        _own_device(torch.device("cuda:1"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert _own_device(torch.device("cuda")) == torch.device("cuda:1")
    assert _own_device(torch.device("cpu")) == torch.device("cpu")
    assert command(["train", "--shard"]) == "torchrun --nproc-per-node 4 -m companion train --shard"


def test_the_same_bad_input_is_said_once(as_launched, capsys) -> None:
    """The error may come from the type of a flag, or from a combination of settings."""
    assert main(["train", "--batch", "0"]) == 2
    assert capsys.readouterr() == ("", "")  # this is process 1, and process 0 prints the error
    assert main(["train", "--steps", "5", "--minutes", "1"]) == 2
    assert capsys.readouterr() == ("", "")


def test_a_lost_process_is_told_from_other_errors() -> None:
    assert is_lost(RuntimeError("[gloo/transport/tcp/pair.cc:537] Read error [::1]:1: Connection reset by peer."))
    assert is_lost(RuntimeError("Timed out waiting 3600000ms for recv operation to complete"))
    assert not is_lost(RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"))


def test_the_experts_of_one_process_are_left_as_they_are() -> None:
    kinds = {type(module) for module in make("experts").model.modules() if isinstance(module, MoE)}
    assert kinds == {MoE}


def test_torchrun_trains_as_one_process_does_and_prints_the_same(tmp_path: Path, monkeypatch, capsys) -> None:
    """The README's command, on a small text, gives the same lines and log, and a folder that either can resume."""
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "long.txt").write_text(
        "\n\n".join(f"Page {i}: {i} times {i} is {i * i}.\n" * 3 for i in range(90))
    )
    (tmp_path / "text" / "short.txt").write_text("\n\n".join(f"{i} squared is {i * i}.\n" for i in range(90)))
    flags = "--data text --vocab 260 --d-model 16 --layers 1 --context 32 --batch 5 --save-seconds 0"
    arguments = ["train", "--steps", "6", *flags.split(), "--out"]
    monkeypatch.chdir(tmp_path)
    assert main([*arguments, str(tmp_path / "one")]) == 0
    alone = capsys.readouterr().out
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "companion"]
    kept = {n: v for n, v in environment(0, 1, 1).items() if n in os.environ or n in ("PYTHONPATH", "OMP_NUM_THREADS")}
    done = subprocess.run(
        [*launcher, *arguments, str(tmp_path / "two"), "--shard"],
        env=kept,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    said = [
        [line.replace(f"/{name}", "/run") for line in text.splitlines()]
        for name, text in (("one", alone), ("two", done.stdout))
    ]
    one, two = (["" if line.startswith("machine") else line for line in lines] for lines in said)
    assert one == two and sum("bits per byte" in line for line in one) > 5
    assert any("2 processes, sharded" in line for line in said[1])
    logs = [
        [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    ]
    assert len(logs[0]) == len(logs[1]) == 12
    for a, b in zip(*logs, strict=True):
        for key in ("loss", "bits_per_byte"):
            assert (key in a) == (key in b) and a.get(key, 0) == pytest.approx(b.get(key, 0), abs=LOSSES)


def test_whoever_trains_or_writes_alone_does_not_wait_for_the_compiler_to_load(runs, home: Path) -> None:
    """The compiler must not be loaded by the imports of commands and loop, or by updates, saving and resuming."""
    assert json.loads((home / "compiler.json").read_text()) is False
