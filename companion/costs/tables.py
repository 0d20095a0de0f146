"""The sizing of models as tables: for `companion sizing`, as JSON, and as the page `notebooks/sizing.md`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from companion.config import ModelConfig
from companion.costs.account import (
    cache_bytes,
    decode_bytes,
    forward_flops,
    parameters,
    serve_bytes,
    train_bytes,
    train_flops,
    weights_bytes,
)
from companion.costs.chips import CHIPS, Machine, PublishedChip, published_peak
from companion.costs.sizing import (
    MOST_DEVICES,
    SECONDS_A_DAY,
    TOKENS_PER_PARAMETER,
    USABLE,
    Cost,
    Way,
    device_bytes,
    fewest_devices,
    kept,
    memories,
    row_tokens,
    train_cost,
)
from companion.files.atomic import readable_bytes
from companion.presets import PRESETS

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""The headings of the columns, and the rows; the first column is a name, the others are figures."""


@dataclass(frozen=True)
class Question:
    """What is asked about each model.

    devices, chip:  that train it; `chip` by its short name in `CHIPS`, or `None` for a table of all sizes of memory.
    share:          of the chip's peak in matrix products that training reaches: assumed, never predicted.
    tokens:         to train on. `None`: `TOKENS_PER_PARAMETER` for each active parameter.
    context:        tokens in a row to train on, and room in the cache. `None`: `row_tokens`, and the model's context.
    batch:          rows in a device's micro-batch, and rows served at once.
    usable:         share of the memory that may be filled.

    Raises `ValueError` naming the flag, what it was and what it must be.
    """

    devices: int = 8
    chip: str | None = None
    share: float = 0.4
    tokens: float | None = None
    context: int | None = None
    batch: int = 1
    usable: float = USABLE

    def __post_init__(self) -> None:
        for name in ("devices", "context", "batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name} {value}: expected a whole number >= 1")
        for name in ("share", "usable"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"--{name} {getattr(self, name):g}: expected a share above 0 and at most 1")
        if self.tokens is not None and not 0 < self.tokens < float("inf"):
            raise ValueError(f"--tokens {self.tokens:g}: expected a number > 0")
        if self.chip is not None and self.chip not in CHIPS:
            raise ValueError(f"--chip {self.chip}: expected one of {', '.join(CHIPS)}")

    @property
    def named_chip(self) -> PublishedChip:
        """The chip that days are reckoned for."""
        return CHIPS["h100" if self.chip is None else self.chip]

    def row(self, config: ModelConfig) -> int:
        """Tokens in a row to train on. Raises `ValueError` for more than the model has learned positions."""
        if self.context is None:
            return row_tokens(config)
        if config.positions.kind == "learned" and self.context > config.context:
            raise ValueError(f"--context {self.context}: expected at most the {config.context} learned positions")
        return self.context

    def cost(self, config: ModelConfig) -> Cost:
        return train_cost(config, self.tokens, row=self.row(config))


def memory_table(models: Mapping[str, ModelConfig], question: Question) -> Table:
    """What it takes to hold, to serve and to train each model."""
    head = (
        "model",
        "parameters",
        "active",
        "hold, bf16",
        "serve",
        "train: state",
        "copies",
        "activations",
        "recomputed",
    )
    rows = []
    for name, config in models.items():
        count, here = parameters(config), kept(config, question.row(config))
        sizes = (
            weights_bytes(config, torch.bfloat16),
            serve_bytes(config, tokens=question.context, batch=question.batch, dtype=torch.bfloat16),
            train_bytes(config),
            here.copies(),
            here.activations(question.batch),
            here.activations(question.batch, recompute=True),
        )
        rows.append((name, _many(count.total), _many(count.active), *map(readable_bytes, sizes)))
    return head, rows


def devices_table(models: Mapping[str, ModelConfig], question: Question) -> Table:
    """The fewest devices that can train each model, for each size of memory, or for the chip in question.

    `1`: each device can hold all of it, so that any number may train by data parallel. Otherwise as many as `--shard`
    needs, in brackets where only with recomputation, a dash where no number is enough.
    """
    sizes = [question.named_chip.memory] if question.chip is not None else list(memories())
    rows = []
    for name, config in models.items():
        rows.append((name, *(_devices(config, question, size, "data", "shard") for size in sizes)))
        if config.moe is not None:
            label = f"{name}, experts over {config.moe.experts}"
            ways: tuple[Way, ...] = ("experts", "experts+shard")
            rows.append((label, *(_devices(config, question, size, *ways) for size in sizes)))
    return ("model", *(f"{size / 1e9:.0f} GB" for size in sizes)), rows


def _devices(config: ModelConfig, question: Question, memory: float, *ways: Way) -> str:
    for recompute in (False, True):
        for way in ways:
            found = _fewest(config, question, memory, way, recompute)
            if found is not None:
                return f"({found:,})" if recompute else f"{found:,}"
    return "-"


def _fewest(config: ModelConfig, question: Question, memory: float, way: Way, recompute: bool) -> int | None:
    return fewest_devices(
        config,
        way,
        memory,
        usable=question.usable,
        rows=question.batch,
        tokens=question.row(config),
        recompute=recompute,
    )


def cost_table(models: Mapping[str, ModelConfig], question: Question) -> Table:
    """What training costs in FLOPs, and how long it takes on the devices in question at their share of the peak."""
    chip = question.named_chip
    head = ("model", "tokens", "6 N D", "counted", "counted / 6 N D", f"on {question.devices:,} {_short(chip)}")
    rows = []
    for name, config in models.items():
        cost = question.cost(config)
        days = cost.days(question.devices, question.share, _peak(chip))
        ratio = f"{cost.flops / cost.rule:.2f}"
        rows.append((name, _many(cost.tokens), f"{cost.rule:.1e}", f"{cost.flops:.1e}", ratio, _duration(days)))
    return head, rows


def device_days_table(models: Mapping[str, ModelConfig], question: Question) -> Table:
    """Days of one device, for each kind of chip by its peak, at the share in question."""
    by_peak: dict[float, list[str]] = {}
    for short, chip in CHIPS.items():
        by_peak.setdefault(_peak(chip), []).append(short)
    peaks = sorted(by_peak)
    head = ("model", *(f"{by_peak[peak][0]} ({peak / 1e12:.0f} T)" for peak in peaks))
    rows = []
    for name, config in models.items():
        cost = question.cost(config)
        rows.append((name, *(_figure(cost.days(1, question.share, peak)) for peak in peaks)))
    return head, rows


@dataclass(frozen=True)
class Published:
    """A training run of which its makers say how long it took."""

    name: str
    tokens: float
    device_hours: float
    chip: str
    source: str


PUBLISHED = (
    Published("llama-7b", 1.0e12, 82_432, "a100-80gb", "Touvron et al. 2023a, tables 2 and 15"),
    Published("llama-2-70b", 2.0e12, 1_720_320, "a100-80gb", "Touvron et al. 2023b, tables 1 and 2"),
)


def published_table() -> Table:
    """The share of the peak that published runs come to when their FLOPs are counted as here."""
    rows = []
    for run in PUBLISHED:
        cost = train_cost(PRESETS[run.name], run.tokens)
        peak = _peak(CHIPS[run.chip]) * run.device_hours * SECONDS_A_DAY / 24
        hours = f"{run.device_hours:,.0f}"
        rows.append(
            (run.name, _many(run.tokens), hours, f"{cost.rule / peak:.0%}", f"{cost.flops / peak:.0%}", run.source)
        )
    return ("model", "tokens", "hours of an A100", "share, 6 N D", "share, counted", "source"), rows


def data(models: Mapping[str, ModelConfig], question: Question) -> list[dict[str, Any]]:
    """All figures as numbers, for JSON: bytes, FLOPs, days, and for each chip the fewest devices for each way."""
    chips = CHIPS if question.chip is None else {question.chip: question.named_chip}
    found = []
    for name, config in models.items():
        count, cost, row = parameters(config), question.cost(config), question.row(config)
        here = kept(config, row)
        ways: list[Way] = ["data", "shard"]
        if config.moe is not None:
            ways += ["experts", "experts+shard"]
        found.append(
            {
                "name": name,
                "parameters": count.total,
                "active_parameters": count.active,
                "hold_bytes": weights_bytes(config, torch.bfloat16),
                "serve_bytes": serve_bytes(config, tokens=question.context, batch=question.batch, dtype=torch.bfloat16),
                "train_state_bytes": train_bytes(config),
                "weight_copies_bytes": here.copies(),
                "activation_bytes": here.activations(question.batch),
                "recomputed_activation_bytes": here.activations(question.batch, recompute=True),
                "row_tokens": row,
                "tokens": cost.tokens,
                "flops_6nd": cost.rule,
                "flops": cost.flops,
                "days": cost.days(question.devices, question.share, _peak(question.named_chip)),
                "devices": question.devices,
                "share": question.share,
                "fewest_devices": {
                    short: {
                        way: {
                            ("recomputed" if recompute else "kept"): _fewest(
                                config, question, chip.memory, way, recompute
                            )
                            for recompute in (False, True)
                        }
                        for way in ways
                    }
                    for short, chip in chips.items()
                },
            }
        )
    return found


PAGE = """\
# Which model fits on which machine?

<!-- Written by `companion sizing --page notebooks/sizing.md`, which is in `make notebooks`. Edit
companion/costs/tables.py, and never this. -->

Before you train or serve a model you can know, without a GPU, how many bytes it needs, over how many devices it
must be spread, and how many FLOPs it costs. Every figure on this page is computed by `companion.account` and
`companion.sizing` from the configuration alone. `companion sizing` prints the same for models, machines and amounts
of text that you choose:

```
companion sizing llama-7b --chip a100-80gb --devices 64 --share 0.45 --tokens 1e12
```

A GB is 10^9 bytes, a TB 10^12. N is the number of parameters, D the number of tokens to train on.

## What it takes to hold, to serve and to train

{memory}

- **parameters** are those of the model in full, **active** those that one token meets: in Mixtral two experts of
  eight.
- **hold** is N times 2 bytes: the weights in bf16.
- **serve** adds the cache of one row with a full context: 2 bytes times layers times key heads times (d_k + d_v)
  for each token. An encoder has no cache.
- **train: state** is 16 N: weights 4, gradients 4, AdamW's two moments 8 (Rajbhandari et al. 2020 reach the same 16
  with bf16 weights and gradients, 2 + 2, and fp32 weights and moments beside them, 4 + 8).
- **copies**: `companion train` computes its products in bf16 under autocast, which keeps a bf16 copy of each matrix
  from the forward pass to the backward pass. 2 bytes a number, and *not* divided by sharding.
- **activations** is what autograd keeps for one row of tokens, measured on tensors without memory, without dropout,
  with fused attention; more rows in a micro-batch keep so many times as much. The row is
  {rows}.
  **recomputed** keeps only what enters each layer, and makes the activations of one layer at a time again, for about
  a third more arithmetic. `companion train` does not recompute.

## How many devices does training need?

With one row in each device's micro-batch, and {usable} of each memory filled at most. **1** means that each device
can hold everything: train on any number of them by data parallel. A larger number is the fewest that `--shard`
needs; in (brackets) only with recomputation; a dash: no number up to {most:,} is enough.

{devices}

{chips}

What one of K devices holds, with E of the N parameters in e experts:

| how it is spread | state | beside copies and activations |
| --- | --- | --- |
| data parallel (`torchrun ...`) | 16 N | |
| `--shard` | 16 N / K | fp32 weights of two layers, one layer's gradient, and both of what is outside the layers |
| `--expert-parallel e` | 16 (N - E) + 16 E / e | |
| `--expert-parallel e --shard` | 16 (N - E) / K + 16 E / e | as for `--shard`, without the experts |

The last two divide the experts by e and no further, however many devices there are: for Mixtral that is {experts} a
device. This saves traffic, because tokens travel and not weights; it does not save the most memory.

## What does training cost?

D is {tokens_each} tokens for each active parameter, near the best use of a given number of FLOPs (Hoffmann et al.
2022): a convention that makes models comparable, not what these were trained on. The time is FLOPs / (devices x
share x peak), with {share} of the peak on {many} {device} (`--devices`, `--chip`, `--share`). The share is *put
in*, not found out.

{cost}

*6 N D* counts two FLOPs for each weight and token in the forward pass and four in the backward pass. *Counted* are
all matrix products, attention with it, for rows as long as above; attention is credited with every pair of tokens,
also those that a causal mask throws away. The two differ by what attention adds, which grows with the length of a
row; by the table of embeddings, of which a token reads one row and multiplies nothing, unless it is the head too;
and in an encoder-decoder by half, because each token goes through one stack only. Recomputation is not counted.

Days of a single device, by the peak of the chip in bf16, all at the same share:

{days}

**Is that share realistic?** Two papers say how long a run took. Their FLOPs, counted as above, come to this share
of what the devices could have done at their peak:

{published}

## Where this page misleads

- **The share is the largest unknown.** A well-tuned run of a large dense model reaches a third to a half. Small
  models, mixtures of experts, slow connections between machines and few rows in a micro-batch reach far less, and a
  chip with a higher peak usually a smaller share of it. A row of the table of days divided by another compares
  peaks, not machines.
- **Fitting is not being fast.** The fewest devices that hold a model leave room for one row each; its time says
  nothing about traffic between devices, which no figure here contains. `--shard` moves all weights twice and all
  gradients once for each micro-batch.
- **What is left out of the bytes**: dropout's masks, the gradient of the logits and other buffers that live for a
  moment, fragments, what CUDA, NCCL and the compiler keep. The {usable} is an allowance for all of them, not a
  measurement. Host memory too: `companion train` builds the whole model in each process before it is divided.
- **Experts are taken to be evenly visited.** A device whose experts are asked for twice as often keeps twice as
  much.
- **The sizes of memories** are the makers' GB, and what a driver reports differs by some per cent. The first row
  that crosses a boundary (gpt2-xl at 24 GB, llama-7b at 40 GB) may fall on the other side of it on your machine.
- **An encoder's head** runs for every token here. BERT's own training ran it for the masked ones, a seventh of
  them.
- **Cost is not quality.** A model that costs half as much to train may be worse by more, or less, than half.
"""


def page() -> str:
    """`notebooks/sizing.md`: all presets on all machines."""
    question, models = Question(), PRESETS
    lengths = sorted({row_tokens(config) for config in models.values()})
    mixtral = models["mixtral-8x7b"]
    experts = device_bytes(mixtral, "experts+shard", MOST_DEVICES).state
    by_size = [
        f"{size / 1e9:.0f} GB: " + ", ".join(chip.device.removeprefix("NVIDIA ") for chip in chips)
        for size, chips in memories().items()
    ]
    return PAGE.format(
        memory=markdown_table(memory_table(models, question)),
        rows=f"as long as the model's context, {lengths[0]:,} to {lengths[-1]:,} tokens, and Mixtral's {lengths[-1]:,}",
        devices=markdown_table(devices_table(models, question)),
        chips="The sizes, as the makers' data sheets give them: " + "; ".join(by_size) + ".",
        usable=f"{question.usable:.0%}",
        most=MOST_DEVICES,
        experts=readable_bytes(experts),
        tokens_each=TOKENS_PER_PARAMETER,
        share=f"{question.share:.0%}",
        many=question.devices,
        device=question.named_chip.device,
        cost=markdown_table(cost_table(models, question)),
        days=markdown_table(device_days_table(models, question)),
        published=markdown_table(published_table()),
    )


def text(models: Mapping[str, ModelConfig], question: Question) -> str:
    """What `companion sizing` prints."""
    where = f"of {question.named_chip.device}" if question.chip is not None else "by the size of their memory"
    parts = [
        "bytes (activations: of one device's micro-batch)",
        _plain(memory_table(models, question)),
        f"fewest devices to train on, {where}; (in brackets) only with recomputation",
        _plain(devices_table(models, question)),
        f"FLOPs to train, and how long it takes at {question.share:.0%} of the peak of {question.named_chip.device}",
        _plain(cost_table(models, question)),
        "What is left out, and where such figures mislead: companion sizing --help, and notebooks/sizing.md.",
    ]
    return "\n\n".join(parts)


def _plain(table: Table) -> str:
    head, rows = table
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        return "  " + "  ".join(cells).rstrip()

    return "\n".join(line(row) for row in (head, *rows))


def markdown_table(table: Table) -> str:
    """A table in Markdown, figures to the right."""
    head, rows = table
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))


def _many(number: float) -> str:
    """Three digits of a count: 124 M, 46.7 B."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * size:
            return f"{_figure(number / size)} {unit}"
    return f"{number:.0f}"


def _figure(number: float) -> str:
    """Three digits, the zeros of large numbers included: more than an allowance is worth would be too many."""
    if number >= 100:
        digits = len(str(int(number))) - 3
        return f"{round(number, -digits):,.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}" if number >= 0.1 else f"{number:.1g}"


def _duration(days: float) -> str:
    for length, unit in ((365.25, "years"), (1.0, "days"), (1 / 24, "hours")):
        if days >= 2 * length:
            return f"{_figure(days / length)} {unit}"
    return f"{_figure(24 * 60 * days)} minutes"


def _peak(chip: PublishedChip) -> float:
    peak = published_peak(chip.device, torch.bfloat16)
    assert peak is not None
    return peak


def _short(chip: PublishedChip) -> str:
    (name,) = [short for short, known in CHIPS.items() if known is chip]
    return name


def table(config: ModelConfig) -> str:
    """The account of a model as text: parameters by part, FLOPs a token, and memory to hold, train and serve it.

    In the column int8 the weights have one byte each; what serves them keeps a bf16 cache.
    """
    count, context = parameters(config), config.context
    source = context if config.stack == "encoder_decoder" else 0
    rows = [("parameters", "")]
    rows += [(f"  {name.replace('_', ' ')}", f"{value:>18,}") for name, value in count.parts.items() if value]
    rows += [("  total", f"{count.total:>18,}")]
    if config.moe is not None:
        rows += [("  active for one token", f"{count.active:>18,}")]
    rows += [("FLOPs", "")]
    if config.stack == "decoder":
        for place in (1, context):
            flops = forward_flops(config, 1, cached=place - 1).total
            rows += [(f"  to write token {place:,}", f"{flops:>18,}")]
    flops = train_flops(config, context, source=source) // (context + source)
    rows += [("  to train on a token, full context", f"{flops:>18,}")]
    single, half, byte = torch.float32, torch.bfloat16, torch.int8
    rows += [("memory", f"{'fp32':>14}{'bf16':>14}{'int8':>14}")]

    def cells(name: str, *sizes: int) -> tuple[str, str]:
        return name, "".join(f"{readable_bytes(size):>14}" for size in sizes)

    rows += [cells("  to hold: weights", *(weights_bytes(config, dtype) for dtype in (single, half, byte)))]
    rows += [cells("  to train, without activations", *(train_bytes(config, dtype) for dtype in (single, half)))]
    if config.stack != "encoder":
        rows += [cells("  cache, a token", *(cache_bytes(config, 1, dtype=dtype) for dtype in (single, half)))]
        full = (cache_bytes(config, context, dtype=dtype, source=source) for dtype in (single, half))
        rows += [cells("  cache, full context", *full)]
        served = [serve_bytes(config, dtype=single), serve_bytes(config, dtype=half)]
        served += [serve_bytes(config, dtype=byte, cache_dtype=half)]
        rows += [cells("  to serve: weights and full cache", *served)]
    return "\n".join(f"{name:<36}{value}".rstrip() for name, value in rows)


def decoding_table(config: ModelConfig, machine: Machine) -> str:
    """How many tokens a second one row can get at most, as text: the memory's limit, with an empty and a full context.

    In the column int8 the weights have one byte each and the cache two a number.
    Raises `ValueError` for a stack other than a decoder.
    """
    if config.stack != "decoder":
        raise ValueError(f"config has stack={config.stack!r}: expected a decoder")
    columns = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}

    def cache_dtype(dtype: torch.dtype) -> torch.dtype:
        return torch.bfloat16 if dtype == torch.int8 else dtype

    def limit(dtype: torch.dtype, cached: int) -> str:
        moved = decode_bytes(config, cached, dtype=dtype, cache_dtype=cache_dtype(dtype))
        return _readable(machine.chip.bandwidth / moved)

    rows = [("memory's limit on writing", [f"{name}" for name in columns])]
    rows += [("  tokens a second, empty context", [limit(dtype, 0) for dtype in columns.values()])]
    rows += [("  tokens a second, full context", [limit(dtype, config.context - 1) for dtype in columns.values()])]
    if machine.memory is not None:
        needed = [
            weights_bytes(config, dtype) + cache_bytes(config, config.context, dtype=cache_dtype(dtype))
            for dtype in columns.values()
        ]
        rows += [("  chips to hold it and its cache", [f"{math.ceil(size / machine.memory)}" for size in needed])]
    head = f"on {machine.name}: {machine.chip.bandwidth / 1e9:,.0f} GB/s"
    return "\n".join([head, *(f"{name:<36}" + "".join(f"{value:>14}" for value in values) for name, values in rows)])


def _readable(rate: float) -> str:
    """Three digits are more than the limit means."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}" if rate >= 1 else f"{rate:.2g}"
