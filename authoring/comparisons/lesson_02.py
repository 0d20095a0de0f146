"""What lesson 02 compares: one head that learns dictionaries, its scores divided by the root of their width or not."""

from __future__ import annotations

from authoring.comparisons.cells import row
from companion_school.study.dictionary import learn


def root_or_not() -> dict[tuple[str, float], list[float]]:
    """The step after which half of the answers are right, from three starts and at three rates."""
    found = {}
    for rate in (0.001, 0.002, 0.004):
        for setting, divisor in (("divided", 8.0), ("not divided", 1.0)):
            shares = [learn(start, divisor, steps=560, lr=rate)[1] for start in range(3)]
            for steps in (280, 560):
                right = [100 * share[steps // 20 - 1].item() for share in shares]
                print(row(f"{setting}, rate {rate}", f"{steps} steps", "right, of 100", right), flush=True)
            half = [20.0 + 20 * (share > 0.5).nonzero()[0, 0].item() for share in shares]
            print(row(f"{setting}, rate {rate}", "560 steps", "steps to one half", half), flush=True)
            found[setting, rate] = half
    return found
