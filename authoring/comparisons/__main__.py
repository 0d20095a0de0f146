"""Repeat the comparisons that lessons report, and print the results of each start.

python -m authoring.comparisons [LESSON]
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
    options = parser.parse_args(arguments)
    chosen = comparisons(options.lesson)
    if not chosen:
        parser.error(f"lesson {options.lesson!r}: no comparison of it is listed; expected a number, as in 04")
    for function, said in {one.function: [x for x in chosen if x.function == one.function] for one in chosen}.items():
        start = time.monotonic()
        for one in said:
            stands = f"{one.starts} starts; {', '.join(one.budgets)}; found: {one.found}"
            print(textwrap.fill(f"Lesson {one.lesson}, {one.cell}: {one.statement} ({stands})", 110), flush=True)
        function()
        torch.set_default_dtype(torch.float32)  # undo a change of the dtype by a lesson's setup
        print(f"{time.monotonic() - start:.0f} s\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
