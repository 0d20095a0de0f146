"""From settings to something that can train, and from a run's folder back to it."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
import torch
from torch import Tensor

from companion.config import ModelConfig
from companion.data.batches import EvaluationBatches, TrainingBatches, encode_documents
from companion.data.corpora import Corpus, Document, Split, fingerprint, python_reference, read_corpus, split
from companion.data.tokenizer import BytePairTokenizer
from companion.data.yardsticks import yardsticks
from companion.training.fit import seconds_per_update
from companion.training.loop import Evaluation, Trainer, TrainingConfig, derived_seed, evaluate
from companion.training.settings import TrainSettings
from companion.transformer import Transformer

DEFAULT_UPDATES = 1500
"""Updates when neither steps nor minutes are asked for."""
MOST_EPOCHS = 30.0
"""Passes through the text beyond which the default model learns it by heart; asked-for steps are not cut to it."""
EVALUATIONS = 10
"""Evaluations in a run."""


@dataclass(frozen=True)
class Text:
    """A corpus, divided."""

    corpus: Corpus
    split: Split

    @classmethod
    def read(cls, settings: TrainSettings) -> Text:
        """The text of `settings`. Raises `ValueError` as `read_corpus` and `split` do."""
        corpus = read_corpus(settings.data) if settings.data else python_reference()
        return cls(corpus, split(corpus, settings.held_out))

    @cached_property
    def fingerprint(self) -> str:
        """Equal for the same documents with the same division."""
        return fingerprint((*self.split.train, *self.split.held_out))


@dataclass(frozen=True)
class Prepared:
    """Everything a run needs that does not depend on where it runs."""

    settings: TrainSettings
    text: Text
    tokenizer: BytePairTokenizer
    config: ModelConfig
    train: Sequence[Tensor]
    held_out: Sequence[Tensor]

    @classmethod
    def from_settings(cls, settings: TrainSettings, text: Text, tokenizer: BytePairTokenizer | None = None) -> Prepared:
        """Train the tokenizer on the training text (or take the run's own) and encode with it."""
        wanted = settings.model_config()
        if tokenizer is None:
            tokenizer = BytePairTokenizer.train((document.text for document in text.split.train), wanted.vocab)
        return cls(
            settings,
            text,
            tokenizer,
            wanted.with_(vocab=tokenizer.vocab),
            encode_documents(tokenizer, text.split.train),
            encode_documents(tokenizer, text.split.held_out),
        )

    @cached_property
    def batches(self) -> TrainingBatches:
        """Raises `ValueError` when the text is shorter than the context."""
        settings = self.settings
        return TrainingBatches(
            self.train, context=self.config.context, batch=settings.batch, seed=derived_seed(settings.seed, 1)
        )

    @property
    def bytes_per_token(self) -> float:
        """Of the training text."""
        return total_bytes(self.text.split.train) / sum(len(ids) - 1 for ids in self.train)

    def trainer(self, updates: int, device: torch.device, precision: str) -> Trainer:
        """A new model with its trainer: the same settings give the same weights."""
        settings = self.settings
        torch.manual_seed(derived_seed(settings.seed, 2))
        model = Transformer(self.config).to(device)
        moe, balance_loss = self.config.moe, settings.balance_loss
        if balance_loss is None:
            balance_loss = 0.0 if moe is None or moe.balanced else 0.01
        config = TrainingConfig(
            updates=updates,
            accumulate=settings.accumulate,
            learning_rate=settings.learning_rate,
            warmup=settings.warmup,
            weight_decay=settings.weight_decay,
            clip=settings.clip,
            seed=derived_seed(settings.seed, 3),
            balance_loss=balance_loss,
            z_loss=settings.z_loss,
            bias_rate=settings.bias_rate,
        )
        return Trainer(model, self.batches, config, precision=precision, compile=settings.compile)

    def measure(self, model: Transformer, precision: str = "fp32") -> Evaluation:
        """The model's loss on the held-out text, every token scored once."""
        return measure(model, self.held_out, total_bytes(self.text.split.held_out), precision=precision)

    def updates_in(self, epochs: float) -> int:
        """Updates that go through the training text `epochs` times, at least one."""
        return max(1, round(epochs / self.batches.epochs(self.settings.accumulate)))


@dataclass(frozen=True)
class Plan:
    """How long a new run is, settled once: the schedule and a resumed run depend on it. `why` explains a bound."""

    updates: int
    evaluations: int = EVALUATIONS
    why: str = ""


def plan(prepared: Prepared, device: torch.device, precision: str) -> Plan:
    """The length of a new run.

    With `minutes`, the speed of this machine is measured, and evaluations get at most a tenth of the time. Without
    `steps`, the text bounds the updates too.
    """
    settings = prepared.settings
    if settings.steps is not None:
        return Plan(settings.steps)
    enough = prepared.updates_in(MOST_EPOCHS)
    if settings.minutes is None:
        return Plan(min(DEFAULT_UPDATES, enough))
    seconds = 60 * settings.minutes
    trial = prepared.trainer(100, device, precision)
    each = seconds_per_update(trial, seconds=min(5.0, seconds / 20))
    began = time.monotonic()
    prepared.measure(trial.model, precision)
    pause = time.monotonic() - began
    evaluations = max(1, min(EVALUATIONS, int(seconds / 10 / pause)))
    possible = max(1, int((seconds - (evaluations + 1) * pause) / each))
    if possible <= enough:
        return Plan(possible, evaluations)
    why = (
        f"{settings.minutes:g} minutes are {possible:,} updates here; {enough:,}, or {MOST_EPOCHS:g} times through the "
        "text, are enough: more would learn it by heart (--steps overrules this)"
    )
    return Plan(enough, evaluations, why)


def new_record(prepared: Prepared, trainer: Trainer, plan: Plan) -> dict[str, Any]:
    """What `run.json` of a new run says; the yardsticks are measured here."""
    split = prepared.text.split
    marks = yardsticks(split.train, split.held_out)
    return {
        "settings": prepared.settings.what_matters(),
        "data": [str(Path(path).expanduser().absolute()) for path in prepared.settings.data],
        "text": {
            "title": prepared.text.corpus.title,
            "fingerprint": prepared.text.fingerprint,
            "train_bytes": total_bytes(split.train),
            "held_out_bytes": total_bytes(split.held_out),
        },
        "updates": plan.updates,
        "evaluations": plan.evaluations,
        "precision": trainer.precision,
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "bytes_per_token": prepared.bytes_per_token,
        "yardsticks": {mark.name: mark.bits_per_byte for mark in marks},
        "versions": versions(),
    }


def measure(
    model: Transformer, documents: Sequence[Tensor], bytes: int, *, precision: str = "fp32", progress: bool = False
) -> Evaluation:
    """The model's loss on encoded documents that spell `bytes` bytes of text.

    Every token is scored once, in its own document, from at least half of the context where so much stands before it.
    """
    batches = EvaluationBatches(documents, context=model.config.context)
    if not progress:
        return evaluate(model, batches, bytes, precision=precision)
    from tqdm.auto import tqdm

    return evaluate(model, tqdm(batches, unit="batch", disable=None, leave=False), bytes, precision=precision)


def total_bytes(documents: Sequence[Document]) -> int:
    """Bytes of all documents together."""
    return sum(document.bytes for document in documents)


def find_device(name: str) -> torch.device:
    """The device of that name; `"auto"`: the first CUDA GPU, else the CPU. Raises `ValueError` unless it is here."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"--device {name}: expected cpu, cuda, cuda:1, mps or auto") from None
    here = {
        "cpu": True,
        "cuda": torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not here.get(device.type, False):
        found = [kind for kind in ("cpu", "cuda", "mps") if here[kind]]
        raise ValueError(f"--device {name}: expected a device of this machine, which has {', '.join(found)}")
    return device


def find_precision(name: str, device: torch.device) -> str:
    """`"auto"`: bfloat16 where a GPU has it, else fp32."""
    if name != "auto":
        return name
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"


def versions() -> dict[str, str]:
    """What a number measured here depends on."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "tokenizers": tokenizers.__version__,
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": str(torch.get_num_threads()),
    }


def text_of(record: dict[str, Any]) -> Text:
    """The text of a run from its `run.json`, read again and found to be the same.

    Raises `ValueError` when it is gone or has changed, or the settings are not of this version.
    """
    try:
        settings = TrainSettings(**(record["settings"] | {"data": record["data"]}))
    except (KeyError, TypeError) as error:
        raise ValueError(f"run.json: expected the settings of a run, got something else ({error})") from None
    text = Text.read(settings)
    if text.fingerprint != record["text"]["fingerprint"]:
        raise ValueError(
            f"{record['text']['title']}: the text of this run has changed since it was trained; "
            "name the text to measure on with --data"
        )
    return text
