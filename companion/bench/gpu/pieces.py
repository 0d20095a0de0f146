"""The other parts: what the chip reaches, the tests that need it, attention, experts, and one process of NCCL."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import companion
from companion.bench import layers
from companion.bench.compare import OURS, Comparison
from companion.bench.compare import Setting as Compared
from companion.bench.gpu.figures import Figure, Record
from companion.bench.gpu.sizes import Setting
from companion.bench.gpu.whole import free, goal, published_name
from companion.costs.chips import Chip, measure_chip, published_chip
from companion.training.distributed.launch import start_processes
from companion.training.distributed.parallel import Parallel
from companion.training.trainer import Trainer, TrainingConfig
from companion.transformer import Transformer

ROOT = Path(companion.__file__).parents[1]
EXPERTS_GOAL = 1.3


def ceiling(setting: Setting, record: Record) -> None:
    """What this chip reaches in a large matrix product and in a copy, beside what its maker publishes: the best of two
    measurements. All other shares are of these."""
    chips = [measure_chip(setting.dtype, setting.device) for _ in range(1 if setting.rehearsal else 2)]
    chip = Chip(max(chip.flops for chip in chips), max(chip.bandwidth for chip in chips))
    name = published_name(setting)
    published = None if name is None else published_chip(name)
    for what, value, unit, of in (
        (f"peak, {setting.precision} matrix product", chip.flops, "FLOP/s", published and published.flops),
        ("bandwidth, copy (read and written)", chip.bandwidth, "B/s", published and published.bandwidth),
    ):
        record.figure(Figure(what, value, unit, shares={"published": value / of} if of else {}))
        if of:
            record.figure(Figure(f"{what.split(',')[0]}, published", of, unit))
    if published is None and not setting.rehearsal:
        record.remark(f"{torch.cuda.get_device_name()}: not in the table of published figures")


# The tests


def gpu_tests() -> list[Path]:
    """The test files with tests that need a GPU."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [path for path in files if re.search(r"^(@|pytestmark = )pytest\.mark\.gpu", path.read_text("utf-8"), re.M)]


def tests(setting: Setting, record: Record) -> None:
    """The tests that need a GPU, with no plugin but pytest itself. In rehearsal they are collected and skipped.

    Raises `RuntimeError` where one fails, or none is found.
    """
    files = gpu_tests()
    if not files:
        raise RuntimeError(f"no tests in {ROOT / 'tests'}: run this in a checkout of the course")
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.xml")
        options = [
            "-q",
            "-m",
            "gpu",
            "-o",
            "addopts=--import-mode=importlib --strict-markers",
            "-p",
            "no:cacheprovider",
        ]
        command = [sys.executable, "-m", "pytest", *options, f"--junitxml={results}", *map(str, files)]
        alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # what else is installed has no say here
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=alone)
        if not results.exists():
            raise RuntimeError(f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-250:]}")
        cases = list(ElementTree.parse(results).getroot().iter("testcase"))
    wrong = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    passed = len(cases) - len(wrong) - len(skipped)
    record.figure(Figure("passed", passed, "tests", shares={f"{len(cases)} collected": passed / max(len(cases), 1)}))
    if skipped:
        record.remark(f"{len(skipped)} skipped: {_reason(skipped[0])}")
    for case in wrong[:5]:
        record.remark(f"failed: {case.get('name')}: {_reason(case)}")
    if wrong or not cases:
        raise RuntimeError(f"{len(wrong)} of {len(cases)} tests failed")


def _reason(case: ElementTree.Element) -> str:
    for kind in ("failure", "error", "skipped"):
        found = case.find(kind)
        if found is not None:
            return " ".join((found.get("message") or "").split())[:160]
    return ""


# Attention and experts


def _compared(setting: Setting) -> Compared:
    chip = setting.chip or measure_chip(setting.dtype, setting.device)
    return Compared(setting.device, setting.precision, False, setting.rounds, chip, progress=False)


def _put(record: Record, comparison: Comparison, what: str, at: str) -> None:
    for row in comparison.rows:
        shares = {"measured peak": row.share} if row.name == OURS else {}
        name = "attend" if row.name == OURS and comparison.part == "attention" else row.name
        record.figure(Figure(f"{name}, {what}", row.seconds.median, "s", at=at, shares=shares))
    for out in comparison.left_out:
        record.remark(f"{out.name}: {out.kind}: {out.why}")


def attention(setting: Setting, record: Record) -> None:
    """Causal attention of one row, every backend at every length: forward, then forward and backward. All outputs and
    gradients are compared with `attend` before anything is timed."""
    compared = _compared(setting)
    for backward in (False, True):
        for length in setting.attention.lengths:
            free(setting)
            comparison = layers.attention_at(setting.attention, compared, length, backward)
            _put(record, comparison, "with backward" if backward else "forward", f"{length:,}")


def experts(setting: Setting, record: Record) -> None:
    """The mixture in each of its ways, beside one dense network with as many FLOPs a token, and Mixtral's layer where
    transformers is installed. The outputs and gradients of what computes the same are compared first."""
    sizes = setting.experts
    compared = _compared(setting)
    many, few = sizes.visitors
    for tokens, backward in ((many, False), (many, True), (few, False)):
        free(setting)
        comparison = layers.moe_of(sizes, compared, tokens, backward)
        what, at = ("with backward" if backward else "forward"), f"{tokens:,} tokens"
        _put(record, comparison, what, at)
        rows = {row.name: row for row in comparison.rows}
        over = 1 / rows[layers.DENSE].ratio.median
        wanted = goal(setting, f"at most {EXPERTS_GOAL}", over <= EXPERTS_GOAL) if tokens == many else {}
        record.figure(Figure(f"ours over dense, {what}", over, "times", at=at, **wanted))


# Several processes, of which there is one


def one_process(setting: Setting, record: Record) -> None:
    """The code of several processes in a group of one (NCCL on a GPU, gloo in rehearsal): a sum over all is what it was
    made of, and an update, data parallel and sharded, has the loss of the plain one."""
    losses = {"plain": _losses(setting, Parallel())}
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
        record.figure(Figure(f"processes, {dist.get_backend()}", dist.get_world_size(), "started"))
        losses["data parallel"] = _losses(setting, parallel)
        from companion.training.distributed.processes import Processes

        assert parallel.device is not None
        losses["sharded"] = _losses(setting, Processes(parallel.device, shard=True))
    for name, series in losses.items():
        far = max(abs(a - b) for a, b in zip(series, losses["plain"], strict=True))
        record.figure(Figure(f"loss after {len(series)} updates, {name}", series[-1], "nats"))
        if far > 1e-4:
            raise RuntimeError(f"{name}: the losses {series} are not those of a plain run, {losses['plain']}")


def _losses(setting: Setting, parallel: Any) -> list[float]:
    """The first losses of a small decoder in fp32."""
    config = setting.model.with_(layers=2, vocab=512, d_model=48, context=32)
    torch.manual_seed(0)
    model = Transformer(config).to(setting.device)
    tokens = torch.randint(config.vocab, (4, config.context + 1))
    batch = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    settings = TrainingConfig(updates=1000, learning_rate=1e-3, warmup=0)
    trainer = Trainer(model, lambda _: batch, settings, parallel=parallel)
    return [trainer.update().loss for _ in range(3)]
