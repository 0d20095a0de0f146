"""`make bench`: decode, prefill, training and memory, compared with other libraries and this machine's limit.

`smollm2` compares a published model with transformers and llama.cpp, in each weight format.

python -m benchmarks [--quick] [--only decode] [--sizes small] [--device cuda] [--precision bf16] [--compile]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import decode, growth, memory, prefill, smollm2, training
from benchmarks.compare import Comparison, Setting, ceiling, si, wrapped
from benchmarks.peers import PEERS
from benchmarks.sizes import SIZES, Size
from companion.costs.chips import published_peak
from companion.ground.atomic import write_atomic
from companion.ground.device import find_device, versions
from companion.ground.display import count
from companion.ground.installed import installed
from companion.ground.waiting import bars

PARTS = {"decode": decode.compare, "prefill": prefill.compare, "training": training.compare}
TABLES = {"memory": memory, "growth": growth}
ALL = [*PARTS, *TABLES, "smollm2"]


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    described = argparse.ArgumentParser(
        prog="make bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = described.add_argument
    add("--only", nargs="+", choices=ALL, default=ALL, metavar="PART", help=", ".join(ALL))
    add("--sizes", nargs="+", choices=SIZES, default=["small", "medium"], metavar="SIZE")
    add("--quick", action="store_true", help="measure only the first size, with 5 rounds and half the new tokens")
    add("--rounds", type=int, default=11, help="number of rounds (default: 11)")
    add("--device", default="auto", help="cpu, cuda or auto (default: auto)")
    add("--precision", choices=("fp32", "bf16"), default="fp32")
    add("--compile", action="store_true", help="also measure compiled models")
    add("--out", default="runs/bench", metavar="FOLDER", help="output folder for bench.json (default: runs/bench)")
    return described


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmarks, print each table as soon as it is complete, and write bench.json.

    Returns:
        The exit code: 1 if a contender computes a different function, 2 for bad input, otherwise 0.
    """
    flags = parser().parse_args(argv)
    try:
        if flags.rounds < 1:
            raise ValueError(f"--rounds {flags.rounds}: expected a whole number >= 1")
        device = find_device(flags.device)
        out = Path(flags.out)
        out.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        print(f"make bench: error: {error}", file=sys.stderr)
        return 2
    sizes = [SIZES[name] for name in dict.fromkeys(flags.sizes)]
    rounds = flags.rounds
    if flags.quick:
        sizes, rounds = [replace(sizes[0], new=sizes[0].new // 2)], min(5, rounds)
    chip, copying = ceiling(torch.bfloat16 if flags.precision == "bf16" else torch.float32, device)
    setting = Setting(device, flags.precision, flags.compile, rounds, chip)
    run = Run(out / "bench.json", setting, copying)
    with bars(), warnings.catch_warnings(action="ignore"):
        for size in sizes:
            run.measure(size, flags.only)
        if "smollm2" in flags.only:
            try:
                for comparison in smollm2.compare(setting, new=8 if flags.quick else 16):
                    run.add(comparison)
            except ValueError as error:
                print(f"\nnot measured: SmolLM2: {error}")
    print(f"\nfigures   {run.file}")
    wrong = [
        f"{gone.name} ({c.title}): {gone.why}" for c in run.comparisons for gone in c.left_out if gone.kind == "differs"
    ]
    if wrong:
        print("\nnot the same function, which should never happen:\n  " + "\n  ".join(wrong))
    return 1 if wrong else 0


class Run:
    """The results so far. Each comparison is printed and written to `file` as soon as it is known.

    Args:
        file: Path of bench.json.
        setting: Settings of the measurements.
        copying: Measured copy bandwidth, in bytes per second.
    """

    def __init__(self, file: Path, setting: Setting, copying: float) -> None:
        self.file, self.setting, self.comparisons = file, setting, list[Comparison]()
        device, chip = setting.device, setting.chip
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        published = published_peak(name, setting.dtype)
        peers = {peer: number for peer in PEERS if (number := installed(peer))}
        machine: dict[str, Any] = {"device": name, "threads": torch.get_num_threads(), "rounds": setting.rounds}
        machine |= {"precision": setting.precision, "compile": setting.compile, "load": os.getloadavg()}
        limits = {"flops": chip.flops, "bandwidth": chip.bandwidth, "copying": copying, "published_flops": published}
        self.record: dict[str, Any] = {"machine": machine, "ceiling": limits, "versions": versions() | peers}
        self.record |= {table: [] for table in TABLES}
        lines = [
            f"machine   {name}, {count(machine['threads'], 'thread')}, {setting.precision}, "
            + ("compiled" if setting.compile else "not compiled"),
            f"ceiling   {si(chip.flops)}FLOP/s in matrix products, {si(chip.bandwidth)}B/s when memory is only read, "
            f"as a decode step reads its weights ({si(copying)}B/s in a copy, which counts each byte as read and as "
            "written); all measured with this number of threads"
            + (f" (published: {si(published)}FLOP/s)" if published else ""),
            f"rounds    {setting.rounds}, each contender once per round, in a new random order; load of the machine: "
            f"{machine['load'][0]:.1f} processes on average over the last minute",
            "versions  " + ", ".join(f"{name} {number}" for name, number in self.record["versions"].items()),
            "",
            "ratio: time divided by ours; 2.00 takes twice as long",
            "share: part of this machine's ceiling that was reached",
        ]
        print("\n".join(wrapped(line, 10) for line in lines), flush=True)

    def measure(self, size: Size, only: Sequence[str]) -> None:
        """Run the chosen benchmarks at one size."""
        for name, compare in PARTS.items():
            if name in only:
                self.add(compare(size, self.setting))
        for name, table in TABLES.items():
            if name in only:
                found = table.compare(size, self.setting)
                self.record[name] += [asdict(one) | {"size": size.name} for one in found]
                self._show(table.report(found, size))

    def add(self, comparison: Comparison) -> None:
        """Print and write a comparison."""
        self.comparisons.append(comparison)
        self._show(comparison.table())

    def _show(self, table: str) -> None:
        print("\n" + table, flush=True)
        data = self.record | {"comparisons": [asdict(comparison) for comparison in self.comparisons]}
        write_atomic(self.file, json.dumps(data, indent=2, allow_nan=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
