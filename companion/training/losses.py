"""What training makes small, and the unit it is reported in."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from companion.data.batches import IGNORE
from companion.data.packing import PADDING
from companion.layers.balance import switch_loss, z_loss
from companion.layers.masks import documents, materialize
from companion.layers.moe import RoutingStats
from companion.layers.wide import wide

Batch = tuple[Tensor, ...]
"""What a loss takes besides the model: ids, targets, lengths ..., each with one entry for each row."""


class Scored(NamedTuple):
    """What a loss says of one batch: the sum of nats over its scored tokens, their number, and where the model's
    experts were sent its tokens (empty without a mixture of experts).

    A sum and a count, because only these of several batches may be added (lesson 09, equation 9.4; lesson 14, equation
    14.4).
    """

    nats: Float[Tensor, ""]
    tokens: Int[Tensor, ""]
    routing: tuple[RoutingStats, ...] = ()


def cross_entropy_sum(
    logits: Float[Tensor, "batch token vocab"], targets: Int[Tensor, "batch token"], *, smoothing: float = 0.0
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """The sum of -ln p(target) over the scored positions, in nats, and how many there are.

    smoothing: the share e of the target's probability that is spread evenly over all ids (label smoothing, Szegedy et
    al. 2016, section 7; Vaswani et al. 2017, section 5.4, with e = 0.1). The loss is then the cross-entropy against
    q = (1 - e) onehot(target) + e / vocab, its gradient in the logits p - q, and its least value the entropy of q, not
    zero.

    A sum and a count, not a mean: means of batches with unequal numbers of tokens must not be averaged. The sum over
    several batches is divided once, by all tokens. Computed in fp32 or better, whatever the dtype of `logits`.
    Positions with the target `IGNORE` count for nothing and get no gradient.

    Raises `ValueError` unless 0 <= smoothing < 1.
    """
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing={smoothing!r}: expected a share of at least 0 and below 1")
    z = wide(logits)
    total = F.cross_entropy(z.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="sum")
    scored = targets != IGNORE
    if smoothing:
        even = -(z.log_softmax(-1).mean(-1) * scored).sum()
        total = (1 - smoothing) * total + smoothing * even
    return total, scored.sum()


def routing_loss(
    routing: Sequence[RoutingStats], counts: Sequence[Int[Tensor, "expert"]], *, balance: float, z: float
) -> Float[Tensor, ""]:
    """balance * `switch_loss` + z * `z_loss`, summed over the layers (Fedus et al. 2022, section 2.2).

    counts: each layer's, of the whole batch; the losses of its micro-batches then add up to that of the whole.
    """
    losses = [
        balance * switch_loss(layer, whole) + z * z_loss(layer, whole)
        for layer, whole in zip(routing, counts, strict=True)
    ]
    return torch.stack(losses).sum()


def bits_per_byte(nats: float, bytes: int) -> float:
    """A text's whole loss in nats over its length in bytes, in bits: nats / (ln 2 * bytes) (lesson 14, equation 14.2).

    Comparable between tokenizers, and with compressors: 8 is no compression at all.

    Raises `ValueError` for bytes below 1.
    """
    if bytes < 1:
        raise ValueError(f"bytes={bytes!r}: expected a whole number >= 1")
    return nats / (math.log(2) * bytes)


Loss = Callable[..., Scored]


def next_token_loss(
    model: nn.Module,
    tokens: Int[Tensor, "batch token"],
    targets: Int[Tensor, "batch token"],
    *,
    smoothing: float = 0.0,
) -> Scored:
    """The loss of a decoder: each token's target is the one after it. `smoothing` as in `cross_entropy_sum`."""
    out = model(tokens)
    return Scored(*cross_entropy_sum(out.logits, targets, smoothing=smoothing), out.routing)


def packed_next_token_loss(
    model: nn.Module,
    tokens: Int[Tensor, "batch token"],
    places: Int[Tensor, "batch token"],
    targets: Int[Tensor, "batch token"],
    *,
    hide: Literal["nothing", "padding", "documents"],
    smoothing: float = 0.0,
) -> Scored:
    """`next_token_loss` for the windows of `PackedBatches`, which hold several documents and padding.

    places:  of each token in its own document, from 0; `PADDING` where there is no token.
    hide:    `"documents"`: a token sees its own document alone, at the position it has there, so that its logits are
             those of the document by itself. Otherwise it also sees the documents before its own. `"padding"`:
             padding is told to the model, so that experts do not count it; nobody sees it anyway, because it is last.
    """
    real = places != PADDING
    if hide == "documents":
        number = (places == 0).cumsum(-1)
        apart = materialize(documents(number), len(tokens), tokens.shape[1], tokens.shape[1], device=tokens.device)
        # Padding sees nothing either: what it holds, and so which experts it visits, does not depend on the texts.
        out = model(tokens, positions=places.clamp(min=0), mask=apart & real[:, None, :, None], real=real)
    else:
        out = model(tokens, real=real if hide == "padding" else None)
    return Scored(*cross_entropy_sum(out.logits, targets, smoothing=smoothing), out.routing)


def translation_loss(
    model: nn.Module,
    source: Int[Tensor, "batch key"],
    inputs: Int[Tensor, "batch token"],
    targets: Int[Tensor, "batch token"],
    *,
    padding: int,
    smoothing: float = 0.0,
) -> Scored:
    """The loss of an encoder-decoder that is fed the right target so far, at all its places at once (teacher forcing).

    padding:    the id after the end of a source, which nothing may look at, and of the inputs.
    smoothing:  as in `cross_entropy_sum`.
    """
    memory = model.encode(source, real=source != padding)  # type: ignore[operator]
    out = model(inputs, source=memory, real=inputs != padding)
    return Scored(*cross_entropy_sum(out.logits, targets, smoothing=smoothing), out.routing)
