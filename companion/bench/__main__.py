"""`python -m companion.bench`, which `make gpu` runs. Its flags are read by Python's own argparse: what reads those
of `companion` need not be installed where this runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from companion.bench.gpu_requirements import TITLES, required


def parser() -> argparse.ArgumentParser:
    """The flags."""
    described = argparse.ArgumentParser(
        prog="python -m companion.bench",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        description=(
            "Prove and measure everything that needs a GPU, in under eight minutes, with nothing but\n"
            "Python, PyTorch, numpy, safetensors and jaxtyping; pytest, Triton and transformers are used\n"
            "where they are installed. Without a GPU everything is rehearsed with tiny sizes.\n\n"
            "Each part runs in a process of its own with a limit of its own; one that fails says why,\n"
            "and the others go on. Every speed stands beside what the chip reaches in a large matrix\n"
            "product or a copy, measured first, and beside what its maker publishes."
        ),
        epilog="parts:\n"
        + "\n".join(f"  {name:<10} {title}" for name, title in TITLES.items())
        + "\n\nexit codes: 0 all parts are done, 1 a part failed or ran out of time, 2 bad input",
    )
    described.add_argument("--only", nargs="+", metavar="PART", default=list(TITLES), help="some of the parts below")
    described.add_argument("--rehearsal", action="store_true", help="tiny sizes on the CPU, also where there is a GPU")
    described.add_argument("--minutes", type=float, default=7.5, help="for all parts together (default: 7.5)")
    described.add_argument(
        "--out", default="runs/gpu", metavar="FOLDER", help="gets gpu.json and gpu.txt, the page (default: runs/gpu)"
    )
    return described


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 all is done, 1 a part failed, 2 bad input."""
    flags = parser().parse_args(argv)
    try:
        required()
        unknown = [name for name in flags.only if name not in TITLES]
        if unknown:
            raise ValueError(f"--only {unknown[0]}: expected one or more of {', '.join(TITLES)}")
        if not 0 < flags.minutes <= 60:
            raise ValueError(f"--minutes {flags.minutes:g}: expected a number above 0 and at most 60")
        out = Path(flags.out)
        try:
            out.mkdir(parents=True, exist_ok=True)
            probe = out / ".probe"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise ValueError(
                f"--out {flags.out}: expected a folder that can be written to ({error.strerror})"
            ) from None
    except ValueError as error:
        print(f"companion.bench: error: {error}", file=sys.stderr)
        return 2
    import torch

    from companion.bench.gpu import measure

    try:
        done = measure(
            [name for name in TITLES if name in flags.only],  # in their order, each once
            rehearsal=flags.rehearsal or not torch.cuda.is_available(),
            out=out,
            minutes=flags.minutes,
            show=lambda text: print(text, flush=True),
        )
    except KeyboardInterrupt:
        print("\ncompanion.bench: stopped", file=sys.stderr)
        return 130
    print(f"figures   {out / 'gpu.json'}\npage      {out / 'gpu.txt'}")
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
