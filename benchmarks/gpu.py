"""`make gpu`: everything that needs a GPU, tested and measured in under eight minutes.

It needs only Python, PyTorch, numpy, safetensors, jaxtyping and pytest, and uses Triton if it is installed. Each part
runs in its own process with its own time limit. If a part fails, hangs or crashes, the reason is reported and the
remaining parts still run. Results are written as soon as they are known. Without a GPU, everything is rehearsed on the
CPU with tiny sizes.

    python -m benchmarks.gpu [--only decode] [--rehearsal] [--minutes 7.5] [--out runs/gpu]
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

NEEDED = ("torch", "numpy", "safetensors", "jaxtyping")
missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
if missing:
    sys.exit(f"make gpu: error: {', '.join(missing)} must be installed in {sys.executable}")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from benchmarks import decode, kernels, memory, prefill, training  # noqa: E402
from benchmarks.compare import Comparison, Setting, ceiling, si  # noqa: E402
from benchmarks.sizes import ON_A_GPU, SIZES, Size  # noqa: E402
from companion.costs.chips import Chip, published_peak  # noqa: E402
from companion.ground.atomic import write_atomic  # noqa: E402
from companion.ground.device import versions  # noqa: E402
from companion.training.distributed.launch import start_processes  # noqa: E402
from companion.training.distributed.parallel import Parallel  # noqa: E402
from companion.training.trainer import Trainer, TrainingConfig  # noqa: E402
from companion.transformer import Transformer  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
LIMITS = {
    "ceiling": 30, "memory": 40, "prefill": 40, "processes": 40, "kernels": 60, "training": 90, "tests": 120,
    "decode": 180,
}  # fmt: skip
"""Time limit of each part in seconds, in the order in which the parts run. Short parts run first, so that most results
exist if the machine becomes unavailable. Decoding runs last because it waits longest for the compiler.
"""
RESERVE = 12.0
"""Seconds reserved for each later part, so that slow parts do not crowd out short ones at the end."""
GOALS = {"training": 0.55, "decode": 0.85}
"""Share of the measured limit that the best row of a part should reach."""
UNKNOWN = Chip(1e12, 1e11)
"""A placeholder: without the measured ceiling, shares mean nothing and no goal is shown."""
Found = Comparison | Chip | str
"""A comparison, the measured ceiling of the chip, or a remark."""


# The parts


def reached(size: Size, setting: Setting) -> Iterator[Found]:
    """Measure this chip's peak rates, to which all shares refer, using a large matrix product and memory reads."""
    chip, copying = ceiling(setting.dtype, setting.device)
    yield chip
    yield f"{copying / 1e9:,.4g} GB/s in a copy, which counts each byte as read and as written"


def gpu_tests() -> list[Path]:
    """Return the test files that contain tests marked `gpu`."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [path for path in files if re.search(r"^(@|pytestmark = )pytest\.mark\.gpu", path.read_text("utf-8"), re.M)]


def tests(size: Size, setting: Setting) -> Iterator[Found]:
    """Run the tests that need a GPU, without pytest plugins. In a rehearsal, the tests are collected but skipped.

    Raises:
        RuntimeError: If a test failed, none was found, or pytest wrote no results.
    """
    if importlib.util.find_spec("pytest") is None:
        yield "not run: pytest is not installed"
        return
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
        command += ["-o", "addopts=--import-mode=importlib --strict-markers", f"--junitxml={results}"]
        command += map(str, gpu_tests())
        # installed plugins must not affect the results
        alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=alone)
        if not results.exists():
            raise RuntimeError(f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-250:]}")
        cases = list(ElementTree.parse(results).getroot().iter("testcase"))
    wrong = [part for case in cases for kind in ("failure", "error") if (part := case.find(kind)) is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    yield f"{len(cases) - len(wrong) - skipped} of {len(cases)} tests passed, {skipped} skipped"
    yield from (" ".join((part.get("message") or "").split())[:160] for part in wrong[:5])
    if wrong or not cases:
        raise RuntimeError(f"{len(wrong)} of {len(cases)} tests failed")


def train(size: Size, setting: Setting) -> Iterator[Found]:
    """Time the trainer's updates: plain, compiled, and compiled with Muon.

    If there is not enough memory, the batch size is halved.
    """
    for compiled, optimizer in ((False, "adamw"), (True, "adamw"), (True, "muon")):
        while True:
            try:
                found = training.compare(size, replace(setting, compile=compiled), (), optimizer)  # type: ignore[arg-type]
                break
            except torch.OutOfMemoryError:
                if size.batch == 1:
                    raise
                size = replace(size, batch=size.batch // 2)
        found.title += ", compiled" * compiled
        yield found
        if setting.device.type == "cuda":
            yield f"{torch.cuda.max_memory_allocated() / 1e9:,.3g} GB of memory at most"
            torch.cuda.empty_cache()


def one_process(size: Size, setting: Setting) -> Iterator[Found]:
    """Run the multi-process code in one process: data-parallel and sharded updates must give the losses of plain ones.

    Raises:
        RuntimeError: If a loss differs from the loss in a plain run by more than 1e-4.
    """
    losses = {"plain": _losses(size, setting, Parallel())}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with start_processes(torch.device(setting.device.type)) as parallel:
        from companion.training.distributed.data_parallel import Processes

        yield f"{dist.get_world_size()} process started, {dist.get_backend()}"
        assert parallel.device is not None
        losses["data parallel"] = _losses(size, setting, parallel)
        losses["sharded"] = _losses(size, setting, Processes(parallel.device, shard=True))
    for name, series in losses.items():
        yield f"loss after {len(series)} updates, {name}: {series[-1]:.6f}"
        if max(abs(a - b) for a, b in zip(series, losses["plain"], strict=True)) > 1e-4:
            raise RuntimeError(f"{name}: expected the losses of a plain run, {losses['plain']}, got {series}")


def _losses(size: Size, setting: Setting, parallel: Any) -> list[float]:
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
    "memory": lambda size, setting: iter([memory.report(memory.compare(size, setting, ()), size)]),
    "prefill": lambda size, setting: iter([prefill.compare(size, setting, ())]),
    "processes": one_process,
    "kernels": lambda size, setting: iter([kernels.report(size.config, setting.device, setting.dtype)]),
    "training": train,
    "tests": tests,
    "decode": lambda size, setting: iter([decode.compare(size, setting, ())]),
}


def run_part(part: str, file: str, rehearsal: bool, chip: Chip) -> int:
    """Run one part, and return the exit code: 0 if the part is done, 1 if it failed.

    Each result is appended to `file` as a line of JSON, so that it is not lost if the process dies.
    """

    def write(**line: Any) -> None:
        with open(file, "a", encoding="utf-8") as out:
            out.write(json.dumps(line) + "\n")

    try:
        # the eager backend traces the code, which reveals what cannot be compiled, but generates no machine code
        if rehearsal:
            torch.compile = functools.partial(torch.compile, backend="eager")
        device, precision, rounds = ("cpu", "fp32", 1) if rehearsal else ("cuda", "bf16", 5)
        setting = Setting(torch.device(device), precision, True, rounds, chip, patience=20.0)
        with warnings.catch_warnings(action="ignore"):
            for found in PARTS[part](SIZES["tiny"] if rehearsal else ON_A_GPU, setting):
                if isinstance(found, str):
                    write(text=found)
                elif isinstance(found, Chip):
                    write(text=_measured(found, rehearsal), chip=[found.flops, found.bandwidth])
                else:
                    goal = "" if rehearsal or chip == UNKNOWN else goal_of(found)
                    write(text=found.table() + goal, comparison=asdict(found))
    except Exception as error:
        traceback.print_exc()
        write(end=" ".join(f"{type(error).__name__}: {error}".split())[:300])
        return 1
    write(end="")
    return 0


def _measured(chip: Chip, rehearsal: bool) -> str:
    line = f"{si(chip.flops)}FLOP/s in matrix products, {si(chip.bandwidth)}B/s when memory is only read"
    peak = None if rehearsal else published_peak(torch.cuda.get_device_name(), torch.bfloat16)
    return line + (f"\n{chip.flops / peak:.0%} of the published {si(peak)}FLOP/s" if peak else "")


def goal_of(one: Comparison) -> str:
    """Return a line that says whether our best row reaches the goal of its part, or "" if there is no row or no
    goal."""
    best = max((row.share for row in one.rows if row.name.startswith("ours")), default=None)
    if best is None or one.part not in GOALS:
        return ""
    goal = GOALS[one.part]
    return f"\ngoal: {goal:.0%} of the limit, {best:.0%}: {'met' if best >= goal else 'missed'}"


# All parts


def measure(names: Sequence[str], *, rehearsal: bool, out: Path, minutes: float, show: Callable[[str], Any]) -> bool:
    """Run the parts, and return whether all of them were completed.

    After each part, its text is printed, and gpu.json and gpu.txt are written to `out`. While a part runs, each result
    is appended to a file named after the part, such as `training.jsonl`.
    """
    began, chip = time.monotonic(), UNKNOWN
    gpu = "a rehearsal on the CPU: the times below mean nothing" if rehearsal else torch.cuda.get_device_name()
    texts = [f"GPU       {gpu}\nversions  " + ", ".join(f"{what} {number}" for what, number in versions().items())]
    show(texts[0])
    parts: list[dict[str, Any]] = []
    for place, name in enumerate(names):
        left = 60 * minutes - (time.monotonic() - began) - RESERVE * (len(names) - place - 1)
        part: dict[str, Any] = {"status": "not begun", "why": "no time was left", "seconds": 0.0, "found": []}
        if left > RESERVE:
            patience = 3 * LIMITS[name] if rehearsal else LIMITS[name]  # the CPU may be busy
            part = run_apart(name, rehearsal, chip, min(patience, left), out)
        chip = next((Chip(*line["chip"]) for line in part["found"] if "chip" in line), chip)
        parts.append({"name": name} | part)
        headline = f"{name} ({part['seconds']:.0f} s): {part['status']}" + (f": {part['why']}" if part["why"] else "")
        texts.append("\n".join([headline, *(line["text"] for line in part["found"] if "text" in line)]))
        show("\n" + texts[-1])
        record = {"rehearsal": rehearsal, "machine": versions(), "seconds": time.monotonic() - began, "parts": parts}
        write_atomic(out / "gpu.json", json.dumps(record, indent=1) + "\n")
        write_atomic(out / "gpu.txt", "\n\n".join(texts) + "\n")
    return all(part["status"] == "done" for part in parts)


def run_apart(name: str, rehearsal: bool, chip: Chip, limit: float, out: Path) -> dict[str, Any]:
    """Run one part in its own process, and kill it and its child processes after `limit` seconds.

    The process appends each result to a file in `out` as soon as it is known.
    """
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    if rehearsal:
        environment |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file, errors = (out / f"{name}.jsonl").resolve(), Path(folder, "errors.txt")
        file.unlink(missing_ok=True)
        given = ["--part", name, str(file), str(int(rehearsal)), str(chip.flops), str(chip.bandwidth)]
        with errors.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.gpu", *given],
                stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=environment, cwd=ROOT,
                start_new_session=True,
            )  # fmt: skip
            try:
                code: int | None = process.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        found = []
        for line in file.read_text("utf-8").splitlines() if file.exists() else ():
            with suppress(ValueError):  # the last line may be incomplete
                found.append(json.loads(line))
        ended = next((line["end"] for line in found if "end" in line), None)
        status, why = "done", ""
        if code is None:
            status, why = "out of time", f"stopped after {limit:.0f} seconds"
        elif code != 0 or ended != "":
            last = errors.read_text("utf-8", errors="replace").strip().splitlines()[-1:] or ["no error message"]
            status, why = "failed", ended or f"ended with {code}: {last[0][:300]}"
    return {"status": status, "why": why, "seconds": round(time.monotonic() - began, 1), "found": found}


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 0 if all parts are done, 1 if a part failed or ran out of time, 2 for bad input."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["--part"]:
        _, part, file, rehearsed, flops, bandwidth = words
        return run_part(part, file, bool(int(rehearsed)), Chip(float(flops), float(bandwidth)))
    described = argparse.ArgumentParser(
        prog="make gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = described.add_argument
    add("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    add("--rehearsal", action="store_true", help="use tiny sizes on the CPU, even if there is a GPU")
    add("--minutes", type=float, default=7.5, help="time limit for all parts together (default: 7.5)")
    add("--out", default="runs/gpu", metavar="FOLDER", help="output folder for gpu.json and gpu.txt")
    flags = described.parse_args(words)
    if not 0 < flags.minutes <= 60:
        described.error(f"--minutes {flags.minutes:g}: expected a number above 0 and at most 60")
    out = Path(flags.out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        described.error(f"--out {flags.out}: expected a writable folder ({error.strerror})")
    rehearsal = flags.rehearsal or not torch.cuda.is_available()
    names = [name for name in PARTS if name in flags.only]
    show = functools.partial(print, flush=True)
    done = measure(names, rehearsal=rehearsal, out=out, minutes=flags.minutes, show=show)
    print(f"figures   {out / 'gpu.json'}\npage      {out / 'gpu.txt'}")
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
