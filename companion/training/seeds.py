"""Separate seeds for each purpose of a run, all derived from the run's seed."""

from __future__ import annotations

import numpy as np


def derived_seed(*numbers: int) -> int:
    """Return a 64-bit seed computed from several integers; numbers that are close together give unrelated seeds."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
