"""The task of translating number names with an encoder-decoder, evaluated by exact match on held-out numbers."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from companion.config.model import ModelConfig
from companion.data import number_words
from companion.data.number_words import BOS, EOS, PAD, NumberWords, PairBatches
from companion.generation.beam import beam_search
from companion.generation.draft import Draft
from companion.generation.generate import complete
from companion.generation.logit_rules import Rules
from companion.generation.sampling import Sampling
from companion.ground.fields import require_whole
from companion.ground.waiting import counting
from companion.training.exact_match import ExactMatch
from companion.training.losses import Loss, translation_loss
from companion.training.plot import plot_exact_match
from companion.training.precision import autocast
from companion.training.seeds import derived_seed
from companion.training.settings import NumberWordsSettings, recorded
from companion.training.tasks.task import Task
from companion.transformer import Transformer

MEASURED = 2000
"""Number of held-out numbers for the evaluation of a finished run."""
MEASURED_BRIEFLY = 300
"""Number of held-out numbers for evaluations during a run."""
AT_ONCE = 250
"""Batch size for translation."""
UPDATES = {"parts": 400, "characters": 1000}
"""Number of updates that the default model needs, keyed by the kind of pieces. If the two languages have different
kinds, the larger number applies."""


def translate(
    model: Transformer,
    words: NumberWords,
    numbers: Sequence[int],
    *,
    beams: int = 1,
    precision: str = "fp32",
    draft: Draft | None = None,
) -> list[str]:
    """Translate the names of `numbers` with `model`.

    Args:
        model: an encoder-decoder.
        words: the languages and their vocabulary.
        numbers: the numbers whose names to translate.
        beams: with 1, choose the most probable token at each step (greedy decoding); with more, search for the most
            probable name, with a length penalty of 1 as in `beam_search`.
        precision: as in `Trainer`.
        draft: proposes tokens, several of which the model verifies at a time. The translations stay the same but take
            fewer passes, which the draft counts.

    Raises:
        ValueError: if `beams` is below 1, or if a draft is combined with more than one beam.
    """
    require_whole("beams", beams)
    if draft is not None and beams > 1:
        raise ValueError(f"draft cannot be used together with beams={beams}; beam search cannot use a draft")
    device = next(model.parameters()).device
    steps = min(words.longest, model.config.context - 1)
    never = Rules(never=(PAD, BOS))
    texts: list[str] = []
    with counting(len(numbers), unit="name", what="translating") as done:
        for first in range(0, len(numbers), AT_ONCE):
            sources = [words.encode(number)[0] for number in numbers[first : first + AT_ONCE]]
            with autocast(device, precision):
                if beams == 1:
                    greedy = Sampling(temperature=0.0)
                    rows: Sequence[Sequence[int]] = complete(
                        model,
                        source=sources,
                        start=BOS,
                        max_new_tokens=steps,
                        sampling=greedy,
                        stop={EOS},
                        rules=never,
                        weights=None,  # this makes logged results the same in every run
                        draft=draft,
                    )
                else:
                    found = beam_search(
                        model,
                        source=sources,
                        start=BOS,
                        width=beams,
                        max_new_tokens=steps,
                        stop={EOS},
                        rules=never,
                        length_penalty=1.0,
                    )
                    rows = [best.tokens for best, *_ in found]
            texts += map(words.decode, rows)
            done(len(rows))
    return texts


def exact_match(
    model: Transformer, words: NumberWords, numbers: Sequence[int], *, beams: int = 1, precision: str = "fp32"
) -> ExactMatch:
    """Count how many names `model` translates without a mistake, for each number of digits.

    The arguments are the same as in `translate`.

    Raises:
        ValueError: if there are no numbers, or if `beams` is below 1.
    """
    texts = translate(model, words, numbers, beams=beams, precision=precision)
    return ExactMatch.of(
        (len(str(number)), text == words.target.name(number)) for number, text in zip(numbers, texts, strict=True)
    )


@dataclass(frozen=True)
class NumberWordsTask(Task):
    """Translate number names from one language into another."""

    settings: NumberWordsSettings
    words: NumberWords

    @classmethod
    def open(cls, settings: NumberWordsSettings) -> NumberWordsTask:
        """Open the task.

        Raises:
            ValueError: if a language is unknown, or if the model is invalid or its context is too short for the names.
        """
        words = number_words.task(
            settings.source, settings.target, source_pieces=settings.source_pieces, target_pieces=settings.target_pieces
        )
        made = cls(settings, words)
        if made.config.context < words.longest:
            raise ValueError(
                f"--context {made.config.context}: expected at least {words.longest}, the number of tokens in the "
                "longest name"
            )
        return made

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> NumberWordsTask:
        """Return the task of a run, given its `run.json`.

        Raises:
            ValueError: if the run has a different task, or if names have changed since it was trained.
        """
        settings = recorded(record)
        if not isinstance(settings, NumberWordsSettings):
            raise ValueError(f"the run learned {settings.task}: expected a run of {NumberWordsSettings.task}")
        task = cls.open(settings)
        if task.fingerprint != record["text"]["fingerprint"]:
            raise ValueError(
                f"this run was trained with num2words {record['text'].get('num2words')}, and the names of numbers have "
                f"changed since then: expected the same version, got {version('num2words')}"
            )
        return task

    @cached_property
    def config(self) -> ModelConfig:
        """The configuration of the model, with one vocabulary for the pieces of both languages.

        Raises:
            ValueError: in the same cases as `Settings.model_config`.
        """
        return self.settings.model_config(self.words.vocab).with_(vocab=self.words.vocab)

    @cached_property
    def batches(self) -> PairBatches:
        """Function that maps the number of a micro-batch to its pairs of names.

        The pairs are returned as (source, inputs, targets), the arguments of `translation_loss`.
        """
        settings = self.settings
        return PairBatches(self.words, batch=settings.batch, seed=derived_seed(settings.seed, 1))

    @property
    def loss(self) -> Loss:
        """The `translation_loss`, with the label smoothing of the settings."""
        return partial(translation_loss, padding=PAD, smoothing=self.settings.label_smoothing)

    def measure(self, model: Transformer, precision: str = "fp32", *, brief: bool = False) -> ExactMatch:
        """Measure the exact match of greedy decoding on a fixed set of held-out numbers of every length."""
        chosen = number_words.held_out(MEASURED_BRIEFLY if brief else MEASURED)
        return exact_match(model, self.words, chosen, precision=precision)

    @property
    def usual(self) -> int:  # type: ignore[override]
        """The number of updates if neither steps nor minutes are given; it depends on the kind of pieces."""
        kinds = {self.settings.source_pieces, self.settings.target_pieces}
        return max(UPDATES[kind] for kind in kinds)

    @property
    def title(self) -> str:
        return f"number names, {self.words.title}"

    @property
    def fingerprint(self) -> str:
        return self.words.fingerprint

    def record(self) -> dict[str, Any]:
        """Return the title and fingerprint in `text`, and the version of num2words, which generates the names."""
        text = {"title": self.title, "fingerprint": self.fingerprint, "num2words": version("num2words")}
        return {"text": text}

    def facts(self) -> Sequence[tuple[str, str]]:
        words, number = self.words, 21_304
        source, target = words.encode(number)
        sides = [
            (language.title, " ".join(map(repr, words.pieces(ids)) if kind == "characters" else words.pieces(ids)))
            for language, ids, kind in (
                (words.source, source, words.source_pieces),
                (words.target, target, words.target_pieces),
            )
        ]
        width = max(len(name) for name, _ in sides)
        held = sum(len(number_words.one_side(digits, held_out=True)) for digits in number_words.DIGITS)
        return (
            ("numbers", f"0 to {number_words.MOST - 1:,}; learns from {number_words.MOST - held:,} of them"),
            ("", f"measured on some of the {held:,} others, which it never sees"),
            ("tokens", f"{words.vocab} kinds, of both languages; those of {number:,} are"),
            *(("", f"{name:<{width}}  {text}") for name, text in sides),
        )

    def amount(self, updates: int) -> str:
        each = self.settings.batch * self.settings.accumulate
        return f"{updates:,} updates of {each:,} pairs of names"

    def excerpt(self, model: Transformer) -> str:
        """Return a held-out number, always the same one, and the model's translation of its name."""
        number = number_words.held_out(MEASURED_BRIEFLY)[-1]
        (text,) = translate(model, self.words, [number])
        return f"{number:,}: {text}"

    def verdict(self, record: Mapping[str, Any], result: Mapping[str, Any]) -> str:
        """Return a table of exact-match accuracy by number of digits."""
        return ExactMatch.from_result(result).table()

    def next_command(self, folder: Path) -> str:
        """Return a `companion translate` command that translates a name with this run."""
        return f"companion translate --run {shlex.quote(str(folder))} {shlex.quote(self.words.source.name(21_304))}"

    def plot(self, entries: Sequence[Mapping[str, Any]], path: Path, record: Mapping[str, Any]) -> bool:
        """Plot the loss of each update and the exact match at each evaluation.

        Return False if matplotlib is not installed.
        """
        return plot_exact_match(entries, path)
