"""Read the folder of a published checkpoint: the fields of its configuration, and its tensors.

This module does not depend on any layout. The modules in `companion/families` define the layouts. Each has a table that
gives the policy for each field, one per row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from companion.config.model import ModelConfig
from companion.files.gguf.folder import origin, published_tensors
from companion.files.models import (
    CONFIG,
    WEIGHTS,
    check_names,
    load_tensors,
    raise_faults,
    read_config,
    tensor_headers,
    unwrapped,
)
from companion.files.published.config_fields import QUANTIZED, UNQUANTIZED, Policy, alike, left_behind, quantized_by
from companion.ground.fields import is_number, shown
from companion.ground.waiting import waiting

ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""Our names for activations, keyed by their published names."""


@dataclass(frozen=True)
class Became:
    """The result of reading a field.

    Attributes:
        name: The field.
        value: Its value in the file, or the default if the file leaves it out.
        words: The outcome in one line.
        refused: The reason why the field cannot be honored, or `None` if it can be.
    """

    name: str
    value: Any
    words: str
    refused: str | None = None


class Fields:
    """The fields of a published config.json, which are read according to the policies in a table.

    Args:
        folder: The folder with config.json.
        kind: The expected `model_type`.
        table: The policy of each field.
        given: The fields, if they have already been read.

    Raises:
        ValueError: If the file is missing or damaged, or belongs to another kind of model.
    """

    def __init__(
        self, folder: Path, kind: str, table: Mapping[str, Policy], given: Mapping[str, Any] | None = None
    ) -> None:
        self.path = folder / CONFIG
        self.given = read_config(folder) if given is None else dict(given)
        self.table = table
        if self.given.get("model_type") != kind:
            raise self.refuse("model_type", self.given.get("model_type"), repr(kind))

    def refuse(self, name: str, value: Any, expected: str) -> ValueError:
        return ValueError(f"{self.path}: {name}={shown(value)}: expected {expected}")

    def take(self, name: str) -> Any:
        """Return the field's value, or its default. Raises `ValueError` if a field without a default is missing."""
        policy = self.table[name]
        assert policy.kind == "used", f"{name} is {policy.kind} in the table"
        if name not in self.given and policy.required:
            raise ValueError(f"{self.path}: the field {name} is missing")
        return self.given.get(name, policy.default)

    def flag(self, name: str) -> bool:
        """Return the value of a field that must be true or false."""
        value = self.take(name)
        if not isinstance(value, bool):
            raise self.refuse(name, value, "true or false")
        return value

    def small(self, name: str) -> float:
        """Return the value of a field that must be a number from 0 to 0.1, such as an epsilon."""
        value = self.take(name)
        if not is_number(value) or not 0 <= value <= 0.1:
            raise self.refuse(name, value, "a number from 0 to 0.1")
        return value

    def activation(self, name: str) -> Any:
        """Return our name for the activation in a field."""
        value = self.take(name)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise self.refuse(name, value, "one of " + ", ".join(map(repr, ACTIVATIONS)))
        return ACTIVATIONS[value]

    def became(self) -> list[Became]:
        """Return the result for each field of the file, and for each required field that the file leaves out."""
        found = [self._became(name, value) for name, value in self.given.items()]
        for name, policy in self.table.items():
            if name not in self.given and policy.kind == "must match" and not policy.required:
                found += [end for end in [self._became(name, policy.default)] if end.refused]
        missing = (name for name, p in self.table.items() if p.kind == "used" and p.required)
        return found + [
            Became(name, None, "missing", f"{self.path}: the field {name} is missing")
            for name in missing
            if name not in self.given
        ]

    def usual(self) -> dict[str, Any]:
        """Return the default of each field that becomes part of the model but is left out of the file."""
        used = (policy for name, policy in self.table.items() if policy.kind == "used" and name not in self.given)
        return {policy.name: policy.default for policy in used if not policy.required}

    def check(self) -> None:
        """Raise `ValueError` for the first field that cannot be honored; quantization is checked first."""
        for end in sorted(self.became(), key=lambda end: end.name not in QUANTIZED):
            if end.refused:
                raise ValueError(end.refused)

    def finish(self, build: Callable[[], ModelConfig]) -> ModelConfig:
        """Return the configuration that `build` builds.

        Raises:
            ValueError: If a field cannot be honored or `build` fails. The message uses the field names of the file.
        """
        self.check()
        try:
            return build()
        except (ValueError, TypeError) as error:
            said = str(error).removeprefix(f"{self.path}: ")
            raise ValueError(f"{self.path}: {self.as_written(said)}") from None

    def as_written(self, message: str) -> str:
        """Replace the names of our settings in a message with the file's names."""
        called = {re.split(r"[;,\s]", one.note, maxsplit=1)[0]: one.name for one in self.table.values()}
        if explicit := re.search(r", or an explicit (\w+)", message):
            theirs = called.get(f"attention.{explicit[1]}")
            message = message.replace(explicit[0], f", or an explicit {theirs}" if theirs else "")
        for policy in self.table.values():
            ours = re.split(r"[;,\s]", policy.note, maxsplit=1)[0].rpartition(".")[2]
            if policy.kind == "used" and ours and (policy.name in self.given or not policy.required):
                value = shown(self.given.get(policy.name, policy.default))
                name = rf"(?<![\w.]){re.escape(f'{ours}={value}')}(?![\w.])"
                written = f"{policy.name}={value}".replace("\\", r"\\")  # `re.sub` interprets escapes
                message = re.sub(name, written, message)
        return message

    def _became(self, name: str, value: Any) -> Became:
        policy = self.table.get(name)
        if policy is not None and policy.kind == "must match":
            other = self.given.get(policy.equals, self.table[policy.equals].default)
            if alike(value, other):
                return Became(name, value, f"as {policy.equals}, as it must be")
            if (ignored := left_behind(name, value)) is not None:
                return became_by(self.path, name, value, ignored, "")
            error = self.refuse(name, value, f"{shown(other)}, as {policy.equals}: our models have one value for both")
            return Became(name, value, f"must match {policy.equals}", str(error))
        return became_by(self.path, name, value, policy, "it may change the model")


def became_by(path: Path, name: str, value: Any, policy: Policy | None, harm: str) -> Became:
    """Return the result for a field of the file at `path`.

    Args:
        path: Path of the file.
        name: The field.
        value: Its value.
        policy: The policy for the field, or `None` if the table has no row for it.
        harm: A clause about the possible effect of an unsupported field, for the message.
    """
    policy = policy or left_behind(name, value)
    if policy is None:
        if value is None:
            return Became(name, value, "null, which has no effect")
        return Became(name, value, "not known here", f"{path}: {name}={shown(value)}: unsupported field; {harm}")
    match policy.kind:
        case "must be":
            only = " or ".join(map(json.dumps, policy.values))
            if any(alike(value, allowed) for allowed in policy.values):
                return Became(name, value, "as it must be")
            if name in QUANTIZED:
                why = f"{path}: {name}: the weights are quantized ({quantized_by(name, value)}), which is not supported"
                return Became(name, value, f"must be {only}", f"{why}: {UNQUANTIZED}")
            why = f"{path}: {name}={shown(value)}: expected {only}, "
            why += policy.note or "the only supported value"
            return Became(name, value, f"must be {only}", why)
        case "used":
            return Became(name, value, f"used: {policy.note}")
        case "writing":
            return Became(name, value, "for writing")
        case _:
            return Became(name, value, f"ignored ({policy.note})")


def weight_files(folder: Path) -> dict[str, list[str] | None]:
    """Return a folder's tensor files and, for each, the tensors listed in the index (`None` without an index).

    Raises:
        ValueError: If the index is damaged, names a file in another folder, or leaves out a model.safetensors in the
            same folder.
    """
    index = folder / f"{WEIGHTS}.index.json"
    if not index.is_file():
        return {WEIGHTS: None}
    home = read_config(folder, index.name).get("weight_map")
    if not isinstance(home, Mapping) or not home or not all(isinstance(name, str) for name in home.values()):
        raise ValueError(f"{index}: expected a weight_map from tensors to files, got {shown(home)}")
    check_names(index, home.values())
    files: dict[str, list[str] | None] = {}
    for tensor, name in sorted(home.items(), key=lambda item: item[1]):
        if Path(name).name != name:
            raise ValueError(f"{index}: weight_map names {name!r}: expected a file in the same folder")
        names = files.setdefault(name, [])
        assert names is not None
        names.append(tensor)
    if WEIGHTS not in files and (folder / WEIGHTS).is_file():
        raise ValueError(
            f"{folder}: expected {WEIGHTS}, or {index.name} with the files it lists, but found both; one of them is "
            "stale"
        )
    return files


def load_published(
    folder: Path,
    device: torch.device | str | None,
    *,
    dtype: torch.dtype | None = None,
    headers: bool = False,
) -> dict[str, Tensor]:
    """Read the tensors of model.safetensors, of all files that its index names, or of a GGUF file.

    Args:
        folder: The published folder.
        device: The device of the tensors (`None` means the CPU).
        dtype: The dtype that floating-point tensors are converted to (default: as stored).
        headers: Whether to read only shapes and dtypes, as tensors on the device "meta".

    Raises:
        ValueError: If a file is missing or damaged, a tensor in the index is missing, or two files contain different
            versions of a tensor.
    """
    if (gguf := origin(folder)) is not None:
        return published_tensors(gguf, device, dtype=dtype, headers=headers)
    tensors: dict[str, Tensor] = {}
    owners: dict[str, str] = {}
    files = weight_files(folder)
    promised = {name: file for file, names in files.items() for name in names or ()}
    for file in files:
        path = folder / file
        with waiting(f"reading {file}"):
            found = tensor_headers(path) if headers else load_tensors(path, device=device, dtype=dtype)
        for name, tensor in found.items():
            if name in tensors and not (headers or torch.equal(tensor, tensors[name])):
                raise ValueError(f"{folder}: {name} is in both {owners[name]} and {file} with different values")
            if name not in tensors:
                tensors[name], owners[name] = tensor, file
    absent = [name for name, file in promised.items() if name not in owners]
    raise_faults(folder, [f"missing {name}, which the index lists in {promised[name]}" for name in absent])
    return unwrapped(tensors)


_QUANTIZED = {
    ".qweight": "GPTQ or AWQ",
    ".weight_scale_inv": "FP8",
    ".weight_scale": "FP8, or by compressed-tensors",
    ".weight_packed": "compressed-tensors",
    ".absmax": "bitsandbytes, 4 bits",
    ".SCB": "bitsandbytes, 8 bits",
    ".scales": "MLX",
}
_HEAD = re.compile(r"(score|classifier|pre_classifier|classification_head|qa_outputs|v_head|value_head)\..+")


def check_unquantized(folder: Path, names: Iterable[str]) -> None:
    """Raise `ValueError` if there are tensors that only quantized folders have."""
    for name in names:
        for ending, how in _QUANTIZED.items():
            if name.endswith(ending):
                why = f"{folder}: {name}: the weights are quantized ({how}), which is not supported"
                raise ValueError(f"{why}: {UNQUANTIZED}")


def other_heads(names: Iterable[str]) -> list[str]:
    """Return the tensors of heads for classification, reward or span answers, which the models here do not have."""
    return [name for name in names if _HEAD.fullmatch(name)]
