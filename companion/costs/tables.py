"""Costs as tables or JSON: a model's account, its maximum decoding speed on a chip, and the sizing of models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, get_type_hints

import torch

from companion.config.model import ModelConfig
from companion.costs.account import (
    cache_bytes,
    decode_bytes,
    forward_flops,
    parameters,
    serve_bytes,
    state_bytes,
    train_bytes,
    train_flops,
    weights_bytes,
)
from companion.costs.chips import CHIPS, Chip
from companion.costs.sizing import (
    USABLE,
    Cost,
    Strategy,
    fewest_devices,
    kept,
    memories,
    row_tokens,
    train_cost,
)
from companion.ground.display import WIDTH, Table, figure, many, readable_bytes, table
from companion.ground.number_limits import Count, PartOfOne, Positive, check


@dataclass(frozen=True)
class Question:
    """Options for sizing models.

    Args:
        devices: number of devices that train each model.
        chip: short name of the chip in `CHIPS`, or `None` for a table with all memory sizes.
        share: fraction of the chip's peak in matrix products that training reaches: an assumption, not a prediction.
        tokens: number of training tokens. `None` means `TOKENS_PER_PARAMETER` for each active parameter.
        context: length of a training row and of the cache. `None` means `row_tokens` for the row and the model's
            context for the cache.
        batch: rows in a device's micro-batch, and rows served at once.
        usable: fraction of the memory that may be filled.

    Raises:
        ValueError: if a setting is invalid; the message names the flag, its value and what was expected.
    """

    devices: Count = 8
    chip: str | None = None
    share: PartOfOne = 0.4
    tokens: Positive | None = None
    context: Count | None = None
    batch: Count = 1
    usable: PartOfOne = USABLE

    def __post_init__(self) -> None:
        check(asdict(self), get_type_hints(Question, include_extras=True))
        if self.chip is not None and self.chip not in CHIPS:
            raise ValueError(f"--chip {self.chip}: expected one of {', '.join(CHIPS)}")

    @property
    def named_chip(self) -> Chip:
        """The chip whose training time is computed."""
        return CHIPS["h100" if self.chip is None else self.chip]

    def row(self, config: ModelConfig) -> int:
        """Return the length of a training row. Raises `ValueError` if it exceeds the model's learned positions."""
        if self.context is None:
            return row_tokens(config)
        if config.positions.kind == "learned" and self.context > config.context:
            raise ValueError(
                f"--context {self.context}: expected at most {config.context}, the number of learned positions"
            )
        return self.context

    def cost(self, config: ModelConfig) -> Cost:
        return train_cost(config, self.tokens, row=self.row(config))


def memory_table(models: Mapping[str, ModelConfig], question: Question) -> Table:
    """Tabulate the memory needed to hold, to serve and to train each model."""
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
            here.activations(question.batch, activation_checkpointing=True),
        )
        rows.append((name, many(count.total), many(count.active), *map(readable_bytes, sizes)))
    return head, rows


def devices_table(models: Mapping[str, ModelConfig], question: Question) -> Table:
    """Tabulate the smallest number of devices that can train each model, for each size of memory or for the given chip.

    `1` means that each device can hold the whole model, so that any number of devices can train it with data
    parallelism. Otherwise the entry is the number that `--shard` needs, followed in brackets by the number with
    activation checkpointing if that is smaller. A dash means that no number of devices is enough.
    """
    sizes = [question.named_chip.memory] if question.chip is not None else list(memories())
    rows = []
    for name, config in models.items():
        rows.append((name, *(_devices(config, question, size, "data", "shard") for size in sizes)))
        if config.moe is not None:
            label = f"{name}, experts over {config.moe.experts}"
            ways: tuple[Strategy, ...] = ("experts", "experts+shard")
            rows.append((label, *(_devices(config, question, size, *ways) for size in sizes)))
    return ("model", *(f"{size / 1e9:.0f} GB" for size in sizes)), rows


def _devices(config: ModelConfig, question: Question, memory: float, *ways: Strategy) -> str:
    def fewest(activation_checkpointing: bool) -> int | None:
        counts = (_fewest(config, question, memory, way, activation_checkpointing) for way in ways)
        return next((count for count in counts if count is not None), None)

    plain, checkpointed = fewest(False), fewest(True)
    written = "-" if plain is None else f"{plain:,}"
    return written if checkpointed in (None, plain) else f"{written} ({checkpointed:,})"


def _fewest(
    config: ModelConfig, question: Question, memory: float, way: Strategy, activation_checkpointing: bool
) -> int | None:
    return fewest_devices(
        config,
        way,
        memory,
        usable=question.usable,
        rows=question.batch,
        tokens=question.row(config),
        activation_checkpointing=activation_checkpointing,
    )


def cost_table(models: Mapping[str, ModelConfig], question: Question) -> Table:
    """Tabulate the FLOPs of training, and its time on the given devices at the given fraction of their peak."""
    chip = question.named_chip
    head = ("model", "tokens", "6 N D", "counted", "counted / 6 N D", f"on {question.devices:,} {_short(chip)}")
    rows = []
    for name, config in models.items():
        cost = question.cost(config)
        days = cost.days(question.devices, question.share, chip.flops)
        ratio = f"{cost.flops / cost.rule:.2f}"
        rows.append((name, many(cost.tokens), f"{cost.rule:.1e}", f"{cost.flops:.1e}", ratio, _duration(days)))
    return head, rows


def data(models: Mapping[str, ModelConfig], question: Question) -> list[dict[str, Any]]:
    """Return all figures as numbers for JSON.

    The figures are bytes, FLOPs, days, and the fewest devices for each chip and distribution.
    """
    chips = CHIPS if question.chip is None else {question.chip: question.named_chip}
    found = []
    for name, config in models.items():
        count, cost, row = parameters(config), question.cost(config), question.row(config)
        here = kept(config, row)
        ways: list[Strategy] = ["data", "shard"]
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
                "recomputed_activation_bytes": here.activations(question.batch, activation_checkpointing=True),
                "row_tokens": row,
                "tokens": cost.tokens,
                "flops_6nd": cost.rule,
                "flops": cost.flops,
                "days": cost.days(question.devices, question.share, question.named_chip.flops),
                "devices": question.devices,
                "share": question.share,
                "fewest_devices": {
                    short: {
                        way: {
                            ("recomputed" if activation_checkpointing else "kept"): _fewest(
                                config, question, chip.memory, way, activation_checkpointing
                            )
                            for activation_checkpointing in (False, True)
                        }
                        for way in ways
                    }
                    for short, chip in chips.items()
                },
            }
        )
    return found


def text(models: Mapping[str, ModelConfig], question: Question) -> str:
    """Return the output of `companion sizing`."""
    where = f"of {question.named_chip.name}" if question.chip is not None else "by the size of their memory"
    parts = [
        "bytes (activations: of one device's micro-batch)",
        _text(memory_table(models, question)),
        f"fewest devices to train on, {where}\n(in brackets: with activation checkpointing)",
        _text(devices_table(models, question)),
        f"FLOPs to train, and how long it takes\nat {question.share:.0%} of the peak of {question.named_chip.name}",
        _text(cost_table(models, question)),
        "What is left out, and where such figures mislead:\n  companion sizing --help, and notebooks/sizing.md",
    ]
    return "\n\n".join(parts)


def _text(made: Table) -> str:
    head, rows = made
    return table(rows, head)


def _duration(days: float) -> str:
    for length, unit in ((365.25, "years"), (1.0, "days"), (1 / 24, "hours")):
        if days >= 2 * length:
            return f"{figure(days / length)} {unit}"
    return f"{figure(24 * 60 * days)} minutes"


def _short(chip: Chip) -> str:
    (name,) = [short for short, known in CHIPS.items() if known is chip]
    return name


COLUMNS = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}
"""Weight formats in an account; the cache is fp32 with fp32 weights, and otherwise bf16."""


def account_data(config: ModelConfig) -> dict[str, Any]:
    """Return the account of a model as a dictionary of numbers.

    The account contains the parameters by part, the FLOPs per token, and the bytes needed to hold, train and serve the
    model.

    Figures that do not apply to a model are left out; for example, an encoder generates nothing and has no cache.
    `cache_token` is the size that each token adds to a cache, and `cache_text` the size that linear layers store for a
    text of any length.
    """
    counted, context = parameters(config), config.context
    source = context if config.stack == "encoder_decoder" else 0
    flops = {}
    if config.stack == "decoder":
        flops["write_first_token"] = forward_flops(config, 1).total
        flops["write_last_token"] = forward_flops(config, 1, cached=context - 1).total
    flops["train_token"] = train_flops(config, context, source=source) // (context + source)
    halves = {name: dtype for name, dtype in COLUMNS.items() if name != "int8"}
    sizes = {
        "weights": {name: weights_bytes(config, dtype) for name, dtype in COLUMNS.items()},
        "train": {name: train_bytes(config, dtype) for name, dtype in halves.items()},
    }
    if config.stack != "encoder":
        sizes["cache_token"] = {
            name: cache_bytes(config, 1, dtype=dtype) - state_bytes(config, 1, dtype=dtype)
            for name, dtype in halves.items()
        }
        if config.linear_config is not None:
            sizes["cache_text"] = {name: state_bytes(config, context, dtype=dtype) for name, dtype in halves.items()}
        sizes["cache_full"] = {
            name: cache_bytes(config, context, dtype=dtype, source=source) for name, dtype in halves.items()
        }
        sizes["serve"] = {
            name: serve_bytes(config, dtype=dtype, cache_dtype=_cache_dtype(dtype)) for name, dtype in COLUMNS.items()
        }
    whole = {**counted.parts, "total": counted.total, "active": counted.active}
    return {"stack": config.stack, "context": context, "parameters": whole, "flops": flops, "bytes": sizes}


def account_table(config: ModelConfig, width: int = WIDTH) -> str:
    """Return the account of a model as text.

    The text shows the parameters by part, the FLOPs per token, and the memory needed to hold, train and serve the
    model.

    In the int8 column, the weights take one byte each, and the cache is bf16.
    """
    found = account_data(config)
    count = dict(found["parameters"])
    total, active = count.pop("total"), count.pop("active")
    rows: list[tuple[str, ...]] = [("parameters",)]
    rows += [(f"  {name.replace('_', ' ')}", f"{value:,}") for name, value in count.items() if value]
    rows += [("  total", f"{total:,}")]
    if config.moe is not None:
        rows += [("  active for one token", f"{active:,}")]
        if not config.embedding.tied:
            rows += [("  active, without the input embedding", f"{active - count['embedding']:,}")]
    said = {
        "write_first_token": "to write token 1",
        "write_last_token": f"to write token {config.context:,}",
        "train_token": "to train on a token, full context",
    }
    rows += [("FLOPs",), *((f"  {said[name]}", f"{flops:,}") for name, flops in found["flops"].items())]
    said = {
        "weights": "to hold: weights",
        "train": "to train, without activations",
        "cache_token": "cache, a token",
        "cache_text": "cache, a text of any length",
        "cache_full": "cache, full context",
        "serve": "to serve: weights and full cache",
    }
    rows += [("memory", *COLUMNS)]
    rows += [(f"  {said[name]}", *map(readable_bytes, sizes.values())) for name, sizes in found["bytes"].items()]
    return table(rows, indent=0, width=width)


def decoding_data(config: ModelConfig, chip: Chip) -> dict[str, Any]:
    """Return the maximum decoding speed of one row on a chip, in tokens per second, as a dictionary.

    The memory bandwidth sets this limit. It is computed for each of the weight formats in `COLUMNS`: fp32, bf16 and
    int8. The cache is fp32 with fp32 weights, and otherwise bf16.

    Returns:
        `chip`: the chip's name. `bytes_a_second`: its memory bandwidth. `tokens_a_second`: the limits by format, in
        `empty_context` for the first token and in `full_context` for the last one that fits. `chips`: by format, the
        number of chips that can hold the weights and the cache of one full context, or only `None` for a machine whose
        memory is not known.

    Raises:
        ValueError: if the model is not a decoder.
    """
    if config.stack != "decoder":
        raise ValueError(f"config has stack={config.stack!r}: expected a decoder")

    def limits(cached: int) -> dict[str, float]:
        return {
            name: chip.bandwidth / decode_bytes(config, cached, dtype=dtype, cache_dtype=_cache_dtype(dtype))
            for name, dtype in COLUMNS.items()
        }

    needed = {
        name: weights_bytes(config, dtype) + cache_bytes(config, config.context, dtype=_cache_dtype(dtype))
        for name, dtype in COLUMNS.items()
    }
    known = chip.memory < math.inf
    return {
        "chip": chip.name,
        "bytes_a_second": chip.bandwidth,
        "tokens_a_second": {"empty_context": limits(0), "full_context": limits(config.context - 1)},
        "chips": {name: math.ceil(size / chip.memory) for name, size in needed.items()} if known else None,
    }


def decoding_table(config: ModelConfig, chip: Chip, width: int = WIDTH) -> str:
    """Return `decoding_data` as text. Raises `ValueError` for a stack other than a decoder."""
    found = decoding_data(config, chip)
    rows = [
        (f"  tokens a second, {name.replace('_', ' ')}", *map(_readable, limits.values()))
        for name, limits in found["tokens_a_second"].items()
    ]
    if found["chips"] is not None:
        rows += [("  chips to hold it and its cache", *map(str, found["chips"].values()))]
    limits = table(rows, ("limit set by the memory", *COLUMNS), indent=0, width=width)
    return f"on {chip.name}: {chip.bandwidth / 1e9:,.0f} GB/s\n{limits}"


def _cache_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.bfloat16 if dtype == torch.int8 else dtype


def _readable(rate: float) -> str:
    """Format a rate with few digits, because the limit is only an approximation."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}" if rate >= 1 else f"{rate:.2g}"
