"""What `companion translate` does once its flags are read: names become numbers, a model translates, both are shown."""

from __future__ import annotations

from collections.abc import Sequence

from companion.data.number_names import Language
from companion.data.number_words import NumberWords
from companion.training.tasks.number_words import translate
from companion.transformer import Transformer


def read_names(language: Language, names: Sequence[str]) -> list[int]:
    """The number of each name. Raises `ValueError` for none, and for the first that is not a name, saying which."""
    if not names:
        raise ValueError("NAME: expected number names to translate, one a line, got none")
    return [language.number(name) for name in names]


def show(
    model: Transformer, words: NumberWords, names: Sequence[str], numbers: Sequence[int], *, beams: int = 1
) -> None:
    """Print each name, the model's translation, the numbers that both name, and whether they agree."""
    texts = translate(model, words, numbers, beams=beams, progress=True)
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
    """The number that `text` names; `None` for a text that names none."""
    try:
        return language.number(text)
    except ValueError:
        return None
