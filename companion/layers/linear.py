"""Linear attention: another function than `attend`, without a softmax; O(n d^2) operations, and a state of fixed size
where it writes token by token (lesson 12)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from companion.ground.annotations import checked
from companion.ground.arguments import heads_fit
from companion.ground.fields import require
from companion.ground.precision import wide


def positive_features(x: Float[Tensor, "*axes d_head"]) -> Float[Tensor, "*axes d_head"]:
    """phi(x) = elu(x) + 1: x + 1 above zero, exp(x) below (Katharopoulos et al. 2020, eq. 7).

    Written out, because elu(x) + 1 rounds to zero in fp32 from about -17 on, and a sum of zeros cannot be divided by.
    """
    above = x > 0
    # Not clamped: at its bound, where the slope is 1, the gradient of clamp depends on the version of PyTorch.
    return torch.where(above, x + 1, x.masked_fill(above, 0).exp())


def _fits(given: dict[str, Any]) -> None:
    """What the annotations of linear attention do not say."""
    heads_fit(given)
    chunk, queries, keys = given.get("chunk", 64), given["q"].shape[2], given["k"].shape[2]
    require(chunk >= 1, "chunk", chunk, "at least one token")
    if given.get("causal") and queries != keys:
        raise ValueError(f"k has key={keys}: expected {queries}, as many as queries, where causal=True")


@checked(fits=_fits)
def linear_attention(
    q: Float[Tensor, "batch head query d_head"],
    k: Float[Tensor, "batch kv_head key d_head"],
    v: Float[Tensor, "batch kv_head key d_v"],
    *,
    causal: bool = False,
    real: Bool[Tensor, "batch key"] | None = None,
    chunk: int = 64,
) -> Float[Tensor, "batch head query d_v"]:
    """sum_j phi(q_i).phi(k_j) v_j / sum_j phi(q_i).phi(k_j), phi = elu + 1 (Katharopoulos et al. 2020; lesson 12).

    Another function than softmax attention, not a faster way to it: a model trained with one does not run with the
    other. Without a softmax in between, (phi(Q) phi(K)^T) V = phi(Q) (phi(K)^T V), and the right side never forms the
    query-by-key matrix: 2 (query + key) d_head (d_v + 1) operations per head, linear in the length. (The 1 is the
    normaliser, carried along as one more value that is 1 everywhere.)

    causal:  the j <= i alone; as many queries as keys. Folded from `linear_attention_step` over chunks.
    real:    which keys are real; the others are padding and left out. A query with no key gives zeros.
    chunk:   tokens computed at once where causal. Within a chunk the cost is quadratic: 2 chunk (d_head + d_v + 1)
             operations a token and head, on top of the above.

    Raises `ValueError` if the head counts do not divide, chunk < 1, or causal with different lengths.
    """
    if not causal:
        out = _normalise(_read(positive_features(wide(q)), _sum_of_outer_products(*_features(k, v, real))))
        return out.to(q.dtype)
    outs, state = [], None
    for start in range(0, max(q.shape[2], 1), chunk):
        some = slice(start, start + chunk)
        out, state = linear_attention_step(
            q[:, :, some], k[:, :, some], v[:, :, some], state, real=None if real is None else real[:, some]
        )
        outs.append(out)
    return torch.cat(outs, dim=2)


@checked(fits=heads_fit)
def linear_attention_step(
    q: Float[Tensor, "batch head token d_head"],
    k: Float[Tensor, "batch kv_head token d_head"],
    v: Float[Tensor, "batch kv_head token d_v"],
    state: Float[Tensor, "batch kv_head d_head d_v+1"] | None = None,
    *,
    real: Bool[Tensor, "batch token"] | None = None,
) -> tuple[Float[Tensor, "batch head token d_v"], Float[Tensor, "batch kv_head d_head d_v+1"]]:
    """Causal linear attention as a recurrent network: the next tokens, and the state after them (lesson 12).

        S_t = S_(t-1) + phi(k_t) [v_t, 1]^T        [a_t, l_t] = phi(q_t)^T S_t        out_t = a_t / l_t

    One token at a time for decoding, or several at once, which gives the same. Where a key-value cache grows with every
    token, this state has d_head (d_v + 1) numbers per key head at any length. It is a value: the old state stays good.

    state:  what the last step returned; `None` at the beginning.
    real:   which tokens are real; the others leave the state alone.

    Raises `ValueError` if the head counts do not divide.
    """
    read, (keys, values) = positive_features(wide(q)), _features(k, v, real)
    # Here and now, the quadratic formula for these tokens among themselves; from before, the state.
    group = q.shape[1] // k.shape[1]
    scores = (read @ keys.repeat_interleave(group, dim=1).transpose(-2, -1)).tril()
    totals = scores @ values.repeat_interleave(group, dim=1)
    added = _sum_of_outer_products(keys, values)
    if state is None:
        return _normalise(totals).to(q.dtype), added
    return _normalise(totals + _read(read, state)).to(q.dtype), state + added


def _features(k: Tensor, v: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
    """phi(k), zero for padding, and v with the normaliser's 1 appended."""
    k, v = wide(k), wide(v)  # sums over all tokens: half precision would overflow, or stop to grow
    features = positive_features(k)
    if real is not None:
        features = features.masked_fill(~real[:, None, :, None], 0.0)
    return features, F.pad(v, (0, 1), value=1.0)


def _sum_of_outer_products(
    keys: Float[Tensor, "batch kv_head key d_head"], values: Float[Tensor, "batch kv_head key d_v"]
) -> Float[Tensor, "batch kv_head d_head d_v"]:
    return keys.transpose(-2, -1) @ values


def _read(
    queries: Float[Tensor, "batch head query d_head"], state: Float[Tensor, "batch kv_head d_head d_v"]
) -> Float[Tensor, "batch head query d_v"]:
    return queries @ state.repeat_interleave(queries.shape[1] // state.shape[1], dim=1)


def _normalise(totals: Float[Tensor, "batch head query d_v_1"]) -> Float[Tensor, "batch head query d_v"]:
    """The weighted sum over the sum of the weights; zeros where there was nothing to sum."""
    weighted, weight = totals[..., :-1], totals[..., -1:]
    return weighted / weight.masked_fill(weight == 0, 1.0)
