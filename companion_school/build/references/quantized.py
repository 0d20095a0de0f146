"""Stage 16, quantized.py: weights with eight or four bits, and what they cost (lesson 19).

A group of weights shares a scale, and each weight is a small integer times the scale of its group.
"""

import torch
from torch import Tensor, nn


def quantize(weight: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor]:
    """Round each weight, (out, in), to the nearest multiple of its scale, and return levels and scales.

    A group is `group` neighboring weights of a row. The group's scale maps its largest magnitude to 2^(bits - 1) - 1,
    is at least 2^-14, and is rounded to float16 before it is used. Levels are int8, (out, in); scales are float16,
    (out, in / group).
    """
    groups = weight.unflatten(-1, (-1, group))
    scales = (groups.abs().amax(-1) / (2 ** (bits - 1) - 1)).clamp(min=2**-14).half()
    return (groups / scales[..., None].to(weight.dtype)).round().to(torch.int8).flatten(-2), scales


def dequantize(levels: Tensor, scales: Tensor) -> Tensor:
    """Return the weights that levels and scales represent, in float32."""
    return (levels.unflatten(-1, (scales.shape[-1], -1)) * scales[..., None].float()).flatten(-2)


def pack(levels: Tensor) -> Tensor:
    """Pack two four-bit levels into a byte, (out, in) -> (out, in / 2) of uint8: 8 is added to each level, and the
    first level goes into the low bits."""
    first, second = (levels + 8).to(torch.uint8).unflatten(-1, (-1, 2)).unbind(-1)
    return first | second << 4


def unpack(packed: Tensor) -> Tensor:
    """The inverse of `pack`: (out, in / 2) -> (out, in) of int8."""
    return torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2).to(torch.int8) - 8


class QuantizedLinear(nn.Module):
    """A linear layer without bias. Its weights are the buffers `levels` (packed if they have four bits) and
    `scales`."""

    def __init__(self, linear: nn.Linear, bits: int, group: int):
        super().__init__()
        levels, scales = quantize(linear.weight.detach(), bits, group)
        self.bits = bits
        self.register_buffer("levels", pack(levels) if bits == 4 else levels)
        self.register_buffer("scales", scales)

    def forward(self, x: Tensor) -> Tensor:
        levels = unpack(self.levels) if self.bits == 4 else self.levels
        return x @ dequantize(levels, self.scales).to(x.dtype).T


def quantize_model(model: nn.Module, bits: int, group: int) -> nn.Module:
    """Return the same model with a `QuantizedLinear` in place of every linear layer of its decoder. The embedding and
    the norms do not change."""
    for module in list(model.decoder.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, QuantizedLinear(child, bits, group))
    return model


def bytes_of(model: nn.Module) -> int:
    """Return the size of all parameters and buffers in bytes."""
    return sum(x.numel() * x.element_size() for x in (*model.parameters(), *model.buffers()))
