"""Files that import each other, loaded apart from all others: a learner's own, a reference's, a mixture of both.

PyTorch and the standard library alone: this text travels with a learner's files to where there is no companion (the
grader's sandbox). What a probe (`parts`) is to use besides PyTorch must stand here.
"""

from __future__ import annotations

import builtins
import itertools
import json
import linecache
import struct
import sys
import tempfile
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_numbers = itertools.count(1)


class World:
    """The modules of these sources, each read when it is first asked for.

    sources:  the text of each module by its name; an import of one of these names, from one of these modules, finds it
              here and nowhere else.
    stage:    the module whose names are the world's attributes.
    files:    where each module's text lies, for tracebacks; by default nowhere.

    A name that the stage's module does not define raises `NotImplementedError`: it is not written yet.
    """

    def __init__(self, sources: Mapping[str, str], stage: str, files: Mapping[str, str] | None = None) -> None:
        self._sources, self._stage, self._files = dict(sources), stage, dict(files or {})
        self._name = f"own_transformer_{next(_numbers)}"
        self._modules: dict[str, types.ModuleType] = {}

    def __getitem__(self, name: str) -> types.ModuleType:
        """The module of this name. Raises what reading it raises."""
        if name in self._modules:
            return self._modules[name]
        if name not in self._sources:
            raise ModuleNotFoundError(f"there is no file {name}.py in the folder", name=name)
        module = types.ModuleType(f"{self._name}.{name}")
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": self._import}
        file, text = self._files.get(name, f"<{self._name}.{name}>"), self._sources[name]
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # for whoever asks for its text
        self._modules[name] = sys.modules[module.__name__] = module  # where dataclasses look for it
        try:
            exec(compile(text, file, "exec"), vars(module))
        except BaseException:
            del self._modules[name], sys.modules[module.__name__]
            raise
        return module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        module = self[self._stage]
        if name not in vars(module):
            raise NotImplementedError(f"{self._stage}.py defines no {name}")
        return vars(module)[name]

    def _import(
        self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> types.ModuleType:
        if level <= 1 and name in self._sources:
            return self[name]
        return builtins.__import__(name, globals, locals, fromlist, level)


def _listed(names: list[str]) -> str:
    """The first of many, and how many more there are."""
    return ", ".join(names[:3]) + (f", and {len(names) - 3} more" if len(names) > 3 else "")


class PlainCache:
    """The simplest cache of keys and values, (batch, kv_head, token, d_head): before stage 7 the learner has none."""

    def __init__(self) -> None:
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __len__(self) -> int:
        return sum(k.shape[2] for k, _ in self._kept)

    def extend(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Keep these behind the others, and give all."""
        self._kept.append((k, v))
        return tuple(torch.cat(rows, dim=2) for rows in zip(*self._kept, strict=True))


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """What PyTorch makes without a word on its type has this one."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class _Made(TorchDispatchMode):
    """Notes of each tensor that an operation makes how many numbers it has; a view makes none."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.sizes = sizes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        there = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        new = (x for x in tree_leaves(made) if isinstance(x, torch.Tensor))
        self.sizes += [x.numel() for x in new if x.untyped_storage().data_ptr() not in there]
        return made


@contextmanager
def numbers_made() -> Iterator[list[int]]:
    """How many numbers each tensor has that operations make in here, views apart."""
    sizes: list[int] = []
    with _Made(sizes):
        yield sizes


def run_with(make: Callable[[], Any], weights: Mapping[str, Any], *inputs: Any, **named: Any) -> Any:
    """What a layer gives that is made by `make` and has these weights, through which gradients flow back to them.

    Raises `TypeError` if it has weights of other names or shapes.
    """
    with default_dtype(next(iter(weights.values())).dtype):
        layer = make()
        wanted = {name: tuple(weight.shape) for name, weight in weights.items()}
        there = {name: tuple(weight.shape) for name, weight in layer.named_parameters()}
        if there != wanted:
            missing = [f"{name} {shape}" for name, shape in wanted.items() if name not in there]
            further = [f"{name} {shape}" for name, shape in there.items() if name not in wanted]
            other = [f"{name} is {there[name]}, not {shape}" for name, shape in wanted.items()
                     if there.get(name, shape) != shape]  # fmt: skip
            said = [f"it has no weight {_listed(missing)}"] * bool(missing)
            said += [f"it has a weight too many: {_listed(further)}"] * bool(further)
            raise TypeError(f"{type(layer).__name__}: {'; '.join([*said, *other])}")
        return torch.func.functional_call(layer, dict(weights), inputs, named)


@contextmanager
def checkpoint(fields: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Iterator[Path]:
    """A folder with a `config.json` of these fields and a `model.safetensors` of these tensors.

    A `ValueError` that names the folder is raised again without its name, so that equal mistakes have equal messages.
    """
    header, data = {}, b""
    for name, tensor in tensors.items():
        raw = tensor.float().contiguous().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "config.json").write_text(json.dumps(fields))
        (Path(place) / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
        try:
            yield Path(place)
        except ValueError as error:
            raise ValueError(str(error).replace(place, "FOLDER")) from None
