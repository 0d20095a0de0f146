"""Record for lesson 21: story models and readers, trained from three seeds, and how their heads form.

Story models are trained as in lesson 14, but with fewer updates. All measures are computed by the lesson's own cells.
Each model is saved in `build/records/inside` every `EVERY` updates, and no model is trained twice.
"""

from __future__ import annotations

import copy
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from authoring.comparisons.cells import names_of
from authoring.records.stored import stored
from authoring.records.story import BATCH, CONTEXT, DENSE, Text, falling
from companion.data.batches import TrainingBatches, encode_documents
from companion.files.models import load_model, save_model
from companion.training.trainer import Trainer, TrainingConfig
from companion.transformer import Transformer
from companion_school.study.rounds import Reader, practise, right, rounds

STARTS, BUDGETS, EVERY = (1, 2, 3), (1200, 1800), 60
"""Seeds, numbers of updates after which models are measured, and updates between saves.

A run has the last of these numbers of updates, and its learning rate falls during the last 540.
"""
PAIRS = 20
"""Pairs of stories that differ only in the hero."""
READERS, LOOK = (260, 520), 20
"""Numbers of updates for the readers, and updates between two measurements."""
CELLS = (
    "setup", "watched", "modules", "asks", "two-stories", "gaps", "patched", "sets-up-heads", "sets-up-pairs",
    "copying", "probe", "sets-up-streams", "sets-up-largest", "sparse",
)  # fmt: skip


def trained(text: Text, start: int, folder: Path) -> list[Path]:
    """Return the folders of a run's models, one for every `EVERY` updates. Train them if the last one is missing."""
    updates = BUDGETS[-1]
    places = [folder / f"{start}-{updates}" / f"{done:04}" for done in range(0, updates + 1, EVERY)]
    if not places[-1].exists():
        plan = TrainingConfig(updates=updates, learning_rate=6e-3, warmup=100, min_lr_ratio=1.0, seed=start)
        torch.manual_seed(start)
        model = Transformer(DENSE)
        ids = encode_documents(text.tokenizer, [story.document for story in text.train])
        trainer = Trainer(model, TrainingBatches(ids, context=CONTEXT, batch=BATCH, seed=start), plan)
        trainer.learning_rate = falling(trainer.learning_rate, updates)  # type: ignore[method-assign]
        for done in range(updates + 1):
            if done % EVERY == 0:
                save_model(places[done // EVERY], copy.deepcopy(model).half())
                print(start, done, flush=True)
            if done < updates:
                trainer.update()
    return places


class Measures:
    """The lesson's measures of the models from `trained`, which are stored in the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.text = folder, Text()
        self.folder.mkdir(parents=True, exist_ok=True)

    @cached_property
    def lesson(self) -> dict[str, Any]:
        """The names that the lesson's cells define."""
        with torch.enable_grad():
            names = names_of("21", *CELLS)
        torch.set_grad_enabled(True)
        return names

    def _model(self, start: int, done: int) -> Transformer:
        places = trained(self.text, start, self.folder)
        return load_model(places[done // EVERY], dtype=torch.float32).eval()

    def story(self, start: int, updates: int) -> dict[str, Any]:
        """Find the head that carries a story's hero, its shares by denoising and by noising, and the next best head."""

        def make() -> dict[str, Any]:
            pairs = self.lesson["rivals"](self.lesson["unseen"], PAIRS)
            shares, both = self.lesson["carried"](self._model(start, updates), pairs)
            best = shares.mean(0).argmax().item()
            there = shares[:, best // 4, best % 4].tolist()
            shares[:, best // 4, best % 4] = 0
            of = {"start": start, "updates": updates, "head": f"{best // 4}.{best % 4}", "both": both}
            then = shares.mean(0).argmax().item()
            of |= {"second": f"{then // 4}.{then % 4}", "next": shares.mean(0).max().item()}
            return of | dict(zip(("denoising", "noising"), there, strict=True))

        return rounded(stored(self.folder / f"story-{start}-{updates}.json", torch.no_grad()(make)))

    def film(self, start: int) -> dict[str, Any]:
        """Return rows of [updates, share of pairs for which the model names both heroes]."""

        def make() -> dict[str, Any]:
            pairs, rows = self.lesson["rivals"](self.lesson["unseen"], PAIRS), []
            for done in range(0, BUDGETS[-1] + 1, 2 * EVERY):
                model = self._model(start, done)
                said = [[model(x).logits[0, -1].argmax().item() for x in pair[:2]] == pair[2] for pair in pairs]
                rows.append([done, round(sum(said) / len(said), 3)])
            return {"start": start, "rows": rows}

        return stored(self.folder / f"film-{start}.json", torch.no_grad()(make))

    def stream(self, start: int, updates: int) -> dict[str, Any]:
        """Measure how often a probe finds the hero at the stream's end, and how pure features are before layer 2."""

        def make() -> dict[str, Any]:
            lesson, model = self.lesson, self._model(start, updates)
            states, tokens = lesson["streams"](model, lesson["unseen"])
            _, told = lesson["probe"](lesson["at_stop"](states, tokens)[3], lesson["heroes"])
            u = states[2][tokens > 0]
            features, _, explains = lesson["sparse"](u, start=start)
            purity = lesson["pure"](u, features, tokens)
            of = {"start": start, "updates": updates, "probe": told, "explains": explains}
            return of | {"purity": [round(share, 3) for share in purity]}

        return rounded(stored(self.folder / f"stream-{start}-{updates}.json", torch.no_grad()(make)))

    def reader(self, start: int, updates: int) -> dict[str, Any]:
        """Return rows of [updates, share right, best induction score in layer 0, best induction score in layer 1]."""

        def make() -> dict[str, Any]:
            rows, reader = [], Reader("rotary", start)
            lines = rounds(torch.Generator().manual_seed(7), 64, (12, 12), 24)[0][:, :24]

            def watch(done: int) -> None:
                if done % LOOK == 0:
                    with torch.no_grad():
                        scores = self.lesson["copying"](reader, lines, reader.layers).amax(1).tolist()
                    rows.append([done, *(round(one, 3) for one in (right(reader, (6, 12), 32), *scores))])

            with torch.enable_grad():
                practise(reader, start, steps=updates, periods=(6, 12), length=32, watch=watch)
            return {"start": start, "updates": updates, "rows": rows}

        return stored(self.folder / f"reader-{start}-{updates}.json", make)


def rounded(found: dict[str, Any]) -> dict[str, Any]:
    return {name: round(what, 3) if isinstance(what, float) else what for name, what in found.items()}


def inside(folder: Path) -> dict[str, Any]:
    """Return results for readers, story models, heads over training, and streams of trained and untrained models."""
    of = Measures(folder)
    return {
        "readers": [of.reader(start, updates) for updates in READERS for start in STARTS],
        "stories": [of.story(start, updates) for updates in BUDGETS for start in STARTS],
        "films": [of.film(start) for start in STARTS],
        "streams": [of.stream(start, updates) for updates in (0, *BUDGETS) for start in STARTS],
    }
