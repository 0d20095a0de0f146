"""The text task for data that does not fit into memory and is therefore read part by part in training."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from torch import Tensor

from companion.data.batches import TrainingBatches, require_a_window
from companion.data.large_corpora import SAMPLE, Parts, StreamedBatches, is_large, sample
from companion.data.packing import PackedBatches
from companion.data.tokenizer import BytePairTokenizer
from companion.ground.display import readable_bytes
from companion.ground.user_files import forget, kept_file
from companion.training.run_folder import RunFolder
from companion.training.seeds import derived_seed
from companion.training.settings import TextSettings
from companion.training.tasks.text import TextTask, total_bytes

KEPT_BYTES, KEPT_DAYS = 10 * 10**9, 30
"""Limits for the ids of other texts on disk: total bytes, and days since their last use."""


def open_text(settings: TextSettings, folder: RunFolder | None = None) -> TextTask:
    """Open the kind of `TextTask` that suits the size of the text. Raises the same errors as `TextTask.open`."""
    settings.model_config(settings.vocab)  # fail early if the model is invalid
    return (LargeTextTask if is_large(settings.data) else TextTask).open(settings, folder)


@dataclass(frozen=True)
class LargeTextTask(TextTask):
    """A `TextTask` that never holds all ids in memory: its tokenizer is trained on a sample, and training reads one
    part after another.

    Statistics of all tokens are estimated from the first part.
    """

    @cached_property
    def tokenizer(self) -> BytePairTokenizer:
        if self.kept is not None:
            return self.kept
        most = self.settings.model_config(self.settings.vocab).vocab
        return BytePairTokenizer.train((document.text for document in sample(self.text.split.train, SAMPLE)), most)

    @cached_property
    def _parts(self) -> Parts:
        seed = derived_seed(self.settings.seed, 4)
        known = f"{self.fingerprint} {seed} {self.tokenizer.to_json()}"
        folder = kept_file("ids") / hashlib.sha256(known.encode()).hexdigest()[:16]
        split = self.text.split
        return Parts(
            split.train, self.tokenizer, vocab=self.tokenizer.vocab, held_out=split.held_out, seed=seed, folder=folder
        )

    def facts(self) -> Sequence[tuple[str, str]]:
        """Return the facts about a text, where its ids are stored, and how long the ids of other texts are kept."""
        folder = self._parts.folder
        freed = forget(folder.parent, keep=folder, most=KEPT_BYTES, days=KEPT_DAYS)
        told = f"; {readable_bytes(freed)} removed now" if freed else ""
        stay = f"those of other texts are kept {KEPT_DAYS} days, at most {readable_bytes(KEPT_BYTES)}{told}"
        return (*super().facts(), ("", f"as ids in {folder}; {stay}"))

    @cached_property
    def train(self) -> Sequence[Tensor]:
        """The first part of the training text, as ids."""
        return self._parts(0)

    @cached_property
    def batches(self) -> StreamedBatches:  # type: ignore[override]
        settings, context = self.settings, self.config.context
        require_a_window(self.train, context)
        kind = TrainingBatches if settings.packing == "ring" else PackedBatches
        make = partial(kind, context=context, batch=1, seed=derived_seed(settings.seed, 1))
        return StreamedBatches(self._parts, make, batch=settings.batch, seed=derived_seed(settings.seed, 5))

    @property
    def bytes_per_token(self) -> float:
        return self._parts.bytes(0) / sum(len(ids) - 1 for ids in self.train)

    @property
    def tokens(self) -> int:
        return round(total_bytes(self.text.split.train) / self.bytes_per_token)
