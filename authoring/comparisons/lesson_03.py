"""Comparisons for lesson 03: one or two heads, different numbers of layers and heads, and hand-wired notes."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from authoring.comparisons.cells import names_of, row

BUDGETS = (260, 520)


def two_symbols() -> dict[tuple[str, int], list[float]]:
    """Measure how often models name both the previous symbol and the symbol three positions back.

    The models have one head, two heads, or one head plus a feed-forward network.
    """
    lesson, found = SimpleNamespace(**names_of("03", "setup", "recall", "recall-training")), {}
    plain = lesson.Recall

    class WithNetwork(plain):  # type: ignore[misc, valid-type]
        """The lesson's model with a feed-forward network between attention and output."""

        def __init__(self, heads: int) -> None:
            super().__init__(heads)
            self.up, self.down = nn.Linear(48, 192), nn.Linear(192, 48)

        def forward(self, text: Tensor) -> Tensor:
            x = self.symbols(text)
            x = x + self.attention(x)
            logits: Tensor = self.out(x + self.down(F.gelu(self.up(F.rms_norm(x, (48,)))))).unflatten(-1, (2, 64))
            return logits

    settings = {"one head": (plain, 1), "two heads": (plain, 2), "one head and a network": (WithNetwork, 1)}
    for setting, (model, heads) in settings.items():
        lesson.recall.__globals__["Recall"] = model
        for steps in (200, 400, 1600) if model is WithNetwork else (200, 400):
            both = [100 * lesson.recall(heads, start, steps)[1].item() for start in range(3)]
            print(row(setting, f"{steps} updates", "both right of 100", both), flush=True)
            found[setting, steps] = both
    return found


def layers() -> dict[tuple[str, int], list[float]]:
    """Measure correct answers per 100 by number of layers and heads, and for one layer with a fixed period."""
    lesson = SimpleNamespace(**names_of("03", "setup", "lines"))
    every = lesson.PERIODS
    of = {"one layer": (1, every, 4), "two layers": (2, every, 4), "one layer, period 9": (1, (9, 9), 4)}
    of |= {"two layers, one head": (2, every, 1), "two layers, eight heads": (2, every, 8)}
    found: dict[tuple[str, int], list[float]] = {}
    for setting, (depth, periods, heads) in of.items():
        for steps in BUDGETS:
            found[setting, steps] = []
            for start in range(3):
                reader = lesson.Reader("rotary", start=start)
                reader.layers = reader.layers[:depth]
                if heads != lesson.HEADS:
                    config, rotary = lesson.AttentionConfig(heads), lesson.PositionConfig("rotary")
                    attentions = [lesson.Attention(lesson.WIDTH, config, positions=rotary) for _ in range(depth)]
                    reader.layers = nn.ModuleList(attentions)
                    for layer in attentions:
                        for matrix in (layer.query, layer.key, layer.value, layer.output):
                            nn.init.normal_(matrix.weight, std=lesson.WIDTH**-0.5)
                lesson.practise(reader, start, steps, periods=periods, length=lesson.LENGTH)
                found[setting, steps].append(100 * lesson.right(reader, periods, lesson.LENGTH))
            print(row(setting, f"{steps} updates", "right of 100", found[setting, steps]), flush=True)
    return found


def notes() -> dict[tuple[str, int], list[float]]:
    """Measure correct answers per 100 while two layers learn, as in the lesson and with hand-wired notes in layer 0."""
    lesson = SimpleNamespace(**names_of("03", "setup", "lines"))
    found: dict[tuple[str, int], list[float]] = {}

    class Notes(nn.Linear):
        """Layer 0 with hand-wired notes: as in the lesson, it gives each token the vector of its left neighbor."""

        def forward(self, x: Tensor, positions: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
            return F.pad(super().forward(x)[:, :-1], (0, 0, 1, 0))

    for setting in ("two layers", "notes wired in"):
        for start in range(3):
            reader = lesson.Reader("rotary", start=start)
            if setting == "notes wired in":
                reader.layers[0] = Notes(lesson.WIDTH, lesson.WIDTH, bias=False)

            def watch(done: int, reader: torch.nn.Module = reader, setting: str = setting) -> None:
                if done in (60, 120, 260):
                    right = 100 * lesson.right(reader, lesson.PERIODS, lesson.LENGTH)
                    found.setdefault((setting, done), []).append(right)

            lesson.practise(reader, start, periods=lesson.PERIODS, length=lesson.LENGTH, watch=watch)
        for done in (60, 120, 260):
            print(row(setting, f"{done} updates", "right of 100", found[setting, done]), flush=True)
    return found
