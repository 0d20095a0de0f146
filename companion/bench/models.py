"""Whole decoders side by side: training steps, and generation."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from companion.bench import peers
from companion.bench.compare import OURS, Comparison, Setting
from companion.bench.cuda_graphs import RecordedDecode, RecordedWriter
from companion.bench.sizes import Size
from companion.bench.tolerance import differs
from companion.config.model import ModelConfig
from companion.costs import account
from companion.generation.generate import complete
from companion.generation.prefill_decode import BUCKET, evaluating
from companion.generation.prefill_decode import decode as decode_step
from companion.generation.sampling import Sampling
from companion.ground.display import many
from companion.layers.cache import KVCache
from companion.training.precision import autocast
from companion.training.trainer import Trainer, TrainingConfig
from companion.transformer import Transformer

TRIAL_UPDATES = 3
"""Updates that every contender makes before it is timed, and whose losses must agree."""
SETTINGS = TrainingConfig(updates=10**9, learning_rate=1e-3, last_share=1.0, warmup=0, weight_decay=0.0)
AGAIN = "all computed again"
LONGEST = 10.0
"""Seconds that ours may write, where the processor is slow for the size."""


def drawn(config: ModelConfig, seed: int = 0) -> Transformer:
    """A new decoder; its gains are drawn too, because gains that are all one could be swapped unnoticed."""
    torch.manual_seed(seed)
    model = Transformer(config)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1:
                p.uniform_(0.5, 1.5)
    return model.eval()


def affordable(size: Size, setting: Setting) -> Size:
    """With fewer new tokens where ours would take more than `LONGEST` seconds to write them all, at least 16."""
    model = drawn(size.config).to(setting.device)
    write, prompt = _writer(model), torch.zeros(1, 1, dtype=torch.long, device=setting.device)
    write(prompt, 2)
    start = time.perf_counter()
    write(prompt, 4)
    tokens = int(LONGEST / (time.perf_counter() - start) * 4)
    return replace(size, new=min(size.new, max(16, tokens)))


def steps_alone(title: str, size: Size, setting: Setting, items: int, cached: Sequence[int]) -> Comparison:
    """A comparison of decode steps of one row each, the first of them over `cached[0]` tokens in the cache: what they
    calculate, and the seconds in which the memory could hand over what they read."""
    return Comparison(
        part="decode",
        title=title,
        size=size.name,
        items=items,
        flops=sum(account.forward_flops(size.config, 1, cached=n, logits="last").total for n in cached),
        least=sum(account.decode_bytes(size.config, n) for n in cached) / setting.chip.bandwidth,
        bound="memory",
    )


def training(
    size: Size,
    setting: Setting,
    beside: Sequence[str] = peers.PEERS,
    optimizer: Literal["adamw", "muon"] = "adamw",
) -> Comparison:
    """One update: forward pass, loss, backward pass, clipping, the optimizer. Ours is `Trainer.update`, all of it; the
    others' is the shortest loop that does the same, always with AdamW."""
    config, device = size.config, setting.device
    flops = account.train_flops(config, config.context, batch=size.batch)
    comparison = Comparison(
        part="train",
        title=f"training step, {size.batch} x {config.context:,} tokens "
        f"({many(account.parameters(config).total)} parameters)",
        size=size.name,
        items=size.batch * config.context,
        flops=flops,
        least=flops / setting.chip.flops,
    )
    ours = drawn(config).to(device)
    tokens = torch.randint(config.vocab, (size.batch, config.context + 1), device=device)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    others = dict(built_peers(ours, comparison, names=beside))
    with torch.no_grad():
        expected = ours(inputs).logits if others else inputs
    settings = replace(SETTINGS, optimizer=optimizer)
    trainer = Trainer(ours, lambda _: (inputs, targets), settings, precision=setting.precision, compile=setting.compile)
    fused = bool(trainer.optimizer.defaults["fused"])

    def update() -> tuple[float, float]:
        done = trainer.update()
        return done.loss, done.gradient_norm

    course = torch.tensor([update() for _ in range(TRIAL_UPDATES)])
    runs: dict[str, Callable[[], Any]] = {OURS: update}

    def check(name: str) -> str | None:
        peer = others[name]
        peer.model.to(device).eval()
        with torch.no_grad():
            if why := differs([expected], [peer.logits(inputs)], ["logits"], torch.float32):
                return why
        runs[name] = _plain_step(peer, inputs, targets, settings, setting, fused=fused)
        theirs = torch.tensor([runs[name]() for _ in range(TRIAL_UPDATES)])
        # The loss to four digits; the norm of the gradient, which rounding moves more, to two.
        parts = ((0, "loss", 1e-4 if setting.precision == "fp32" else 1e-2), (1, "gradient", 1e-2))
        far = [what for i, what, most in parts if not torch.allclose(course[:, i], theirs[:, i], rtol=most, atol=0)]
        return f"its {' and '.join(far)} in the first {TRIAL_UPDATES} updates differ" if far else None

    for name in others:
        if not comparison.admits(name, partial(check, name)):
            runs.pop(name, None)
    return comparison.time(runs, setting)


def _plain_step(
    peer: peers.Peer, inputs: Tensor, targets: Tensor, settings: TrainingConfig, setting: Setting, *, fused: bool
) -> Callable[[], tuple[float, float]]:
    """The shortest loop that makes the same update; gives the loss and the gradient's norm."""
    model = peer.model
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        parameters,
        lr=settings.learning_rate,
        betas=settings.betas,
        weight_decay=settings.weight_decay,
        fused=fused,
    )
    logits = torch.compile(peer.logits) if setting.compile else peer.logits
    model.train()

    def step() -> tuple[float, float]:
        optimizer.zero_grad(set_to_none=True)
        with autocast(setting.device, setting.precision):
            scores = logits(inputs)
            loss = F.cross_entropy(scores.float().flatten(0, 1), targets.flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters, settings.clip)
        value, length = torch.stack((loss.detach(), norm)).tolist()
        optimizer.step()
        return value, length

    return step


def decode(size: Size, setting: Setting, beside: Sequence[str] = peers.PEERS) -> list[Comparison]:
    """Prefill (a prompt, and the first new token), and generation (a short prompt, and many new tokens), one row,
    always the most probable token, each library through its own `generate`."""
    config, device, dtype, chip = size.config, setting.device, setting.dtype, setting.chip
    ours = drawn(config).to(device)
    torch.manual_seed(1)
    long, short = (torch.randint(config.vocab, (1, n), device=device) for n in (config.context // 2, size.prompt))

    def pass_costs(tokens: int, cached: int) -> tuple[int, int]:
        flops = account.forward_flops(config, tokens, cached=cached, logits="last").total
        return flops, account.forward_bytes(config, tokens, cached=cached, dtype=dtype)

    comparisons, every = [], []
    for title, prompt, new in (
        (f"prefill, {long.shape[1]:,} tokens", long, 1),
        (f"generation, {size.prompt:,} + {size.new:,} tokens", short, size.new),
    ):
        costs = [pass_costs(prompt.shape[1], 0), *(pass_costs(1, prompt.shape[1] + i) for i in range(new - 1))]
        flops, moved = sum(f for f, _ in costs), sum(b for _, b in costs)
        comparison = Comparison(
            part="decode",
            title=f"{title}, one row ({many(account.parameters(config).total)} parameters)",
            size=size.name,
            items=new if new > 1 else prompt.shape[1],
            flops=flops,
            least=sum(chip.seconds(f, b) for f, b in costs),
            bound=chip.bound(flops / moved),
        )
        comparisons.append(comparison)
        every.append((comparison, prompt, new))
    writers: dict[str, tuple[nn.Module, Writer]] = {name: (ours, write) for name, write in _own_ways(ours, setting)}
    for name, peer in built_peers(ours, *comparisons, names=beside):
        writers[name] = (peer.model.to(device).eval(), peer.generate)
        if setting.compile:
            writers |= {f"{name}, {variant}": (peer.model, write) for variant, write in peer.variants.items()}
    # Compared in fp32, where no two ties differ.
    writes = {name: write for name, (_, write) in writers.items()}
    runs = [right(comparison, writes, prompt, new) for comparison, prompt, new in every]
    for model, _ in writers.values():
        model.to(dtype)
    if dtype != torch.float32:
        for (comparison, _, _), run in zip(every, runs, strict=True):
            for name in [*run][1:]:
                if not comparison.admits(name, partial(_runs, run[name])):
                    del run[name]
    return [comparison.time(run, setting) for (comparison, _, _), run in zip(every, runs, strict=True)]


# The cache


def cache_gain(size: Size, setting: Setting) -> list[Comparison]:
    """A step beside a cache of so many tokens, against computing all of them again."""
    config = size.config.with_(context=max(size.cached) + 2 * BUCKET)
    model = drawn(config).to(setting.device, setting.dtype)
    with torch.inference_mode(), evaluating(list(model.modules())):
        return [_gain(model, size, setting, cached) for cached in size.cached]


def _gain(model: Transformer, size: Size, setting: Setting, cached: int) -> Comparison:
    config = model.config
    comparison = steps_alone("a step beside the cache, and all computed again", size, setting, 1, [cached])
    comparison.part, comparison.length = "cache", cached
    comparison.least = account.decode_bytes(config, cached, dtype=setting.dtype) / setting.chip.bandwidth
    tokens = torch.randint(config.vocab, (1, cached), device=setting.device)
    slots = -(-(cached + 1) // BUCKET) * BUCKET
    room = KVCache.create(config, 1, slots, dtype=setting.dtype, device=setting.device, bucket=BUCKET)
    cache = model.features(tokens, cache=room).cache
    assert cache is not None
    last, plain = tokens[:, -1], replace(cache, bucket=1)
    runs: dict[str, Callable[[], Any]] = {
        OURS: lambda: decode_step(model, last, plain, None),
        AGAIN: lambda: model.head(model.features(tokens).stream[:, -1]),
    }
    if setting.device.type == "cuda":
        recorded = RecordedDecode(model, last, cache)

        def replayed() -> None:
            recorded.start(last, cache)
            recorded.advance()

        if comparison.admits("ours, CUDA graph", replayed):
            runs["ours, CUDA graph"] = replayed
    return comparison.time(runs, setting)


Writer = Callable[[Tensor, int], list[int]]
"""From a prompt (1, token) and how many tokens to write, to what it writes."""


def right(
    comparison: Comparison, writers: Mapping[str, Writer], prompt: Tensor, new: int
) -> dict[str, Callable[[], Any]]:
    """What is timed: ours, and everybody who writes the same. The others are left out with the reason."""
    wanted = writers[OURS](prompt, new)
    runs: dict[str, Callable[[], Any]] = {OURS: partial(writers[OURS], prompt, new)}
    for name in [*writers][1:]:

        def check(write: Writer = writers[name]) -> str | None:
            return None if write(prompt, new) == wanted else "it does not write the tokens that ours writes"

        if comparison.admits(name, check):
            runs[name] = partial(writers[name], prompt, new)
    return runs


def _runs(run: Callable[[], Any]) -> None:
    """Nothing is wrong with what runs."""
    run()


def _own_ways(ours: Transformer, setting: Setting) -> Iterator[tuple[str, Writer]]:
    """Our ways of writing, the plain one first."""
    yield OURS, _writer(ours)
    if setting.compile:
        yield "ours, compiled", _writer(ours, compile=True)
    if setting.device.type == "cuda":
        yield "ours, CUDA graphs", RecordedWriter(ours, decode_step)
        if setting.compile:  # every shape of a recorded step stays what it is
            yield "ours, compiled, CUDA graphs", RecordedWriter(ours, torch.compile(decode_step, dynamic=False))


def _writer(model: Transformer, *, compile: bool = False) -> Writer:
    def write(prompt: Tensor, new: int) -> list[int]:
        greedy = Sampling(temperature=0.0)
        return complete(model, prompt.tolist(), max_new_tokens=new, sampling=greedy, compile=compile)[0]

    return write


def built_peers(
    ours: Transformer, *comparisons: Comparison, names: Sequence[str] = peers.PEERS
) -> Iterator[tuple[str, peers.Peer]]:
    """Every peer that can be built; whoever cannot is left out of all the comparisons, with the reason."""
    original = copy.deepcopy(ours).cpu()
    for name in names:
        try:
            yield name, peers.build(name, original)
        except peers.Missing as error:
            for comparison in comparisons:
                comparison.omit(name, "missing", error)
        except Exception as error:  # its interface has changed
            for comparison in comparisons:
                comparison.omit(name, "failed", f"{type(error).__name__}: {error}")
