"""All that needs a GPU, part by part, each in a process and with a limit of its own: one that fails, hangs or crashes
says why, and the others go on. Without a GPU all of it is rehearsed, with tiny sizes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from companion.bench import layers, models, report
from companion.bench.compare import Comparison
from companion.bench.gpu_requirements import TITLES, absent
from companion.costs.chips import Chip, published_peak
from companion.ground import display
from companion.ground.atomic import write_atomic
from companion.ground.device import versions
from companion.ground.installed import installed

LIMITS = dict(zip(TITLES, (30, 120, 90, 40, 40, 60, 60, 40, 60, 60, 180), strict=True))
"""Seconds that each part may take at most, in the order in which they run; all together may take `MINUTES`."""
MINUTES = 7.5
RESERVE = 12.0
"""Seconds that a part leaves to each of those after it: what is short and last is not lost to what is slow."""
UNKNOWN = Chip(1e12, 1e11)
"""What shares are of where nothing was measured: then they mean nothing, and no goal is spoken of."""


@dataclass
class Part:
    """What became of a part.

    status:  done; failed; out of time (it was stopped, and what it had found counts); not here (what it needs is not
             installed); or not begun (no time was left).
    """

    name: str
    status: str = "not begun"
    why: str = ""
    seconds: float = 0.0
    chip: tuple[float, float] | None = None
    comparisons: list[Comparison] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def read(self, path: Path) -> str | None:
        """Take in what a process wrote; its error ("": none), `None` if it never came to its end. A last line that was
        cut off counts for nothing."""
        for line in path.read_text("utf-8").splitlines() if path.exists() else ():
            with suppress(ValueError):
                match json.loads(line):
                    case {"comparison": told}:
                        self.comparisons.append(Comparison.of(told))
                    case {"remark": said}:
                        self.remarks += [said] * (said not in self.remarks)
                    case {"chip": [flops, bandwidth]}:
                        self.chip = flops, bandwidth
                    case {"end": error}:
                        return error
        return None


def measure(
    names: Sequence[str],
    *,
    rehearsal: bool,
    out: Path,
    minutes: float = MINUTES,
    show: Callable[[str], Any] = print,
) -> bool:
    """Run the parts, show each, and write gpu.json and gpu.txt, the page, into the folder `out` after each of them.

    False if a part failed or ran out of time.
    """
    began = time.monotonic()
    record: dict[str, Any] = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "rehearsal": rehearsal,
        "machine": versions() | _machine(rehearsal),
        "missing": absent(),
    }
    show(head(record))
    parts: list[Part] = []
    chip = None
    for place, name in enumerate(names):
        left = 60 * minutes - (time.monotonic() - began) - RESERVE * (len(names) - place - 1)
        part = Part(name)
        parts.append(part)
        if name == "tests" and "pytest" in record["missing"]:
            part.status, part.why = "not here", "pytest is not installed"
        elif left > RESERVE:
            _run(
                part, {"rehearsal": rehearsal, "chip": chip or [*asdict(UNKNOWN).values()][:2]}, min(LIMITS[name], left)
            )
        chip = part.chip or chip
        goals = chip is not None and not rehearsal
        show("\n" + block(part, goals))
        record |= {"seconds": round(time.monotonic() - began, 1), "parts": [asdict(part) for part in parts]}
        write_atomic(out / "gpu.json", (json.dumps(record, indent=1) + "\n").encode())
        text = "\n\n".join([head(record), *(block(part, goals) for part in parts), foot(record)])
        write_atomic(out / "gpu.txt", (text + "\n").encode())
    show("\n" + foot(record))
    return all(part.status in ("done", "not here") for part in parts)


def _machine(rehearsal: bool) -> dict[str, str]:
    found = {name: installed(name) or "not installed" for name in ("triton", "transformers")}
    if rehearsal:
        return found | {"device": "CPU"}
    memory = torch.cuda.get_device_properties(0).total_memory
    return found | {"device": torch.cuda.get_device_name(), "memory": str(memory), "cuda": str(torch.version.cuda)}


def _run(part: Part, options: dict[str, Any], limit: float) -> None:
    """One part in a process; it is stopped, with all it started, when its time is over."""
    environment = dict(os.environ)
    environment.setdefault("HF_HUB_OFFLINE", "1")
    if options["rehearsal"]:
        environment |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file, errors = Path(folder, "found.jsonl"), Path(folder, "errors.txt")
        command = [sys.executable, "-m", "companion.bench.gpu_parts", part.name, str(file), json.dumps(options)]
        with errors.open("wb") as stream:
            process = subprocess.Popen(
                command, stdout=stream, stderr=stream, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
            )
            try:
                code: int | None = process.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        part.seconds = round(time.monotonic() - began, 1)
        error = part.read(file)
        if code is None:
            part.status, part.why = "out of time", f"stopped after {limit:.0f} seconds"
        elif code == 0 and error == "":
            part.status = "done"
        else:
            last = errors.read_text("utf-8", errors="replace").strip().splitlines()[-1:] or ["nothing was said"]
            part.status, part.why = "failed", error or f"ended with {code}: {last[0][:300]}"


# The page


def head(record: dict[str, Any]) -> str:
    """The machine, and what is not on it."""
    machine = record["machine"]
    name = "a rehearsal on the CPU: nothing below says how fast anything is"
    if not record["rehearsal"]:
        name = f"{machine['device']}, {report.si(float(machine['memory']))}B, CUDA {machine['cuda']}"
    lines = [
        f"GPU       {name}",
        f"when      {record['started']}",
        "versions  " + ", ".join(f"{what} {machine[what]}" for what in ("python", "torch", "triton", "transformers")),
    ]
    return "\n".join(lines + [f"not here  {what}: {why}" for what, why in record["missing"].items()])


def block(part: Part, goals: bool) -> str:
    """One part: its tables, remarks and goals, and what went wrong."""
    title = f"{TITLES[part.name]} ({part.name}, {part.seconds:.0f} s): {part.status}"
    lines = [title + (f": {part.why}" if part.why else "")]
    if part.chip:
        flops, reading = part.chip
        lines.append(f"{report.si(flops)}FLOP/s in products, {report.si(reading)}B/s of memory when it is only read")
        peak = published_peak(torch.cuda.get_device_name(), torch.bfloat16) if goals else None
        lines += [f"{flops / peak:.0%} of the published {report.si(peak)}FLOP/s"] if peak else []
    lines += [report.tables(part.comparisons)] if part.comparisons else []
    lines += [f"  . {remark}" for remark in part.remarks]
    lines += [f"goal: {said}: {'met' if met else 'missed'}" for said, met in goals_of(part) if goals]
    return "\n".join(lines)


def goals_of(part: Part) -> list[tuple[str, bool]]:
    """What the project wants of a part, in words, and whether it is so."""
    found = []
    for one in part.comparisons:
        rows = {row.name: row for row in one.rows}
        ours = [row for row in one.rows if row.name.startswith("ours")]
        if not ours:
            continue
        best = max(ours, key=lambda row: row.share)
        if part.name == "train":
            found.append((f"{one.title}: 55 % of the measured peak, {best.share:.0%}", best.share >= 0.55))
        elif part.name == "decode" and one.bound == "memory":
            found.append((f"{one.title}: 85 % of the measured bandwidth, {best.share:.0%}", best.share >= 0.85))
        elif part.name == "cache" and one.length == 8192:
            gain = rows[models.AGAIN].seconds.median / min(row.seconds.median for row in ours)
            found.append((f"a cache of 8,192 tokens: more than 10 times as fast, {gain:.3g}", gain > 10))
        elif part.name == "moe" and one.items > 1000:
            over = 1 / rows[layers.DENSE].ratio.median
            found.append((f"{one.title}: at most 1.3 times a dense network, {over:.2f}", over <= 1.3))
    return found


def foot(record: dict[str, Any]) -> str:
    """How it went as a whole."""
    states = [part["status"] for part in record["parts"]]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return f"{display.count(len(states), 'part')}: {counts}; {record['seconds']:.0f} seconds"
