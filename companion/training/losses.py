"""What training makes small, and the unit it is reported in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from companion.data.batches import IGNORE
from companion.layers.balance import switch_loss, z_loss
from companion.layers.moe import RoutingStats
from companion.layers.wide import wide


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

    A sum and a count, not a mean: means of batches with unequal numbers of tokens must not be averaged. Whoever adds up
    several batches divides once, by all tokens. Computed in fp32 or better, whatever the dtype of `logits`. Positions
    with the target `IGNORE` count for nothing and get no gradient.

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
