"""Models on disk: safetensors for the numbers, JSON for the configuration (lessons 10 and 13).

A model is a folder with `model.safetensors` and `config.json`. Nothing here reads a pickle. Every file is written
beside its final name, flushed to the disk and renamed, so that whoever reads it sees the old one or the new one, whole.

`load_model` reads what `save_model` wrote. `companion.files.published` reads what others write.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from companion.config import ModelConfig
from companion.fields import parse_json
from companion.files.atomic import _replacing
from companion.transformer import Transformer

WEIGHTS, CONFIG = "model.safetensors", "config.json"


def _save_file(tensors: Mapping[str, Tensor], path: Path) -> None:
    """`safetensors.torch.save_file`, whose errors of the operating system are `OSError`s here too."""
    try:
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        code = re.search(r"\(os error (\d+)\)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from error


def save_tensors(path: str | Path, tensors: Mapping[str, Tensor]) -> None:
    """Write named tensors to one safetensors file, as atomically as `write_atomic`. They may live on any device."""
    with _replacing(Path(path)) as draft:
        _save_file(tensors, draft)


def load_tensors(path: str | Path, *, device: torch.device | str | None = None) -> dict[str, Tensor]:
    """Read what `save_tensors` wrote. Raises `ValueError` if the file is missing, cut short or not safetensors."""
    path = Path(path)
    if not path.is_file():
        pickles = [p.name for p in sorted(path.parent.glob("*.bin"))] if path.parent.is_dir() else []
        why = f"; {pickles[0]} beside it is a pickle, which could run any code and is never read" if pickles else ""
        raise ValueError(f"{path}: expected a safetensors file, found none{why}")
    try:
        return load_file(path, device=str(device or "cpu"))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError, MemoryError) as error:
        raise ValueError(
            f"{path}: expected a whole safetensors file, got {path.stat().st_size} bytes that are not one; "
            f"it is damaged or was cut short ({error})"
        ) from None


def save_model(folder: str | Path, model: Transformer, *, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write `model.safetensors` and `config.json` into `folder`, which is made if it is missing.

    weights:  the model's `state_dict`, where `model` itself holds a part of it; `None`: its own.

    A tied output head is the embedding table and is stored once. Both files are complete on the disk before the first
    takes its name.
    """
    folder = Path(folder)
    with ExitStack() as drafts:  # entered second = renamed first: the weights, then the configuration
        drafts.enter_context(_replacing(folder / CONFIG)).write_text(model.config.to_json(), encoding="utf-8")
        draft = drafts.enter_context(_replacing(folder / WEIGHTS))
        _save_file(model.state_dict() if weights is None else weights, draft)


def load_model(
    folder: str | Path, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Transformer:
    """The model that `save_model` wrote, in evaluation mode.

    dtype:   `None`: as stored.
    device:  `None`: the CPU.

    Raises `ValueError` if the folder or a file is missing or damaged, if it holds another kind of model, or if the
    configuration does not fit the weights (naming every tensor that is missing, unexpected or of another shape).
    """
    folder = Path(folder)
    data = read_config(folder)
    if "model_type" in data:
        raise ValueError(
            f"{folder / CONFIG}: expected a configuration of companion, got model_type={data['model_type']!r}, "
            "a Hugging Face one; read it with companion.load_pretrained"
        )
    try:
        config = ModelConfig.from_json(json.dumps(data))
    except ValueError as error:
        raise ValueError(f"{folder / CONFIG}: {error}") from None
    return assemble(config, load_tensors(folder / WEIGHTS, device=device), folder, dtype)


def read_config(folder: Path, name: str = CONFIG) -> dict[str, Any]:
    """The fields of a folder's JSON file. Raises `ValueError` if it is missing, damaged or not a JSON object."""
    path = folder / name
    if not folder.is_dir():
        raise ValueError(f"{folder}: expected a folder with {CONFIG} and {WEIGHTS}, found none")
    if not path.is_file():
        raise ValueError(f"{path}: expected the model's configuration, found no such file")
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON; it is damaged or was cut short ({error})") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path}: expected a JSON object, got {data!r:.80}")
    return data


def assemble(config: ModelConfig, tensors: dict[str, Tensor], folder: Path, dtype: torch.dtype | None) -> Transformer:
    """The model of `config` around `tensors`, in evaluation mode.

    Raises `ValueError` unless they are exactly its parameters, naming those that are not.
    """
    if config.layers > len(tensors):  # before as many layers are made, be it without their numbers
        raise_faults(folder, [f"layers={config.layers}, expected at most the {len(tensors)} tensors there are"])
    try:
        with torch.device("meta"):  # shapes only: nothing is allocated or drawn at random, then thrown away
            model = Transformer(config)
    except (RuntimeError, OverflowError, TypeError):  # PyTorch counts numbers in 64 bits
        raise ValueError(f"{folder / CONFIG}: expected sizes that can be computed with, got larger ones") from None
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    got = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    shared = [name for name in wanted if name in got and got[name] != wanted[name]]
    faults = [f"{name} is {got[name]}, expected {wanted[name]}" for name in shared]
    faults += [f"missing {name} {wanted[name]}" for name in wanted if name not in got]
    faults += [f"unexpected {name} {got[name]}" for name in got if name not in wanted]
    raise_faults(folder, faults)
    if dtype is not None:
        tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    model.load_state_dict(tensors, assign=True)
    return model.eval()


def raise_faults(folder: Path, faults: list[str]) -> None:
    """Raise a `ValueError` that lists the first of the faults, if there are any."""
    if faults:
        shown = "; ".join(faults[:12]) + (f"; and {len(faults) - 12} more" if len(faults) > 12 else "")
        raise ValueError(f"{folder}: the configuration does not fit the weights: {shown}")
