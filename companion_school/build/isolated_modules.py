"""Load files that import each other, isolated from all other modules: a learner's files, the references, or a mixture.

This module may import only PyTorch and the standard library, because its source is copied into the grader's sandbox,
where `companion` is not installed. For the same reason, all helper functions that probes (see `parts`) use must be
defined here.
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
    """A set of modules, each executed when it is first used.

    The attributes of a world are the names defined in the stage's module; `world["model"]` returns another module. A
    name that the stage's module does not define raises `NotImplementedError`, because the learner has not written it
    yet.

    Args:
        sources: Text of each module, by name. A module that imports another one by name gets this world's module.
        stage: Name of the module whose names are the world's attributes.
        files: Path of each module in tracebacks, by name (default: made-up paths).
    """

    def __init__(self, sources: Mapping[str, str], stage: str, files: Mapping[str, str] | None = None) -> None:
        self._sources, self._stage, self._files = dict(sources), stage, dict(files or {})
        self._name = f"own_transformer_{next(_numbers)}"
        self._modules: dict[str, types.ModuleType] = {}

    def __getitem__(self, name: str) -> types.ModuleType:
        """Return the module with this name. Exceptions raised while the module is executed propagate to the caller."""
        if name in self._modules:
            return self._modules[name]
        if name not in self._sources:
            raise ModuleNotFoundError(f"the folder has no file {name}.py", name=name)
        module = types.ModuleType(f"{self._name}.{name}")
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": self._import}
        file, text = self._files.get(name, f"<{self._name}.{name}>"), self._sources[name]
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # for tracebacks
        self._modules[name] = sys.modules[module.__name__] = module  # dataclasses look up the module here
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
    """Join the first three names, and say how many more there are."""
    return ", ".join(names[:3]) + (f", and {len(names) - 3} more" if len(names) > 3 else "")


class PlainCache:
    """A simple cache of keys and values, both (batch, kv_head, token, d_head), for stages before the learner's own.

    The learner writes a cache in stage 7.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __len__(self) -> int:
        return sum(k.shape[2] for k, _ in self._kept)

    def extend(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Append keys and values, and return all cached keys and values."""
        self._kept.append((k, v))
        return tuple(torch.cat(rows, dim=2) for rows in zip(*self._kept, strict=True))


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Context manager that sets PyTorch's default dtype and restores the old one."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class WatchedTraining:
    """Observations of a training loop, made by `watched_training`.

    Attributes:
        batches: The distinct batches of token ids for which a gradient was computed, each as bytes.
        ids: Number of token ids in the largest batch.
        passes: Number of backward passes.
        kept: Number of backward passes that added to gradients left over from an earlier update.
        cleared: True if some backward pass after the first began with no gradients left over.
    """

    def __init__(self) -> None:
        self.batches: set[bytes] = set()
        self.ids = self.passes = self.kept = 0
        self.cleared = False
        self._weights: list[torch.Tensor] | None = None
        self._before: float | None = None

    def reads(self, module: torch.nn.Module, inputs: Any) -> None:
        """Record the batch of the outermost module, which is the first to be called with ids before a backward pass."""
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or self._weights is not None:
            return
        for ids in tree_leaves(inputs):
            if isinstance(ids, torch.Tensor) and ids.dtype in (torch.int64, torch.int32) and ids.device.type != "meta":
                self._weights = list(module.parameters())
                self.batches.add(ids.detach().cpu().contiguous().numpy().tobytes())
                self.ids = max(self.ids, ids.numel())
                return

    def differentiates(self) -> None:
        """Record whether the weights have changed without the earlier gradients being cleared."""
        if self._weights is None:
            return
        self.passes += 1
        if not self.cleared:
            now = sum(weight.detach().double().sum().item() for weight in self._weights)
            left = any(weight.grad is not None and bool(weight.grad.any()) for weight in self._weights)
            self.kept += left and now != self._before
            self.cleared = self.passes > 1 and not left
            self._before = now
        self._weights = None


@contextmanager
def watched_training() -> Iterator[WatchedTraining]:
    """Context manager that records which batches a training loop reads and whether it clears its gradients.

    Only modules called with token ids, and only gradients computed by `backward`, are recorded.
    """
    seen, backward = WatchedTraining(), torch.autograd.backward

    def watched(*arguments: Any, **named: Any) -> None:
        seen.differentiates()
        backward(*arguments, **named)

    hook = torch.nn.modules.module.register_module_forward_pre_hook(seen.reads)
    torch.autograd.backward = watched
    try:
        yield seen
    finally:
        torch.autograd.backward = backward
        hook.remove()


class _Made(TorchDispatchMode):
    """Record the number of elements of each tensor that an operation allocates. Views are not counted."""

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
    """Yield a list that collects the number of elements of each tensor allocated in the context. Views do not count."""
    sizes: list[int] = []
    with _Made(sizes):
        yield sizes


def run_with(make: Callable[[], Any], weights: Mapping[str, Any], *inputs: Any, **named: Any) -> Any:
    """Build a layer with `make`, run it with these weights, and return its output. Gradients flow back to the weights.

    Args:
        make: Builds the layer.
        weights: Tensors by parameter name. The dtype of the first tensor becomes the default dtype.
        inputs: Positional arguments of the layer.
        named: Keyword arguments of the layer.

    Raises:
        TypeError: If the names or shapes of the layer's parameters differ from those of `weights`.
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
            said += [f"it has weights that it should not have: {_listed(further)}"] * bool(further)
            raise TypeError(f"{type(layer).__name__}: {'; '.join([*said, *other])}")
        return torch.func.functional_call(layer, dict(weights), inputs, named)


@contextmanager
def checkpoint(fields: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Iterator[Path]:
    """Yield a temporary folder with a `config.json` (the given fields) and a `model.safetensors` (the given tensors).

    In the message of a `ValueError` raised in the context, the folder's path is replaced by FOLDER, so that the same
    mistake always has the same message.
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
