"""`companion account`: count a model's parameters, FLOPs and bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import Namespace

from companion.commands.parser import Parser, add_checkpoint, add_run
from companion.commands.runs import read_config, run_folder
from companion.families.registry import preset, systems

if TYPE_CHECKING:
    from companion.config.model import ModelConfig
    from companion.costs.chips import Chip


def published() -> str:
    """Return a sentence that lists the published models.

    The sentence is made on demand, because it requires importing all families and only two commands show it.
    """
    return f"Published systems: {', '.join(systems())}."


JSON = (
    "print the figures as JSON: a list with one object per model, whose keys are name, stack, context, parameters, "
    "flops, bytes and decoding. Later versions may add keys but will not change these"
)


def parser() -> Parser:
    parser = Parser(
        description=(
            "Count a model's parameters by part, its FLOPs per token, and the bytes of its weights and its cache, and "
            f"compute the highest generation speed that a chip's memory allows.\n\n{published()}"
        ),
        epilog=(
            "examples:\n"
            "  companion account                          the model of the newest run\n"
            "  companion account llama-2-70b              a published model\n"
            "  companion account gpt2 llama-7b            several models\n"
            "  companion account mixtral-8x7b --chip h100\n"
            "  companion account --checkpoint smollm2     a fetched model, or model.gguf\n"
            "  companion account --config my_model.json\n"
            "  companion account gpt2 bert-base --json    for a program"
        ),
    )
    parser.add_argument("name", nargs="*", default=[], metavar="NAME", help="published models instead of a run")
    add_run(parser)
    add_checkpoint(parser)
    parser.add_argument("--config", metavar="FILE", help="JSON file with a ModelConfig instead of a run")
    parser.add_argument("--chip", help="chip, such as h100 or a100-80gb (default: this machine)")
    parser.add_argument("--json", action="store_true", help=JSON)
    return parser


def _config_of(name: str) -> ModelConfig:
    """Return the configuration of a checkpoint. The weights of a published model are not read."""
    from companion.commands.writer import checkpoint_folder
    from companion.families.pretrained import family_of, load_pretrained
    from companion.files.gguf.folder import naming

    folder = checkpoint_folder(name)
    with naming(folder):
        family = family_of(folder)
        return (load_pretrained(folder) if family is None else family.read(folder, headers=True)).config


def run(flags: Namespace) -> int:
    given = [name for name in ("name", "run", "checkpoint", "config") if flags[name]]
    if len(given) > 1:
        names = {"name": " ".join(flags.name), "run": "--run", "checkpoint": "--checkpoint", "config": "--config"}
        raise ValueError(
            "expected one model: a published name, --run, --checkpoint or --config; got "
            + " and ".join(names[name] for name in given)
        )
    from companion.costs.chips import published_chip

    chip = None if flags.chip is None else published_chip(flags.chip)
    if flags.config is not None:
        models = {Path(flags.config).stem: read_config(flags.config)}
    elif flags.checkpoint is not None:
        models = {flags.checkpoint: _config_of(flags.checkpoint)}
    elif flags.name:
        models = {name: preset(name) for name in flags.name}
    else:
        found = run_folder(flags.run)
        models = {found.path.name: found.model().config}
    for config in models.values():
        if chip is not None and config.stack != "decoder":
            raise ValueError(f"--chip {flags.chip}: expected a decoder, got stack={config.stack!r}")
    (_print_json if flags.json else _print_tables)(models, chip)
    return 0


def _print_json(models: Mapping[str, ModelConfig], chip: Chip | None) -> None:
    from companion.costs.chips import this_chip
    from companion.costs.tables import account_data, decoding_data

    found = []
    for name, config in models.items():
        decoding = None
        if config.stack == "decoder":
            chip = chip or this_chip()
            decoding = decoding_data(config, chip)
        found.append({"name": name, **account_data(config), "decoding": decoding})
    print(json.dumps(found, indent=2))


def _print_tables(models: Mapping[str, ModelConfig], chip: Chip | None) -> None:
    from companion.costs.chips import this_chip
    from companion.costs.tables import account_table, decoding_table
    from companion.ground.display import columns

    for at, (name, config) in enumerate(models.items()):
        if len(models) > 1:
            print(f"{chr(10) if at else ''}{name}\n")
        print(account_table(config, columns()), flush=True)
        if config.stack == "decoder":
            chip = chip or this_chip()
            print("\n" + decoding_table(config, chip, columns()))
