"""What `companion` understands: its flags, and the help that teaches them.

Nothing here needs torch, so that `--help` and a mistyped flag answer at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, get_type_hints

import yaml
from jsonargparse import ActionConfigFile, ArgumentParser

from companion.course.flags import add_actions, course_parser
from companion.course.grade_flags import grade_parser
from companion.help_format import HelpFormatter
from companion.training.settings import GROUPS, TASKS, NumberWordsSettings, TextSettings, flag


def task_asked_for(arguments: Sequence[str]) -> str:
    """The task that `companion train` is asked for, in its flags or in its --config file: it decides what flags there
    are. "text" where none is named; one that does not exist is left to the parser to refuse."""
    asked: object = TextSettings.task
    for argument, after in zip_longest(arguments, arguments[1:], fillvalue=""):
        name, equals, value = argument.partition("=")
        value = value if equals else after
        if name == "--config" and Path(value).is_file():
            with suppress(OSError, UnicodeError, yaml.YAMLError):
                given = yaml.safe_load(Path(value).read_text("utf-8"))
                asked = given.get("task", asked) if isinstance(given, dict) else asked
        elif name == "--task":
            asked = value
    return asked if isinstance(asked, str) and asked in TASKS else TextSettings.task


def command_parser(task: str = TextSettings.task) -> ArgumentParser:
    """The parser of all commands; `train` has the flags of `task`."""
    parser = ArgumentParser(
        prog="companion",
        description=(
            "Train a transformer on real text from this machine, watch it write, and account for every parameter.\n\n"
            "  companion train                     about five minutes on a laptop; no flag is needed\n"
            '  companion generate --prompt "The "  stream text from the model just trained\n'
            "  companion evaluate                  bits per byte on text it has not seen\n"
            "  companion account                   its parameters, FLOPs and bytes\n\n"
            "Or let one translate, after ten seconds of training:\n\n"
            "  companion train --task number-words --from de --to en\n"
            "  companion translate einundzwanzig"
        ),
        formatter_class=HelpFormatter,
    )
    commands = parser.add_subcommands(dest="command", title="commands", description="Each explains itself with --help.")
    commands.add_subcommand("train", _train_parser(task), help="train a model and keep it in a run folder")
    commands.add_subcommand("generate", _generate_parser(), help="continue one or several prompts")
    commands.add_subcommand("translate", _translate_parser(), help="translate number names with a model of your own")
    commands.add_subcommand("evaluate", _evaluate_parser(), help="measure a run on what it has not seen")
    commands.add_subcommand("account", _account_parser(), help="count a model's parameters, FLOPs and bytes")
    commands.add_subcommand("sizing", _sizing_parser(), help="which model fits on which machine, and what it costs")
    commands.add_subcommand("bench", _bench_parser(), help="measure speed beside other libraries, on this machine")
    commands.add_subcommand("selftest", _selftest_parser(), help="kill a training run many times; is nothing lost?")
    commands.add_subcommand("progress", _progress_parser(), help="show which exercises you have done")
    course = course_parser()
    commands.add_subcommand("grade", grade_parser(), help="grade a folder of submissions")
    commands.add_subcommand("course", course, help="problem sets, marks, and the proof that the checks work")
    add_actions(course)
    return parser


def _progress_parser() -> ArgumentParser:
    return ArgumentParser(
        description=(
            "Show the exercises of the course, and what you have done of each: passed, tried, hints and solutions\n"
            "read. It is kept in .companion/progress.json in your home folder, or in the folder COMPANION_HOME."
        ),
        formatter_class=HelpFormatter,
    )


_STOPPING = (
    "Stop with Ctrl-C at any time: the run is saved, and the same command goes on from there. A run that was\n"
    "killed ends, when continued, with the same weights as one that was not, bit for bit."
)
_SEVERAL = (
    "Several processes, one for each GPU or for a few cores of a CPU, train one model together. The run is the\n"
    "same: batches and losses do not depend on how many there are, and another number, or one, can go on with it.\n"
    "torchrun starts them, in three ways; the third has DDP or, with --shard, FSDP for all but the experts:\n\n"
    "  torchrun --nproc-per-node 4 -m companion train\n"
    "      each holds the whole model, and gradients are added (data parallel, DDP)\n"
    "  torchrun --nproc-per-node 4 -m companion train --shard\n"
    "      each keeps a quarter of the weights, gradients and moments: for a model that does not fit (FSDP)\n"
    "  torchrun --nproc-per-node 4 -m companion train --experts 8 --expert-parallel 4\n"
    "      each has two experts of every layer, and tokens travel to theirs"
)
_TRAIN = {
    TextSettings.task: (
        "Train a decoder on text and print bits per byte on a held-out part of it, beside what xz and n-gram\n"
        "models need for the same text. Unless --data names another, the text is the prose of this course itself,\n"
        f"as it was in its first edition.\n\n{_STOPPING}\n\n{_SEVERAL}\n\n"
        "With --task number-words, an encoder-decoder learns to translate number names instead:\n"
        "companion train --task number-words --help shows its flags and defaults.",
        "examples:\n"
        "  companion train                                    the prose of this course, default model\n"
        "  companion train --minutes 5                        as many updates as fit into five minutes\n"
        "  companion train --data notes/ 'books/*.txt'        your own text\n"
        "  companion train --data python                      the language reference that comes with Python\n"
        "  companion train --d-model 256 --layers 6 --dropout 0.2 --out runs/larger\n"
        "  companion train --experts 8 --out runs/experts     a mixture of experts\n"
        "  companion train --config settings.yaml             the same flags from a file; --print_config writes one\n"
        "  companion train --task number-words                translate number names",
    ),
    NumberWordsSettings.task: (
        "Train an encoder-decoder to translate the names of numbers from 0 to 999,999, and print how many it\n"
        "translates without a mistake, of those it has never seen: one number in ten is kept from it.\n\n"
        '"einundzwanzigtausenddreihundertvier" says one-and-twenty: the order of the words has to be learned.\n\n'
        f"{_STOPPING}\n\n{_SEVERAL}",
        "examples:\n"
        "  companion train --task number-words --from de --to en          ten seconds of training, over 99 % right\n"
        "  companion train --task number-words --from fr --to de\n"
        "  companion train --task number-words --source-pieces characters    letters in place of parts of words\n"
        "  companion train --task number-words --label-smoothing 0.1 --out runs/smooth\n"
        "then:\n"
        "  companion translate einundzwanzigtausenddreihundertvier",
    ),
}


def _train_parser(task: str) -> ArgumentParser:
    description, epilog = _TRAIN[task]
    parser = ArgumentParser(description=description, epilog=epilog, formatter_class=HelpFormatter)
    parser.add_argument("--config", action=ActionConfigFile, help="a YAML or JSON file with any of the flags below")
    kind = TASKS[task]
    hints = get_type_hints(kind)
    defaults = kind()
    groups = {title: parser.add_argument_group(title) for title in GROUPS}
    groups[GROUPS[0]].add_argument(
        "--task", type=Literal[*TASKS], default=task, help="text to go on with, or number names to translate"
    )
    for f in sorted(fields(kind), key=lambda f: GROUPS.index(f.metadata["group"])):
        options: dict[str, Any] = {"type": hints[f.name], "default": getattr(defaults, f.name)}
        if f.name == "data":
            options |= {"type": str, "nargs": "+", "metavar": "PATH"}
        elif f.name in ("compile", "tensorboard", "shard"):
            options = {"action": "store_true"}
        groups[f.metadata["group"]].add_argument("--" + flag(f), help=f.metadata["help"], **options)
    return parser


def _generate_parser() -> ArgumentParser:
    parser = ArgumentParser(
        description=(
            "Continue a prompt with a model you trained or a published one (GPT-2, LLaMA, Mixtral), token by token as\n"
            "they come; a published Marian translates it."
        ),
        epilog=(
            "examples:\n"
            '  companion generate --prompt "The "\n'
            '  companion generate --prompt "The " --prompt "Attention" --tokens 50     two at once\n'
            '  companion generate --prompt "The " --temperature 0                      always the most probable token\n'
            '  companion generate --checkpoint openai-community/gpt2 --download --prompt "The "\n'
            '  companion generate --checkpoint opus-mt-de-en/ --prompt "Guten Tag" --beams 4'
        ),
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--prompt", action="append", type=str, default=[], help="text to continue; may be repeated")
    parser.add_argument(
        "--prompt-ids", action="append", type=str, default=[], metavar="IDS", help='token ids instead, as "5 17 3"'
    )
    _add_run(parser, best=True)
    parser.add_argument(
        "--checkpoint", type=str | None, default=None, metavar="FOLDER", help="a published model's folder, not a run"
    )
    parser.add_argument(
        "--download", action="store_true", help="--checkpoint may be the name that the Hugging Face hub has for it"
    )
    parser.add_argument("--tokens", type=int, default=200, help="most tokens to write for each prompt")
    parser.add_argument(
        "--temperature",
        type=float | None,
        default=None,
        help="0: the most probable token; 1: the model's own. Default: 0.8, for a translator 0",
    )
    parser.add_argument("--top-k", type=int | None, default=None, help="draw from the k most probable tokens only")
    parser.add_argument(
        "--top-p", type=float | None, default=None, help="draw from the fewest tokens that hold this much probability"
    )
    parser.add_argument("--seed", type=int, default=0, help="the same seed writes the same text")
    parser.add_argument(
        "--beams", type=int | None, default=None, help="search for the most probable text with this many candidates"
    )
    parser.add_argument(
        "--length-penalty",
        type=float | None,
        default=None,
        help="beams: divide a text's log-probability by its length to this power. Default: 1",
    )
    parser.add_argument("--device", type=str, default="auto", help="cpu, cuda, mps, or auto: cuda where there is one")
    parser.add_argument("--compile", action="store_true", help="compile the decode step: pays for long texts on a GPU")
    return parser


def _translate_parser() -> ArgumentParser:
    parser = ArgumentParser(
        description=(
            "Translate number names with a model trained by `companion train --task number-words`. Each name, and the\n"
            "model's translation, is followed by the number that it names; whether both agree is said.\n\n"
            "What is not a number name of the run's language is refused, and nothing is translated."
        ),
        epilog=(
            "examples:\n"
            "  companion translate einundzwanzigtausenddreihundertvier\n"
            '  companion translate "vingt et un mille" "quatre-vingt-dix" --run runs/number-words-fr-en\n'
            "  companion translate --beams 4 zwei drei\n"
            "  companion translate < names.txt          a name a line"
        ),
        formatter_class=HelpFormatter,
    )
    parser.add_argument(
        "names", nargs="*", type=str, default=[], metavar="NAME", help="number names; or on standard input"
    )
    _add_run(parser, "a run of number-words. Default: the newest in runs/", best=True)
    parser.add_argument(
        "--beams", type=int, default=1, help="candidates of a beam search; 1 takes the most probable token at each step"
    )
    parser.add_argument("--device", type=str, default="auto", help="cpu, cuda, mps, or auto: cuda where there is one")
    return parser


def _evaluate_parser() -> ArgumentParser:
    parser = ArgumentParser(
        description=(
            "Measure a run on what was held out of its training.\n\n"
            "A run on text: in bits per byte, on its held-out text or on text of yours. Every token is scored once,\n"
            "in its own document, from at least half of the context before it.\n\n"
            "A run of number-words: the share of names translated without a mistake (exact match), in all and by\n"
            "digits, with its 95 % confidence interval (Wilson's)."
        ),
        epilog=(
            "examples:\n"
            "  companion evaluate\n"
            "  companion evaluate --run runs/larger --data letter.txt\n"
            "  companion evaluate --run runs/number-words-de-en --numbers 20000"
        ),
        formatter_class=HelpFormatter,
    )
    _add_run(parser, best=True)
    parser.add_argument(
        "--data",
        type=str,
        nargs="+",
        default=[],
        metavar="PATH",
        help="text: files, folders or globs to measure on instead, or course or python (see companion train --help)",
    )
    parser.add_argument(
        "--numbers", type=int | None, default=None, help="number-words: held-out numbers to translate. Default: 2,000"
    )
    parser.add_argument(
        "--beams", type=int | None, default=None, help="number-words: candidates of a beam search. Default: 1, greedy"
    )
    parser.add_argument("--device", type=str, default="auto", help="cpu, cuda, mps, or auto: cuda where there is one")
    return parser


def _account_parser() -> ArgumentParser:
    from companion.presets import PRESETS

    parser = ArgumentParser(
        description=(
            "Count a model: parameters by part, FLOPs a token, bytes of its cache and of itself, and how fast the\n"
            "memory of a chip lets it write at most.\n\n"
            f"Published systems: {', '.join(list(PRESETS)[:6])},\n{', '.join(list(PRESETS)[6:])}."
        ),
        epilog=(
            "examples:\n"
            "  companion account                          the model of the newest run\n"
            "  companion account llama-2-70b              a published system\n"
            "  companion account mixtral-8x7b --chip h100\n"
            "  companion account --config my_model.json"
        ),
        formatter_class=HelpFormatter,
    )
    parser.add_argument("name", nargs="?", type=str | None, default=None, help="a published system, not a run")
    _add_run(parser)
    parser.add_argument(
        "--config", type=str | None, default=None, metavar="FILE", help="a JSON file with a ModelConfig, not a run"
    )
    parser.add_argument(
        "--chip", type=str | None, default=None, help="a chip's name, such as h100 or a100-80gb. Default: this machine"
    )
    return parser


def _sizing_parser() -> ArgumentParser:
    from companion.presets import PRESETS

    parser = ArgumentParser(
        description=(
            "Which model fits on which machine, over how many devices training has to spread it, and what that costs:\n"
            "computed from the configuration alone, for published systems or a model of yours. Three tables:\n\n"
            "  bytes     to hold the bf16 weights; to serve, with a cache; to train: 16 bytes a parameter of state\n"
            "            (weights, gradients, AdamW's two moments), autocast's bf16 copies of the weights, and the\n"
            "            activations that autograd keeps, all of them or recomputed from what enters each layer\n"
            "  devices   the fewest that can train it: 1 where each can hold everything (data parallel), else as many\n"
            "            as --shard needs; in (brackets) only with recomputation, which companion train does not do;\n"
            "            a dash where no number is enough. A mixture of experts has a second row, with its experts\n"
            "            over as many devices as there are experts (--expert-parallel)\n"
            "  FLOPs     by the rule 6 N D, N being the active parameters and D the tokens, and counted, attention\n"
            "            included; and the time they take: FLOPs / (devices x share x peak)\n\n"
            "The share of the peak is yours to put in, not a prediction: large dense models reach 0.3 to 0.5 where\n"
            "somebody has tuned them, small ones and mixtures of experts less. Traffic between devices, dropout's\n"
            "masks and short-lived buffers are left out; --usable leaves room for them. notebooks/sizing.md explains\n"
            "each figure, and where they mislead.\n\n"
            f"Published systems: {', '.join(list(PRESETS)[:6])},\n{', '.join(list(PRESETS)[6:])}."
        ),
        epilog=(
            "examples:\n"
            "  companion sizing                                   all published systems, all sizes of memory\n"
            "  companion sizing llama-7b --chip a100-80gb --devices 64 --share 0.45 --tokens 1e12\n"
            "  companion sizing mixtral-8x7b --context 2048 --batch 4\n"
            "  companion sizing --config my_model.json --chip rtx-4090 --devices 1\n"
            "  companion sizing gpt2 gpt2-xl --json               the same and more as JSON, for every chip"
        ),
        formatter_class=HelpFormatter,
    )
    parser.add_argument(
        "names", nargs="*", type=str, default=[], metavar="NAME", help="published systems. Default: all of them"
    )
    parser.add_argument(
        "--config", type=str | None, default=None, metavar="FILE", help="a JSON file with a ModelConfig, as well"
    )
    parser.add_argument("--devices", type=int, default=8, help="how many train")
    parser.add_argument(
        "--chip",
        type=str | None,
        default=None,
        help="which they are, such as h100 or a100-80gb. Default: all sizes of memory, and the time on h100",
    )
    parser.add_argument("--share", type=float, default=0.4, help="of the chip's peak that training is taken to reach")
    parser.add_argument(
        "--tokens", type=float | None, default=None, help="to train on. Default: 20 for each active parameter"
    )
    parser.add_argument(
        "--context",
        type=int | None,
        default=None,
        help="tokens in a row to train on, and room in the cache. Default: the model's context; to train at most 4096",
    )
    parser.add_argument("--batch", type=int, default=1, help="rows in a device's micro-batch, and rows served at once")
    parser.add_argument("--usable", type=float, default=0.9, help="share of a memory that may be filled")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument(
        "--page", type=str | None, default=None, metavar="FILE", help="write the page notebooks/sizing.md instead"
    )
    return parser


def _bench_parser() -> ArgumentParser:
    from companion.bench.sizes import PARTS, SIZES

    parser = ArgumentParser(
        description=(
            "Measure ours and other libraries side by side, at the same sizes, with the same weights: training step,\n"
            "prefill and generation beside transformers (LLaMA's layout), and x-transformers and litgpt where they\n"
            "are installed; a mixture of experts beside Mixtral's and a dense layer; attention against length.\n\n"
            "Everybody's outputs are compared before anything is timed, then all run once in each round. The table\n"
            "gives medians, quartiles, ratios to ours, and the share of what this machine can reach at best. Nothing\n"
            "else should run meanwhile; OMP_NUM_THREADS sets the number of threads."
        ),
        epilog=(
            "examples:\n"
            "  companion bench --quick                       under three minutes on two cores\n"
            "  companion bench --only decode moe             parts of it\n"
            "  companion bench --sizes large --compile       on a GPU"
        ),
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds, fewer new tokens, shorter texts")
    parser.add_argument(
        "--sizes", type=str, nargs="+", default=["small"], metavar="SIZE", help=f"one or more of {', '.join(SIZES)}"
    )
    parser.add_argument(
        "--only", type=str, nargs="+", default=list(PARTS), metavar="PART", help=f"one or more of {', '.join(PARTS)}"
    )
    parser.add_argument("--device", type=str, default="auto", help="cpu, cuda, mps, or auto: cuda where there is one")
    parser.add_argument(
        "--precision", type=str, default="auto", help="fp32, bf16, or auto: bf16 where a GPU has it, else fp32"
    )
    parser.add_argument("--compile", action="store_true", help="compile training steps; compiled decoding as well")
    parser.add_argument("--rounds", type=int | None, default=None, help="how often. Default: 11, with --quick 5")
    parser.add_argument("--out", type=str, default="runs/bench", metavar="FOLDER", help="gets bench.json and bench.png")
    parser.add_argument(
        "--json", type=str | None, default=None, metavar="FILE", help="the figures go here, the picture beside it"
    )
    return parser


def _selftest_parser() -> ArgumentParser:
    parser = ArgumentParser(
        description=(
            "Prove on this machine that a training run survives being killed.\n\n"
            "A small model is trained once without interruption. Then the same command is run, killed (SIGKILL) at a\n"
            "random moment, and run again, many times: while the run's folder is made, between updates, while a\n"
            "checkpoint is written or an old one removed, at the very end. Each time, the last checkpoint must be\n"
            "whole and have the weights that the uninterrupted run had at that update; each run that comes to its end\n"
            "must have its weights, optimizer, log and result, bit for bit.\n\n"
            "With several processes, one of them or all are killed, and a run is also gone on with by a single\n"
            "process: its weights may differ by 1e-5. They train as with companion train: each with the whole model,\n"
            "or with --shard or --expert-parallel sharing it out. The exit code is 0 if all holds, else 1."
        ),
        epilog=(
            "examples:\n"
            "  companion selftest                        25 kills: a few minutes\n"
            "  companion selftest --kills 3              the short one\n"
            "  companion selftest --kills 5 --seed 7     other moments\n"
            "  companion selftest --processes 2          two processes, with torchrun\n"
            "  companion selftest --processes 2 --shard  each with half of the weights (FSDP)\n"
            "  companion selftest --processes 2 --expert-parallel 2\n"
            "                                            each with half of the experts\n"
            "  companion selftest --json > found.json"
        ),
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--kills", type=int, default=25, help="how often to kill")
    parser.add_argument("--processes", type=int, default=1, help="processes that train together")
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
        type=str | None,
        default=None,
        metavar="FOLDER",
        help="keep the runs here. Default: in a temporary folder, which stays only if something does not hold",
    )
    parser.add_argument("--json", action="store_true", help="print what was found as JSON, instead of a table")
    return parser


def _add_run(
    parser: ArgumentParser, help: str = "folder of a run. Default: the newest in runs/", *, best: bool = False
) -> None:
    parser.add_argument("--run", type=str | None, default=None, help=help)
    if best:
        parser.add_argument(
            "--best",
            action="store_true",
            help="the checkpoint that did best on what is held out, which chose it and so flatters it; not the last",
        )
