"""Training losses in nats per token, and bits per byte."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from companion.data.batches import IGNORE
from companion.data.packing import PADDING
from companion.ground.arguments import described
from companion.ground.precision import wide, wide_dtype
from companion.layers.balance import switch_loss, z_loss
from companion.layers.routing import RoutingStats
from companion.training.hyperparameters import LATER


class Limits(NamedTuple):
    """Number of logits up to which the cross-entropy is computed at once, and the size of a chunk if there are more."""

    whole: int
    chunk: int


ON_CPU = Limits(whole=2**22, chunk=2**18)
"""A chunk of 1 MB in fp32 stays in a core's cache; from 16 MB on, chunks halve the time."""
ELSEWHERE = Limits(whole=2**26, chunk=2**24)
"""Limits memory to 256 MB in fp32 at once."""


Batch = tuple[Tensor, ...]
"""Arguments of a loss besides the model: ids, targets, lengths and so on, each with one entry per row."""


class Scored(NamedTuple):
    """The loss of one batch as a sum and a count.

    Only these may be added over several batches (lesson 09, equation 9.4; lesson 14, equation 14.4).

    Attributes:
        nats: sum of the loss over the scored tokens, in nats.
        tokens: number of scored tokens.
        routing: the routing of each layer with experts; empty without a mixture of experts.
        beside: an auxiliary loss that is minimized together with `nats`.
        told: further metrics for the log by name, each also a sum over what is scored.
    """

    nats: Float[Tensor, ""]
    tokens: Int[Tensor, ""]
    routing: tuple[RoutingStats, ...] = ()
    beside: Float[Tensor, ""] | None = None
    told: Mapping[str, Tensor] = MappingProxyType({})


def cross_entropy_sum(
    logits: Float[Tensor, "batch token vocab"], targets: Int[Tensor, "batch token"], *, smoothing: float = 0.0
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """Return the sum of -ln p(target) over the scored positions, in nats, and their number.

    It returns a sum and a count rather than a mean, because means of batches with unequal numbers of tokens must not be
    averaged: the sum over several batches is divided once, by the number of all tokens. It is computed in fp32 or
    better, whatever the dtype of `logits`. Positions with the target `IGNORE` do not count and get no gradient.

    More than `Limits.whole` logits are processed in chunks of tokens. Besides the logits and their gradient, in their
    own dtype, this creates no (token, vocab) tensor, whereas the plain formula makes five in fp32 (at 16 x 1,024 tokens
    and 50,257 ids 3.3 GB each). The sum is the same up to rounding, but differentiating its gradient again raises
    `RuntimeError`.

    Args:
        logits: unnormalized scores.
        targets: token ids or `IGNORE`.
        smoothing: the fraction e of the target's probability that is spread evenly over all ids (label smoothing,
            Szegedy et al. 2016, section 7; Vaswani et al. 2017, section 5.4, with e = 0.1). The loss is then the
            cross-entropy against q = (1 - e) onehot(target) + e / vocab. Its gradient with respect to the logits is
            p - q, and its minimum is the entropy of q, not zero.

    Raises:
        ValueError: unless 0 <= smoothing < 1, and targets are whole numbers, one for each token.
    """
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing={smoothing!r}: expected a fraction of at least 0 and below 1")
    if targets.dtype != torch.int64 or targets.shape != logits.shape[:2]:
        raise ValueError(
            f"targets is {described(targets)}: expected int64 of shape {tuple(logits.shape[:2])}, one for each token"
        )
    scored = targets != IGNORE
    if logits.numel() > _limits(logits).whole:
        if logits.is_cpu and len(wrong := targets[scored & ((targets < 0) | (targets >= logits.shape[-1]))]):
            raise ValueError(f"targets: Target {int(wrong[0])} is out of bounds.; {_ids_of(logits)}")
        way_back = logits.flatten()[:0].sum()  # zero, and does not keep the logits alive
        total = _InChunks.apply(logits.flatten(0, 1), targets.flatten(), smoothing, way_back)
        return total, scored.sum()
    z = wide(logits)
    try:
        total = F.cross_entropy(z.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="sum")
    except IndexError as error:  # the CPU checks this; a GPU aborts the process
        raise ValueError(f"targets: {error}; {_ids_of(logits)}") from None
    if smoothing:
        even = -(z.log_softmax(-1).mean(-1) * scored).sum()
        total = (1 - smoothing) * total + smoothing * even
    return total, scored.sum()


def _ids_of(logits: Tensor) -> str:
    return f"expected ids from 0 to {logits.shape[-1] - 1}, or {IGNORE}"


def _limits(logits: Tensor) -> Limits:
    return ON_CPU if logits.is_cpu else ELSEWHERE


class _InChunks(torch.autograd.Function):
    """Compute `cross_entropy_sum` for (token, vocab) logits, in chunks of tokens.

    The gradient p - q, where q is the smoothed target, uses the same exponentials as the loss, so it is computed in the
    forward pass and stored. `way_back` is any number computed from the logits: when the gradient is differentiated, it
    leads back to the logits, and so to `_Last`.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, smoothing: float, way_back: Tensor) -> Tensor:
        rows = max(1, _limits(logits).chunk // logits.shape[1])
        keep = ctx.needs_input_grad[0]
        nats = torch.empty(len(logits), dtype=wide_dtype(logits.dtype), device=logits.device)
        found = torch.empty_like(logits) if keep else logits
        parts = (tensor.split(rows) for tensor in (logits, targets, nats, found))
        for some, right, each, out in zip(*parts, strict=True):
            z, places = wide(some), right.clamp(min=0)[:, None]
            most = z.amax(-1, keepdim=True)
            # Computed in the gradient's memory, unless that has another dtype: this saves the cache one tensor.
            p = (torch.sub(z, most, out=out) if keep and z.dtype == out.dtype else z - most).exp_()
            sums = p.sum(-1, keepdim=True)
            lost = sums.log() + most
            each.copy_((lost - z.gather(1, places))[:, 0])
            if smoothing:
                each.mul_(1 - smoothing).add_(lost[:, 0] - z.mean(-1), alpha=smoothing)
            if keep:
                p /= sums
                if smoothing:
                    p -= smoothing / p.shape[1]
                p.scatter_add_(1, places, p.new_full(places.shape, smoothing - 1))
                # Filled, not multiplied by zero, because ignored rows may contain NaN or infinity.
                p.masked_fill_((right == IGNORE)[:, None], 0.0)
                if p.dtype != out.dtype:
                    out.copy_(p)
        if keep:
            ctx.save_for_backward(found, way_back)
        return nats.masked_fill_(targets == IGNORE, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        found, way_back = ctx.saved_tensors
        if torch.is_grad_enabled():  # with create_graph=True
            return _Last.apply(found * grad, way_back), None, None, None
        return found * grad, None, None, None


class _Last(torch.autograd.Function):
    """A gradient that raises when it is differentiated.

    PyTorch's `once_differentiable` does not raise if the incoming gradient is a constant, as it is for a loss: the
    second derivative would silently lack a term.
    """

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, way_back: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise RuntimeError(
            "the gradient of cross_entropy_sum cannot be differentiated twice for this many logits; expected at most "
            f"{_limits(grad).whole:,} (batch * token * vocab), got {grad.numel():,}"
        )


def routing_loss(
    routing: Sequence[RoutingStats], counts: Sequence[Int[Tensor, "expert"]], *, balance: float, z: float
) -> Float[Tensor, ""]:
    """Return balance * `switch_loss` + z * `z_loss`, summed over the layers (Fedus et al. 2022, section 2.2).

    Args:
        routing: the routing of each layer in this micro-batch.
        counts: each layer's expert load over the whole batch, so that the losses of its micro-batches add up to that of
            the batch.
        balance: weight of the Switch loss.
        z: weight of the z-loss.
    """
    losses = [
        balance * switch_loss(layer, whole) + z * z_loss(layer, whole)
        for layer, whole in zip(routing, counts, strict=True)
    ]
    return torch.stack(losses).sum()


def bits_per_byte(nats: float, bytes: int) -> float:
    """Convert a text's total loss in nats to bits per byte: nats / (ln 2 * bytes) (lesson 14, equation 14.2).

    It can be compared between tokenizers, and with compressors: 8 means no compression at all.

    Raises:
        ValueError: for bytes below 1.
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
    later: float = LATER,
) -> Scored:
    """Compute the loss of a decoder: each token's target is the next one.

    Args:
        model: a decoder.
        tokens: input ids.
        targets: the id after each token, or `IGNORE`.
        smoothing: as in `cross_entropy_sum`.
        later: weight of the loss of each multi-token-prediction head, if the model is in training mode and has any.
    """
    return _of_a_decoder(model, tokens, targets, smoothing, later)


def _of_a_decoder(
    model: nn.Module, tokens: Tensor, targets: Tensor, smoothing: float, later: float, **inputs: Any
) -> Scored:
    heads = getattr(model, "later", None) if model.training else None
    if heads is None:
        out = model(tokens, **inputs)
        return Scored(*cross_entropy_sum(out.logits, targets, smoothing=smoothing), out.routing)
    stream, routing, _ = model.features(tokens, **inputs)  # type: ignore[operator]
    scored = cross_entropy_sum(model.head(stream), targets, smoothing=smoothing)  # type: ignore[operator]
    document, beside = inputs.get("document"), stream.new_zeros((), dtype=scored[0].dtype)
    for away, state in enumerate(heads(stream), 1):
        right = F.pad(targets[:, away:], (0, min(away, targets.shape[1])), value=IGNORE)
        if document is not None:  # targets in another document are not scored
            there = F.pad(document[:, away:], (0, min(away, targets.shape[1])), value=-1)
            right = right.masked_fill(document != there, IGNORE)
        beside = beside + cross_entropy_sum(model.head(state), right, smoothing=smoothing)[0]  # type: ignore[operator]
    return Scored(*scored, routing, later * beside)


def packed_next_token_loss(
    model: nn.Module,
    tokens: Int[Tensor, "batch token"],
    places: Int[Tensor, "batch token"],
    targets: Int[Tensor, "batch token"],
    *,
    hide: Literal["nothing", "padding", "documents"],
    smoothing: float = 0.0,
    later: float = LATER,
) -> Scored:
    """Compute `next_token_loss` for the windows of `PackedBatches`, which contain several documents and padding.

    Args:
        model: a decoder.
        tokens: input ids.
        places: the position of each token in its own document, from 0; `PADDING` where there is no token.
        targets: the id after each token, or `IGNORE`.
        hide: `"documents"`: a token only sees its own document, at its position there, so that its logits are those of
            the document by itself. Otherwise it also sees the documents before its own. `"padding"`: the model is given
            a padding mask, so that experts do not count padding. No token can see the padding in any case, because it
            comes last.
        smoothing, later: as in `next_token_loss`.
    """
    real = places != PADDING
    if hide == "documents":
        # Padding is a document of its own, so that its contents, and the experts it visits, do not depend on the texts.
        number = (places == 0).cumsum(-1).masked_fill(~real, 0)
        inputs: dict[str, Tensor | None] = {"positions": places.clamp(min=0), "document": number, "counted": real}
    else:
        inputs = {"counted": real if hide == "padding" else None}
    return _of_a_decoder(model, tokens, targets, smoothing, later, **inputs)


def translation_loss(
    model: nn.Module,
    source: Int[Tensor, "batch key"],
    inputs: Int[Tensor, "batch token"],
    targets: Int[Tensor, "batch token"],
    *,
    padding: int,
    smoothing: float = 0.0,
) -> Scored:
    """Compute the loss of an encoder-decoder with teacher forcing.

    At each position, its input is the correct target so far.

    Args:
        model: an encoder-decoder.
        source: source ids.
        inputs: target ids, shifted right.
        targets: target ids, or `IGNORE`.
        padding: the id that pads source and inputs, which is masked.
        smoothing: as in `cross_entropy_sum`.
    """
    memory = model.encode(source, real=source != padding)  # type: ignore[operator]
    out = model(inputs, source=memory, counted=inputs != padding)
    return Scored(*cross_entropy_sum(out.logits, targets, smoothing=smoothing), out.routing)
