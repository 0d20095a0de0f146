"""`companion bench`: measure speed beside other libraries, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from jsonargparse import Namespace

from companion.bench.sizes import PARTS, SIZES, find_parts, find_sizes
from companion.commands.parser import Parser
from companion.commands.preflight import must_be_writable
from companion.ground.number_limits import Count


def parser() -> Parser:
    parser = Parser(
        description=(
            "Measure ours and other libraries side by side, at the same sizes, with the same weights: training step, "
            "prefill and generation beside transformers and x-transformers (LLaMA's layout), with a draft, of many "
            "sequences; steps by what is kept of a token (MHA, GQA, MQA, MLA, a matrix); a mixture of experts beside "
            "Mixtral's and a dense layer; attention, and the delta rule in chunks and by token, against length.\n\n"
            "Everybody's outputs are compared before anything is timed, then all run once in each round. The table "
            "gives medians, quartiles, ratios to ours, and the share of what this machine can reach at best. Nothing "
            "else should run meanwhile; OMP_NUM_THREADS sets the number of threads."
        ),
        epilog=(
            "examples:\n"
            "  companion bench --quick                  under three minutes on two cores\n"
            "  companion bench --only decode moe        parts of it\n"
            "  companion bench --sizes large --compile  on a GPU\n"
            "  make gpu                                 all that needs a GPU, in 8 minutes"
        ),
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds, fewer new tokens, shorter texts")
    parser.add_argument(
        "--sizes", type=str, nargs="+", default=["small"], metavar="SIZE", help=f"one or more of {', '.join(SIZES)}"
    )
    parser.add_argument(
        "--only", type=str, nargs="+", default=list(PARTS), metavar="PART", help=f"one or more of {', '.join(PARTS)}"
    )
    parser.add_device()
    parser.add_argument(
        "--precision",
        type=Literal["auto", "fp32", "bf16"],
        default="auto",
        help="of matrix products; auto: bf16 where a GPU has it, else fp32",
    )
    parser.add_argument("--compile", action="store_true", help="compile training steps; compiled decoding as well")
    parser.add_argument(
        "--rounds",
        type=Count | None,
        default=None,
        help="how often. Default: 11, or as often as five minutes a table allow, but three times; with --quick 5",
    )
    parser.add_argument("--out", type=str, default="runs/bench", metavar="FOLDER", help="gets bench.json, the figures")
    parser.add_argument("--json", type=str, default=None, metavar="FILE", help="the figures go here")
    return parser


def run(flags: Namespace) -> int:
    sizes, parts = find_sizes(flags.sizes), find_parts(flags.only)
    flag, wanted = ("--out", flags.out) if flags.json is None else ("--json", flags.json)
    data = Path(wanted) / "bench.json" if flags.json is None else Path(wanted)
    if data.is_dir():
        raise ValueError(f"{flag} {wanted}: expected a place for a file, but {data} is a folder")
    must_be_writable(data.parent, flag, wanted)
    from companion.bench.suite import QUICK_ROUNDS, bench
    from companion.ground.device import find_device, find_precision

    device = find_device(flags.device)
    same = bench(
        [size.quick() for size in sizes] if flags.quick else sizes,
        parts,
        data=data,
        device=device,
        precision=find_precision(flags.precision, device),
        compile=flags.compile,
        rounds=flags.rounds or (QUICK_ROUNDS if flags.quick else None),
        show=lambda text: print(text, flush=True),
    )
    return 0 if same else 1
