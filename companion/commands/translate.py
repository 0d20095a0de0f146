"""`companion translate`: translate number names with a model, and show which number each name and its translation
mean."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import Namespace

from companion.commands.parser import Parser, add_run
from companion.commands.runs import run_folder
from companion.ground.number_limits import Count
from companion.training.settings import NumberWordsSettings

if TYPE_CHECKING:
    import torch

    from companion.data.number_names import Language
    from companion.data.number_words import NumberWords
    from companion.generation.draft import Draft
    from companion.transformer import Transformer


def parser() -> Parser:
    parser = Parser(
        description=(
            "Translate number names with a model trained by companion train --task number-words. The command prints "
            "each name, its translation, the number that each of them means, and whether the two numbers agree.\n\n"
            "If an input is not a number name in the language of the run, nothing is translated and an error says so."
        ),
        epilog=(
            "examples:\n"
            "  companion translate einundzwanzigtausenddreihundertvier\n"
            '  companion translate "vingt et un mille" --run runs/number-words-fr-en\n'
            "  companion translate --beams 4 zwei drei\n"
            "  companion translate --draft ngram zwei drei\n"
            "  companion translate < names.txt          one name per line"
        ),
    )
    parser.add_argument(
        "names", nargs="*", default=[], metavar="NAME", help="number names (default: read them from standard input)"
    )
    add_run(parser, "folder of a number-words run (default: the newest in runs/)", best=True)
    parser.add_argument(
        "--beams", type=Count, default=1, help="number of beams; 1: take the most probable token at each step"
    )
    parser.add_argument(
        "--draft",
        metavar="ngram|FOLDER",
        help="speculative decoding: ngram proposes what followed the same tokens earlier; a run of a smaller model "
        "with the same tokenizer proposes its own continuation; the translations stay the same",
    )
    parser.add_device()
    return parser


def run(flags: Namespace) -> int:
    if not flags.names and sys.stdin.isatty():  # do not wait for typed input
        raise ValueError('NAME: expected number names to translate, got none; for example "einundzwanzig"')
    if flags.draft is not None and flags.beams > 1:
        raise ValueError(f"--draft cannot be used together with --beams {flags.beams}; beam search cannot use a draft")
    from companion.ground.device import find_device
    from companion.training.tasks.number_words import NumberWordsTask

    device = find_device(flags.device)
    folder = run_folder(flags.run, NumberWordsSettings)
    words = NumberWordsTask.of_record(folder.record()).words
    names = flags.names or [line for line in sys.stdin.read().splitlines() if line.strip()]
    if not names:
        raise ValueError("NAME: expected number names to translate, one per line, got none")
    numbers = [words.source.number(name) for name in names]
    model, draft = folder.model(best=flags.best).to(device), None
    if flags.draft is not None:
        draft = draft_called(flags.draft, words, device)
        draft.check(model, words.longest)
    show(model, words, names, numbers, beams=flags.beams, draft=draft)
    if draft is not None:
        print(draft.report(), file=sys.stderr)
    return 0


def draft_called(name: str, words: NumberWords, device: torch.device) -> Draft:
    """Return the draft that proposes tokens: n-grams for "ngram", otherwise the model of the run in the named folder.

    Raises:
        ValueError: If the folder has no number-words run, or the run has a different vocabulary.
    """
    from companion.generation.draft import Draft
    from companion.training.tasks.number_words import NumberWordsTask

    if name == "ngram":
        return Draft("ngram")
    if not (Path(name) / "run.json").is_file():
        raise ValueError(f"--draft {name}: expected ngram, or the folder of a number-words run")
    folder = run_folder(name, NumberWordsSettings)
    theirs = NumberWordsTask.of_record(folder.record()).words
    if theirs.vocabulary != words.vocabulary:
        raise ValueError(
            f"--draft {name}: expected a run with the tokenizer of {words.title}, got that of {theirs.title}"
        )
    return Draft(folder.model().to(device))


def show(
    model: Transformer,
    words: NumberWords,
    names: Sequence[str],
    numbers: Sequence[int],
    *,
    beams: int = 1,
    draft: Draft | None = None,
) -> None:
    """Print each name and the model's translation, the number that each of the two means, and whether the numbers
    agree."""
    from companion.training.tasks.number_words import translate

    texts = translate(model, words, numbers, beams=beams, draft=draft)
    width = max(len(words.source.title), len(words.target.title))
    agree = 0
    for row, (name, number, text) in enumerate(zip(names, numbers, texts, strict=True)):
        meant = named(words.target, text)
        agree += meant == number
        if row:
            print()
        print(f"{words.source.title:<{width}}  {' '.join(name.split())}  =  {number:,}")
        print(f"{words.target.title:<{width}}  {text}  =  {'no number' if meant is None else f'{meant:,}'}")
        print(f"{'':<{width}}  {'the same number' if meant == number else 'wrong: ' + words.target.name(number)}")
    if len(names) > 1:
        print(f"\n{agree} of {len(names)} agree")


def named(language: Language, text: str) -> int | None:
    """Return the number that `text` names, or `None` if it does not name a number."""
    try:
        return language.number(text)
    except ValueError:
        return None
