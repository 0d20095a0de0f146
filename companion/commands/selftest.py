"""`companion selftest`: kill a training run many times, and see that nothing is lost."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import Namespace

from companion.commands.parser import Parser
from companion.commands.preflight import must_be_writable
from companion.ground.number_limits import Count


def parser() -> Parser:
    parser = Parser(
        description=(
            "Prove on this machine that a training run survives being killed.\n\n"
            "A small model is trained once without interruption. Then the same command is run, killed (SIGKILL) at a "
            "random moment, and run again, many times: while the run's folder is made, between updates, while a "
            "checkpoint is written or an old one removed, at the very end. Each time, the last checkpoint must be "
            "whole and have the weights that the uninterrupted run had at that update; each run that comes to its end "
            "must have its weights, optimizer, log and result, bit for bit.\n\n"
            "With several processes, one of them or all are killed, and a run is also gone on with by a single "
            "process: its weights may differ by 1e-5. They train as with companion train: each with the whole model, "
            "or with --shard or --expert-parallel sharing it out. The exit code is 0 if all holds, else 1."
        ),
        epilog=(
            "examples:\n"
            "  companion selftest                        25 kills: a few minutes\n"
            "  companion selftest --kills 3              the short one\n"
            "  companion selftest --kills 5 --seed 7     other moments\n"
            "  companion selftest --processes 2          two processes, with torchrun\n"
            "  companion selftest --processes 2 --shard  each with half of the weights\n"
            "  companion selftest --processes 2 --expert-parallel 2\n"
            "                                            each with half of the experts\n"
            "  companion selftest --json > found.json"
        ),
    )
    parser.add_argument("--kills", type=Count, default=25, help="how often to kill")
    parser.add_argument("--processes", type=Count, default=1, help="processes that train together")
    parser.add_argument(
        "--shard",
        action="store_true",
        help="with --processes: each keeps a piece of the weights, gradients and moments (FSDP)",
    )
    parser.add_argument(
        "--expert-parallel",
        type=int | None,
        default=None,
        metavar="N",
        help="with --processes: N of them, 2 or 4, share out the experts of a layer. Default: each has them all",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    parser.add_argument(
        "--out",
        type=str,
        default=None,
        metavar="FOLDER",
        help="keep the runs here. Default: in a temporary folder, which stays only if something does not hold",
    )
    parser.add_argument("--json", action="store_true", help="print what was found as JSON, instead of a table")
    return parser


def run(flags: Namespace) -> int:
    if flags.out is not None:
        must_be_writable(flags.out, "--out")
    from companion.selftest.kills import how_together, selftest

    found = selftest(
        flags.kills,
        processes=flags.processes,
        flags=how_together(flags.processes, shard=flags.shard, expert_parallel=flags.expert_parallel),
        seed=flags.seed,
        home=None if flags.out is None else Path(flags.out),
    )
    print(found.to_json() if flags.json else found.table())
    return 0 if found.holds else 1
