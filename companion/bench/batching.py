"""Many sequences over one cache: tokens a second against how many are written at a time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from companion.bench.compare import OURS, Comparison, Setting
from companion.bench.models import drawn, steps_alone
from companion.bench.sizes import Size
from companion.generation.batch import Batch
from companion.generation.sampling import Sampling

SEQUENCES = 64
AT_A_TIME = (1, 2, 4, 8, 16, 32, 64)


def decode_many(size: Size, setting: Setting) -> Comparison:
    """`SEQUENCES` short prompts of unequal lengths, each continued by an unequal number of tokens: one after the other,
    which is ours, and some at a time, where the next takes the place of one that has ended. All write the same."""
    config, device = size.config, setting.device
    random = np.random.default_rng(0)
    most = max(2, size.new // 8)
    prompts = [
        random.integers(config.vocab, size=random.integers(2, size.prompt + 1)).tolist() for _ in range(SEQUENCES)
    ]
    new = random.integers(1, most + 1, size=SEQUENCES).tolist()
    model = drawn(config).to(device)
    cached = [len(prompt) + n for prompt, steps in zip(prompts, new, strict=True) for n in range(steps)]
    title = f"{SEQUENCES} sequences of 1 to {most} new tokens each, one after the other and some at a time"
    comparison = steps_alone(title, size, setting, sum(new), cached)
    batches = {rows: Batch(model, rows=rows, slots=size.prompt + most) for rows in AT_A_TIME}

    def write(rows: int) -> dict[int, list[int]]:
        batch, waiting = batches[rows], list(zip(prompts, new, strict=True))
        order: dict[int, int] = {}
        texts: dict[int, list[int]] = {}
        while waiting or batch.running:
            while waiting and batch.free:
                prompt, steps = waiting.pop(0)
                number = batch.add(prompt, max_new_tokens=steps, sampling=Sampling(temperature=0.0))
                order[number] = len(order)
            for one in batch.step():
                texts.setdefault(order[one.number], []).append(one.token)
        return texts

    expected = write(1)
    runs: dict[str, Callable[[], Any]] = {OURS: partial(write, 1)}
    for rows in AT_A_TIME[1:]:
        if write(rows) == expected:
            runs[f"ours, {rows} at a time"] = partial(write, rows)
        else:
            comparison.omit(f"ours, {rows} at a time", "differs", "a text is not what it is alone")
    return comparison.time(runs, setting)
