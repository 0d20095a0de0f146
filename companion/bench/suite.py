"""One run of the whole comparison."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from companion.bench import (
    attention_variants,
    batching,
    drafts,
    gated_delta_net,
    layers,
    models,
    peers,
    report,
    weight_formats,
)
from companion.bench.compare import Comparison, Setting
from companion.bench.sizes import Size, find_parts
from companion.costs.chips import Chip, measure_chip, measure_reading, published_peak
from companion.ground.device import versions
from companion.ground.fields import require_whole
from companion.ground.installed import installed

ROUNDS, QUICK_ROUNDS = 11, 5
"""How often everything is measured, and how often in a quick run."""
PATIENCE = 300.0
"""Seconds after which no further round of a table begins, where nobody asks for a number of rounds."""


def measure(
    sizes: Sequence[Size],
    parts: Sequence[str],
    *,
    device: torch.device,
    precision: str = "fp32",
    compile: bool = False,
    rounds: int | None = None,
    progress: bool = True,
    show: Callable[[str], Any] = print,
) -> tuple[dict[str, Any], list[Comparison]]:
    """Everything about the machine, and every comparison; `show` gets each table as soon as it is known.

    rounds:  how often everything is measured. `None`: `ROUNDS` times, or for as long as `PATIENCE` lasts.

    Raises `ValueError` for an unknown part, or none, or less than one round.
    """
    parts = find_parts(parts)
    if rounds is not None:
        require_whole("rounds", rounds)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    chip, copying = ceiling(dtype, device)
    patience = PATIENCE if rounds is None else math.inf
    setting = Setting(device, precision, compile, rounds or ROUNDS, chip, progress, patience)
    record = _record(setting, copying, sizes, parts)
    show(report.preamble(record))
    comparisons: list[Comparison] = []
    for size in sizes:
        for part in parts:
            with quiet():
                new = _measure(part, size, setting)
            comparisons += new
            show("\n" + report.tables(new))
    return record, comparisons


def ceiling(dtype: torch.dtype, device: torch.device) -> tuple[Chip, float]:
    """What this machine reaches, with the memory's speed in reading, all that a decode step does with its weights; and
    that speed in a copy. The best of two measurements: a moment in which something else runs would lower it."""
    chips = [measure_chip(dtype, device) for _ in range(2)]
    reading = max(measure_reading(device) for _ in range(2))
    return Chip(max(chip.flops for chip in chips), reading), max(chip.bandwidth for chip in chips)


def _measure(part: str, size: Size, setting: Setting) -> list[Comparison]:
    match part:
        case "train":
            return [models.training(size, setting)]
        case "decode":
            size = models.affordable(size, setting)
            forms = weight_formats.decode_forms(size, setting)
            return [
                *models.decode(size, setting),
                forms,
                drafts.decode_drafts(size, setting),
                batching.decode_many(size, setting),
            ]
        case "kept":
            return [attention_variants.decode_kept(size, setting)]
        case "moe":
            return layers.moe(size, setting)
        case "linear":
            return gated_delta_net.linear(size, setting)
        case _:
            return layers.attention(size, setting)


def _record(setting: Setting, copying: float, sizes: Sequence[Size], parts: Sequence[str]) -> dict[str, Any]:
    device, chip = setting.device, setting.chip
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    found = {peer: number for peer in peers.PEERS if (number := installed(peer)) is not None}
    own = versions()
    return {
        "machine": {
            "device": name,
            "system": own["machine"],
            "threads": torch.get_num_threads(),
            "precision": setting.precision,
            "compile": setting.compile,
            "rounds": setting.rounds,
        },
        "ceiling": {
            "flops": chip.flops,
            "bandwidth": chip.bandwidth,
            "copying": copying,
            "published_flops": published_peak(name, setting.dtype),
        },
        "versions": {"python": own["python"], "torch": own["torch"]} | found,
        "sizes": [asdict(size) for size in sizes],
        "parts": list(parts),
    }


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Other libraries' advice to their users stays out of the table."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def bench(
    sizes: Sequence[Size],
    parts: Sequence[str],
    *,
    data: Path,
    show: Callable[[str], Any] = print,
    **options: Any,
) -> bool:
    """`measure`, printed, and written to `data` (JSON).

    False if a contender computed another function than ours: it was not timed then, and the last lines name it.
    """
    record, comparisons = measure(sizes, parts, show=show, **options)
    report.write_json(data, record, comparisons)
    show(f"\nfigures   {data}")
    wrong = [f"{out.name} ({c.title}): {out.why}" for c in comparisons for out in c.left_out if out.kind == "differs"]
    if wrong:
        show("\nnot the same function, which should never happen:\n  " + "\n  ".join(wrong))
    return not wrong
