"""Repeat the comparisons that lessons report, and print the results for each seed.

python -m authoring.comparisons [LESSON [FUNCTION ...]]
"""

from __future__ import annotations

import argparse
import sys
import textwrap
import time

import torch

from authoring.comparisons import comparisons


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m authoring.comparisons", description=__doc__.partition("\n")[0])
    parser.add_argument("lesson", nargs="?", default="", metavar="LESSON", help="lesson number (default: all)")
    parser.add_argument(
        "functions", nargs="*", metavar="FUNCTION", help="functions to run (default: all functions for the lesson)"
    )
    options = parser.parse_args(arguments)
    chosen = comparisons(options.lesson)
    if not chosen:
        parser.error(f"lesson {options.lesson!r}: no comparison of it is listed; expected a number, as in 04")
    names = list(dict.fromkeys(one.run for one in chosen))
    if unknown := [name for name in options.functions if name not in names]:
        parser.error(f"function {unknown[0]!r}: expected one of {', '.join(names)}")
    chosen = [one for one in chosen if one.run in (options.functions or names)]
    for function, said in {one.function: [x for x in chosen if x.function == one.function] for one in chosen}.items():
        start = time.monotonic()
        for one in said:
            stands = f"{one.starts} starts; {', '.join(one.budgets)}; found: {one.found}"
            print(textwrap.fill(f"Lesson {one.lesson}, {one.cell}: {one.statement} ({stands})", 110), flush=True)
        function()
        torch.set_default_dtype(torch.float32)  # undo changes made by a lesson's setup cell
        torch.set_grad_enabled(True)
        print(f"{time.monotonic() - start:.0f} s\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
