"""A task that depends on the order of the tokens, and a small model that learns it with four kinds of positions.

A text is a sequence of symbols in random order (a round) that is repeated again and again. After the first round, every
symbol can be predicted: find the last occurrence of the current symbol, and take the symbol that came after it (lesson
05).

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
    """Return linear biases for attention scores (ALiBi, Press et al. 2022, section 3).

    The bias is added to the scaled scores. It is the negative of the head's slope times the distance from key to query.
    The slopes are 2^(-8/heads), 2^(-16/heads), ..., 2^-8. Use a causal mask as well, because keys after the query get a
    positive bias.
    """
    slopes = 2.0 ** (-8 * torch.arange(1, heads + 1) / heads)
    distance = torch.arange(length)[:, None] - torch.arange(length)
    return (-slopes[:, None, None] * distance)[None]


class Reader(nn.Module):
    """Two attention layers of width 48, with 4 heads and residual connections, for texts of 64 different symbols.

    Args:
        kind: Kind of positions, one of `KINDS`.
        start: Seed for the initial weights.

    Raises:
        ValueError: The kind is not in `KINDS`.
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
        for layer in layers:  # makes the variance of scores 1 (lesson 02)
            for matrix in (layer.query, layer.key, layer.value, layer.output):
                nn.init.normal_(matrix.weight, std=WIDTH**-0.5)

    def forward(
        self,
        symbols: Int[Tensor, "batch token"],
        positions: Int[Tensor, "token"] | None = None,
        turn: Float[Tensor, "token pair"] | None = None,
    ) -> Float[Tensor, "batch token symbol"]:
        """Return the logits of the next symbol.

        Args:
            symbols: The text.
            positions: Position of each symbol; by default counted from 0.
            turn: Rotation angles in radians, which replace the positions of a model with rotary positions.
        """
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
    """Draw texts for the task.

    Args:
        generator: Random generator.
        batch: Number of texts.
        periods: Minimum and maximum length of a round in symbols, which is drawn for each text.
        length: Number of predictions per text.

    Returns:
        Texts of `length` + 1 symbols, the last of which is only a target, and a mask over the first `length` positions
        that is true where the next symbol can be known.
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
    """Train a model with Adam. Only symbols that can be known count in the loss.

    The learning rate rises to `lr` within 20 updates and falls towards 0 in the last two fifths. The embedding and the
    output layer, which carry the copied symbols, use three times this learning rate, because learning the task with
    equal rates would take 50 % more updates.

    Args:
        model: The model, which is trained in place.
        start: Seed for the texts.
        steps: Number of updates.
        lr: Highest learning rate.
        batch: Texts per update.
        periods: Shortest and longest round, in symbols.
        length: Predictions per text.
        turn: Rotation angles, as in `Reader.forward`.
        watch: Function called before each update and at the end, with the number of updates so far.

    Returns:
        The same model.
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
    """Return the accuracy on the symbols that can be known in `batch` texts not used in training (seed 99).

    Args:
        model: The model.
        periods: Shortest and longest round, in symbols.
        length: Predictions per text.
        batch: Number of texts.
        positions: Position of each symbol; by default counted from 0.
        turn: Rotation angles, as in `Reader.forward`.
    """
    text, known = rounds(torch.Generator().manual_seed(99), batch, periods, length)
    hits = model(text[:, :-1], positions=positions, turn=turn).argmax(dim=-1) == text[:, 1:]
    return hits[known].double().mean().item()
