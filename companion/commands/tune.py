"""`companion tune`: teach a model that is there already to answer, or go on with it, to its end or to Ctrl-C."""

from __future__ import annotations

from dataclasses import fields, replace

from jsonargparse import Namespace

from companion.commands.parser import Parser
from companion.commands.train import add_settings, asked, train_run
from companion.training.settings import TuneSettings, flag

USUAL = {
    *("method", "data", "task", "worked", "start", "rank"),
    *("steps", "minutes", "batch", "learning-rate", "beta", "group", "tokens", "seed"),
    *("out", "device"),
}
"""The flags that `--help` explains; the others are for `--help-all`."""


def parser() -> Parser:
    rare = [name for f in fields(TuneSettings) if (name := flag(f)) not in USUAL]
    parser = Parser(
        description=(
            "Teach a model that goes on with texts to answer: a run of `companion train`, one that was tuned before, "
            "or a published model. It learns from a file of conversations, or from problems whose answers a function "
            "checks. The loss is on the assistant's tokens alone, in the form of the model's chat template; one "
            "without gets a plain template, which is kept beside it.\n\n"
            "sft: the answers of the conversations, token by token. dpo: of two answers the better, against the start "
            "(Rafailov et al. 2023). grpo: several answers of its own to each problem; those that earn more than the "
            "others gain (Shao et al. 2024), so that what they did, such as showing steps, becomes frequent. With "
            "--rank, each trains low-rank adapters (Hu et al. 2021) and saves them alone, as peft reads them.\n\n"
            "Stop with Ctrl-C at any time: the run is saved, and the same command goes on from there, to the same "
            "weights, bit for bit. For models that one GPU does not hold, take trl with peft, and torchao for weights "
            "in few bits: this is for those that it does."
        ),
        epilog=(
            "examples:\n"
            "  companion train\n"
            "  companion tune --task sums --worked 0.5 --batch 32 --steps 400\n"
            "      a small model learns sums, half of them with their steps\n"
            "  companion tune --start runs/sums-sft --method grpo --task sums \\\n"
            "      --tokens 32 --steps 60\n"
            "      and then from whether its own answers are right: soon all have steps\n"
            "  companion tune --start SmolLM2-135M/ --data talks.jsonl --rank 16\n"
            "      a published model, by adapters\n"
            "  companion tune --method dpo --start runs/talks-sft --data pairs.jsonl\n"
            "then:\n"
            "  companion chat --run runs/sums-grpo\n"
            "a line of talks.jsonl, and one of pairs.jsonl:\n"
            '  {"messages": [{"role": "user", "content": "Hello"},\n'
            '                {"role": "assistant", "content": "Good day."}]}\n'
            '  {"prompt": "Hello", "chosen": "Good day.", "rejected": "What?"}'
        ),
        rare=rare,
    )
    add_settings(parser, TuneSettings)
    return parser


def run(flags: Namespace, arguments: list[str]) -> int:
    """Tune what the flags ask for; the exit code. arguments: the command's own. Raises `ValueError` for bad input, with
    nothing written."""
    settings = asked(TuneSettings, flags)
    from companion.training.distributed.launch import launched
    from companion.training.run_folder import Start

    if launched():
        raise ValueError("torchrun: expected one process; tuning runs in one (trl and peft tune in several)")
    return train_run(replace(settings, start=str(Start.find(settings.start).folder)), arguments)
