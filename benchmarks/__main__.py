"""`make bench`: decode, prefill, training and memory, compared with other libraries and with this machine's limit.

`smollm2` compares a published model with transformers and llama.cpp, in each weight format.

python -m benchmarks [--quick] [--only decode] [--sizes small] [--device cuda] [--precision bf16] [--compile]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from benchmarks import decode, growth, memory, prefill, published, report, training
from benchmarks.compare import Comparison, Setting, ceiling, quiet
from benchmarks.peers import PEERS
from benchmarks.sizes import SIZES
from companion.costs.chips import published_peak
from companion.ground.device import find_device, versions
from companion.ground.installed import installed

PARTS = {"decode": decode.compare, "prefill": prefill.compare, "training": training.compare}
TABLES: dict[str, ModuleType] = {"memory": memory, "growth": growth}
ALL = [*PARTS, *TABLES, "smollm2"]


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    described = argparse.ArgumentParser(
        prog="make bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    described.add_argument("--only", nargs="+", choices=ALL, default=ALL, metavar="PART", help=", ".join(ALL))
    described.add_argument("--sizes", nargs="+", choices=SIZES, default=["small", "medium"], metavar="SIZE")
    described.add_argument(
        "--quick", action="store_true", help="measure only the first size, with 5 rounds and half the new tokens"
    )
    described.add_argument("--rounds", type=int, default=11, help="number of rounds (default: 11)")
    described.add_argument("--device", default="auto", help="cpu, cuda or auto (default: auto)")
    described.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    described.add_argument("--compile", action="store_true", help="also measure compiled models")
    described.add_argument(
        "--out", default="runs/bench", metavar="FOLDER", help="output folder for bench.json (default: runs/bench)"
    )
    return described


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print each table as soon as it is complete, and write bench.json.

    Returns:
        1 if a contender computes a different function, 2 for bad input, otherwise 0.
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
    sizes = [SIZES[name] for name in dict.fromkeys(flags.sizes)][: 1 if flags.quick else None]
    rounds = min(5, flags.rounds) if flags.quick else flags.rounds
    chip, copying = ceiling(torch.bfloat16 if flags.precision == "bf16" else torch.float32, device)
    setting = Setting(device, flags.precision, flags.compile, rounds, chip, patience=300.0)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    peers = {peer: number for peer in PEERS if (number := installed(peer))}
    machine = {"device": name, "threads": torch.get_num_threads(), "rounds": rounds}
    machine |= {"precision": flags.precision, "compile": flags.compile, "load": os.getloadavg()}
    limits: dict[str, float | None] = {"flops": chip.flops, "bandwidth": chip.bandwidth, "copying": copying}
    limits["published_flops"] = published_peak(name, setting.dtype)
    record: dict[str, Any] = {"machine": machine, "ceiling": limits, "versions": versions() | peers}
    print(report.preamble(record), flush=True)
    comparisons: list[Comparison] = []
    record |= {name: [] for name in TABLES}
    for size in (size.quick() if flags.quick else size for size in sizes):
        for part in (part for part in PARTS if part in flags.only):
            with quiet():
                comparisons.append(PARTS[part](size, setting))
            print("\n" + report.table(comparisons[-1]), flush=True)
            report.write_json(out / "bench.json", record, comparisons)
        for name, table in TABLES.items():
            if name in flags.only:
                with quiet():
                    found = table.compare(size, setting)
                record[name] += [asdict(one) | {"size": size.name} for one in found]
                print("\n" + table.report(found, size), flush=True)
                report.write_json(out / "bench.json", record, comparisons)
    if "smollm2" in flags.only:
        try:
            with quiet():
                for comparison in published.compare(setting, new=8 if flags.quick else 16):
                    comparisons.append(comparison)
                    print("\n" + report.table(comparison), flush=True)
                    report.write_json(out / "bench.json", record, comparisons)
        except ValueError as error:
            print(f"\nnot measured: SmolLM2: {error}")
    print(f"\nfigures   {out / 'bench.json'}")
    wrong = [
        f"{gone.name} ({c.title}): {gone.why}" for c in comparisons for gone in c.left_out if gone.kind == "differs"
    ]
    if wrong:
        print("\nnot the same function, which should never happen:\n  " + "\n  ".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
