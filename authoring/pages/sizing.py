"""sizing.md: which published model fits on which machine. The page's prose is in `sizing.md`, beside this file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from authoring.lesson import Lesson
from companion.config.model import ModelConfig
from companion.costs.chips import CHIPS
from companion.costs.sizing import (
    MOST_DEVICES,
    SECONDS_A_DAY,
    TOKENS_PER_PARAMETER,
    device_bytes,
    memories,
    row_tokens,
    train_cost,
)
from companion.costs.tables import Question, cost_table, devices_table, memory_table
from companion.families.registry import systems
from companion.ground.display import Table, figure, many, readable_bytes

FILE = "sizing.md"
SOURCE = Path(__file__).with_name("sizing.md")


def device_days_table(models: Mapping[str, ModelConfig], question: Question) -> Table:
    """Return a table of device days by the chip's peak speed, given the share of the peak that training reaches."""
    by_peak: dict[float, list[str]] = {}
    for short, chip in CHIPS.items():
        by_peak.setdefault(chip.flops, []).append(short)
    peaks = sorted(by_peak)
    head = ("model", *(f"{by_peak[peak][0]} ({peak / 1e12:.0f} T)" for peak in peaks))
    rows = []
    for name, config in models.items():
        cost = question.cost(config)
        rows.append((name, *(figure(cost.days(1, question.share, peak)) for peak in peaks)))
    return head, rows


@dataclass(frozen=True)
class Published:
    """A training run with a published duration."""

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
    """Return a table with the share of peak FLOP/s that published runs reached, based on this page's FLOP counts."""
    rows = []
    for run in PUBLISHED:
        cost = train_cost(systems()[run.name], run.tokens)
        peak = CHIPS[run.chip].flops * run.device_hours * SECONDS_A_DAY / 24
        hours = f"{run.device_hours:,.0f}"
        rows.append(
            (run.name, many(run.tokens), hours, f"{cost.rule / peak:.0%}", f"{cost.flops / peak:.0%}", run.source)
        )
    return ("model", "tokens", "hours of an A100", "share, 6 N D", "share, counted", "source"), rows


def render(lessons: Sequence[Lesson] = ()) -> str:
    """Return the page with all presets on all machines. The argument `lessons` is not used."""
    question, models = Question(), systems()
    lengths = sorted({row_tokens(config) for config in models.values()})
    mixtral = models["mixtral-8x7b"]
    experts = device_bytes(mixtral, "experts+shard", MOST_DEVICES).state
    by_size = [
        f"{size / 1e9:.0f} GB: " + ", ".join(chip.name.removeprefix("NVIDIA ") for chip in chips)
        for size, chips in memories().items()
    ]
    return SOURCE.read_text(encoding="utf-8").format(
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
        device=question.named_chip.name,
        cost=markdown_table(cost_table(models, question)),
        days=markdown_table(device_days_table(models, question)),
        published=markdown_table(published_table()),
    )


def markdown_table(table: Table) -> str:
    """Return a table as Markdown, with numbers aligned right."""
    head, rows = table
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))
