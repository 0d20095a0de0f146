from functools import partial

import pytest

from companion.bench import batching, compare, drafts, timing
from companion.costs import chips


@pytest.fixture
def few_and_short(monkeypatch):
    """Of what is written at a time: one alone, batches that fill again, and more rows than there are. A sample is one
    run, whatever it takes and whatever rubbish lies about, and the chip's ceiling the best of the runs of a moment: no
    figure is asserted here."""
    monkeypatch.setattr(batching, "TEXTS", 7)
    monkeypatch.setattr(batching, "AT_A_TIME", (1, 3, 16))
    monkeypatch.setattr(drafts, "UPDATES", 20)
    monkeypatch.setattr(compare, "interleaved", partial(compare.interleaved, least=0.0))
    monkeypatch.setattr(timing.gc, "collect", lambda *_: 0)
    best = chips._best_seconds
    monkeypatch.setattr(chips, "_best_seconds", lambda run, device, seconds=0.0: best(run, device, 0.01))
