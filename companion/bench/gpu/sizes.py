"""How large everything is: the 124 million parameters of GPT-2 on a GPU, a toy in rehearsal."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from companion.bench.sizes import SIZES, Size
from companion.config.model import ModelConfig, PositionConfig
from companion.costs.chips import Chip
from companion.families.registry import preset


@dataclass(frozen=True)
class Setting:
    """Where a part runs and how much it does.

    device:    a CUDA GPU, or in rehearsal the CPU.
    chip:      what this machine reaches, as the first part measured it; `None` if that failed.
    model:     the decoder that is trained and that writes.
    rows:      of a training step, at most, each of `model.context` tokens.
    prompt:    tokens that generation reads first; it writes `new`.
    lengths:   of the text before a step, at which it is compared with computing all of it again.
    long:      the decoder of that comparison, whose positions reach so far.
    attention: the lengths at which attention is measured, and the widths of its heads.
    experts:   the sizes of the mixture of experts.
    seconds:   for how long each thing is measured at least.
    rounds:    of what is compared side by side.
    """

    device: torch.device
    chip: Chip | None
    model: ModelConfig
    rows: int
    prompt: int
    new: int
    lengths: tuple[int, ...]
    long: ModelConfig
    attention: Size
    experts: Size
    seconds: float
    rounds: int

    @property
    def rehearsal(self) -> bool:
        """Whether there is no GPU, so that only the way is tried."""
        return self.device.type != "cuda"

    @property
    def precision(self) -> str:
        """Of products: bf16 on a GPU, fp32 in rehearsal."""
        return "fp32" if self.rehearsal else "bf16"

    @property
    def dtype(self) -> torch.dtype:
        """The same as a type."""
        return torch.float32 if self.rehearsal else torch.bfloat16


def setting(rehearsal: bool, chip: Chip | None = None) -> Setting:
    """The sizes for this machine."""
    if rehearsal:
        tiny = SIZES["tiny"]
        large = preset("gpt2")
        small = large.with_(
            vocab=128,
            d_model=48,
            layers=2,
            context=64,
            dropout=0.0,
            attention=replace(large.attention, heads=4),
            feed_forward=replace(large.feed_forward, d_ff=96),
        )
        return Setting(
            device=torch.device("cpu"),
            chip=chip,
            model=small,
            rows=2,
            prompt=8,
            new=12,
            lengths=(32, 128),
            long=small.with_(context=256, positions=PositionConfig("rotary")),
            attention=tiny,
            experts=tiny,
            seconds=0.0,
            rounds=1,
        )
    # A vocabulary of a multiple of 128: 50,257 columns, GPT-2's own, are not aligned as the fast kernels want them.
    gpt2 = preset("gpt2").with_(vocab=50304, dropout=0.0)
    return Setting(
        device=torch.device("cuda"),
        chip=chip,
        model=gpt2,
        rows=32,
        prompt=64,
        new=256,
        lengths=(512, 2048, 8192, 32768),
        long=gpt2.with_(context=32768 + 128, positions=PositionConfig("rotary")),
        attention=replace(SIZES["large"], name="GPT-2's heads", config=gpt2, lengths=(512, 2048, 8192)),
        experts=replace(SIZES["large"], visitors=(16384, 4)),
        seconds=4.0,
        rounds=5,
    )
