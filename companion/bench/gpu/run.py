"""All parts in turn, each in a process and with a limit of its own."""

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
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from companion.bench.gpu import page
from companion.bench.gpu.figures import Part, read
from companion.bench.gpu.needs import absent
from companion.ground.atomic import write_atomic
from companion.ground.device import versions
from companion.ground.installed import installed

LIMITS = {
    "ceiling": 30,
    "tests": 120,
    "training": 110,
    "decoding": 120,
    "cache": 60,
    "experts": 60,
    "processes": 40,
    "attention": 90,
}
"""Seconds that each part may take at most, in the order in which they run; all together may take `MINUTES`."""
MINUTES = 7.5
RESERVE = 6.0
"""Seconds that a part leaves to each of those after it: what is short and last is not lost to what is slow."""


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
    missing = absent()
    machine = versions() | {
        "device": "CPU" if rehearsal else torch.cuda.get_device_name(),
        "triton": installed("triton") or "not installed",
        "transformers": installed("transformers") or "not installed",
    }
    if not rehearsal:
        machine["memory"] = str(torch.cuda.get_device_properties(0).total_memory)
        machine["cuda"] = str(torch.version.cuda)
    report: dict[str, Any] = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "rehearsal": rehearsal,
        "machine": machine,
        "missing": missing,
    }
    show(page.head(report))
    parts: list[Part] = []
    chip: tuple[float, float] | None = None
    for place, name in enumerate(names):
        left = 60 * minutes - (time.monotonic() - began) - RESERVE * (len(names) - place - 1)
        part = Part(name)
        parts.append(part)
        if name == "tests" and "pytest" in missing:
            part.status, part.why = "not here", "pytest is not installed"
        elif left > RESERVE:
            _run(part, {"rehearsal": rehearsal, "chip": chip}, min(LIMITS[name], left))
        if name == "ceiling" and len(part.figures) >= 2:
            values = {figure.unit: figure.value for figure in reversed(part.figures) if "published" not in figure.name}
            chip = values["FLOP/s"], values["B/s"]
        show("\n" + page.block(part))
        report |= {"seconds": round(time.monotonic() - began, 1), "parts": [asdict(part) for part in parts]}
        write_atomic(out / "gpu.json", (json.dumps(report, indent=1) + "\n").encode())
        text = "\n\n".join([page.head(report), *map(page.block, parts), page.foot(report)])
        write_atomic(out / "gpu.txt", (text + "\n").encode())
    show("\n" + page.foot(report))
    return all(part.status in ("done", "not here") for part in parts)


def _run(part: Part, options: dict[str, Any], limit: float) -> None:
    """One part in a process; it is stopped, with all it started, when its time is over."""
    environment = dict(os.environ)
    environment.setdefault("HF_HUB_OFFLINE", "1")
    if options["rehearsal"]:
        environment["TRITON_INTERPRET"] = "1"
        environment["CUDA_VISIBLE_DEVICES"] = ""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file, errors = Path(folder, "found.jsonl"), Path(folder, "errors.txt")
        command = [sys.executable, "-m", "companion.bench.gpu.child", part.name, str(file), json.dumps(options)]
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
        part.figures, part.remarks, error = read(file)
        if code is None:
            part.status, part.why = "out of time", f"stopped after {limit:.0f} seconds"
        elif code == 0 and error == "":
            part.status = "done"
        else:
            last = errors.read_text("utf-8", errors="replace").strip().splitlines()[-1:] or ["nothing was said"]
            part.status, part.why = "failed", error or f"ended with {code}: {last[0][:300]}"
