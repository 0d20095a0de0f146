"""`companion sizing`: compute which model fits on which machine, and the cost of training it."""

from __future__ import annotations

import json
from pathlib import Path

from jsonargparse import Namespace

from companion.commands.account import published
from companion.commands.parser import Parser
from companion.commands.runs import read_config
from companion.families.registry import preset, systems
from companion.ground.fields import shown
from companion.ground.number_limits import Count, PartOfOne, Positive
from companion.ground.waiting import waiting

MOST = 10**9
"""Maximum for devices, context and batch; a larger value must be a mistake."""


def parser() -> Parser:
    parser = Parser(
        description=(
            "Which model fits on which machine, over how many devices training has to spread it, and what that costs: "
            "computed from the configuration alone, for published systems or a model of yours. Three tables:\n\n"
            "  bytes     to hold the bf16 weights; to serve, with a cache; to train: 16\n"
            "            bytes a parameter of state (weights, gradients, AdamW's two\n"
            "            moments), autocast's bf16 copies of the weights, and the\n"
            "            activations that autograd keeps, all of them or recomputed from\n"
            "            what enters each layer\n"
            "  devices   the fewest that can train it: 1 where each can hold everything\n"
            "            (data parallel), else as many as --shard needs; then (in\n"
            "            brackets) the number with activation checkpointing, if that is\n"
            "            smaller; a dash where no number is enough. A mixture of experts\n"
            "            has a second row, with its experts over as many devices as there\n"
            "            are experts (--expert-parallel)\n"
            "  FLOPs     by the rule 6 N D, N being the active parameters and D the\n"
            "            tokens, and counted, attention included; and the time they\n"
            "            take: FLOPs / (devices x share x peak)\n\n"
            "The share of the peak is yours to put in, not a prediction: large dense models reach 0.3 to 0.5 where "
            "somebody has tuned them, small ones and mixtures of experts less. Traffic between devices, dropout's "
            "masks and short-lived buffers are left out; --usable leaves room for them. notebooks/sizing.md explains "
            f"each figure, and where they mislead.\n\n{published()}"
        ),
        epilog=(
            "examples:\n"
            "  companion sizing            all published systems, all sizes of memory\n"
            "  companion sizing llama-7b --chip a100-80gb --devices 64 --share 0.45 \\\n"
            "      --tokens 1e12\n"
            "  companion sizing mixtral-8x7b --context 2048 --batch 4\n"
            "  companion sizing --config my_model.json --chip rtx-4090 --devices 1\n"
            "  companion sizing gpt2 gpt2-xl --json    the same and more, for every chip"
        ),
    )
    parser.add_argument(
        "names", nargs="*", type=str, default=[], metavar="NAME", help="published systems (default: all)"
    )
    parser.add_argument(
        "--config", type=str, default=None, metavar="FILE", help="JSON file with a ModelConfig to include"
    )
    parser.add_argument("--devices", type=Count, default=8, help="how many train")
    parser.add_argument(
        "--chip",
        type=str,
        default=None,
        help="chips, such as h100 or a100-80gb (default: all memory sizes, and times on h100)",
    )
    parser.add_argument(
        "--share", type=PartOfOne, default=0.4, help="share of the chip's peak FLOPs that training reaches"
    )
    parser.add_argument(
        "--tokens",
        type=Positive | None,
        default=None,
        help="number of training tokens (default: 20 per active parameter)",
    )
    parser.add_argument(
        "--context",
        type=Count | None,
        default=None,
        help="sequence length in training and capacity of the cache (default: the model's context; in training at most "
        "4096)",
    )
    parser.add_argument(
        "--batch", type=Count, default=1, help="rows in a micro-batch of one device, and sequences served at once"
    )
    parser.add_argument("--usable", type=PartOfOne, default=0.9, help="share of a device's memory that may be filled")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser


def run(flags: Namespace) -> int:
    from companion.costs.tables import Question, data, text

    for name in ("devices", "context", "batch"):
        if (flags[name] or 1) > MOST:
            raise ValueError(f"--{name} {shown(flags[name])}: expected at most {MOST:,}")
    question = Question(
        **{name: flags[name] for name in ("devices", "chip", "share", "tokens", "context", "batch", "usable")}
    )
    models = {name: preset(name) for name in flags.names}
    if flags.config is not None:
        models[Path(flags.config).stem] = read_config(flags.config)
    models = models or systems()
    with waiting("counting"):
        said = json.dumps(data(models, question), indent=2) if flags.json else text(models, question)
    print(said)
    return 0
