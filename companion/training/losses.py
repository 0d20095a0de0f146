"""Training losses in nats per token, and bits per byte."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from companion.data.batches import IGNORE
from companion.data.packing import PADDING
from companion.ground.arguments import described
from companion.ground.precision import wide, wide_dtype
from companion.layers.balance import switch_loss, z_loss
from companion.layers.routing import RoutingStats
from companion.training.hyperparameters import LATER

if TYPE_CHECKING:
    from companion.transformer import Transformer


class Limits(NamedTuple):
    """The maximum number of logits whose cross-entropy is computed at once, and the chunk sizes used above that number.

    Attributes:
        whole: maximum number of logits that are processed without chunks.
        chunk: number of logits whose exponentials are computed at once.
        made: number of logits that the head computes at once when they are not all stored.
    """

    whole: int
    chunk: int
    made: int = 2**24


ON_CPU = Limits(whole=2**22, chunk=2**18)
"""On a CPU, a chunk of 1 MB in fp32 stays in a core's cache; for logits of 16 MB or more, chunks halve the time."""
ELSEWHERE = Limits(whole=2**26, chunk=2**24, made=2**28)
"""On other devices, these values limit memory to 256 MB of fp32 logits, or 512 MB of bf16 logits from the head."""


Batch = tuple[Tensor, ...]
"""Arguments of a loss besides the model: ids, targets, lengths and so on, each with one entry per row."""


class Scored(NamedTuple):
    """The loss of one batch, as a sum and a count.

    Only sums and counts may be added over several batches (lesson 09, equation 9.4; lesson 14, equation 14.4).

    Attributes:
        nats: sum of the loss over the scored tokens, in nats.
        tokens: number of scored tokens.
        routing: the routing of each layer with experts; empty in a model without experts.
        beside: an auxiliary loss that is minimized together with `nats`.
        told: additional metrics for the log by name; each is a sum over the scored tokens or examples.
    """

    nats: Float[Tensor, ""]
    tokens: Int[Tensor, ""]
    routing: tuple[RoutingStats, ...] = ()
    beside: Float[Tensor, ""] | None = None
    told: Mapping[str, Tensor] = MappingProxyType({})


def cross_entropy_sum(
    logits: Float[Tensor, "batch token vocab"], targets: Int[Tensor, "batch token"], *, smoothing: float = 0.0
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """Return the sum of -ln p(target) over the scored positions, in nats, and the number of these positions.

    The result is a sum and a count rather than a mean, because means of batches with unequal numbers of tokens must not
    be averaged. Instead, the sum over several batches is divided once, by the total number of tokens. The sum is
    computed in fp32 or better, whatever the dtype of `logits`. Positions with the target `IGNORE` do not count and get
    no gradient.

    More than `Limits.whole` logits are processed in chunks of tokens. In this case, no (token, vocab) tensors are
    created other than the logits and their gradient, in their own dtype. The plain formula would make five such tensors
    in fp32 (of 3.3 GB each for 16 x 1,024 tokens and 50,257 ids). The sum is the same up to rounding, but
    `create_graph=True` raises `RuntimeError`.

    Args:
        logits: unnormalized scores.
        targets: token ids or `IGNORE`.
        smoothing: the fraction e of the target's probability that is spread evenly over all ids (label smoothing,
            Szegedy et al. 2016, section 7; Vaswani et al. 2017, section 5.4, with e = 0.1). The loss is then the
            cross-entropy against q = (1 - e) onehot(target) + e / vocab. Its gradient with respect to the logits is
            p - q, and its minimum is the entropy of q, not zero.

    Raises:
        ValueError: unless 0 <= smoothing < 1, and `targets` contains one integer for each token.
    """
    large = logits.numel() > _limits(logits).whole
    scored = _checked(targets, logits, smoothing, logits.shape[-1] if large else None)
    if large:
        return _InChunks.apply(logits.flatten(0, 1), targets.flatten(), smoothing), scored.sum()
    z = wide(logits)
    try:
        total = F.cross_entropy(z.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="sum")
    except IndexError as error:  # the CPU checks this; a GPU aborts the process
        raise ValueError(f"targets: {str(error).rstrip('.')}; {_ids_of(logits.shape[-1])}") from None
    if smoothing:
        even = -(z.log_softmax(-1).mean(-1) * scored).sum()
        total = (1 - smoothing) * total + smoothing * even
    return total, scored.sum()


def head_cross_entropy_sum(
    model: Transformer,
    stream: Float[Tensor, "batch token d_model"],
    targets: Int[Tensor, "batch token"],
    *,
    smoothing: float = 0.0,
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """Return `cross_entropy_sum` of `model.head(stream)`, without storing all logits at once if there are many.

    If there are more than `Limits.whole` logits, the head computes `Limits.made` logits at a time, and propagates their
    gradient back before it computes the next ones. Only the gradients of the stream and of the head's weights are
    stored, and there are no more matrix products than without chunks. On a CPU, no logits are computed for tokens that
    are not scored; on a GPU, finding these tokens would mean waiting for the device.
    """
    vocab = model.config.vocab
    if targets.numel() * vocab <= _limits(stream).whole:
        return cross_entropy_sum(model.head(stream), targets, smoothing=smoothing)
    scored = _checked(targets, stream, smoothing, vocab)
    states, right = stream.flatten(0, 1), targets.flatten()
    if stream.is_cpu and not scored.all():
        states, right = stream[scored], targets[scored]
    end = model.embedding if model.unembedding is None else model.unembedding
    weights = [p for p in (*end.parameters(), model.head_bias) if p is not None and p.requires_grad]
    return _ThroughHead.apply(model, right, smoothing, torch.is_grad_enabled(), states, *weights), scored.sum()


def _checked(targets: Tensor, rows: Tensor, smoothing: float, vocab: int | None) -> Tensor:
    """Return which targets are scored.

    Raise `ValueError` for invalid smoothing, for targets of the wrong dtype or shape, and, on a CPU, for ids outside
    the vocabulary.
    """
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing={smoothing!r}: expected a fraction >= 0 and < 1")
    if targets.dtype != torch.int64 or targets.shape != rows.shape[:2]:
        raise ValueError(
            f"targets is {described(targets)}: expected int64 of shape {tuple(rows.shape[:2])}, one for each token"
        )
    scored = targets != IGNORE
    if vocab is not None and rows.is_cpu and len(wrong := targets[scored & ((targets < 0) | (targets >= vocab))]):
        raise ValueError(f"targets: Target {int(wrong[0])} is out of bounds; {_ids_of(vocab)}")
    return scored


def _ids_of(vocab: int) -> str:
    return f"expected ids from 0 to {vocab - 1}, or {IGNORE}"


def _limits(logits: Tensor) -> Limits:
    return ON_CPU if logits.is_cpu else ELSEWHERE


class _InChunks(torch.autograd.Function):
    """Compute `cross_entropy_sum` for (token, vocab) logits, in chunks of tokens.

    The gradient uses the same exponentials as the loss, so it is computed in the forward pass and stored.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        found = torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        nats = _nats(logits, targets, smoothing, found)
        if found is not None:
            ctx.logits = logits.numel()
            ctx.save_for_backward(found)
        return nats

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *_scaled(ctx, grad), None, None


def _nats(logits: Tensor, targets: Tensor, smoothing: float, found: Tensor | None) -> Tensor:
    """Return the total loss of (token, vocab) logits, computed in chunks of tokens that fit in a cache.

    The gradient p - q, where q is the smoothed target, is written to `found`, which may be `logits` itself.
    """
    rows = max(1, _limits(logits).chunk // logits.shape[1])
    nats = torch.empty(len(logits), dtype=wide_dtype(logits.dtype), device=logits.device)
    parts = (tensor.split(rows) for tensor in (logits, targets, nats, logits if found is None else found))
    for some, right, each, out in zip(*parts, strict=True):
        z, places = wide(some), right.clamp(min=0)[:, None]
        most = z.amax(-1, keepdim=True)
        each.copy_(z.gather(1, places)[:, 0]).mul_(1 - smoothing)
        if smoothing:
            each.add_(z.mean(-1), alpha=smoothing)
        # If the dtypes agree, p is computed in place of the gradient, which leaves more room in the cache.
        p = (torch.sub(z, most, out=out) if found is not None and z.dtype == out.dtype else z - most).exp_()
        sums = p.sum(-1, keepdim=True)
        torch.sub((sums.log() + most)[:, 0], each, out=each)
        if found is not None:
            p /= sums
            if smoothing:
                p -= smoothing / p.shape[1]
            p.scatter_add_(1, places, p.new_full(places.shape, smoothing - 1))
            # Fill the rows instead of multiplying them by zero, because ignored rows may contain NaN or infinity.
            p.masked_fill_((right == IGNORE)[:, None], 0.0)
            if p.dtype != out.dtype:
                out.copy_(p)
    return nats.masked_fill_(targets == IGNORE, 0.0).sum()


def _scaled(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients that the forward pass has stored, multiplied by the gradient of the loss."""
    if torch.is_grad_enabled():  # with create_graph=True; the second derivative would silently lack a term
        raise RuntimeError(
            "the gradient of the cross-entropy cannot be differentiated twice for this many logits; expected at most "
            f"{_limits(grad).whole:,} (batch * token * vocab), got {ctx.logits:,}"
        )
    return tuple(None if one is None else one * grad for one in ctx.saved_tensors)


class _ThroughHead(torch.autograd.Function):
    """Compute `head_cross_entropy_sum` of (token, d_model) states and, if `keep` is true, its gradients."""

    @staticmethod
    def forward(
        ctx: Any, model: Transformer, targets: Tensor, smoothing: float, keep: bool, states: Tensor, *weights: Tensor
    ) -> Tensor:
        rows = max(1, _limits(states).made // model.config.vocab)
        back = torch.empty_like(states) if keep else states
        sums: list[Tensor | None] = [None for _ in weights]
        nats = states.new_zeros((), dtype=wide_dtype(states.dtype))
        parts = (tensor.split(rows) for tensor in (states, targets, back))
        for some, right, there in zip(*parts, strict=True):
            with torch.set_grad_enabled(keep):
                some = some.detach().requires_grad_(keep)
                logits = model.head(some)
            z = logits.detach()
            # The gradient overwrites the logits, unless the head's backward pass needs them.
            found = None if not keep else z if model.config.embedding.logit_softcap is None else torch.empty_like(z)
            nats += _nats(z, right, smoothing, found)
            if found is not None:
                state, *more = torch.autograd.grad(logits, (some, *weights), found, allow_unused=True)
                there.copy_(state)
                sums = [new if old is None else old.add_(new) for old, new in zip(sums, more, strict=True)]
        if keep:
            ctx.logits = len(states) * model.config.vocab
            ctx.save_for_backward(back, *sums)
        return nats

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, None, None, *_scaled(ctx, grad)


def routing_loss(
    routing: Sequence[RoutingStats], counts: Sequence[Int[Tensor, "expert"]], *, balance: float, z: float
) -> Float[Tensor, ""]:
    """Return balance * `switch_loss` + z * `z_loss`, summed over the layers (Fedus et al. 2022, section 2.2).

    Args:
        routing: the routing of each layer in this micro-batch.
        counts: each layer's expert load over the whole batch, so that the losses of the micro-batches add up to the
            loss of the batch.
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

    The result can be compared between tokenizers and with compressors, where 8 means no compression at all.

    Raises:
        ValueError: for bytes below 1.
    """
    if bytes < 1:
        raise ValueError(f"bytes={bytes!r}: expected a whole number >= 1")
    return nats / (math.log(2) * bytes)


Loss = Callable[..., Scored]


def next_token_loss(
    model: Transformer,
    tokens: Int[Tensor, "batch token"],
    targets: Int[Tensor, "batch token"],
    *,
    smoothing: float = 0.0,
    later: float = LATER,
) -> Scored:
    """Compute the loss of a decoder: the target of each token is the token after it.

    Args:
        model: a decoder.
        tokens: input ids.
        targets: the id after each token, or `IGNORE`.
        smoothing: as in `cross_entropy_sum`.
        later: weight of the loss of each multi-token-prediction head, if the model has such heads and is in training
            mode.
    """
    return _of_a_decoder(model, tokens, targets, smoothing, later)


def _of_a_decoder(
    model: Transformer, tokens: Tensor, targets: Tensor, smoothing: float, later: float, **inputs: Any
) -> Scored:
    stream, routing, _ = model.features(tokens, **inputs)
    scored = head_cross_entropy_sum(model, stream, targets, smoothing=smoothing)
    heads = model.medusa if model.training else None
    if heads is None:
        return Scored(*scored, routing)
    document, beside = inputs.get("document_ids"), stream.new_zeros((), dtype=scored[0].dtype)
    for away, state in enumerate(heads(stream), 1):
        right = F.pad(targets[:, away:], (0, min(away, targets.shape[1])), value=IGNORE)
        if document is not None:  # targets in another document are not scored
            there = F.pad(document[:, away:], (0, min(away, targets.shape[1])), value=-1)
            right = right.masked_fill(document != there, IGNORE)
        beside = beside + head_cross_entropy_sum(model, state, right, smoothing=smoothing)[0]
    return Scored(*scored, routing, later * beside)


def packed_next_token_loss(
    model: Transformer,
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
        places: the position of each token in its own document, counted from 0, or `PADDING` where there is no token.
        targets: the id after each token, or `IGNORE`.
        hide: with `"documents"`, a token only sees its own document, with positions counted within it, so that its
            logits are the same as for the document by itself; otherwise it also sees the documents before its own. With
            `"padding"`, the model gets a padding mask, so that routing statistics do not count padding. No token can
            see the padding in any case, because it comes last.
        smoothing, later: as in `next_token_loss`.
    """
    real = places != PADDING
    if hide == "documents":
        # Padding is treated as a separate document, so that its contents and its experts do not depend on the texts.
        number = (places == 0).cumsum(-1).masked_fill(~real, 0)
        inputs: dict[str, Tensor | None] = {
            "positions": places.clamp(min=0),
            "document_ids": number,
            "token_mask": real,
        }
    else:
        inputs = {"token_mask": real if hide == "padding" else None}
    return _of_a_decoder(model, tokens, targets, smoothing, later, **inputs)


def translation_loss(
    model: Transformer,
    source: Int[Tensor, "batch key"],
    inputs: Int[Tensor, "batch token"],
    targets: Int[Tensor, "batch token"],
    *,
    padding: int,
    smoothing: float = 0.0,
) -> Scored:
    """Compute the loss of an encoder-decoder with teacher forcing.

    At each position, the decoder's input is the correct target up to that position.

    Args:
        model: an encoder-decoder.
        source: source ids.
        inputs: target ids, shifted right.
        targets: target ids, or `IGNORE`.
        padding: the id that pads source and inputs; these positions are masked.
        smoothing: as in `cross_entropy_sum`.
    """
    memory = model.encode(source, attention_mask=source != padding)
    stream, routing, _ = model.features(inputs, source=memory, token_mask=inputs != padding)
    return Scored(*head_cross_entropy_sum(model, stream, targets, smoothing=smoothing), routing)
