"""Small training runs for one or several processes, and what each process does in the tests.

`python tests/processes.py HOME [WORLD PORT PARTS]...` starts one group of processes after the other. All are forked
after PyTorch and the compiler that its optimizers load have been imported. `launch` starts this script and waits.
"""

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import TCPStore

from companion.config.model import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LatentConfig,
    LinearConfig,
    ModelConfig,
    MoEConfig,
    NormConfig,
    PositionConfig,
)
from companion.data.batches import TrainingBatches
from companion.files.models import load_tensors, save_tensors
from companion.training.distributed.data_parallel import Processes
from companion.training.distributed.launch import start_processes
from companion.training.distributed.parallel import Parallel, PeerDied, PeerFailed
from companion.training.evaluation import Evaluation
from companion.training.losses import Loss, Scored, cross_entropy_sum, translation_loss
from companion.training.run_folder import RunFolder
from companion.training.run_loop import fit
from companion.training.trainer import IGNORE, Diverged, Trainer, TrainingConfig
from companion.transformer import Transformer

UPDATES, HALF = 7, 4
DROPOUT = 0.15
LINEAR = LinearConfig((True, False), key_heads=1, d_v=5)
TEXT = ModelConfig(23, 12, 2, 9, AttentionConfig(3, 1, linear=LINEAR), FeedForwardConfig(20), dropout=DROPOUT)
EXPERTS = TEXT.with_(
    attention=AttentionConfig(3, latent=LatentConfig(5, 2, q_lora_rank=7)),
    moe=MoEConfig(4, 2, capacity=1.0, noise=0.3, shared=1, balanced=True),
)
TRANSLATION = ModelConfig(
    17,
    8,
    2,
    7,
    AttentionConfig(2),  # the gradient of a key bias is only a rounding error, which Adam would amplify to full steps
    FeedForwardConfig(12, "relu", bias=True),
    positions=PositionConfig("learned"),
    norm=NormConfig("layer", "post"),
    embedding=EmbeddingConfig(tied=False),
    stack="encoder_decoder",
    dropout=DROPOUT,
)
MODELS = {"text": TEXT, "experts": EXPERTS, "translation": TRANSLATION}

Kind = tuple[str, bool, int | None]
"""A model, whether it is sharded, and over how many processes its experts are spread."""
PLAIN: list[Kind] = [("text", False, None), ("experts", False, None), ("translation", False, None)]
KINDS: dict[int, list[Kind]] = {
    2: [*PLAIN, ("text", True, None), ("translation", True, None), ("experts", False, 2), ("experts", True, 2)],
    4: [("text", True, None), ("translation", False, None), ("experts", False, 2)],
}
"""What is trained by so many processes."""


def title(kind: Kind) -> str:
    name, shard, experts = kind
    return f"{name}-{'shard' if shard else 'ddp'}{'' if experts is None else f'-{experts}'}"


def padded_loss(model: Transformer, tokens: Tensor, targets: Tensor) -> Scored:
    out = model(tokens, attention_mask=tokens > 0)
    return Scored(*cross_entropy_sum(out.logits, targets), out.routing)


def batches(name: str) -> Callable[[int], tuple[Tensor, ...]]:
    """Return batches of five rows, whose padding differs between rows and between batches."""
    ids = torch.arange(400) ** 2 % 22 + 1
    windows = TrainingBatches([ids], context=9, batch=5, seed=8)

    def text(number: int) -> tuple[Tensor, Tensor]:
        tokens, targets = (x.clone() for x in windows(number))
        for row in range(5):
            length = (number + 3 * row) % 9 + 1
            tokens[row, length:], targets[row, length:] = 0, IGNORE
        return tokens, targets

    def pairs(number: int) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(number)
        source, inputs = (torch.randint(1, 17, (5, n), generator=generator) for n in (6, 4))
        targets = (inputs + source[:, :1]) % 16 + 1
        for row in range(5):
            source[row, (number + row) % 6 + 1 :] = 0
            inputs[row, (number + 2 * row) % 4 + 1 :] = 0
        return source, inputs, targets.masked_fill(inputs == 0, IGNORE)

    return pairs if name == "translation" else text


def make(name: str, parallel: Parallel | None = None, *, loss: Loss | None = None, accumulate: int = 2) -> Trainer:
    """Return the trainer of one of `MODELS`, which is the same in every process, whatever their number."""
    if name == "translation":
        accumulate = 1
    torch.manual_seed(4)
    model = Transformer(MODELS[name])
    weights = {"balance_loss": 0.1, "z_loss": 0.01} if name == "experts" else {}
    config = TrainingConfig(
        UPDATES, accumulate=accumulate, warmup=5, learning_rate=5e-3, bias_rate=0.01, seed=6, **weights
    )
    if loss is None:
        loss = padded_loss if name != "translation" else lambda *args: translation_loss(*args, padding=0)
    return Trainer(model, batches(name), config, loss=loss, parallel=parallel)


def train(trainer: Trainer, until: int = UPDATES) -> list[dict[str, Any]]:
    made = []
    while trainer.done < until:
        made.append(asdict(trainer.update()))
    return made


def everything(trainer: Trainer) -> dict[str, Tensor]:
    """Return the weights and the optimizer state, with a collective operation."""
    return {**{f"weights/{name}": tensor for name, tensor in trainer.weights().items()}, **trainer.state()}


def load(trainer: Trainer, kept: dict[str, Tensor], done: int) -> None:
    weights = {name.removeprefix("weights/"): t for name, t in kept.items() if name.startswith("weights/")}
    trainer.load(weights, {name: t for name, t in kept.items() if not name.startswith("weights/")}, done)


# The work of a process


def equal(folder: Path, world: int) -> None:
    """Train what `KINDS` lists, and resume from where two processes stopped halfway."""
    for kind in KINDS[world]:
        name, shard, experts = kind
        parallel = Processes(torch.device("cpu"), shard=shard, experts=experts)
        # With a single micro-batch, the experts' load is counted in a different way.
        trainer = make(name, parallel, accumulate=1 if title(kind) == "experts-ddp" else 2)
        made = train(trainer, HALF)
        keep(folder / title(kind) / "half", parallel, made, everything(trainer))
        made += train(trainer)
        keep(folder / title(kind), parallel, made, everything(trainer))
    for kind in [("experts", True, 2)] if world == 2 else [("experts", False, None)]:
        parallel = Processes(torch.device("cpu"), shard=kind[1], experts=kind[2])
        again = make("experts", parallel)
        load(again, load_tensors(folder.parents[1] / "2/equal/experts-shard-2/half/end.safetensors"), HALF)
        keep(folder / "resumed", parallel, train(again), everything(again))


def keep(folder: Path, parallel: Parallel, made: list[dict[str, Any]], kept: dict[str, Tensor]) -> None:
    if parallel.main:
        save_tensors(folder / "end.safetensors", kept)
        (folder / "updates.json").write_text(json.dumps(made))
    parallel.agree(False)  # wait until all are here


def agree(folder: Path, world: int) -> None:
    """Test that processes agree and fail together; each one writes down what it saw."""
    parallel = Processes(torch.device("cpu"))
    rank = parallel.rank
    seen: dict[str, Any] = {
        "flags": [parallel.agree(False), parallel.agree(rank == 1), parallel.agree(True)],
        "told": parallel.broadcast({"from": rank, "text": "é", "nothing": None, "number": 0.1}),
        "main": parallel.on_main(lambda: [rank, "made"]),
        "own": parallel.together(lambda: rank),
        "evaluation": asdict(evaluated(parallel)),
    }

    def fail(error: Exception) -> Any:
        raise error

    for name, make_ in {
        "on_main": lambda: parallel.on_main(lambda: fail(ValueError("bad input"))),
        "disk": lambda: parallel.on_main(lambda: fail(OSError("full"))),
        "all": lambda: parallel.together(lambda: fail(ValueError("everywhere"))),
        "one": lambda: parallel.together(lambda: fail(ValueError("here alone")) if rank == 1 else rank),
    }.items():
        try:
            seen[name] = make_()
        except (ValueError, OSError) as error:
            seen[name] = [type(error).__name__, str(error)]
        except PeerFailed as error:
            seen[name] = error.code

    def breaks(model: Transformer, *batch: Tensor) -> Scored:
        nats, tokens, routing, *_ = padded_loss(model, *batch)
        return Scored(nats * (float("nan") if rank == 1 and trainer.done == 2 else 1.0), tokens, routing)

    trainer = make("text", parallel, loss=breaks)
    try:
        train(trainer)
    except Diverged as error:
        seen["diverged"] = [trainer.done, str(error)]
    (folder / f"{rank}.json").write_text(json.dumps(seen))


def evaluated(parallel: Parallel | None, *, shard: bool = True) -> Evaluation:
    """Return a trained model's loss on some batches, with a collective operation."""
    trainer = make("text", None if parallel is None else Processes(torch.device("cpu"), shard=shard))
    train(trainer, 3)
    measured = trainer.evaluate([batches("text")(number) for number in range(70, 73)], 99)
    assert not (shard and parallel is not None) or trainer.whole() is not trainer.model or not trainer.parallel.main
    return measured


def stop(folder: Path, world: int) -> None:
    """Interrupt only process 1 with Ctrl-C during its fourth update."""
    parallel = Processes(torch.device("cpu"))
    trainer = make("text", parallel)
    update = trainer.update

    def interrupted() -> Any:
        if trainer.done == 3 and parallel.rank == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return update()

    trainer.update = interrupted  # type: ignore[method-assign]
    (folder / "run").mkdir(exist_ok=True)
    run = RunFolder(folder / "run")
    reached = fit(trainer, lambda model: Evaluation(1.0, 1, 1), folder=run, evaluate_every=99, progress=False)
    (folder / f"{parallel.rank}.json").write_text(json.dumps([reached, trainer.done]))


def lose(folder: Path, world: int) -> None:
    """Kill the last process before its fourth update."""
    parallel = Processes(torch.device("cpu"))
    trainer = make("text", parallel)
    train(trainer, 3)
    if parallel.rank == world - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        train(trainer)
    finally:
        (folder / f"{parallel.rank}.seconds").write_text(str(time.monotonic() - began))


# Starting processes


def environment(rank: int, world: int, port: int) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")))),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": "1",
    }


def launch(wanted: dict[int, str], home: Path, seconds: float = 250) -> dict[int, list[tuple[int, str]]]:
    """Run the named parts for each number of processes in turn; return their exit codes and standard errors.

    The processes meet at a store in this process, as at that of `torchrun`, which outlives them.
    """
    stores, arguments = [], []
    for world, parts in wanted.items():
        for part in parts.split():
            (home / str(world) / part).mkdir(parents=True, exist_ok=True)
        stores.append(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
        arguments += [str(world), str(stores[-1].port), parts]
    command = [sys.executable, __file__, str(home), *arguments]
    running = subprocess.Popen(command, env=environment(0, 1, 1), start_new_session=True)
    try:
        assert running.wait(seconds) == 0
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
    codes = {world: json.loads((home / str(world) / "codes.json").read_text()) for world in wanted}
    return {
        world: [(code, (home / str(world) / f"{rank}.err").read_text()) for rank, code in enumerate(codes[world])]
        for world in wanted
    }


def main(home: str, *wanted: str) -> None:
    """Fork the requested number of processes, wait for all of them, and continue with the next number."""
    import companion.commands.generate
    import companion.commands.main  # noqa: F401

    pid = os.fork()
    if pid == 0:  # a process that trains by itself; its imports from here on are its own
        trainer = make("text")
        train(trainer, 2)
        load(make("text"), everything(trainer), 2)
        Path(home, "compiler.json").write_text(json.dumps("torch._dynamo" in sys.modules))
        os._exit(0)
    os.waitpid(pid, 0)
    import torch._dynamo  # imported once for all of them
    import torch.distributed.fsdp  # noqa: F401

    # Otherwise garbage collection in each process would touch, and so copy, the memory pages of all that is imported
    gc.freeze()
    for world, port, parts in zip(wanted[::3], wanted[1::3], wanted[2::3], strict=True):
        folder, started = Path(home, world), []
        for rank in range(int(world)):
            pid = os.fork()
            if pid == 0:
                os.environ.update(environment(rank, int(world), int(port)))
                with (folder / f"{rank}.err").open("w") as errors:
                    os.dup2(errors.fileno(), 2)
                code = one(parts, str(folder))
                sys.stderr.flush()
                os._exit(code)  # without tearing down all that is imported
            started.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in started]
        (folder / "codes.json").write_text(json.dumps(codes))


def one(parts: str, folder: str) -> int:
    known = {"equal": equal, "agree": agree, "stop": stop, "lose": lose}
    try:
        with start_processes(torch.device("cpu")) as parallel:
            for part in parts.split():
                known[part](Path(folder, part), parallel.world)
    except PeerDied as lost:
        if lost.speaks:
            print(lost, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    main(*sys.argv[1:])
