"""`companion evaluate`: measure a run on held-out data, or a published model on any text."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace

from companion.commands.calibrating import calibrated, check_calibrate
from companion.commands.parser import Parser, add_checkpoint, add_run, exclude, need
from companion.commands.runs import run_folder
from companion.ground.display import count
from companion.ground.number_limits import Count
from companion.ground.waiting import waiting
from companion.training import report
from companion.training.settings import NumberWordsSettings, TuneSettings, recorded

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from companion.commands.writer import TextGenerator
    from companion.data.corpora import Corpus, Document
    from companion.quantization.weights import Weights
    from companion.training.evaluation import Evaluation
    from companion.training.run_folder import RunFolder
    from companion.transformer import Transformer

LONGEST = 2048
"""Default maximum window length in tokens for a published model; the logits of longer windows take gigabytes."""
LOGITS = 2**27
"""Maximum number of logits in a batch."""
JSON = (
    "print the result as one JSON object with run and task (or checkpoint), measured_on, and the figures, named as in "
    "a run's result.json. For text, it also contains the baselines and, with --weights, the figures for that weight "
    "format"
)

EXAMPLES = (
    "examples:\n"
    "  companion evaluate\n"
    "  companion evaluate --run runs/larger --data letter.txt\n"
    "  companion evaluate --weights int4 --calibrate course\n"
    "      also measure how much a faster weight format costs\n"
    "  companion evaluate --checkpoint smollm2 --data README.md --weights int4\n"
    "      a published model on any text, and the cost of rounding its weights\n"
    "  companion evaluate --run runs/number-words-de-en --numbers 20000\n"
    "  companion evaluate --json | jq .bits_per_byte"
)


def parser() -> Parser:
    parser = Parser(
        description=(
            "Measure a run on held-out data, or a published model on any text.\n\n"
            "A run on text is measured in bits per byte, on its held-out text or on your own. Every token "
            "is scored once, within its own document, with at least half of the context before it.\n\n"
            "A published model (--checkpoint) is measured in the same way on --data, with its own tokenizer and "
            "windows of --context tokens. The first token of a document is scored only if the tokenizer puts a "
            "token before it.\n\n"
            "A number-words run is measured by the share of names that it translates without a mistake (exact match), "
            "in total and by number of digits, with a 95 % Wilson confidence interval.\n\n"
            "A tuned run is measured by the share of held-out problems that it answers correctly. If it was tuned on "
            "a file of conversations, the measure is the mean loss of held-out answers in nats per token; for "
            "preferences, it is the share of pairs whose better answer gained more probability."
        ),
        epilog=EXAMPLES,
    )
    add_run(parser, best=True)
    add_checkpoint(parser)
    parser.add_argument(
        "--data",
        nargs="+",
        default=[],
        metavar="PATH",
        help="text: files, folders or globs to evaluate on, or course or python (see companion train --help), instead "
        "of the held-out text",
    )
    parser.add_argument(
        "--numbers", type=Count | None, help="number-words: number of held-out names to translate (default: 2,000)"
    )
    parser.add_argument("--beams", type=Count | None, help="number-words: number of beams (default: 1, greedy)")
    parser.add_argument(
        "--context",
        type=Count | None,
        help=f"checkpoint: tokens per window (default: the model's context, at most {LONGEST:,})",
    )
    parser.add_weights()
    parser.add_argument("--json", action="store_true", help=JSON)
    parser.add_device()
    return parser


def run(flags: Namespace) -> int:
    """Print the measurements as sentences and tables or, with `--json`, as a single JSON object."""
    with redirect_stdout(io.StringIO()) if flags.json else nullcontext():
        found = _measured(flags)
    if flags.json:
        print(json.dumps(found, indent=2))
    return 0


def _measured(flags: Namespace) -> dict[str, Any]:
    from companion.data.corpora import read_corpus
    from companion.ground.device import find_device

    check_calibrate(flags)
    device = find_device(flags.device)
    given = read_corpus(flags.data, keep_repeats=True) if flags.data else None
    if flags.checkpoint is not None:
        for name in ("run", "best", "numbers", "beams"):
            exclude(flags, name, "checkpoint")
        return _checkpoint(flags, given, device)
    need(flags, "context", "checkpoint", "a run is measured with its own context")
    folder = run_folder(flags.run)
    translates, tuned = folder.task == NumberWordsSettings.task, folder.task == TuneSettings.task
    for name in ("numbers", "beams"):
        if not translates and flags[name] is not None:
            raise ValueError(f"--{name}: only for runs of {NumberWordsSettings.task}, got {folder.path}")
    for name in ("weights", "data", "calibrate"):
        if (translates or tuned) and flags[name]:
            what = "translates number names" if translates else "was tuned"
            raise ValueError(f"--{name}: only for runs on text, but {folder.path} {what}")
    if translates:
        figures = _numbers(folder, device, flags)
    else:
        figures = _tuned(folder, device, flags) if tuned else _text(folder, given, device, flags)
    return {"run": str(folder.path), "task": folder.task, **figures}


def _numbers(folder: RunFolder, device: torch.device, flags: Namespace) -> dict[str, Any]:
    from companion.data import number_words
    from companion.training.tasks.number_words import MEASURED, NumberWordsTask, exact_match

    words = NumberWordsTask.of_record(folder.record()).words
    numbers = number_words.held_out(flags.numbers or MEASURED)
    title = f"{words.title}, {len(numbers):,} that were not in the training data"
    print(f"numbers   {title}\n", flush=True)
    model = folder.model(best=flags.best).to(device)
    found = exact_match(model, words, numbers, beams=flags.beams or 1)
    print(found.table())
    return {"measured_on": title, **found.result()}


def _tuned(folder: RunFolder, device: torch.device, flags: Namespace) -> dict[str, Any]:
    from companion.training.run import open_task

    record = folder.record()
    settings = recorded(record)
    assert isinstance(settings, TuneSettings)
    task = open_task(replace(settings, start=record["start"]), folder)
    title = f"{task.title}, the held-out part"
    print(f"measured  {title}\n", flush=True)
    result = task.measure(folder.model(best=flags.best).to(device)).result()
    print(task.verdict(record, result))
    return {"measured_on": title, **result}


def _text(folder: RunFolder, given: Corpus | None, device: torch.device, flags: Namespace) -> dict[str, Any]:
    from companion.data.batches import encode_documents
    from companion.data.deduplication import repeated_share
    from companion.quantization.weights import check_weights
    from companion.training.tasks.text import text_of, total_bytes

    record = folder.record()
    model, tokenizer = folder.model(best=flags.best).to(device), folder.tokenizer()
    check_weights(model, flags.weights)
    try:
        with waiting("reading the text"):
            split = text_of(record).split
    except ValueError:
        if given is None:
            raise
        split = None
    documents = given.documents if given is not None else split.held_out  # type: ignore[union-attr]
    title = given.title if given is not None else f"held out of {record['text']['title']}"
    print(f"text      {title}: {count(len(documents), 'document')}, {total_bytes(documents):,} bytes")
    figures: dict[str, Any] = {"measured_on": title, "documents": len(documents)}
    if given is not None and split is not None:
        share = repeated_share((one.text for one in split.train), [one.text for one in documents])
        figures["learned_share"] = share
        if share:
            print(f"          {share:.1%} of it, in whole paragraphs, is also in the training text")
    if split is None:
        print("          the training text is no longer available, so the baselines start without it")
    print(flush=True)
    with waiting("tokenizing it"):
        ids = encode_documents(tokenizer, documents)
    known = split.train if split is not None else ()
    return figures | _scores(flags, model, tokenizer.encode, documents, ids, known=known)


def _checkpoint(flags: Namespace, given: Corpus | None, device: torch.device) -> dict[str, Any]:
    from companion.commands.writer import from_checkpoint

    if given is None:
        raise ValueError(
            "--data: expected text on which to measure the --checkpoint, got none; for example --data README.md"
        )
    writer = from_checkpoint(flags.checkpoint, device)
    model, documents = writer.model, given.documents
    _check_model(flags, model)
    ids, bytes = _scored(writer, documents)
    if not any(len(one) > 1 for one in ids):
        raise ValueError(f"--data {flags.data[0]}: expected a text of at least two tokens")
    size = sum(document.bytes for document in documents)
    print(f"text      {given.title}: {count(len(documents), 'document')}, {size:,} bytes\n", flush=True)
    context = flags.context or min(model.config.context, LONGEST)
    about = {"checkpoint": flags.checkpoint, "measured_on": given.title, "documents": len(documents)}
    return about | _scores(flags, model, writer.encode, documents, ids, bytes=bytes, context=context)


def _check_model(flags: Namespace, model: Transformer) -> None:
    from companion.quantization.weights import check_weights

    if model.config.stack != "decoder":
        raise ValueError(
            f"--checkpoint {flags.checkpoint}: expected a model that continues texts, got one that translates"
        )
    check_weights(model, flags.weights)
    if flags.context is not None and not 2 <= flags.context <= model.config.context:
        expected = f"expected 2 to {model.config.context:,} tokens, the model's context"
        raise ValueError(f"--context {flags.context}: {expected}")


def _scored(writer: TextGenerator, documents: Sequence[Document]) -> tuple[list[Tensor], int]:
    """Return the ids of each document, and the number of bytes of all scored tokens.

    The first token of a document is scored only if the tokenizer has put a special token before it.
    """
    import torch

    assert writer.spell is not None
    with waiting("tokenizing it"):
        ids = [torch.tensor(writer.encode(document.text)) for document in documents]
    unscored = [one[:1].tolist() for one in ids if len(one) and int(one[0]) != writer.says.special.start]
    return ids, sum(document.bytes for document in documents) - sum(len(writer.spell(one).encode()) for one in unscored)


def _scores(
    flags: Namespace,
    model: Transformer,
    encode: Callable[[str], list[int]],
    documents: Sequence[Document],
    ids: list[Tensor],
    *,
    known: Sequence[Document] = (),
    bytes: int | None = None,
    context: int | None = None,
) -> dict[str, Any]:
    """Measure a model on encoded documents, print the scores beside the baselines, and return them keyed by name."""
    from companion.data.baselines import baselines
    from companion.training.tasks.text import measure, total_bytes

    windows: dict[str, Any] = {}
    if context is not None:
        windows = {"context": context, "batch": max(1, min(32, LOGITS // (context * model.config.vocab)))}
    evaluation = measure(model, ids, total_bytes(documents) if bytes is None else bytes, **windows)
    with waiting("compressing it"):
        marks = {mark.name: mark.bits_per_byte for mark in baselines(known, documents)}
    print(report.baseline_table(marks, evaluation.bits_per_byte))
    print(f"Perplexity {evaluation.perplexity:.1f} per token over {evaluation.tokens:,} tokens.")
    if chosen := calibrated(model, flags, encode):
        print(f"int4      {chosen}\n", flush=True)
    figures = {**evaluation.result(), "baselines": marks}
    return figures | ({} if flags.weights is None else _in_form(model, flags.weights, ids, evaluation, windows))


def _in_form(
    model: Transformer, weights: Weights, ids: list[Tensor], evaluation: Evaluation, windows: dict[str, Any]
) -> dict[str, Any]:
    import torch

    from companion.quantization.weights import largest_change, prepared
    from companion.training.tasks.text import measure

    other = measure(prepared(model, weights), ids, evaluation.bytes, **windows).bits_per_byte
    most = windows.get("context", model.config.context)
    some = torch.cat(ids)[None, :most].to(next(model.parameters()).device)
    change = largest_change(model, weights, some)
    print(
        f"With weights in {weights}: {other:.4f} bits per byte, {other / evaluation.bits_per_byte - 1:+.2%}; over "
        f"{some.shape[1]} tokens no logit changes by more than {change:.2g}."
    )
    return {"weights": weights, "weights_bits_per_byte": other, "largest_change_of_a_logit": change}
