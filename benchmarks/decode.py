"""Greedy decoding of one row, with a short prompt and many new tokens. It is usually limited by memory bandwidth."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.compare import OURS, Comparison, Setting, cost_of_pass
from benchmarks.cuda_graphs import RecordedWriter
from benchmarks.peers import PEERS, Writer, built, drawn
from benchmarks.sizes import Size
from companion.costs import account
from companion.generation.generate import complete
from companion.generation.prefill_decode import decode as decode_step
from companion.generation.sampling import Sampling
from companion.ground.display import many
from companion.transformer import Transformer

LONGEST = 10.0
"""Time limit in seconds for our model's decoding; on a slow machine it generates fewer tokens."""


def compare(size: Size, setting: Setting, beside: Collection[str] = PEERS) -> Comparison:
    """Compare decoding. Each library uses its own `generate`.

    A library that does not generate the same tokens as ours in fp32 is not timed.
    """
    size = affordable(size, setting)
    config, new = size.config, size.new
    ours = drawn(config).to(setting.device)
    torch.manual_seed(1)
    prompt = torch.randint(config.vocab, (1, size.prompt), device=setting.device)
    passes = [(size.prompt, 0), *((1, size.prompt + i) for i in range(new - 1))]
    costs = [cost_of_pass(config, tokens, cached=cached, dtype=setting.dtype) for tokens, cached in passes]
    flops, moved = (sum(column) for column in zip(*costs, strict=True))
    comparison = Comparison(
        part="decode",
        title=f"decoding, {size.prompt:,} + {new:,} tokens, one row ({many(account.parameters(config).total)} weights)",
        size=size.name,
        items=new,
        least=sum(setting.chip.seconds(*cost) for cost in costs),
        bound=setting.chip.bound(flops / moved),
    )
    writers, models = dict(_own(ours, setting)), [ours]
    for name, peer in built(ours, beside, comparison):
        models.append(peer.model)  # type: ignore[arg-type]
        writers[name] = peer.generate
        if setting.compile:
            writers |= {f"{name}, {variant}": write for variant, write in peer.variants.items()}
    runs: dict[str, Callable[[], Any]] = {name: partial(write, prompt, new) for name, write in writers.items()}
    return comparison.time_equal(runs, models, _difference, setting)


def _difference(expected: list[int], written: list[int], dtype: torch.dtype) -> str | None:
    """Compare the tokens generated in fp32, in which no two tokens tie for the most probable one."""
    same = written == expected or dtype != torch.float32
    return None if same else "it generates different tokens from ours"


def affordable(size: Size, setting: Setting) -> Size:
    """Return the size, with fewer new tokens (but at least 16) if our model would take more than `LONGEST` seconds."""
    write = _writer(drawn(size.config).to(setting.device))
    prompt = torch.zeros(1, 1, dtype=torch.long, device=setting.device)
    write(prompt, 2)
    start = time.perf_counter()
    write(prompt, 4)
    tokens = int(LONGEST / (time.perf_counter() - start) * 4)
    return replace(size, new=min(size.new, max(16, tokens)))


def _own(ours: Transformer, setting: Setting) -> Iterator[tuple[str, Writer]]:
    """Yield our variants of generation, beginning with the plain one."""
    yield OURS, _writer(ours)
    if setting.compile:
        yield "ours, compiled", _writer(ours, compile=True)
    if setting.device.type == "cuda":
        yield "ours, CUDA graphs", RecordedWriter(ours, decode_step)
        if setting.compile:  # shapes in a recorded step never change
            yield "ours, compiled, CUDA graphs", RecordedWriter(ours, torch.compile(decode_step, dynamic=False))


def _writer(model: Transformer, *, compile: bool = False) -> Writer:
    def write(prompt: Tensor, new: int) -> list[int]:
        greedy = Sampling(temperature=0.0)
        return complete(model, prompt.tolist(), max_new_tokens=new, sampling=greedy, compile=compile)[0]

    return write
