"""The task of continuing text with a decoder and its tokenizer, evaluated in bits per byte on held-out documents."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from torch import Tensor

from companion.config.model import ModelConfig
from companion.data.baselines import baselines
from companion.data.batches import EvaluationBatches, TrainingBatches, encode_documents, require_a_window
from companion.data.corpora import NAMED_TEXTS, Corpus, Document, Split, fingerprint, read_corpus, split
from companion.data.large_corpora import is_large, read_large
from companion.data.packing import PackedBatches
from companion.data.tokenizer import BytePairTokenizer
from companion.generation.generate import complete
from companion.generation.sampling import Sampling
from companion.ground.display import count
from companion.ground.waiting import counted
from companion.training import report
from companion.training.evaluation import Evaluation, evaluate
from companion.training.losses import Loss, next_token_loss, packed_next_token_loss
from companion.training.plot import plot_loss
from companion.training.run_folder import RunFolder, Start
from companion.training.seeds import derived_seed
from companion.training.settings import TextSettings, recorded
from companion.training.tasks.task import Enough, Task
from companion.transformer import Transformer

DEFAULT_UPDATES = 1500
"""Number of updates if neither steps nor minutes are given and the text is long enough."""
MOST_EPOCHS = 30.0
"""Passes through the text beyond which the default model memorizes it. This does not limit `steps`."""


@dataclass(frozen=True)
class Text:
    """A corpus, split into training and held-out text."""

    corpus: Corpus
    split: Split

    @classmethod
    def read(cls, settings: TextSettings) -> Text:
        """Read the text of `settings`. Raises `ValueError` in the same cases as `read_corpus` and `split`."""
        if is_large(settings.data):
            corpus = read_large(settings.data)
        else:
            corpus = read_corpus(settings.data, keep_repeats=settings.keep_repeats)
        return cls(corpus, split(corpus, settings.held_out))

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the documents and of the way they are split."""
        return fingerprint((*self.split.train, *self.split.held_out))


@dataclass(frozen=True)
class TextTask(Task):
    """The task of continuing text. `kept` is the tokenizer of an existing run, or `None` to train one when needed."""

    settings: TextSettings
    text: Text
    kept: BytePairTokenizer | None = None
    preparing: ClassVar[str] = "{title}: reading, and training a tokenizer on it"

    @classmethod
    def open(cls, settings: TextSettings, folder: RunFolder | None = None) -> TextTask:
        """Read the text and, with a `folder`, the tokenizer of the run in that folder. Raises `ValueError` for an
        invalid text; `open_text` checks the model."""
        if folder is not None:
            return cls(settings, Text.read(settings), folder.tokenizer())
        start = None if settings.init_from is None else Start.find(settings.init_from, "--init-from")
        return cls(settings, Text.read(settings), None if start is None else start.tokenizer())

    @cached_property
    def tokenizer(self) -> BytePairTokenizer:
        if self.kept is not None:
            return self.kept
        most = self.settings.model_config(self.settings.vocab).vocab
        return BytePairTokenizer.train((document.text for document in self.text.split.train), most)

    @cached_property
    def config(self) -> ModelConfig:
        config = self.settings.model_config(self.settings.vocab)
        return config if self.settings.init_from is not None else config.with_(vocab=self.tokenizer.vocab)

    def begin(self, model: Transformer) -> None:
        """Initialize a new model with the weights that `init_from` names."""
        if self.settings.init_from is not None:
            model.load_state_dict(Start.find(self.settings.init_from, "--init-from").model().state_dict())

    @cached_property
    def train(self) -> Sequence[Tensor]:
        """Training text as ids."""
        return encode_documents(self.tokenizer, self.text.split.train)

    @cached_property
    def held_out(self) -> Sequence[Tensor]:
        """The held-out text as ids."""
        return encode_documents(self.tokenizer, self.text.split.held_out)

    @cached_property
    def batches(self) -> TrainingBatches | PackedBatches:
        """Training batches.

        Raises:
            ValueError: if the text is shorter than the context, in which case most of the context would never be used.
        """
        made = TrainingBatches if self.settings.packing == "ring" else PackedBatches
        settings, context = self.settings, self.config.context
        require_a_window(self.train, context)
        return made(self.train, context=context, batch=settings.batch, seed=derived_seed(settings.seed, 1))

    @property
    def loss(self) -> Loss:
        settings = self.settings
        if settings.packing == "ring":
            return partial(next_token_loss, smoothing=settings.label_smoothing, later=settings.later_loss)
        hide: Literal["nothing", "padding", "documents"] = "nothing" if self.config.moe is None else "padding"
        if settings.packing == "apart":
            hide = "documents"
        smoothing, later = settings.label_smoothing, settings.later_loss
        return partial(packed_next_token_loss, hide=hide, smoothing=smoothing, later=later)

    def measure(self, model: Transformer, precision: str = "fp32", *, brief: bool = False) -> Evaluation:
        """Evaluate the model's loss on the held-out text, scoring every token once."""
        return measure(model, self.held_out, total_bytes(self.text.split.held_out), precision=precision)

    @property
    def usual(self) -> int:  # type: ignore[override]
        return min(DEFAULT_UPDATES, self.enough.updates)

    @property
    def enough(self) -> Enough:
        updates = max(1, round(MOST_EPOCHS / self.batches.epochs(self.settings.accumulate)))
        return Enough(updates, f"or {MOST_EPOCHS:g} times through the text, are enough; more would memorize it")

    @property
    def title(self) -> str:
        return self.text.corpus.title

    @property
    def fingerprint(self) -> str:
        return self.text.fingerprint

    @property
    def bytes_per_token(self) -> float:
        """Mean number of bytes per token of the training text."""
        return total_bytes(self.text.split.train) / sum(len(ids) - 1 for ids in self.train)

    @property
    def tokens(self) -> int:
        """Number of tokens in the training text."""
        return sum(len(ids) - 1 for ids in self.train)

    def files(self) -> dict[str, str]:
        return {"tokenizer.json": self.tokenizer.to_json()}

    def with_files(self, files: Mapping[str, str]) -> TextTask:
        return replace(self, kept=BytePairTokenizer.from_json(files["tokenizer.json"]))

    def record(self) -> dict[str, Any]:
        """Return the facts about the text, and the baselines, which are measured here unless they are switched off."""
        split = self.text.split
        marks = baselines(split.train, split.held_out) if self.settings.baselines else []
        return {
            "data": [
                path if path in NAMED_TEXTS else str(Path(path).expanduser().absolute()) for path in self.settings.data
            ],
            "text": {
                "title": self.title,
                "fingerprint": self.fingerprint,
                "train_bytes": total_bytes(split.train),
                "held_out_bytes": total_bytes(split.held_out),
            },
            "bytes_per_token": self.bytes_per_token,
            "baselines": {mark.name: mark.bits_per_byte for mark in marks},
        }

    def facts(self) -> Sequence[tuple[str, str]]:
        corpus, split = self.text.corpus, self.text.split
        return (
            ("text", f"{corpus.title}: {count(len(corpus.documents), 'document')}, {corpus.bytes:,} bytes"),
            *(("", note) for note in (*corpus.notes, *split.notes)),
            ("", f"learns from {count(len(split.train), 'document')} ({total_bytes(split.train):,} bytes)"),
            ("", f"measured on {count(len(split.held_out), 'other document')} ({total_bytes(split.held_out):,} bytes)"),
            (
                "tokens",
                f"{self.config.vocab:,} kinds, {self.bytes_per_token:.2f} bytes each; {self.tokens:,} to learn from",
            ),
            *((("from", self.settings.init_from),) if self.settings.init_from is not None else ()),
        )

    def amount(self, updates: int) -> str:
        settings = self.settings
        each = settings.batch * settings.accumulate * self.config.context
        epochs = self.batches.epochs(updates * settings.accumulate)
        return f"{updates:,} updates of {each:,} tokens, {epochs:.1f} times through the text"

    def excerpt(self, model: Transformer) -> str:
        room = self.config.context
        prompt = [self.tokenizer.separator, *self.tokenizer.encode("The")][:room]
        steps = min(24, room - len(prompt))
        if steps < 1:
            return ""
        stop = {self.tokenizer.separator}
        (ids,) = complete(model, [prompt], max_new_tokens=steps, sampling=Sampling(0.8), stop=stop, weights=None)
        return "The" + " ".join(self.tokenizer.decode(ids).split(" ")).replace("\n", " ")[:70].rstrip()

    def before(self, record: Mapping[str, Any]) -> str:
        return report.baseline_table(record["baselines"]) if record["baselines"] else ""

    def verdict(self, record: Mapping[str, Any], result: Mapping[str, Any]) -> str:
        return report.text_verdict(record["baselines"], result)

    def next_command(self, folder: Path) -> str:
        return f'companion generate --run {shlex.quote(str(folder))} --prompt "The "'

    def plot(self, entries: Sequence[Mapping[str, Any]], path: Path, record: Mapping[str, Any]) -> bool:
        return plot_loss(entries, path, bytes_per_token=record["bytes_per_token"], baselines=record["baselines"])


def measure(
    model: Transformer,
    documents: Sequence[Tensor],
    bytes: int,
    *,
    precision: str = "fp32",
    context: int | None = None,
    batch: int = 32,
) -> Evaluation:
    """Return the model's loss on encoded documents with `bytes` bytes of text.

    Every token is scored once, within its own document, and is predicted from at least half a context if that many
    tokens precede it. The context is that of the model unless a shorter one is given; `batch` is the number of windows
    per batch.
    """
    batches = EvaluationBatches(documents, context=context or model.config.context, batch=batch)
    return evaluate(model, counted(batches, unit="batch", what="measuring"), bytes, precision=precision)


def total_bytes(documents: Sequence[Document]) -> int:
    """Return the total number of bytes of all documents."""
    return sum(document.bytes for document in documents)


def text_of(record: dict[str, Any]) -> Text:
    """Read the text of a run again, given its `run.json`, and check that the text has not changed.

    Raises:
        ValueError: if the text no longer exists or has changed, or if the settings are from an incompatible version.
    """
    settings = recorded(record)
    if not isinstance(settings, TextSettings):
        raise ValueError("run.json: expected the settings of a run on text, got something else")
    text = Text.read(replace(settings, data=record["data"]))
    if text.fingerprint != record["text"]["fingerprint"]:
        raise ValueError(
            f"{record['text']['title']}: the text of this run has changed since it was trained; "
            "use --data to name the text to measure on"
        )
    return text
