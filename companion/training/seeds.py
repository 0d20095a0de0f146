"""Seeds that belong to a purpose: one for each thing that a run draws, all from the seed of the run."""

from __future__ import annotations

import numpy as np


def derived_seed(*numbers: int) -> int:
    """A 64-bit seed from several whole numbers; near numbers give unrelated seeds."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
