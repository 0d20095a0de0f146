"""`companion sizing`: compute which models fit on which machines, and what training them costs."""

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
            "Show which machines a model fits on, how many devices its training needs, and what the training costs. "
            "The command needs only a configuration, of a published model or your own. The tables are:\n\n"
            "  bytes     memory for the bf16 weights, for serving (weights and a cache),\n"
            "            and for training: 16 bytes of state per parameter (weights,\n"
            "            gradients and AdamW's two moments), autocast's bf16 copies of the\n"
            "            weights, and the activations that autograd stores, either all of\n"
            "            them or only the inputs of each layer (activation checkpointing)\n"
            "  devices   the smallest number that can train the model. It is 1 if a\n"
            "            device can hold everything (data parallel), otherwise as many\n"
            "            as --shard needs. A number in brackets is for activation\n"
            "            checkpointing, if that needs fewer. A dash means that no number\n"
            "            is enough. A mixture of experts has a second row, with one\n"
            "            expert per device (--expert-parallel)\n"
            "  FLOPs     by the rule 6 N D for N active parameters and D tokens, and\n"
            "            counted with attention included; also the time that they take,\n"
            "            which is FLOPs / (devices x share x peak)\n\n"
            "The share of the peak is an assumption that you set. Tuned large dense models reach 0.3 to 0.5, small "
            "models and mixtures of experts less. Communication between devices, dropout masks and short-lived buffers "
            "are left out; --usable leaves room for them. notebooks/sizing.md explains each figure and its limits.\n\n"
            f"{published()}"
        ),
        epilog=(
            "examples:\n"
            "  companion sizing            all published models, all memory sizes\n"
            "  companion sizing llama-7b --chip a100-80gb --devices 64 --share 0.45 \\\n"
            "      --tokens 1e12\n"
            "  companion sizing mixtral-8x7b --context 2048 --batch 4\n"
            "  companion sizing --config my_model.json --chip rtx-4090 --devices 1\n"
            "  companion sizing gpt2 gpt2-xl --json    the same and more, for every chip"
        ),
    )
    parser.add_argument("names", nargs="*", default=[], metavar="NAME", help="published models (default: all)")
    parser.add_argument("--config", metavar="FILE", help="JSON file with a ModelConfig to include")
    parser.add_argument("--devices", type=Count, default=8, help="number of devices to train on")
    parser.add_argument(
        "--chip", help="chip, such as h100 or a100-80gb (default: an h100 for times, and every size of memory)"
    )
    parser.add_argument(
        "--share", type=PartOfOne, default=0.4, help="share of the chip's peak FLOPs that training reaches"
    )
    parser.add_argument(
        "--tokens", type=Positive | None, help="number of training tokens (default: 20 per active parameter)"
    )
    parser.add_argument(
        "--context",
        type=Count | None,
        help="sequence length in training, and capacity of the cache (default: the model's context, but at most 4096 "
        "in training)",
    )
    parser.add_argument(
        "--batch", type=Count, default=1, help="rows per micro-batch on each device, and sequences served at once"
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
