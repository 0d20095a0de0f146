"""Linear attention, which stores the past in one matrix of fixed size (lessons 12 and 17).

Linear attention has no softmax and computes a different function from `attend`. Every token decays the matrix, writes
to it and reads from it, and one recurrence covers all variants. A head stores a matrix S of d_head rows and d_v
columns. At token t, with key k, value v, query q, strength b and a decay factor for each row, a = exp(log_decay), the
recurrence is

    (1)  S'  = diag(a_t) S_(t-1)
    (2)  u_t = v_t                               `"sum"`: write the value (Katharopoulos et al. 2020)
         u_t = b_t (v_t - S'^T k_t)              `"delta"`: write what S' does not yet return (Schlag et al. 2021)
    (3)  S_t = S' + k_t u_t^T
    (4)  o_t = S_t^T q_t

For tokens 1 to n of a chunk that begins with S_0, let c_t = log a_1 + ... + log a_t. By (1) and (3)

    (5)  S_t = diag(exp c_t) S_0 + sum_(j<=t) diag(exp(c_t - c_j)) k_j u_j^T.

Substituting (5) into (2), where the sum ends before t, gives

    (6)  u_t + b_t sum_(j<t) A_tj u_j = b_t (v_t - S_0^T (exp(c_t) k_t)),     A_tj = sum_d k_td exp(c_td - c_jd) k_jd,

which is a unit lower triangular system for all u of the chunk at once (Yang et al. 2024, section 3; with decay: Yang,
Kautz and Hatamizadeh 2024, section 3.3). By (4) and (5), the outputs then follow from matrix products:

    (7)  o_t = S_0^T (exp(c_t) q_t) + sum_(j<=t) B_tj u_j,                    B_tj = sum_d q_td exp(c_td - c_jd) k_jd.

No exponent in (5) to (7) is above 0, so nothing overflows, no matter how fast a matrix decays.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from companion.ground.annotations import checked
from companion.ground.arguments import heads_fit
from companion.ground.fields import require
from companion.ground.precision import wide

CHUNK = 64
"""Tokens per chunk."""
CHUNK_BY_CHANNEL = 16
"""Tokens per chunk if each row has its own decay, where (6) and (7) need d_head elements for each pair of tokens."""


class Writes(NamedTuple):
    """Updates that some tokens write to a matrix. Equation (5) computes the resulting matrix from them.

    Attributes:
        k: Keys.
        u: The vector u_t that each token writes for its key.
        log_decay: Logarithms of the decay factors; `None` means no decay.
    """

    k: Float[Tensor, "batch head token d_head"]
    u: Float[Tensor, "batch head token d_v"]
    log_decay: Float[Tensor, "batch head token #d_head"] | None

    def to(self, dtype: torch.dtype) -> Writes:
        """Convert all tensors to another dtype."""
        return Writes(self.k.to(dtype), self.u.to(dtype), None if self.log_decay is None else self.log_decay.to(dtype))


class Reading(NamedTuple):
    """Result of the recurrence.

    Attributes:
        out: o, the output of each token.
        written: The update that each token wrote.
        state: S after the last token.
    """

    out: Float[Tensor, "batch head token d_v"]
    written: Writes
    state: Float[Tensor, "batch kv_head d_head d_v"] | None


def _recurrence_fits(given: dict[str, Any]) -> None:
    heads_fit(given)
    require(given.get("chunk") is None or given["chunk"] >= 1, "chunk", given.get("chunk"), "at least one token")


@checked(fits=_recurrence_fits)
def recurrence(
    q: Float[Tensor, "batch head token d_head"],
    k: Float[Tensor, "batch kv_head token d_head"],
    v: Float[Tensor, "batch kv_head token d_v"],
    *,
    log_decay: Float[Tensor, "batch kv_head token #d_head"] | None = None,
    strength: Float[Tensor, "batch kv_head token"] | None = None,
    state: Float[Tensor, "batch kv_head d_head d_v"] | None = None,
    before: Writes | None = None,
    document_ids: Int[Tensor, "batch token"] | None = None,
    chunk: int | None = None,
    keep: bool = True,
) -> Reading:
    """Compute equations (1) to (4) of this module, one chunk of tokens at a time by (5) to (7).

    Several query heads may share one matrix, as in `attend`. For each of n tokens, a head with chunks of C costs about
    2 C (d_head + d_v) multiplications and additions for the pairs, and 6 d_head d_v for the matrix.

    Args:
        q: Queries, (batch, head, token, d_head).
        k: Keys, (batch, kv_head, token, d_head).
        v: Values, (batch, kv_head, token, d_v).
        log_decay: log a, at most 0: one number per head, or one for each row of its matrix. `None` means no decay.
        strength: b of the delta rule. `None` means the sum rule.
        state: S before these tokens, or, if `before` is given, S before the tokens in it. `None` means zeros.
        before: Updates of the tokens that come after `state` and before these tokens.
        document_ids: Document id of each token in a packed row. The tokens of a document are contiguous. The first
            document starts from `state`, each later one from zeros.
        chunk: Tokens per chunk; 1 is the plain recurrence. `None` means `CHUNK`, or `CHUNK_BY_CHANNEL` if each row has
            its own decay. The size changes the result only by rounding.
        keep: Compute the state after the last token too, which costs one more product.

    Raises:
        ValueError: If shapes or dtypes do not match, the number of query heads is not a multiple of the number of key
            heads, or chunk < 1.
    """
    if chunk is None:
        chunk = CHUNK if log_decay is None or log_decay.shape[-1] == 1 else CHUNK_BY_CHANNEL
    tokens = k.shape[2]
    if before is not None and tokens > chunk:
        state, before = fold(state, before), None
    outs, written, last = [], [], None
    for number in range(max(1, -(-tokens // chunk))):
        some = slice(number * chunk, (number + 1) * chunk)
        now = None if document_ids is None else document_ids[:, some]
        fades = None if log_decay is None else log_decay[:, :, some]
        strong = None if strength is None else strength[:, :, some]
        alone = _Alone.of(now, last)
        out, u = _chunk(q[:, :, some], (k[:, :, some], v[:, :, some], fades), strong, state, before, alone)
        outs.append(out)
        written.append(Writes(k[:, :, some], u, fades))
        if keep or (number + 1) * chunk < tokens:
            state = fold(state, written[-1] if before is None else _together(before, written[-1]), alone)
        last = None if now is None else now[:, -1:]
    if len(outs) == 1:
        return Reading(outs[0], written[0], state if keep else None)
    u = torch.cat([part.u for part in written], 2)
    return Reading(torch.cat(outs, 2), Writes(k, u, log_decay), state if keep else None)


class _Alone(NamedTuple):
    """Masks that say which tokens of a chunk belong to the same document.

    Attributes:
        first: Tokens that belong to the document that was open before the chunk.
        pairs: Pairs of tokens that belong to the same document.
        last: Tokens that belong to the last token's document.
    """

    first: Bool[Tensor, "batch 1 token 1"]
    pairs: Bool[Tensor, "batch 1 token token"]
    last: Bool[Tensor, "batch 1 token 1"]

    @classmethod
    def of(cls, document_ids: Tensor | None, before: Tensor | None) -> _Alone | None:
        if document_ids is None:
            return None
        before = document_ids[:, :1] if before is None else before
        pairs = document_ids[:, None, :, None] == document_ids[:, None, None, :]
        return cls((document_ids == before)[:, None, :, None], pairs, pairs[:, :, -1, :, None])


def _together(before: Writes, after: Writes) -> Writes:
    decay = None
    if before.log_decay is not None and after.log_decay is not None:
        decay = torch.cat((before.log_decay, after.log_decay), 2)
    return Writes(torch.cat((before.k, after.k), 2), torch.cat((before.u, after.u), 2), decay)


def fold(
    state: Float[Tensor, "batch head d_head d_v"] | None, written: Writes, alone: _Alone | None = None
) -> Float[Tensor, "batch head d_head d_v"]:
    """Compute the matrix after these writes by equation (5); tokens with k = 0 and no decay do not change it."""
    k, u, log_decay = written
    faded: Tensor | None = None
    if log_decay is not None:
        c = log_decay.cumsum(2)
        k, faded = k * (c[:, :, -1:] - c).exp(), c[:, :, -1].exp()[..., None]
    if alone is not None:
        k = k * alone.last
    added = product(k.mT, u)
    if state is None:
        return added
    state = state if faded is None else faded * state
    return added + (state if alone is None else state * alone.first[:, :, -1:])


def _chunk(
    q: Float[Tensor, "batch head token d_head"],
    new: tuple[Tensor, Tensor, Tensor | None],
    strength: Float[Tensor, "batch kv_head token"] | None,
    state: Float[Tensor, "batch kv_head d_head d_v"] | None,
    before: Writes | None,
    alone: _Alone | None,
) -> tuple[Float[Tensor, "batch head token d_v"], Float[Tensor, "batch kv_head token d_v"]]:
    """Return what the tokens of a chunk read and what they write."""
    k, u, log_decay = new
    tokens, past = k.shape[2], 0 if before is None else before.k.shape[2]
    keys, c = k, None if log_decay is None else log_decay.cumsum(2)
    if before is not None:
        keys, _, log_decay = _together(before, Writes(k, u, log_decay))
        c = None if log_decay is None else log_decay.cumsum(2)
    fades = _between(c, tokens, k, past, alone)
    faded = None if c is None else c[:, :, past:].exp()  # since `state`
    if strength is not None:
        pairs, u = _pairs(k, keys, fades), wide(u)
        known = _from(state, k, faded, alone)
        u = u if known is None else u - known
        if before is not None:
            u = u - product(pairs[..., :past], before.u)
        u = strength[..., None] * u
        if tokens > 1:
            system = strength[..., None] * pairs[..., past:]
            u = torch.linalg.solve_triangular(system, u, upper=False, unitriangular=True)
    # Query heads that share a matrix are laid out along an additional axis.
    q = q.unflatten(1, (k.shape[1], -1))
    all_u = u if before is None else torch.cat((before.u, u), 2)
    out = product(_pairs(q, keys.unsqueeze(2), fades.unsqueeze(2)), all_u.unsqueeze(2))
    known = _from(state, q, faded, alone)
    return (out if known is None else out + known).flatten(1, 2), u


def _from(state: Tensor | None, x: Tensor, faded: Tensor | None, alone: _Alone | None) -> Tensor | None:
    """Read from the matrix as it was before the chunk.

    `x` contains keys, (batch, head, token, d_head), or queries, which have one more axis.
    """
    if state is None:
        return None
    first = None if alone is None else alone.first
    if x.ndim == 5:
        state, faded, first = (None if one is None else one.unsqueeze(2) for one in (state, faded, first))
        assert state is not None
    read = product(x if faded is None else x * faded, state)
    return read if first is None else read * first


def _between(
    c: Tensor | None, tokens: int, like: Tensor, past: int, alone: _Alone | None
) -> Float[Tensor, "#batch #head token key #d_head"]:
    """Compute exp(c_t - c_j) for j <= t, otherwise 0.

    t runs over the tokens of the chunk, j over these and earlier ones.
    """
    here = torch.ones(1, 1, tokens, past + tokens, dtype=torch.bool, device=like.device).tril(past)
    if alone is not None:
        seen = alone.first.expand(-1, -1, -1, past)
        here = here & torch.cat((seen, alone.pairs), -1)
    if c is None:
        return here[..., None].to(like.dtype)
    return (c[:, :, past:, None] - c[:, :, None]).masked_fill(~here[..., None], -torch.inf).exp()


def _pairs(x: Tensor, keys: Tensor, fades: Tensor) -> Float[Tensor, "*batch token key"]:
    """Compute sum_d x_td fades_tjd k_jd, as one product if all rows of a head decay by the same factor."""
    if fades.shape[-1] == 1:
        return product(x, keys.mT) * fades[..., 0]
    return (x[..., :, None, :] * keys[..., None, :, :] * fades).sum(-1)


def product(a: Float[Tensor, "*#axes m k"], b: Float[Tensor, "*#axes k n"]) -> Float[Tensor, "*axes m n"]:
    """Compute a @ b in the operands' own precision, even where autocast would use half precision."""
    return (a @ b).to(a.dtype)


def positive_features(x: Float[Tensor, "*axes d_head"]) -> Float[Tensor, "*axes d_head"]:
    """Compute phi(x) = elu(x) + 1: x + 1 above zero, exp(x) below (Katharopoulos et al. 2020, eq. 7).

    The two cases are computed separately because in fp32 elu(x) + 1 rounds to zero below about -17, and dividing by a
    sum of zeros fails.
    """
    above = x > 0
    # Do not use clamp here: at its bound, where the slope is 1, its gradient depends on the version of PyTorch.
    return torch.where(above, x + 1, x.masked_fill(above, 0).exp())


def _fits(given: dict[str, Any]) -> None:
    """Check the conditions that the annotations of linear attention cannot express."""
    heads_fit(given)
    chunk, queries, keys = given.get("chunk", 64), given["q"].shape[2], given["k"].shape[2]
    require(chunk >= 1, "chunk", chunk, "at least one token")
    if given.get("causal") and queries != keys:
        raise ValueError(
            f"k has key={keys}: expected {queries}, the same as the number of queries, because causal=True"
        )


@checked(fits=_fits)
def linear_attention(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    v: Float[Tensor, "batch kv_head key d_v"],
    *,
    causal: bool = False,
    attention_mask: Bool[Tensor, "batch key"] | None = None,
    chunk: int = 64,
) -> Float[Tensor, "batch head query d_v"]:
    """Compute normalized linear attention, causal or bidirectional (Katharopoulos et al. 2020; lesson 12).

    The output is sum_j phi(q_i).phi(k_j) v_j / sum_j phi(q_i).phi(k_j) with phi = elu + 1. Linear attention is a
    different function from softmax attention, not a faster way to compute it. A model trained with one does not work
    with the other. Without a softmax in between, (phi(Q) phi(K)^T) V = phi(Q) (phi(K)^T V), and the right side never
    forms the query-by-key matrix. The right side takes 2 (query + key) d_head (d_v + 1) operations per head, which is
    linear in the length. (The 1 is the normalizer, computed as one more value component that is 1 everywhere.)

    Args:
        q: Queries, (batch, head, query, d_head).
        k: Keys, (batch, kv_head, key, d_head).
        v: Values, (batch, kv_head, key, d_v).
        causal: Sum only over j <= i, using `recurrence`. This requires as many queries as keys.
        attention_mask: Which keys are not padding; the others are left out. A query without any key returns zeros.
        chunk: Number of tokens computed at once if `causal` is set. The cost within a chunk is quadratic: 2 chunk
            (d_head + d_v + 1) operations per token and head, in addition to the above.

    Returns:
        The weighted averages, (batch, head, query, d_v).

    Raises:
        ValueError: If the number of query heads is not a multiple of the number of key heads, chunk < 1, or `causal` is
            set and the lengths differ.
    """
    if not causal:
        keys, values = _features(k, v, attention_mask)
        state = fold(None, Writes(keys, values, None)).repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        return _normalise(positive_features(wide(q)) @ state).to(q.dtype)
    totals = recurrence(positive_features(wide(q)), *_features(k, v, attention_mask), chunk=chunk, keep=False).out
    return _normalise(totals).to(q.dtype)


@checked(fits=heads_fit)
def linear_attention_step(
    q: Float[Tensor, "batch head token d_head"],
    k: Float[Tensor, "batch kv_head token d_head"],
    v: Float[Tensor, "batch kv_head token d_v"],
    state: Float[Tensor, "batch kv_head d_head d_v+1"] | None = None,
    *,
    attention_mask: Bool[Tensor, "batch token"] | None = None,
) -> tuple[Float[Tensor, "batch head token d_v"], Float[Tensor, "batch kv_head d_head d_v+1"]]:
    """Run causal linear attention as a recurrent network on the next tokens (lesson 12).

        S_t = S_(t-1) + phi(k_t) [v_t, 1]^T        [a_t, l_t] = phi(q_t)^T S_t        out_t = a_t / l_t

    Pass one token at a time for decoding, or several at once, which gives the same result. A key-value cache grows with
    every token; this state has d_head (d_v + 1) elements per key head, however long the text is. The old state is not
    changed.

    Args:
        q: Queries, (batch, head, token, d_head).
        k: Keys, (batch, kv_head, token, d_head).
        v: Values, (batch, kv_head, token, d_v).
        state: The state that the last step returned; `None` at the beginning.
        attention_mask: Which tokens are not padding; the others leave the state unchanged.

    Returns:
        The outputs of these tokens, and the state after them.

    Raises:
        ValueError: If the number of query heads is not a multiple of the number of key heads.
    """
    read, (keys, values) = positive_features(wide(q)), _features(k, v, attention_mask)
    totals, _, after = recurrence(read, keys, values, state=state, chunk=max(1, q.shape[2]))
    assert after is not None
    return _normalise(totals).to(q.dtype), after


def _features(k: Tensor, v: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return phi(k), zeroed at padding, and v with a column of ones appended for the normalizer."""
    k, v = wide(k), wide(v)  # sums over all tokens would overflow in half precision, or stop growing
    features = positive_features(k)
    if attention_mask is not None:
        features = features.masked_fill(~attention_mask[:, None, :, None], 0.0)
    return features, F.pad(v, (0, 1), value=1.0)


def _normalise(totals: Float[Tensor, "batch head query d_v_1"]) -> Float[Tensor, "batch head query d_v"]:
    """Divide the weighted sum by the sum of the weights; return zeros if that sum is 0."""
    weighted, weight = totals[..., :-1], totals[..., -1:]
    return weighted / weight.masked_fill(weight == 0, 1.0)
