"""Losses of preference optimization and policy optimization (lesson 20).

Preference losses favor the better of two answers; policy losses reinforce answers that earn more than others to the
same question.

All losses here are functions of log-probabilities in nats, so they work with any model.
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
"""Normalization of an answer's sum over its tokens: by its own length, or by a constant."""


def target_log_probs(
    logits: Float[Tensor, "batch token vocab"], targets: Int[Tensor, "batch token"]
) -> Float[Tensor, "batch token"]:
    """Return log p(target) at each position, in nats, or 0 where the target is `IGNORE`."""
    z = wide(logits)
    nats = F.cross_entropy(z.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="none")
    return -nats.view(targets.shape)


class Preferred(NamedTuple):
    """The loss of each pair, and the implicit rewards beta (log p - log p_ref) of both answers."""

    loss: Float[Tensor, "pair"]
    chosen: Float[Tensor, "pair"]
    rejected: Float[Tensor, "pair"]


def preference_loss(
    log_probs: Float[Tensor, "pair 2"], reference: Float[Tensor, "pair 2"], *, beta: float
) -> Preferred:
    """Compute the loss of direct preference optimization.

    Its formula is (Rafailov et al. 2023, eq. 7; lesson 20, equation 20.7)

        L = -log sigmoid(beta log(p(c) / p_ref(c)) - beta log(p(r) / p_ref(r)))

    The loss is the negative log-likelihood of the Bradley-Terry model (their eq. 1) with the rewards beta log(p /
    p_ref). Under these rewards, p is the best policy if its divergence from the reference is penalized (their eq. 5).

    Args:
        log_probs: log-probabilities of both answers, the chosen one first.
        reference: log-probabilities of the same answers under the reference model.
        beta: how strongly the policy is pulled toward the reference.

    Raises:
        ValueError: if beta is not > 0.
    """
    require(is_number(beta) and beta > 0, "beta", beta, "a number > 0")
    chosen, rejected = (beta * (log_probs - reference)).unbind(-1)
    return Preferred(-F.logsigmoid(chosen - rejected), chosen, rejected)


def group_advantages(
    rewards: Float[Tensor, "group answer"], *, deviation: bool = True
) -> Float[Tensor, "group answer"]:
    """Compare each answer's reward with the mean reward of all answers to the same question.

    The advantage is (Shao et al. 2024, DeepSeekMath, section 4.1.2; lesson 20, equation 20.10)

        A_i = (r_i - mean(r)) / (std(r) + 0.0001)

    The standard deviation is that of a sample, with a divisor of n - 1 for n answers, as in trl. (The lesson divides by
    n, so its advantages are sqrt(n / (n - 1)) times as large.) If all answers of a group earn the same reward, the
    advantages are zero and nothing is learned.

    Args:
        rewards: one reward per answer.
        deviation: whether to divide by the standard deviation. Dividing gives a question more weight the less its
            rewards vary, so Liu et al. 2025 (Dr. GRPO, section 3.1) leave the division out.

    Raises:
        ValueError: if a group has fewer than two answers.
    """
    require(rewards.shape[-1] >= 2, "rewards", tuple(rewards.shape), "groups of at least two answers")
    centred = rewards - rewards.mean(-1, keepdim=True)
    return centred / (rewards.std(-1, keepdim=True) + 1e-4) if deviation else centred


def divergence(
    log_probs: Float[Tensor, "answer token"], reference: Float[Tensor, "answer token"]
) -> Float[Tensor, "answer token"]:
    """Estimate KL(p || p_ref) from tokens drawn from p.

    Sources: Schulman 2020, k3; Shao et al. 2024, eq. 4; lesson 20, equation D20.4.

    The estimate is exp(d) - d - 1 with d = log p_ref - log p, which is never negative.
    """
    d = reference - log_probs
    return d.exp() - d - 1


class Improved(NamedTuple):
    """The loss of each answer, its mean divergence from the reference, and the fraction of its tokens that were
    clipped."""

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
    """Compute the loss of group-relative policy optimization (Shao et al. 2024, eq. 3; lesson 20, equation 20.11).

    The function accepts the answers of one or more groups. To get the loss of a batch, average the result over the
    answers. With the probability ratio q = exp(log p - log p_old) of a token and the advantage A of its answer,

        L_i = -1/|o_i| sum_t [ min(q A, clip(q, 1 - c, 1 + c) A) - beta KL_t ]

    Args:
        log_probs: log-probabilities of the answers' tokens.
        old: log-probabilities under the policy that wrote the answers. In the first step on these answers q is 1, and
            the gradient is that of -A log p.
        reference: log-probabilities under the reference policy (see `divergence`), used if beta > 0.
        advantages: one per answer.
        scored: which tokens belong to the answers.
        clip: the bound c; a ratio that differs from 1 by more than this brings no additional gain (Schulman et al.
            2017, eq. 7).
        beta: weight of the KL divergence.
        lengths: `"answer"` divides by |o_i|, which makes long wrong answers cheap; `"constant"` divides by `longest`
            (Liu et al. 2025, Dr. GRPO).
        longest: maximum number of tokens per answer.

    Raises:
        ValueError: if `lengths="constant"` is used without `longest`, or if clip or beta is not a number >= 0.
    """
    for name, value in (("clip", clip), ("beta", beta)):
        require(is_number(value) and value >= 0, name, value, "a number >= 0")
    if lengths == "constant":
        require(longest is not None and longest > 0, "longest", longest, "the number of tokens of the longest answer")
    ratio = (log_probs - old).exp()
    free, held = ratio * advantages[:, None], ratio.clamp(1 - clip, 1 + clip) * advantages[:, None]
    away = divergence(log_probs, reference) if beta > 0 else torch.zeros_like(log_probs)
    each = (beta * away - torch.minimum(free, held)) * scored
    count = scored.sum(-1).clamp(min=1)
    whole = each.sum(-1) / (count if lengths == "answer" or longest is None else longest)
    return Improved(whole, ((away * scored).sum(-1) / count).detach(), ((free > held) & scored).sum(-1) / count)
