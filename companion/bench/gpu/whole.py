"""Parts about a whole model: training, decoding, and what the cache gains."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from companion.bench.gpu.figures import Figure, Record
from companion.bench.gpu.graphs import RecordedDecode
from companion.bench.gpu.sizes import Setting
from companion.bench.models import drawn
from companion.bench.timing import synchronize
from companion.costs import account
from companion.costs.chips import peak_share, published_chip
from companion.generation.generate import complete
from companion.generation.passes import BUCKET, decode, evaluating, prefill
from companion.generation.sampling import Sampling
from companion.layers.cache import KVCache
from companion.training.trainer import Trainer, TrainingConfig
from companion.transformer import Transformer

TRAINING_GOAL, DECODE_GOAL, CACHE_GOAL = 0.55, 0.85, 10.0


def seconds_of(run: Callable[[], Any], setting: Setting, warm: int = 3) -> float:
    """The median time of one run, after some to warm up: at least five, and for `setting.seconds`."""
    for _ in range(warm):
        run()
    synchronize(setting.device)
    samples: list[float] = []
    until = perf_counter() + setting.seconds
    while len(samples) < 5 or perf_counter() < until:
        start = perf_counter()
        run()
        synchronize(setting.device)
        samples.append(perf_counter() - start)
    return median(samples)


def published_name(setting: Setting) -> str | None:
    """This GPU's name where the table of published figures has it."""
    if setting.rehearsal:
        return None
    name = torch.cuda.get_device_name()
    try:
        published_chip(name)
    except ValueError:
        return None
    return name


def peaks(setting: Setting) -> dict[str, float]:
    """What products could reach, FLOPs a second: measured, and as published for half precision."""
    known = {} if setting.chip is None else {"measured peak": setting.chip.flops}
    name = published_name(setting)
    return known if name is None else known | {"published peak": published_chip(name).flops}


def bandwidths(setting: Setting) -> dict[str, float]:
    """What the memory could move, bytes a second: measured, and as published."""
    known = {} if setting.chip is None else {"measured bandwidth": setting.chip.bandwidth}
    name = published_name(setting)
    return known if name is None else known | {"published bandwidth": published_chip(name).bandwidth}


def goal(setting: Setting, words: str, met: bool) -> dict[str, Any]:
    """A goal and whether it is met; none in rehearsal, whose figures mean nothing."""
    return {} if setting.rehearsal else {"goal": words, "met": met}


def free(setting: Setting) -> None:
    """Give back what the last measurement left."""
    gc.collect()
    if setting.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


# Training


def training(setting: Setting, record: Record) -> None:
    """Updates of the whole trainer (forward, loss, backward, clipping, AdamW): tokens a second, as a share of what
    matrix products reach on this chip."""
    config = setting.model
    count = account.parameters(config).total
    record.remark(
        f"{count / 1e6:.3g} M parameters, vocabulary {config.vocab:,}, {config.context:,} tokens a row, "
        f"{setting.precision} products; FLOPs of the model only"
    )
    for compiled in (False, True):
        name = "training, compiled" if compiled else "training, eager"
        rows = setting.rows
        while True:
            free(setting)
            try:
                seconds = _update_seconds(setting, rows, compiled)
                break
            except torch.OutOfMemoryError:
                if rows == 1:
                    raise
                rows //= 2
            except Exception as error:
                record.remark(f"{name}: {type(error).__name__}: {error}")
                seconds = 0.0
                break
        if not seconds:
            continue
        flops = account.train_flops(config, config.context, batch=rows)
        shares = {what: peak_share(flops, seconds, peak) for what, peak in peaks(setting).items()}
        reached = shares.get("measured peak", 0.0)
        wanted = goal(setting, f"{TRAINING_GOAL:.0%} of the measured peak", reached >= TRAINING_GOAL)
        record.figure(
            Figure(
                f"{name}, {rows} x {config.context:,} tokens",
                rows * config.context / seconds,
                "tokens/s",
                shares=shares,
                **wanted,
            )
        )
        if setting.device.type == "cuda":
            held = torch.cuda.max_memory_allocated()
            whole = torch.cuda.get_device_properties(0).total_memory
            record.figure(Figure(f"{name}, memory", held, "B", shares={"memory": held / whole}))


def _update_seconds(setting: Setting, rows: int, compiled: bool) -> float:
    config, device = setting.model, setting.device
    torch.manual_seed(0)
    model = Transformer(config).to(device)
    tokens = torch.randint(config.vocab, (rows, config.context + 1), device=device)
    batch = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    settings = TrainingConfig(updates=10**9, learning_rate=1e-4, warmup=0)
    trainer = Trainer(model, lambda _: batch, settings, precision=setting.precision, compile=compiled)
    return seconds_of(trainer.update, setting)


# Decoding


def decoding(setting: Setting, record: Record) -> None:
    """One row, always the most probable token: eager, compiled, and as recorded graphs; as a share of the bandwidth,
    because every step reads every weight once."""
    config, device = setting.model, setting.device
    model = drawn(config).to(device, setting.dtype)
    prompt = torch.randint(config.vocab, (setting.prompt,)).tolist()
    steps = range(setting.prompt, setting.prompt + setting.new - 1)
    moved = sum(account.decode_bytes(config, cached, dtype=setting.dtype) for cached in steps) / len(steps)
    record.remark(f"batch 1, {setting.prompt} + {setting.new} tokens, {moved / 1e6:.4g} MB to read a step")
    greedy = Sampling(0.0)

    def written(compile: bool) -> list[int]:
        return complete(model, [prompt], max_new_tokens=setting.new, sampling=greedy, compile=compile)[0]

    ways: dict[str, Callable[[], list[int]]] = {"eager": partial(written, False)}
    if not setting.rehearsal:
        compiled = torch.compile(decode, dynamic=False)  # every shape of a recorded step stays what it is
        ways["CUDA graphs"] = partial(_recorded, model, prompt, setting, decode)
        ways["compiled, CUDA graphs"] = partial(_recorded, model, prompt, setting, compiled)
    ways["compiled"] = partial(written, True)  # last: its shapes change, so it is compiled more than once
    expected: list[int] | None = None
    for name, way in ways.items():
        try:
            text = way()
            expected = text if expected is None else expected
            prefilled = _prefill_seconds(model, prompt, setting)
            samples: list[float] = []
            until = perf_counter() + setting.seconds
            while len(samples) < 3 or perf_counter() < until:
                synchronize(device)
                once = perf_counter()
                way()
                synchronize(device)
                samples.append(perf_counter() - once)
            seconds = max(median(samples) - prefilled, 1e-9) / len(steps)
        except Exception as error:
            record.remark(f"{name}: {type(error).__name__}: {error}")
            continue
        same = next((i for i, (a, b) in enumerate(zip(expected, text, strict=True)) if a != b), len(text))
        if same < len(text):
            record.remark(f"{name}: the text is eager's for {same} of {len(text)} tokens (rounding decides near ties)")
        shares = {what: moved / seconds / bandwidth for what, bandwidth in bandwidths(setting).items()}
        reached = shares.get("measured bandwidth", 0.0)
        wanted = goal(setting, f"{DECODE_GOAL:.0%} of the measured bandwidth", reached >= DECODE_GOAL)
        record.figure(Figure(f"decoding, {name}", 1 / seconds, "tokens/s", shares=shares, **wanted))


def _prefill_seconds(model: Transformer, prompt: list[int], setting: Setting) -> float:
    modules = list(model.modules())

    def run() -> None:
        with torch.inference_mode(), evaluating(modules):
            prefill(model, [prompt], None, setting.prompt + setting.new)

    return seconds_of(run, replace(setting, seconds=0.0))


_recordings: dict[tuple[int, Any], RecordedDecode] = {}


def _recorded(model: Transformer, prompt: list[int], setting: Setting, step: Any) -> list[int]:
    """The same text from recorded steps. All see all slots, so that one graph serves them; it is kept for the next
    call."""
    slots = -(-(len(prompt) + setting.new) // BUCKET) * BUCKET
    with torch.inference_mode(), evaluating(list(model.modules())):
        logits, cache, _ = prefill(model, [prompt], None, slots, bucket=slots)
        first = logits.argmax(-1)
        decoder = _recordings.setdefault((id(model), step), RecordedDecode(model, first, cache, step))
        decoder.start(first, cache)
        text = [first.clone()] + [decoder.advance().clone() for _ in range(setting.new - 1)]
    return torch.cat(text).tolist()


# The cache


def cache_gain(setting: Setting, record: Record) -> None:
    """A step beside a cache of so many tokens, against computing all of them again: how many times as fast."""
    config, device = setting.long, setting.device
    model = drawn(config).to(device, setting.dtype)
    modules = list(model.modules())
    short = replace(setting, seconds=setting.seconds / 8)
    for length in setting.lengths:
        free(setting)
        at = f"{length:,}"
        tokens = torch.randint(config.vocab, (1, length), device=device)
        last = tokens[:, -1]
        with torch.inference_mode(), evaluating(modules):
            try:
                again = seconds_of(lambda: model.head(model.features(tokens).stream[:, -1]), short)  # noqa: B023
                slots = -(-(length + 1) // BUCKET) * BUCKET
                room = KVCache.create(config, 1, slots, dtype=setting.dtype, device=device, bucket=BUCKET)
                start = perf_counter()
                out = model.features(tokens, cache=room)
                synchronize(device)
                record.figure(Figure("prefill into the cache", length / (perf_counter() - start), "tokens/s", at=at))
                cache = out.cache
                assert cache is not None
                plain = replace(cache, bucket=1)
                eager = seconds_of(lambda: decode(model, last, plain, None), short)  # noqa: B023
            except Exception as error:
                record.remark(f"{at} tokens: {type(error).__name__}: {error}")
                continue
            record.figure(Figure("all computed again", again, "s", at=at))
            record.figure(Figure("a step beside the cache, eager", eager, "s", at=at))
            record.figure(Figure("gain, eager", again / eager, "times", at=at))
            best = again / eager
            if not setting.rehearsal:
                try:
                    recorded = RecordedDecode(model, last, cache)
                    replayed = seconds_of(partial(_same_step, recorded, last, cache), short)
                except Exception as error:
                    record.remark(f"{at} tokens, CUDA graph: {type(error).__name__}: {error}")
                else:
                    record.figure(Figure("a step beside the cache, CUDA graph", replayed, "s", at=at))
                    best = max(best, again / replayed)
            wanted = goal(setting, f"above {CACHE_GOAL:.0f} at 8,192", best > CACHE_GOAL) if length == 8192 else {}
            record.figure(Figure("gain, best", best, "times", at=at, **wanted))


def _same_step(recorded: RecordedDecode, tokens: Tensor, cache: KVCache) -> None:
    """The step after `cache`, each time anew."""
    recorded.start(tokens, cache)
    recorded.advance()
