"""Quantized int4 weights on disk, so that a model is calibrated only once (see `companion.quantization.calibration`).

The quantized weights are stored in a safetensors file next to the model's own file, with these tensors for each layer:

    <name>.levels  quantized values, two in a byte with the first in the lower half, uint8 (out, d_in / 2)
    <name>.scale   the scale of each group, bf16 (out, d_in / 32)
    <name>.middle  the value of level 8 in each group, bf16 (out, d_in / 32)
    <name>.factor  a factor for each column, bf16 (d_in), if the columns were balanced

The header of the file has checksums of the weights that were quantized.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from companion.files.models import load_tensors, save_tensors
from companion.ground.fields import shown
from companion.quantization.matmul_kernels import mark_of
from companion.quantization.rounding import GROUP, FourBits
from companion.quantization.weights import four_bit_layers, keep_rounded, rounded_of
from companion.transformer import Transformer

PARTS = ("levels", "scale", "middle")
FACTOR = "factor"
OF = "weights"
"""The key of the checksums in the header."""


def save_levels(path: str | Path, model: Transformer) -> None:
    """Write the levels that `calibrate` chose for a model. Like all files of the package, the file is written
    atomically.

    Raises:
        ValueError: If the model was not calibrated, or its weights have changed since then.
    """
    tensors: dict[str, Tensor] = {}
    layers = _layers(model)
    for name, layer in layers.items():
        found = rounded_of([layer])
        if found is None:
            raise ValueError(
                f"model: expected a calibrated model that has not been changed since; {name} has no levels"
            )
        low, high = found[0].levels[:, 0::2], found[0].levels[:, 1::2]
        tensors |= zip([f"{name}.{part}" for part in PARTS], (low | high << 4, *found[0][1:3]), strict=True)
        if (factor := found[0].factor) is not None:
            tensors[f"{name}.{FACTOR}"] = factor
    sums = {name: _sum(layer) for name, layer in layers.items()}
    save_tensors(path, tensors, {"form": "int4", "group": str(GROUP), OF: json.dumps(sums)})


def load_levels(path: str | Path, model: Transformer) -> int:
    """Make `weights="int4"` use the levels of a file for this model from now on.

    Returns:
        The number of layers that have levels.

    Raises:
        ValueError: If the file is missing, damaged or not of this kind, or belongs to another model or to different
            weights.
    """
    tensors, layers = load_tensors(path), _layers(model)
    with safe_open(path, framework="pt") as file:
        header = file.metadata() or {}
    if header.get("form") != "int4" or header.get("group") != str(GROUP):
        raise ValueError(f"{path}: expected int4 levels in groups of {GROUP}, got another safetensors file")
    wanted = {f"{name}.{part}" for name in layers for part in PARTS}
    may = {f"{name}.{FACTOR}" for name in layers}
    if odd := sorted(wanted ^ (tensors.keys() - may)):
        fault = "missing" if odd[0] in wanted else "not one of them"
        raise ValueError(f"{path}: expected levels for exactly this model's layers; {shown(odd[0])} is {fault}")
    sums = json.loads(header[OF])
    found: dict[nn.Linear, FourBits] = {}
    for name, layer in layers.items():
        if sums.get(name) != _sum(layer):
            raise ValueError(
                f"{path}: {name} differs in values or dtype from the weights that these levels were chosen for"
            )
        packed, scale, middle = (tensors[f"{name}.{part}"] for part in PARTS)
        out, d_in = layer.weight.shape
        shapes = [(out, d_in // 2), (out, d_in // GROUP), (out, d_in // GROUP)]
        factor = tensors.get(f"{name}.{FACTOR}")
        fits = factor is None or factor.shape == (d_in,)
        if (
            not fits
            or packed.dtype != torch.uint8
            or [tuple(tensor.shape) for tensor in (packed, scale, middle)] != shapes
        ):
            raise ValueError(f"{path}: {name}.levels has shape {tuple(packed.shape)}: expected uint8, {shapes[0]}")
        levels = torch.stack((packed & 15, packed >> 4), -1).flatten(1)
        others = (None if part is None else part.to(torch.bfloat16) for part in (scale, middle, factor))
        found[layer] = FourBits(levels, *others)  # type: ignore[arg-type]
    keep_rounded(model, found)
    return len(found)


def _layers(model: Transformer) -> dict[str, nn.Linear]:
    """Return the layers that int4 quantizes, keyed by their names in the model."""
    mine = {layer for group in four_bit_layers(model) for layer in group}
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and layer in mine}


def _sum(layer: nn.Linear) -> str:
    dtype, *_, check = mark_of([layer.weight])[0]
    return f"{dtype} {check:08x}"
