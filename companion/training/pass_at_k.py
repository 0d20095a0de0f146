"""pass@k: the probability that at least one of k sampled answers is right."""

from __future__ import annotations

import math


def pass_at_k(drawn: int, right: int, k: int) -> float:
    """Return the unbiased estimate of pass@k from one question's sampled answers (Chen et al. 2021).

    Of all ways to choose k of the drawn answers, the estimate is the fraction that includes a right answer. The simpler
    estimate 1 - (1 - right / drawn) ** k is too small on average. For a set of questions, take the mean of their
    estimates.

    Args:
        drawn: Number of sampled answers.
        right: How many of them are right.
        k: Number of tries.

    Raises:
        ValueError: Unless 0 <= right <= drawn and 1 <= k <= drawn.
    """
    if not 0 <= right <= drawn:
        raise ValueError(f"right: expected 0 to {drawn}, the number of answers drawn, got {right}")
    if not 1 <= k <= drawn:
        raise ValueError(f"k: expected 1 to {drawn}, the number of answers drawn, got {k}")
    return 1 - math.comb(drawn - right, k) / math.comb(drawn, k)
