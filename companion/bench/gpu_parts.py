"""One part of `make gpu`, in the process that `gpu.py` starts for it.

What it finds goes to the file as soon as it is known, a line of JSON each, so that it survives the process.
"""

from __future__ import annotations

import functools
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import traceback
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

import companion
from companion.bench import attention_variants, batching, gated_delta_net, layers, models
from companion.bench.compare import Comparison, Setting
from companion.bench.sizes import ON_A_GPU, REHEARSED, SIZES, Size
from companion.bench.suite import ceiling, quiet
from companion.costs.chips import Chip
from companion.training.distributed.launch import start_processes
from companion.training.distributed.parallel import Parallel
from companion.training.trainer import Trainer, TrainingConfig
from companion.transformer import Transformer

ROOT = Path(companion.__file__).parents[1]
Found = Comparison | Chip | str
"""A comparison, what the chip reaches, or a remark."""


def reached(size: Size, setting: Setting) -> Iterator[Found]:
    """What this chip reaches in a large product, and in reading: all shares are of these."""
    chip, copying = ceiling(setting.dtype, setting.device)
    yield chip
    yield f"{copying / 1e9:,.4g} GB/s in a copy, which counts each byte as read and as written"


def gpu_tests() -> list[Path]:
    """The test files with tests that need a GPU."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [path for path in files if re.search(r"^(@|pytestmark = )pytest\.mark\.gpu", path.read_text("utf-8"), re.M)]


def tests(size: Size, setting: Setting) -> Iterator[Found]:
    """The tests that need a GPU, with no plugin but pytest itself. In rehearsal they are collected and skipped.

    Raises `RuntimeError` where one fails, or none is found.
    """
    files = gpu_tests()
    if not files:
        raise RuntimeError(f"no tests in {ROOT / 'tests'}: run this in a checkout of the course")
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
        command += ["-o", "addopts=--import-mode=importlib --strict-markers", f"--junitxml={results}"]
        alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # what else is installed has no say here
        done = subprocess.run([*command, *map(str, files)], cwd=ROOT, capture_output=True, text=True, env=alone)
        if not results.exists():
            raise RuntimeError(f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-250:]}")
        cases = list(ElementTree.parse(results).getroot().iter("testcase"))
    said = {kind: [case.find(kind) for case in cases] for kind in ("failure", "error", "skipped")}
    wrong, skipped = (
        [part for kind in kinds for part in said[kind] if part is not None]
        for kinds in (("failure", "error"), ("skipped",))
    )
    yield f"{len(cases) - len(wrong) - len(skipped)} of {len(cases)} tests passed, {len(skipped)} skipped"
    yield from (" ".join((part.get("message") or "").split())[:160] for part in [*wrong[:5], *skipped[:1]])
    if wrong or not cases:
        raise RuntimeError(f"{len(wrong)} of {len(cases)} tests failed")


def train(size: Size, setting: Setting) -> Iterator[Found]:
    """Updates of the whole trainer, plain, compiled, and compiled with Muon; with fewer rows where the memory is too
    small for all."""
    kinds: tuple[tuple[bool, Literal["adamw", "muon"]], ...] = ((False, "adamw"), (True, "adamw"), (True, "muon"))
    for compiled, optimizer in kinds:
        while True:
            try:
                found = models.training(size, replace(setting, compile=compiled), beside=(), optimizer=optimizer)
                break
            except torch.OutOfMemoryError:
                if size.batch == 1:
                    raise
                size = replace(size, batch=size.batch // 2)
        found.title += ", compiled" * compiled + ", with Muon" * (optimizer == "muon")
        yield found
        if setting.device.type == "cuda":
            yield f"{torch.cuda.max_memory_allocated() / 1e9:,.3g} GB of memory at most"
            torch.cuda.empty_cache()


def each(*works: Callable[[Size, Setting], list[Comparison]]) -> Callable[[Size, Setting], Iterator[Found]]:
    """A part of the comparisons that these make."""
    return lambda size, setting: (found for work in works for found in work(size, setting))


def moe(size: Size, setting: Setting) -> Iterator[Found]:
    """The mixture in each of its ways, beside one dense network with as many FLOPs a token."""
    yield from layers.moe(SIZES["large"] if size is ON_A_GPU else size, setting)


def one_process(size: Size, setting: Setting) -> Iterator[Found]:
    """The code of several processes in a group of one (NCCL on a GPU, gloo in rehearsal): a sum over all is what it was
    made of, and an update, data parallel and sharded, has the loss of the plain one."""
    losses = {"plain": _losses(size, setting, Parallel())}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    # A mesh has its groups once in a process: the second way is measured in the first one's group.
    with start_processes(torch.device(setting.device.type)) as parallel:
        numbers = torch.arange(1000, device=parallel.device, dtype=torch.float32)
        total = numbers.clone()
        dist.all_reduce(total)
        if not torch.equal(total, numbers):
            raise RuntimeError("the sum over one process is not what that process has")
        yield f"{dist.get_world_size()} process started, {dist.get_backend()}"
        losses["data parallel"] = _losses(size, setting, parallel)
        from companion.training.distributed.data_parallel import Processes

        assert parallel.device is not None
        losses["sharded"] = _losses(size, setting, Processes(parallel.device, shard=True))
    for name, series in losses.items():
        far = max(abs(a - b) for a, b in zip(series, losses["plain"], strict=True))
        yield f"loss after {len(series)} updates, {name}: {series[-1]:.6f}"
        if far > 1e-4:
            raise RuntimeError(f"{name}: the losses {series} are not those of a plain run, {losses['plain']}")


def _losses(size: Size, setting: Setting, parallel: Any) -> list[float]:
    """The first losses of a small decoder in fp32."""
    config = size.config.with_(layers=2, vocab=512, d_model=48, context=32)
    torch.manual_seed(0)
    model = Transformer(config).to(setting.device)
    tokens = torch.randint(config.vocab, (4, config.context + 1))
    batch = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    settings = TrainingConfig(updates=1000, learning_rate=1e-3, warmup=0)
    trainer = Trainer(model, lambda _: batch, settings, parallel=parallel)
    return [trainer.update().loss for _ in range(3)]


PARTS: dict[str, Callable[[Size, Setting], Iterator[Found]]] = {
    "ceiling": reached,
    "tests": tests,
    "train": train,
    "cache": each(models.cache_gain),
    "kept": lambda size, setting: iter([attention_variants.decode_kept(size, setting)]),
    "batch": lambda size, setting: iter([batching.decode_many(replace(size, new=max(16, size.new // 4)), setting)]),
    "moe": moe,
    "processes": one_process,
    "attention": each(layers.attention),
    "linear": each(gated_delta_net.linear),
    "decode": each(functools.partial(models.decode, beside=())),
}


def main(part: str, file: str, told: str) -> int:
    """Run one part; what it finds goes to `file`. 1 if it failed."""
    options = json.loads(told)

    def write(**line: Any) -> None:
        with open(file, "a", encoding="utf-8") as out:
            out.write(json.dumps(line) + "\n")

    try:
        if options["rehearsal"]:
            # Traced, so that what cannot be compiled is found, but not turned into machine code, which takes minutes.
            torch.compile = functools.partial(torch.compile, backend="eager")
        device, precision, rounds = ("cpu", "fp32", 1) if options["rehearsal"] else ("cuda", "bf16", 5)
        chip = Chip(*options["chip"])
        setting = Setting(torch.device(device), precision, True, rounds, chip, progress=False, patience=20.0)
        with quiet():
            for found in PARTS[part](REHEARSED if options["rehearsal"] else ON_A_GPU, setting):
                if isinstance(found, str):
                    write(remark=found)
                elif isinstance(found, Chip):
                    write(chip=[found.flops, found.bandwidth])
                else:
                    write(comparison=asdict(found))
    except Exception as error:
        traceback.print_exc()
        write(end=" ".join(f"{type(error).__name__}: {error}".split())[:300])
        return 1
    write(end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
