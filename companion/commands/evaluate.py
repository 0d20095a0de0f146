"""`companion evaluate`: measure a run on what it has not seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsonargparse import Namespace

from companion.commands.calibrating import calibrated, check_calibrate
from companion.commands.parser import Parser, add_run
from companion.commands.runs import run_folder
from companion.ground.display import count
from companion.ground.quantities import Count
from companion.training import report
from companion.training.settings import NumberWordsSettings

if TYPE_CHECKING:
    import torch

    from companion.data.corpora import Corpus
    from companion.generation.weights import Weights
    from companion.training.run_folder import RunFolder


def parser() -> Parser:
    parser = Parser(
        description=(
            "Measure a run on what was held out of its training.\n\n"
            "A run on text: in bits per byte, on its held-out text or on text of yours. Every token is scored once, "
            "in its own document, from at least half of the context before it.\n\n"
            "A run of number-words: the share of names translated without a mistake (exact match), in all and by "
            "digits, with its 95 % confidence interval (Wilson's)."
        ),
        epilog=(
            "examples:\n"
            "  companion evaluate\n"
            "  companion evaluate --run runs/larger --data letter.txt\n"
            "  companion evaluate --weights int8\n"
            "      and what the weights lose in a form that makes writing faster\n"
            "  companion evaluate --weights int4 --calibrate course\n"
            "      rounded by what that text asks of them: it loses less\n"
            "  companion evaluate --run runs/number-words-de-en --numbers 20000"
        ),
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
    parser.add_device()
    return parser


def run(flags: Namespace) -> int:
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
        return _text(folder, given, device, flags)
    if flags.weights is not None:
        raise ValueError(f"--weights: expected a run on text with it, got {folder.path}, which translates number names")
    if given is not None:
        raise ValueError(f"--data: expected a run on text with it, got {folder.path}, which translates number names")
    from companion.data import number_words
    from companion.training.tasks.number_words import MEASURED, NumberWordsTask, exact_match

    words = NumberWordsTask.of_record(folder.record()).words
    numbers = number_words.held_out(flags.numbers or MEASURED)
    print(f"numbers   {words.title}, {len(numbers):,} that the model never learned from\n", flush=True)
    model = folder.model(best=flags.best).to(device)
    print(exact_match(model, words, numbers, beams=flags.beams or 1, progress=True).table())
    return 0


def _text(folder: RunFolder, given: Corpus | None, device: torch.device, flags: Namespace) -> int:
    import torch

    from companion.data.batches import encode_documents
    from companion.data.corpora import repeated_share
    from companion.data.yardsticks import yardsticks
    from companion.generation.weights import check_weights, largest_change, prepared
    from companion.training.tasks.text import measure, text_of, total_bytes

    record = folder.record()
    weights: Weights | None = flags.weights
    model, tokenizer = folder.model(best=flags.best).to(device), folder.tokenizer()
    if weights is not None:
        check_weights(model, weights)
    try:
        split = text_of(record).split
    except ValueError:
        if given is None:
            raise
        split = None
    documents = given.documents if given is not None else split.held_out  # type: ignore[union-attr]
    title = given.title if given is not None else f"held out of {record['text']['title']}"
    print(f"text      {title}: {count(len(documents), 'document')}, {total_bytes(documents):,} bytes")
    if given is not None and split is not None and (share := repeated_share(split.train, documents)):
        print(f"          {share:.1%} of it, by whole paragraphs, is in the text the model learned from")
    if split is None:
        print("          the text the model learned from is not here any more: nothing to prime the yardsticks with")
    print(flush=True)
    ids = encode_documents(tokenizer, documents)
    evaluation = measure(model, ids, total_bytes(documents), progress=True)
    marks = yardsticks(split.train if split is not None else (), documents)
    print(report.yardstick_table({mark.name: mark.bits_per_byte for mark in marks}, evaluation.bits_per_byte))
    print(f"Perplexity {evaluation.perplexity:.1f} per token over {evaluation.tokens:,} tokens.")
    if chosen := calibrated(model, flags, tokenizer.encode):
        print(f"int4      {chosen}\n", flush=True)
    if weights is not None:
        other = measure(prepared(model, weights), ids, total_bytes(documents), progress=True).bits_per_byte
        some = torch.cat(ids)[None, : model.config.context].to(device)
        print(
            f"With weights in {weights}: {other:.4f} bits per byte, {other / evaluation.bits_per_byte - 1:+.2%}; over "
            f"{some.shape[1]} tokens no logit changes by more than {largest_change(model, weights, some):.2g}."
        )
    return 0
