"""Many texts over one pool: tokens a second and how long a text waits, against how many are written at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from companion.bench.compare import OURS, Comparison, Setting
from companion.bench.models import drawn, steps_alone
from companion.bench.sizes import Size
from companion.generation.generate import generate
from companion.generation.sampling import Sampling
from companion.generation.serving import BLOCK, Server
from companion.transformer import Transformer

TEXTS = 64
AT_A_TIME = (1, 8, 64)


def decode_many(size: Size, setting: Setting) -> Comparison:
    """`TEXTS` short prompts of unequal lengths, each continued by an unequal number of tokens: one after the other,
    which is ours, and some at a time in a `Server`, where the next takes the place of one that has ended. All write
    the same.

    Remarks say how long a text waits, all of them asked for at the same moment: for its last token, and from one token
    to the next (50th and 95th percentile).
    """
    config, device = size.config, setting.device
    random = np.random.default_rng(0)
    most = max(2, size.new // 8)
    prompts = [random.integers(config.vocab, size=random.integers(2, size.prompt + 1)).tolist() for _ in range(TEXTS)]
    new = random.integers(1, most + 1, size=TEXTS).tolist()
    model = drawn(config).to(device)
    cached = [len(prompt) + n for prompt, steps in zip(prompts, new, strict=True) for n in range(steps)]
    title = f"{TEXTS} texts of 1 to {most} new tokens each, one after the other and some at a time"
    comparison = steps_alone(title, size, setting, sum(new), cached)
    expected, ends, gaps = _alone(model, prompts, new)
    comparison.remarks.append(f"one after the other: {_waits(ends, gaps)}")
    runs: dict[str, Callable[[], Any]] = {OURS: partial(_alone, model, prompts, new)}
    for rows in AT_A_TIME:
        server = Server(model, rows=rows, tokens=rows * (size.prompt + most + BLOCK))
        run = partial(_served, server, prompts, new)
        run()  # to warm up
        texts, ends, gaps = run()
        if texts != expected:
            comparison.omit(f"ours, {rows} at a time", "differs", "a text is not what it is alone")
            continue
        runs[f"ours, {rows} at a time"] = run
        comparison.remarks.append(f"{rows} at a time: {_waits(ends, gaps)}")
    return comparison.time(runs, setting)


Served = tuple[list[list[int]], list[float], list[float]]
"""The texts, all asked for at once; how long each took to its end, and each token after the one before, in seconds."""
GREEDY = Sampling(temperature=0.0)


def _waits(ends: list[float], gaps: list[float]) -> str:
    (end, late), (gap, slow) = (np.percentile(times, [50, 95]) for times in (ends, gaps))
    return (
        f"a text ends after {end:.3g} s (p50) and {late:.3g} s (p95); from one token to the next {1000 * gap:.3g} ms "
        f"(p50) and {1000 * slow:.3g} ms (p95)"
    )


def _alone(model: Transformer, prompts: list[list[int]], new: list[int]) -> Served:
    """One after the other."""
    began = time.perf_counter()
    texts: list[list[int]] = []
    ends, gaps = [], []
    for prompt, steps in zip(prompts, new, strict=True):
        last = 0.0
        texts.append([])
        for (token,) in generate(model, [prompt], max_new_tokens=steps, sampling=GREEDY, weights=None):
            assert token is not None
            now = time.perf_counter()
            if texts[-1]:
                gaps.append(now - last)
            texts[-1].append(token)
            last = now
        ends.append(now - began)
    return texts, ends, gaps


def _served(server: Server, prompts: list[list[int]], new: list[int]) -> Served:
    """In a server, all asked for before its first step."""
    server.blocks.forget()  # what a run before has left in the pool would be found
    began = time.perf_counter()
    handles = [
        server.submit(prompt, max_new_tokens=steps, sampling=GREEDY) for prompt, steps in zip(prompts, new, strict=True)
    ]
    last: dict[int, float] = {}
    ends, gaps = [], []
    while server.busy:
        written, now = server.step(), time.perf_counter()
        for one in written:
            if one.number in last:
                gaps.append(now - last[one.number])
            last[one.number] = now
            if one.last:
                ends.append(now - began)
    return [handle.tokens for handle in handles], ends, gaps
