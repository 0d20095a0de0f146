"""`companion tune`: fine-tune a chat model, or resume such a run, until it is finished or stopped with Ctrl-C."""

from __future__ import annotations

from dataclasses import replace

from jsonargparse import Namespace

from companion.commands.parser import Parser
from companion.commands.train import add_settings, rare, train
from companion.training.settings import TuneSettings

USUAL = {
    *("method", "data", "task", "worked", "start", "rank"),
    *("steps", "minutes", "batch", "learning-rate", "beta", "group", "tokens", "seed"),
    *("out", "device"),
}
"""The flags that `--help` explains; `--help-all` explains the others as well."""


def parser() -> Parser:
    parser = Parser(
        description=(
            "Teach a model to answer. The model to start from can be a run of companion train or companion tune, or a "
            "published model. It learns from a file of conversations, or from problems whose answers a function "
            "checks. The loss covers only the assistant's tokens, in the format of the model's chat template; a model "
            "without a template gets a plain one, which is saved with it.\n\n"
            "sft imitates the answers in the conversations, token by token. dpo learns to prefer the better of two "
            "answers, relative to the initial model (Rafailov et al. 2023). grpo samples several answers to each "
            "problem and reinforces those that earn more than the others (Shao et al. 2024). With --rank, each method "
            "trains low-rank adapters (Hu et al. 2021) and saves only these, in peft's format.\n\n"
            "You can stop with Ctrl-C at any time: the run is saved, and the same command resumes it and reaches the "
            "same weights, bit for bit. This command is for models that fit on one GPU; for larger ones use trl with "
            "peft, and torchao for low-bit weights."
        ),
        epilog=(
            "examples:\n"
            "  companion train\n"
            "  companion tune --task sums --worked 0.5 --batch 32 --steps 400\n"
            "      a small model learns sums, with steps in half of the answers\n"
            "  companion tune --start runs/sums-sft --method grpo --task sums \\\n"
            "      --tokens 32 --steps 60\n"
            "      then it learns from whether its own answers are right, and soon\n"
            "      all of them show their steps\n"
            "  companion tune --start SmolLM2-135M/ --data talks.jsonl --rank 16\n"
            "      adapters for a published model\n"
            "  companion tune --method dpo --start runs/talks-sft --data pairs.jsonl\n"
            "then:\n"
            "  companion chat --run runs/sums-grpo\n"
            "a line of talks.jsonl, and one of pairs.jsonl:\n"
            '  {"messages": [{"role": "user", "content": "Hello"},\n'
            '                {"role": "assistant", "content": "Good day."}]}\n'
            '  {"prompt": "Hello", "chosen": "Good day.", "rejected": "What?"}'
        ),
        rare=rare(TuneSettings, USUAL),
    )
    add_settings(parser, TuneSettings)
    return parser


def run(flags: Namespace, arguments: list[str]) -> int:
    """Fine-tune with the settings given by the flags, and return the exit code.

    Args:
        flags: The flags of the command.
        arguments: The command line, for messages that show how to resume.

    Raises:
        ValueError: If the input is invalid. Nothing is written then.
    """
    settings = TuneSettings.of_flags(vars(flags))
    from companion.training.distributed.launch import launched
    from companion.training.run_folder import Start

    if launched():
        raise ValueError("torchrun: expected one process; tuning supports only one (trl and peft support several)")
    return train(replace(settings, start=str(Start.find(settings.start).folder)), arguments)
