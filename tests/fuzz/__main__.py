"""The long run of the fuzzers: `make fuzz`. Ten minutes of cases nobody has seen, then what became of them, by kind."""

from __future__ import annotations

import argparse
import sys
import time

from tqdm import tqdm

from companion.ground.readable import table
from fuzz.kinds import KINDS
from fuzz.oracle import Found, run

SHOWN = 8
"""Faults of a kind that are shown."""
ROUND = 0.25
"""Of a kind's cases in `make test`, how many it is tried with before it is the next one's turn."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long. Default: 10")
    parser.add_argument("--seed", type=int, default=None, help="of the first cases. Default: another one each time")
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="kinds whose name has one of these words")
    given = parser.parse_args()
    kinds = [kind for kind in KINDS if not given.only or any(word in kind.name for word in given.only)]
    if not kinds:
        print(f"--only {' '.join(given.only)}: expected words of {', '.join(kind.name for kind in KINDS)}")
        return 2
    seed = int(time.time()) if given.seed is None else given.seed
    found = {kind.name: Found() for kind in kinds}
    print(f"seed {seed}; --seed {seed} tries the same cases, as far as the time goes")
    began, number = time.monotonic(), 0
    with tqdm(total=round(60 * given.minutes), unit="s", bar_format="{n_fmt}/{total_fmt} s |{bar}| {desc}") as bar:
        while time.monotonic() - began < 60 * given.minutes:
            kind = kinds[number % len(kinds)]
            run(kind, max(5, int(kind.share * ROUND)), seed + number, found[kind.name])
            number += 1
            cases = sum(each.counts.total() for each in found.values())
            faults = sum(len(each.faults) for each in found.values())
            bar.set_description_str(f"{cases:,} cases, {faults} faults", refresh=False)
            bar.n = min(bar.total, round(time.monotonic() - began))
            bar.refresh()
    names = ("works", "refused", "faults")
    rows = [
        (name, f"{each.counts.total():,}", *(f"{each.counts[column]:,}" for column in names))
        for name, each in found.items()
    ]
    sums = [sum(each.counts[column] for each in found.values()) for column in names]
    rows.append(("all", f"{sum(sums):,}", *(f"{total:,}" for total in sums)))
    print(table(rows, ("", "cases", *names), indent=0))
    for each in found.values():
        for fault in each.different()[:SHOWN]:
            print(f"\n{fault}")
    return 1 if any(each.faults for each in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
