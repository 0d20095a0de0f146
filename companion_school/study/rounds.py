"""A task that needs the order of the tokens, and a small model that learns it, with four kinds of positions.

A text says a few symbols in random order, and then the same round again and again. Whoever has seen one round can
predict the rest: look for the last time the present symbol occurred, and take what came after it (lesson 05).

    reader = practise(Reader("rotary", start=0), start=0)
    right(reader, periods=(8, 16), length=CONTEXT)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from companion.config.model import AttentionConfig, PositionConfig
from companion.layers.attention import Attention
from companion.layers.positions import Learned, rotation, sinusoidal

SYMBOLS, WIDTH, HEADS, CONTEXT = 64, 48, 4, 48
KINDS = ("sinusoidal", "learned", "rotary", "linear biases")


def linear_biases(length: int, heads: int) -> Float[Tensor, "1 head query key"]:
    """What each head takes off its scaled scores: its slope times the distance (Press et al. 2022, section 3).

    The slopes are 2^(-8/heads), 2^(-16/heads), ..., 2^-8. Add it to a causal mask: a key ahead of the query gains.
    """
    slopes = 2.0 ** (-8 * torch.arange(1, heads + 1) / heads)
    distance = torch.arange(length)[:, None] - torch.arange(length)
    return (-slopes[:, None, None] * distance)[None]


class Reader(nn.Module):
    """Two layers of attention with residuals, of width 48 and with 4 heads, for texts of 64 symbols.

    kind:   of positions, one of `KINDS`.
    start:  seed of its weights.

    Raises `ValueError` for any other kind.
    """

    def __init__(self, kind: str, start: int) -> None:
        super().__init__()
        if kind not in KINDS:
            raise ValueError(f"kind={kind!r}: expected one of {', '.join(KINDS)}")
        torch.manual_seed(start)
        self.kind = kind
        self.symbols, self.table = nn.Embedding(SYMBOLS, WIDTH), Learned(512, WIDTH)
        turns = PositionConfig("rotary") if kind == "rotary" else None
        layers = [Attention(WIDTH, AttentionConfig(HEADS), positions=turns) for _ in range(2)]
        self.layers = nn.ModuleList(layers)
        self.out = nn.Linear(WIDTH, SYMBOLS, bias=False)
        for layer in layers:  # scores of variance one, lesson 02
            for matrix in (layer.query, layer.key, layer.value, layer.output):
                nn.init.normal_(matrix.weight, std=WIDTH**-0.5)

    def forward(
        self,
        symbols: Int[Tensor, "batch token"],
        positions: Int[Tensor, "token"] | None = None,
        turn: Float[Tensor, "token pair"] | None = None,
    ) -> Float[Tensor, "batch token symbol"]:
        """Logits of the next symbol. Positions count from 0 unless given; `turn` are angles to use in their place, in
        radians, for a reader with rotary positions."""
        positions = torch.arange(symbols.shape[1]) if positions is None else positions
        x = self.symbols(symbols)
        if self.kind == "sinusoidal":
            x = x + sinusoidal(positions, WIDTH)
        if self.kind == "learned":
            x = x + self.table(positions)
        mask = linear_biases(symbols.shape[1], HEADS) if self.kind == "linear biases" else None
        places = positions if turn is None else rotation(turn, x.dtype)
        for layer in self.layers:
            x = x + layer(F.rms_norm(x, (WIDTH,)), positions=places, mask=mask)
        return self.out(F.rms_norm(x, (WIDTH,)))


def rounds(
    generator: torch.Generator, batch: int, periods: tuple[int, int], length: int
) -> tuple[Int[Tensor, "batch slot"], Bool[Tensor, "batch token"]]:
    """Texts of `length` + 1 symbols, and after which of the first `length` the next can be known.

    periods:  the shortest and the longest round, in symbols; each text has one of its own.

    The texts have one slot more than there are predictions: the last symbol is only predicted.
    """
    period = torch.randint(periods[0], periods[1] + 1, (batch,), generator=generator)
    order = torch.rand(batch, SYMBOLS, generator=generator).argsort(dim=-1)  # all symbols in random order
    text = order.gather(1, torch.arange(length + 1) % period[:, None])
    return text, torch.arange(length) >= period[:, None]


def practise(
    model: Reader,
    start: int,
    steps: int = 260,
    lr: float = 1.2e-2,
    batch: int = 32,
    periods: tuple[int, int] = (8, 16),
    length: int = CONTEXT,
    turn: Float[Tensor, "token pair"] | None = None,
    watch: Callable[[int], None] | None = None,
) -> Reader:
    """The model, trained on texts drawn with seed `start`; only predictions that can be known count. Adam, whose step
    size rises to `lr` within 20 updates and falls to 0 in the last two fifths. The symbols' vectors and the output,
    which carry what is copied, take steps three times as long: without that the task takes half as many updates again.
    `watch` is called before each update, and at the end, with how many were made.
    """
    generator = torch.Generator().manual_seed(start)
    ends = [*model.symbols.parameters(), *model.out.parameters()]
    others = [*model.table.parameters(), *model.layers.parameters()]
    optimizer = torch.optim.Adam([{"params": ends}, {"params": others}], betas=(0.9, 0.98), fused=True)
    for step in range(steps):
        if watch:
            watch(step)
        share = min(1.0, (step + 1) / 20, (steps - step) / (0.4 * steps))
        for group, times in zip(optimizer.param_groups, (3, 1), strict=True):
            group["lr"] = times * lr * share
        text, known = rounds(generator, batch, periods, length)
        loss = F.cross_entropy(model(text[:, :-1], turn=turn)[known], text[:, 1:][known])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if watch:
        watch(steps)
    return model


@torch.no_grad()
def right(
    model: Reader,
    periods: tuple[int, int],
    length: int,
    batch: int = 64,
    positions: Int[Tensor, "token"] | None = None,
    turn: Float[Tensor, "token pair"] | None = None,
) -> float:
    """Share of right predictions among those that can be known, on `batch` texts that training has not seen."""
    text, known = rounds(torch.Generator().manual_seed(99), batch, periods, length)
    hits = model(text[:, :-1], positions=positions, turn=turn).argmax(dim=-1) == text[:, 1:]
    return hits[known].double().mean().item()
