"""`companion account`: a model's parameters, FLOPs and bytes."""

from __future__ import annotations

from jsonargparse import Namespace

from companion.commands.parser import Parser, add_run
from companion.commands.runs import read_config, run_folder
from companion.families.registry import preset, systems

PUBLISHED = f"Published systems: {', '.join(systems())}."


def parser() -> Parser:
    parser = Parser(
        description=(
            "Count a model: parameters by part, FLOPs a token, bytes of its cache and of itself, and how fast the "
            f"memory of a chip lets it write at most.\n\n{PUBLISHED}"
        ),
        epilog=(
            "examples:\n"
            "  companion account                          the model of the newest run\n"
            "  companion account llama-2-70b              a published system\n"
            "  companion account gpt2 llama-7b            several\n"
            "  companion account mixtral-8x7b --chip h100\n"
            "  companion account --config my_model.json"
        ),
    )
    parser.add_argument("name", nargs="*", type=str, default=[], metavar="NAME", help="published systems, not a run")
    add_run(parser)
    parser.add_argument(
        "--config", type=str, default=None, metavar="FILE", help="a JSON file with a ModelConfig, not a run"
    )
    parser.add_argument(
        "--chip", type=str, default=None, help="a chip's name, such as h100 or a100-80gb. Default: this machine"
    )
    return parser


def run(flags: Namespace) -> int:
    given = [name for name in ("name", "run", "config") if flags[name]]
    if len(given) > 1:
        names = {"name": " ".join(flags.name), "run": "--run", "config": "--config"}
        raise ValueError(
            f"expected one model: a published name, --run or --config; got {' and '.join(names[n] for n in given)}"
        )
    from companion.costs.chips import published_chip, this_chip
    from companion.costs.tables import account_table, decoding_table

    chip = None if flags.chip is None else published_chip(flags.chip)
    if flags.config is not None:
        configs = [read_config(flags.config)]
    elif flags.name:
        configs = [preset(name) for name in flags.name]
    else:
        configs = [run_folder(flags.run).model().config]
    for config in configs:
        if chip is not None and config.stack != "decoder":
            raise ValueError(f"--chip {flags.chip}: expected a decoder, which writes, got stack={config.stack!r}")
    for at, config in enumerate(configs):
        if len(configs) > 1:
            print(f"{chr(10) if at else ''}{flags.name[at]}\n")
        print(account_table(config), flush=True)
        if config.stack == "decoder":
            chip = chip or this_chip()
            print("\n" + decoding_table(config, chip))
    return 0
