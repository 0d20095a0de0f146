"""What tuning makes small beside the loss of the next token: preferences between two answers, and answers that earn
more than others to the same question (lesson 20).

Every loss here is of log-probabilities, so that it is the same for any model; in nats.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from companion.data.batches import IGNORE
from companion.ground.fields import is_number, require
from companion.ground.precision import wide

Lengths = Literal["answer", "constant"]
"""What an answer's sum over its tokens is divided by: its own length, or the same for all."""


def target_log_probs(
    logits: Float[Tensor, "batch token vocab"], targets: Int[Tensor, "batch token"]
) -> Float[Tensor, "batch token"]:
    """log p(target) of each scored place, in nats; 0 where the target is `IGNORE`."""
    z = wide(logits)
    nats = F.cross_entropy(z.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="none")
    return -nats.view(targets.shape)


class Preferred(NamedTuple):
    """Of each pair its loss, and the implicit rewards beta (log p - log p_ref) of both answers."""

    loss: Float[Tensor, "pair"]
    chosen: Float[Tensor, "pair"]
    rejected: Float[Tensor, "pair"]


def preference_loss(
    log_probs: Float[Tensor, "pair 2"], reference: Float[Tensor, "pair 2"], *, beta: float
) -> Preferred:
    """Direct preference optimisation (Rafailov et al. 2023, eq. 7; lesson 20, equation 20.7) of answers'
    log-probabilities, those of the chosen first:

        L = -log sigmoid(beta log(p(c) / p_ref(c)) - beta log(p(r) / p_ref(r)))

    the Bradley-Terry likelihood (their eq. 1) of rewards that are beta log(p / p_ref), as the best policy under a bound
    on its divergence from the reference has them (their eq. 5). beta: how dear it is to go away from the reference.

    Raises `ValueError` unless beta > 0.
    """
    require(is_number(beta) and beta > 0, "beta", beta, "a number > 0")
    chosen, rejected = (beta * (log_probs - reference)).unbind(-1)
    return Preferred(-F.logsigmoid(chosen - rejected), chosen, rejected)


def group_advantages(
    rewards: Float[Tensor, "group answer"], *, deviation: bool = True
) -> Float[Tensor, "group answer"]:
    """Each answer's reward against those to the same question (Shao et al. 2024, DeepSeekMath, section 4.1.2; lesson
    20, equation 20.10):

        A_i = (r_i - mean(r)) / (std(r) + 0.0001)

    with the deviation of a sample (divided by one less than the answers, as trl has it; the lesson divides by all n, so
    that its advantages are sqrt(n / (n - 1)) times as large). A group in which all earn the same has no advantage
    anywhere, and teaches nothing. deviation: whether to divide; without, hard and easy questions count as what they
    differ by (Liu et al. 2025, Dr. GRPO, section 3.1).

    Raises `ValueError` for groups of fewer than two answers.
    """
    require(rewards.shape[-1] >= 2, "rewards", tuple(rewards.shape), "groups of at least two answers")
    centred = rewards - rewards.mean(-1, keepdim=True)
    return centred / (rewards.std(-1, keepdim=True) + 1e-4) if deviation else centred


def divergence(
    log_probs: Float[Tensor, "answer token"], reference: Float[Tensor, "answer token"]
) -> Float[Tensor, "answer token"]:
    """An estimate of KL(p || p_ref) from tokens drawn from p, never negative (Schulman 2020, k3; Shao et al. 2024,
    eq. 4; lesson 20, equation 20.12): with d = log p_ref - log p, exp(d) - d - 1."""
    d = reference - log_probs
    return d.exp() - d - 1


class Improved(NamedTuple):
    """Of each answer its loss, its mean divergence from the reference, and which share of its tokens was clipped."""

    loss: Float[Tensor, "answer"]
    divergence: Float[Tensor, "answer"]
    clipped: Float[Tensor, "answer"]


def policy_loss(
    log_probs: Float[Tensor, "answer token"],
    old: Float[Tensor, "answer token"],
    reference: Float[Tensor, "answer token"],
    advantages: Float[Tensor, "answer"],
    scored: Bool[Tensor, "answer token"],
    *,
    clip: float = 0.2,
    beta: float = 0.0,
    lengths: Lengths = "answer",
    longest: int | None = None,
) -> Improved:
    """Group-relative policy optimisation (Shao et al. 2024, eq. 3; lesson 20, equation 20.11), of one group or of
    several; to be averaged over the answers. With the ratio q = exp(log p - log p_old) of a token and the advantage A
    of its answer,

        L_i = -1/|o_i| sum_t [ min(q A, clip(q, 1 - c, 1 + c) A) - beta KL_t ]

    old:        of the policy that wrote the answers. In the first step on them q is 1, the gradient that of -A log p.
    reference:  of the policy to stay near, see `divergence`; read where beta > 0.
    clip:       c: what a ratio has won beyond it is not asked for any more (Schulman et al. 2017, eq. 7).
    lengths:    `"answer"` divides by |o_i|, which makes long wrong answers cheap; `"constant"` by `longest` (Liu et al.
                2025, Dr. GRPO).

    Raises `ValueError` for `lengths="constant"` without `longest`, and for a clip or beta that is no number >= 0.
    """
    for name, value in (("clip", clip), ("beta", beta)):
        require(is_number(value) and value >= 0, name, value, "a number >= 0")
    if lengths == "constant":
        require(longest is not None and longest > 0, "longest", longest, "the tokens of the longest answer")
    ratio = (log_probs - old).exp()
    free, held = ratio * advantages[:, None], ratio.clamp(1 - clip, 1 + clip) * advantages[:, None]
    away = divergence(log_probs, reference) if beta > 0 else torch.zeros_like(log_probs)
    each = (beta * away - torch.minimum(free, held)) * scored
    count = scored.sum(-1).clamp(min=1)
    whole = each.sum(-1) / (count if lengths == "answer" or longest is None else longest)
    return Improved(whole, ((away * scored).sum(-1) / count).detach(), ((free > held) & scored).sum(-1) / count)
