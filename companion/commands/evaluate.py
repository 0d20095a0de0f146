"""`companion evaluate`: measure a run on what it has not seen."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace

from companion.commands.calibrating import calibrated, check_calibrate
from companion.commands.parser import Parser, add_run
from companion.commands.runs import run_folder
from companion.ground.display import count
from companion.ground.number_limits import Count
from companion.ground.waiting import waiting
from companion.training import report
from companion.training.settings import NumberWordsSettings, TuneSettings, recorded

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from companion.data.corpora import Corpus
    from companion.generation.weights import Weights
    from companion.training.evaluation import Evaluation
    from companion.training.run_folder import RunFolder
    from companion.transformer import Transformer

JSON = (
    "print one object for a program instead: run, task, measured_on, and the figures under the names that result.json "
    "of a run has; of a text also yardsticks, and with --weights what that form of them makes of it"
)

EXAMPLES = (
    "examples:\n"
    "  companion evaluate\n"
    "  companion evaluate --run runs/larger --data letter.txt\n"
    "  companion evaluate --weights int4 --calibrate course\n"
    "      and what the weights lose in a form that makes writing faster\n"
    "  companion evaluate --run runs/number-words-de-en --numbers 20000\n"
    "  companion evaluate --json | jq .bits_per_byte"
)


def parser() -> Parser:
    parser = Parser(
        description=(
            "Measure a run on what was held out of its training.\n\n"
            "A run on text: in bits per byte, on its held-out text or on text of yours. Every token is scored once, "
            "in its own document, from at least half of the context before it.\n\n"
            "A run of number-words: the share of names translated without a mistake (exact match), in all and by "
            "digits, with its 95 % confidence interval (Wilson's).\n\n"
            "A tuned run: the share of held-out problems that it answers right; of a file of conversations, nats a "
            "token of answers that were held out; of preferences, the share of pairs whose better answer gained more."
        ),
        epilog=EXAMPLES,
    )
    add_run(parser, best=True)
    parser.add_argument(
        "--data",
        type=str,
        nargs="+",
        default=[],
        metavar="PATH",
        help="text: files, folders or globs to measure on instead, or course or python (see companion train --help)",
    )
    parser.add_argument(
        "--numbers",
        type=Count | None,
        default=None,
        help="number-words: held-out numbers to translate. Default: 2,000",
    )
    parser.add_argument(
        "--beams",
        type=Count | None,
        default=None,
        help="number-words: candidates of a beam search. Default: 1, greedy",
    )
    parser.add_weights()
    parser.add_argument("--json", action="store_true", help=JSON)
    parser.add_device()
    return parser


def run(flags: Namespace) -> int:
    """Print what was measured, as sentences and tables or, with `--json`, as one object and nothing else."""
    from companion.data.corpora import read_corpus
    from companion.ground.device import find_device

    check_calibrate(flags)
    device = find_device(flags.device)
    given = read_corpus(flags.data, keep_repeats=True) if flags.data else None
    folder = run_folder(flags.run)
    if folder.task != NumberWordsSettings.task:
        for name in ("numbers", "beams"):
            if flags[name] is not None:
                raise ValueError(f"--{name}: expected a run of {NumberWordsSettings.task} with it, got {folder.path}")
        if folder.task != TuneSettings.task:
            return _finish(flags, folder, _text(folder, given, device, flags))
        for name in ("data", "weights", "calibrate"):
            if flags[name]:
                raise ValueError(f"--{name}: expected a run on text with it, got {folder.path}, which was tuned")
        return _finish(flags, folder, _tuned(folder, device, flags))
    if flags.weights is not None:
        raise ValueError(f"--weights: expected a run on text with it, got {folder.path}, which translates number names")
    if given is not None:
        raise ValueError(f"--data: expected a run on text with it, got {folder.path}, which translates number names")
    return _finish(flags, folder, _numbers(folder, device, flags))


def _finish(flags: Namespace, folder: RunFolder, figures: dict[str, Any]) -> int:
    if flags.json:
        print(json.dumps({"run": str(folder.path), "task": folder.task, **figures}, indent=2))
    return 0


def _say(flags: Namespace) -> Callable[..., None]:
    """`print`; with `--json` it is silent, as one object alone is wanted."""
    return (lambda *_, **__: None) if flags.json else print


def _numbers(folder: RunFolder, device: torch.device, flags: Namespace) -> dict[str, Any]:
    from companion.data import number_words
    from companion.training.tasks.number_words import MEASURED, NumberWordsTask, exact_match

    words = NumberWordsTask.of_record(folder.record()).words
    numbers = number_words.held_out(flags.numbers or MEASURED)
    title = f"{words.title}, {len(numbers):,} that the model never learned from"
    _say(flags)(f"numbers   {title}\n", flush=True)
    model = folder.model(best=flags.best).to(device)
    found = exact_match(model, words, numbers, beams=flags.beams or 1)
    _say(flags)(found.table())
    return {"measured_on": title, **found.result()}


def _tuned(folder: RunFolder, device: torch.device, flags: Namespace) -> dict[str, Any]:
    from companion.training.run import open_task

    record = folder.record()
    settings = recorded(record)
    assert isinstance(settings, TuneSettings)
    task = open_task(replace(settings, start=record["start"]), folder)
    title = f"{task.title}, what was held out of it"
    _say(flags)(f"measured  {title}\n", flush=True)
    result = task.measure(folder.model(best=flags.best).to(device)).result()
    _say(flags)(task.verdict(record, result))
    return {"measured_on": title, **result}


def _text(folder: RunFolder, given: Corpus | None, device: torch.device, flags: Namespace) -> dict[str, Any]:
    from companion.data.batches import encode_documents
    from companion.data.deduplication import repeated_share
    from companion.data.yardsticks import yardsticks
    from companion.generation.weights import check_weights
    from companion.training.tasks.text import measure, text_of, total_bytes

    say, record, weights = _say(flags), folder.record(), flags.weights
    model, tokenizer = folder.model(best=flags.best).to(device), folder.tokenizer()
    if weights is not None:
        check_weights(model, weights)
    try:
        with waiting("reading the text"):
            split = text_of(record).split
    except ValueError:
        if given is None:
            raise
        split = None
    documents = given.documents if given is not None else split.held_out  # type: ignore[union-attr]
    title = given.title if given is not None else f"held out of {record['text']['title']}"
    say(f"text      {title}: {count(len(documents), 'document')}, {total_bytes(documents):,} bytes")
    figures: dict[str, Any] = {"measured_on": title, "documents": len(documents)}
    if given is not None and split is not None:
        share = repeated_share((one.text for one in split.train), [one.text for one in documents])
        figures["learned_share"] = share
        if share:
            say(f"          {share:.1%} of it, by whole paragraphs, is in the text the model learned from")
    if split is None:
        say("          the text the model learned from is not here any more: nothing to prime the yardsticks with")
    say(flush=True)
    with waiting("cutting it into tokens"):
        ids = encode_documents(tokenizer, documents)
    evaluation = measure(model, ids, total_bytes(documents))
    with waiting("compressing it"):
        known = split.train if split is not None else ()
        marks = {mark.name: mark.bits_per_byte for mark in yardsticks(known, documents)}
    say(report.yardstick_table(marks, evaluation.bits_per_byte))
    say(f"Perplexity {evaluation.perplexity:.1f} per token over {evaluation.tokens:,} tokens.")
    if chosen := calibrated(model, flags, tokenizer.encode):
        say(f"int4      {chosen}\n", flush=True)
    figures |= {**evaluation.result(), "yardsticks": marks}
    return figures | ({} if weights is None else _in_form(model, weights, ids, evaluation, say))


def _in_form(
    model: Transformer, weights: Weights, ids: list[Tensor], evaluation: Evaluation, say: Callable[..., None]
) -> dict[str, Any]:
    """What the same text costs with the model's weights in this form."""
    import torch

    from companion.generation.weights import largest_change, prepared
    from companion.training.tasks.text import measure

    other = measure(prepared(model, weights), ids, evaluation.bytes).bits_per_byte
    some = torch.cat(ids)[None, : model.config.context].to(next(model.parameters()).device)
    change = largest_change(model, weights, some)
    say(
        f"With weights in {weights}: {other:.4f} bits per byte, {other / evaluation.bits_per_byte - 1:+.2%}; over "
        f"{some.shape[1]} tokens no logit changes by more than {change:.2g}."
    )
    return {"weights": weights, "weights_bits_per_byte": other, "largest_change_of_a_logit": change}
