"""Decoding: a short prompt and many new tokens, one row, greedy. It is usually limited by memory bandwidth."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import llama_cpp
from benchmarks.compare import OURS, Comparison, Setting
from benchmarks.cuda_graphs import RecordedWriter
from benchmarks.peers import PEERS, built, drawn
from benchmarks.sizes import Size
from companion.costs import account
from companion.generation.generate import complete
from companion.generation.prefill_decode import decode as decode_step
from companion.generation.sampling import Sampling
from companion.ground.display import many
from companion.transformer import Transformer

LONGEST = 10.0
"""Time limit in seconds for our model's decoding; on a slow machine it generates fewer tokens."""
Writer = Callable[[Tensor, int], list[int]]
"""Function of a prompt (1, token) and the number of new tokens that returns the new tokens."""


def compare(size: Size, setting: Setting, beside: Sequence[str] = PEERS) -> Comparison:
    """Compare decoding, where each library uses its own `generate`.

    A library that does not generate the same tokens as ours in fp32 is not timed.
    """
    size = affordable(size, setting)
    config, device, new = size.config, setting.device, size.new
    ours = drawn(config).to(device)
    torch.manual_seed(1)
    prompt = torch.randint(config.vocab, (1, size.prompt), device=device)
    costs = [_pass_costs(size, setting, size.prompt, 0)]
    costs += [_pass_costs(size, setting, 1, size.prompt + i) for i in range(new - 1)]
    flops, moved = (sum(column) for column in zip(*costs, strict=True))
    comparison = Comparison(
        part="decode",
        title=f"decoding, {size.prompt:,} + {new:,} tokens, one row ({many(account.parameters(config).total)} weights)",
        size=size.name,
        items=new,
        flops=flops,
        least=sum(setting.chip.seconds(*cost) for cost in costs),
        bound=setting.chip.bound(flops / moved),
    )
    writers: dict[str, tuple[nn.Module, Writer]] = {name: (ours, write) for name, write in _own(ours, setting)}
    for name, peer in built(ours, comparison, names=beside):
        writers[name] = (peer.model.to(device).eval(), peer.generate)
        if setting.compile:
            writers |= {f"{name}, {variant}": (peer.model, write) for variant, write in peer.variants.items()}
    wanted = writers[OURS][1](prompt, new)

    def check(write: Writer, exactly: bool) -> str | None:
        written = write(prompt, new)
        return "it generates different tokens from ours" if exactly and written != wanted else None

    for dtype in setting.dtypes:  # tokens are compared in fp32, where no two most probable tokens tie
        for model, _ in writers.values():
            model.to(dtype)
        for name in [*writers][1:]:
            if not comparison.admits(name, partial(check, writers[name][1], dtype == torch.float32)):
                del writers[name]
    runs: dict[str, Callable[[], Any]] = {name: partial(write, prompt, new) for name, (_, write) in writers.items()}
    comparison.time(runs, setting)
    if beside:
        llama_cpp.add(comparison, ours, setting, new)
    return comparison


def affordable(size: Size, setting: Setting) -> Size:
    """Return the size with fewer new tokens, but at least 16, if ours would take more than `LONGEST` seconds."""
    write = _writer(drawn(size.config).to(setting.device))
    prompt = torch.zeros(1, 1, dtype=torch.long, device=setting.device)
    write(prompt, 2)
    start = time.perf_counter()
    write(prompt, 4)
    tokens = int(LONGEST / (time.perf_counter() - start) * 4)
    return replace(size, new=min(size.new, max(16, tokens)))


def _pass_costs(size: Size, setting: Setting, tokens: int, cached: int) -> tuple[float, float]:
    flops = account.forward_flops(size.config, tokens, cached=cached, logits="last").total
    return flops, account.forward_bytes(size.config, tokens, cached=cached, dtype=setting.dtype)


def _own(ours: Transformer, setting: Setting) -> Iterator[tuple[str, Writer]]:
    """Yield our variants of generation, starting with the plain one."""
    yield OURS, _writer(ours)
    if setting.compile:
        yield "ours, compiled", _writer(ours, compile=True)
    if setting.device.type == "cuda":
        yield "ours, CUDA graphs", RecordedWriter(ours, decode_step)
        if setting.compile:  # the shapes of a recorded step never change
            yield "ours, compiled, CUDA graphs", RecordedWriter(ours, torch.compile(decode_step, dynamic=False))


def _writer(model: Transformer, *, compile: bool = False) -> Writer:
    def write(prompt: Tensor, new: int) -> list[int]:
        greedy = Sampling(temperature=0.0)
        return complete(model, prompt.tolist(), max_new_tokens=new, sampling=greedy, compile=compile)[0]

    return write
