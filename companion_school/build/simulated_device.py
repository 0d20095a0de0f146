"""A simulated second device, for machines without a GPU. Its tensors cannot be mixed with CPU tensors.

The device is called "meta", PyTorch's name for a device without memory, so code that creates new tensors on the device
of an existing one works. Operations that mix tensors from two devices, or that use a generator from the wrong device,
fail as they do on a GPU. As on a GPU, an index or a zero-dimensional tensor may be on the CPU.

    with SimulatedDevice() as there:
        model.to(there)
        model(ids.to(there))

This module may import only PyTorch and the standard library, because its source is copied into the grader's sandbox,
like the source of `isolated_modules`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

DEVICE = torch.device("meta")
_TWO = "Expected all tensors to be on the same device, but found at least two devices, meta and cpu!"
_FROM_DATA = (torch.tensor, torch.as_tensor, torch.asarray)
_INDEXED = ("index", "index_put", "index_put_", "_unsafe_index")


class _Far(torch.Tensor):
    """A tensor on the simulated device. Its data is stored on the CPU, in `numbers`."""

    numbers: torch.Tensor

    @staticmethod
    def __new__(cls, numbers: torch.Tensor) -> _Far:
        made: _Far = torch.Tensor._make_wrapper_subclass(
            cls, numbers.size(), strides=numbers.stride(), storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype, device=DEVICE,
        )  # fmt: skip
        made.numbers = numbers
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})


class SimulatedDevice(TorchFunctionMode):
    """Context manager that makes the simulated device available and returns it."""

    def __enter__(self) -> torch.device:
        super().__enter__()
        self._mode, self._generator = _Operations(), torch.Generator
        self._mode.__enter__()
        torch.Generator = _AnyGenerator  # type: ignore[misc]
        return DEVICE

    def __exit__(self, *error: Any) -> None:
        torch.Generator = self._generator  # type: ignore[misc]
        self._mode.__exit__(*error)
        super().__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.tolist and isinstance(args[0], _Far):
            return args[0].numbers.tolist()
        if func in _FROM_DATA and kwargs.get("device") is not None:
            device = torch.device(kwargs.pop("device"))
            made = func(*args, **kwargs)
            return _Far(made) if device == DEVICE and not isinstance(made, _Far) else made
        if (generator := kwargs.get("generator")) is not None:
            there = any(isinstance(one, _Far) for one in tree_leaves(args)) or kwargs.get("device") == DEVICE
            if there != isinstance(generator, _FarGenerator):
                wanted, found = ("meta", "cpu") if there else ("cpu", "meta")
                raise RuntimeError(f"Expected a '{wanted}' device type for generator but found '{found}'")
        return func(*args, **kwargs)


class _Operations(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # avoids importing the compiler, which takes seconds
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


_Generator = torch.Generator


class _AnyGenerator(torch.Generator):
    """A `torch.Generator` that can also be created for the simulated device."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return _FarGenerator("cpu") if torch.device(device) == DEVICE else _Generator(device)


class _FarGenerator(_Generator):
    """A generator for the simulated device. Its state is stored on the CPU."""


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = func.overloadpacket.__name__
    leaves = tree_leaves((args, kwargs))
    far = any(isinstance(one, _Far) for one in leaves)
    near = any(isinstance(one, torch.Tensor) and not isinstance(one, _Far) and one.dim() > 0 for one in leaves)
    device = kwargs.get("device")
    made_there = far if device is None else torch.device(device) == DEVICE
    if name in _INDEXED:
        near = near and not isinstance(args[0], _Far)
    if far and near and name not in ("copy_", "_to_copy"):
        raise RuntimeError(f"{_TWO} (when {name} is called)")
    plain, named = tree_map_only(_Far, lambda one: one.numbers, (args, kwargs))
    if device is not None:
        named["device"] = torch.device("cpu")
    out = func(*plain, **named)
    if not made_there:
        return out
    out = tree_map_only(torch.Tensor, _Far, out)
    return return_and_correct_aliasing(func, args, kwargs, out) if far and device is None else out


def on_simulated_device(call: Callable[[torch.device], Any]) -> Any:
    """Return the result of `call` on the simulated device, or an explanation if it mixes tensors from two devices."""
    with SimulatedDevice() as device:
        try:
            return call(device)
        except RuntimeError as error:
            if "device" not in str(error):
                raise
            return f"it does not run on a GPU: {error}".replace("meta", "cuda:0")
