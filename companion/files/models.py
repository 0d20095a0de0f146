"""Models on disk, with safetensors for the weights and JSON for the configuration (lessons 10 and 13).

A model is a folder with `model.safetensors` and `config.json`. Nothing here reads a pickle. Every file is written under
a temporary name, flushed to the disk and renamed, so that a program that reads it always sees a complete file, either
the old or the new one.

`load_model` reads the folders that `save_model` writes. `companion.files.published` reads the folders of other
libraries.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Shaped
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

from companion.config.model import ModelConfig
from companion.ground.atomic import read_together, replacing
from companion.ground.fields import cut, shown, why
from companion.ground.reading import raise_pointer, read_json
from companion.ground.waiting import counted
from companion.transformer import Transformer

WEIGHTS, CONFIG = "model.safetensors", "config.json"


def _save_file(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Save tensors like `safetensors.torch.save_file`, with two differences.

    Operating-system errors are raised as `OSError`, and the file has the usual permissions of a new file, whereas the
    library would make it readable only by its owner.
    """
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(_apart(tensors), path, None if metadata is None else dict(metadata))
        path.chmod(mode)
    except SafetensorError as error:
        code = re.search(r"\(os error (\d+)\)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from error


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous tensors that share no memory, even if a module appears in the model twice."""
    apart: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        made = tensor.detach().contiguous()
        apart[name] = made.clone() if made.untyped_storage().data_ptr() in seen else made
        seen.add(made.untyped_storage().data_ptr())
    return apart


def save_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write named tensors to a safetensors file atomically, as `write_atomic` does.

    Args:
        path: Path of the file.
        tensors: The tensors by name, on any device.
        metadata: Additional entries for the file's header.
    """
    with replacing(Path(path)) as (draft,):
        _save_file(tensors, draft, metadata)


def save_together(folder: Path, tensors: Mapping[str, Mapping[str, Tensor]], texts: Mapping[str, str]) -> None:
    """Write safetensors files and text files into a folder, replacing existing ones.

    `companion.ground.atomic.replacing` explains what readers see in the meantime. The headers say that the tensors come
    from PyTorch.
    """
    with replacing(*(folder / name for name in (*tensors, *texts))) as drafts:
        for draft, named in zip(drafts, tensors.values(), strict=False):
            _save_file(named, draft, {"format": "pt"})
        for draft, text in zip(drafts[len(tensors) :], texts.values(), strict=True):
            draft.write_text(text, encoding="utf-8")


def load_tensors(
    path: str | Path, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """Read a safetensors file, such as one that `save_tensors` wrote.

    Args:
        path: Path of the file.
        device: The device of the tensors (default: the CPU).
        dtype: The dtype that floating-point tensors are converted to (default: as stored).

    Raises:
        ValueError: If the file is missing, truncated or not a safetensors file.
    """
    place = str(device or "cpu")
    if dtype is None:
        return _reading(Path(path), lambda path: load_file(path, device=place))
    return _reading(Path(path), lambda path: _converted(path, place, dtype))


PART = 1 << 28
"""Maximum number of bytes of a file that are in memory at once, in addition to the converted tensors. The file is
opened again for each part, because pages that were read count as used memory as long as any tensor of the file
exists."""


def _converted(path: Path, device: str, dtype: torch.dtype) -> dict[str, Tensor]:
    made: dict[str, Tensor] = {}
    names: list[str] | None = None
    while names is None or names:
        with safe_open(path, framework="pt", device=device) as file:
            names = sorted(file.keys()) if names is None else names
            read = 0
            while names and read < PART:
                tensor = file.get_tensor(name := names.pop())
                read += tensor.nbytes
                made[name] = tensor.to(dtype) if tensor.is_floating_point() else tensor
                del tensor
    return made


def tensor_headers(path: str | Path) -> dict[str, Tensor]:
    """Return the tensors of a file on the device "meta", without data. Raises `ValueError` in the same cases as
    `load_tensors`."""

    def read(path: Path) -> dict[str, Tensor]:
        with safe_open(path, framework="pt") as file:
            found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {
                name: torch.empty(part.get_shape(), dtype=_DTYPES[part.get_dtype()], device="meta")
                for name, part in found.items()
            }

    return _reading(Path(path), read)


_DTYPES = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16},
    **{
        "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2,
        "F8_E8M0": torch.float8_e8m0fnu,
        "C64": torch.complex64,
    },
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8},
    **{"U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8, "BOOL": torch.bool},
}


def _reading(path: Path, read: Callable[[Path], dict[str, Tensor]]) -> dict[str, Tensor]:
    if not path.is_file():
        pickles = [p.name for p in sorted(path.parent.glob("*.bin"))] if path.parent.is_dir() else []
        beside = f"; {pickles[0]} is a pickle, which could run any code and is never read" if pickles else ""
        raise ValueError(f"{path}: expected a safetensors file, found none{beside}")
    raise_pointer(path)
    try:
        found = read(path)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError, MemoryError) as error:
        raise ValueError(
            f"{path}: expected a complete safetensors file, but its {path.stat().st_size} bytes are "
            f"damaged or truncated ({why(error)})"
        ) from None
    check_names(path, found)
    return found


def unwrapped(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors, keyed by the names that they had before their model was wrapped.

    `torch.compile` puts "_orig_mod." before a module's names, and `DistributedDataParallel` puts "module." before all
    names. Nothing is renamed if two tensors would get the same name.
    """
    names = [name.replace("_orig_mod.", "") for name in tensors]
    while names and all(name.startswith("module.") for name in names):
        names = [name.removeprefix("module.") for name in names]
    return dict(zip(names, tensors.values(), strict=True)) if len(set(names)) == len(names) else tensors


def check_names(path: Path, names: Iterable[str]) -> None:
    """Raise `ValueError` if a tensor's name cannot be printed, is empty or has more than 500 characters."""
    for name in names:
        if not name.isprintable() or not 0 < len(name) <= 500:
            raise ValueError(f"{path}: expected printable names of at most 500 characters, found {shown(name)}")


def save_model(folder: str | Path, model: Transformer, *, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write `model.safetensors` and `config.json` into `folder`, which is created if missing.

    A tied output head, which is the same tensor as the embedding table, is stored once. Both files are complete on the
    disk before the first one is renamed, and `load_model` never combines a file of an earlier model with a file of this
    one.

    Args:
        folder: The output folder.
        model: The model to write.
        weights: The full `state_dict` of the model, which is needed if `model` itself holds only a part of it (default:
            the model's own `state_dict`).

    Raises:
        ValueError: If `load_model` would reject the weights, because they have several dtypes or do not match the
            configuration (for example, if the last blocks of the model were removed). In these cases, nothing is
            written.
    """
    folder = Path(folder)
    weights = model.state_dict() if weights is None else weights
    raise_faults(folder, _differences(_shapes(bare_model(model.config).state_dict()), _shapes(weights)))
    _check_dtypes(weights, folder, None, "model.to(dtype) to convert the model")
    with replacing(folder / WEIGHTS, folder / CONFIG) as (draft, config):
        config.write_text(model.config.to_json(), encoding="utf-8")
        _save_file(weights, draft)


def load_model(
    folder: str | Path, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Transformer:
    """Load a model that `save_model` wrote, in evaluation mode.

    Args:
        folder: The model's folder.
        dtype: The dtype of the weights (default: as stored).
        device: The device of the model (default: the CPU).

    Raises:
        ValueError: If the folder or a file is missing or damaged or belongs to another kind of model, or if the
            configuration does not match the weights. The message lists tensors that are missing or unexpected or have
            the wrong shape.
    """
    return read_together(Path(folder), lambda: _load_model(Path(folder), dtype, device))


def _load_model(folder: Path, dtype: torch.dtype | None, device: torch.device | str | None) -> Transformer:
    data = read_config(folder)
    if "model_type" in data:
        raise ValueError(
            f"{folder / CONFIG}: expected companion's own configuration, got model_type={shown(data['model_type'])}, "
            "which is a Hugging Face configuration; load it with companion.load_pretrained"
        )
    try:
        config = ModelConfig.from_json(json.dumps(data))
    except ValueError as error:
        raise ValueError(f"{folder / CONFIG}: {error}") from None
    return assemble(config, unwrapped(load_tensors(folder / WEIGHTS, device=device)), folder, dtype)


def read_config(folder: Path, name: str = CONFIG) -> dict[str, Any]:
    """Return the fields in a JSON file. Raises `ValueError` if the file is missing, damaged or not an object."""
    path = folder / name
    if not os.path.isdir(folder):  # also False for a name that is too long to be a path
        raise ValueError(f"{folder}: expected a folder with {CONFIG} and {WEIGHTS}, found none")
    if not path.is_file():
        run = (folder / "run.json").is_file() and name == CONFIG
        aside = f"; this is a run: use --run {folder}, or one of the models in {folder / 'checkpoints'}" if run else ""
        raise ValueError(f"{path}: expected the model's configuration, found no such file{aside}")
    try:
        data = read_json(path)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path}: expected a JSON object, got {shown(data)}")
    return data


def assemble(config: ModelConfig, tensors: dict[str, Tensor], folder: Path, dtype: torch.dtype | None) -> Transformer:
    """Build the model of `config` from `tensors`, in evaluation mode.

    Args:
        config: The configuration of the model.
        tensors: The parameters by name. The dictionary is emptied so that tensors are not in memory twice when they are
            converted.
        folder: The folder that error messages name.
        dtype: The dtype of the model (default: that of the tensors, which must then all have the same dtype).

    Raises:
        ValueError: If the tensors are not exactly the model's parameters, are not floating-point, or are not finite.
            The message names them.
    """
    if config.layers > len(tensors):  # check this before so many layers are created, even without data
        raise_faults(folder, [f"layers={config.layers}, expected at most the number of tensors, {len(tensors)}"])
    try:
        model = bare_model(config)
    except ValueError as error:  # larger than a tensor can be
        raise ValueError(f"{folder / CONFIG}: {error}") from None
    raise_faults(folder, _differences(_shapes(model.state_dict()), _shapes(tensors)))
    _check_dtypes(tensors, folder, dtype)
    names = counted(list(tensors), unit="tensor", what="loading")
    ready = {name: _finite(name, tensors.pop(name), folder, dtype) for name in names}
    model.load_state_dict(ready, assign=True)
    return model.eval()


def bare_model(config: ModelConfig) -> Transformer:
    """Return a model on the device "meta", for which no weights are allocated or initialized."""
    with torch.device("meta"), _Undrawn():
        return Transformer(config)


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _differences(wanted: Mapping[str, tuple[int, ...]], got: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Describe each tensor that is missing, unexpected or of the wrong shape in a few words."""
    shared = [name for name in wanted if name in got and got[name] != wanted[name]]
    faults = [f"{name} is {got[name]}, expected {wanted[name]}" for name in shared]
    faults += [f"missing {name} {wanted[name]}" for name in wanted if name not in got]
    return faults + [f"unexpected {name} {got[name]}" for name in got if name not in wanted]


class _Undrawn(TorchFunctionMode):
    """A mode that skips the functions of `torch.nn.init`.

    On the device "meta" there is nothing to initialize, and the first call would make PyTorch load its compiler, which
    takes longer than reading a gigabyte.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if kwargs and "tensor" in kwargs else args[0]
        return func(*args, **(kwargs or {}))


_COMPUTED = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
"""The dtypes that models can compute in."""


def _check_dtypes(
    tensors: Mapping[str, Tensor], folder: Path, dtype: torch.dtype | None, remedy: str = "dtype= to convert to"
) -> None:
    """Raise `ValueError` unless all tensors have the same dtype, or `dtype` converts them, and models can compute in
    it.

    Tensors that are not floating-point are always rejected.
    """
    first: dict[torch.dtype, str] = {}
    for name, tensor in tensors.items():
        first.setdefault(tensor.dtype, name)
    for name in first.values():
        if not tensors[name].is_floating_point():
            kind = plain_dtype(tensors[name].dtype)
            raise ValueError(
                f"{folder}: {name} is {kind}: expected floating-point weights; other dtypes cannot be converted"
            )
        check_dtype_of(name, tensors[name], folder, dtype)
    if dtype is not None:
        return
    if len(first) > 1:
        (one, name), (other, odd) = list(first.items())[:2]
        raise ValueError(
            f"{folder}: {name} is {plain_dtype(one)}, {odd} is {plain_dtype(other)}: expected one dtype, or {remedy}"
        )


def check_dtype_of(name: str, tensor: Shaped[Tensor, "..."], folder: Path, dtype: torch.dtype | None) -> None:
    """Raise `ValueError` for a floating-point dtype that models do not compute in, unless `dtype` converts it."""
    if dtype is None and tensor.is_floating_point() and tensor.dtype not in _COMPUTED:
        raise ValueError(
            f"{folder}: {name} is {plain_dtype(tensor.dtype)}, which is not supported for computation; expected one of "
            f"{', '.join(map(plain_dtype, _COMPUTED))}, or dtype= to convert it"
        )


def plain_dtype(dtype: torch.dtype) -> str:
    """Return the name of a dtype without the prefix "torch.", such as "float32"."""
    return str(dtype).removeprefix("torch.")


def _finite(name: str, tensor: Tensor, folder: Path, dtype: torch.dtype | None) -> Tensor:
    """Return the tensor, converted to `dtype`. Raises `ValueError` if the result is not finite."""
    made = tensor if dtype is None else tensor.to(dtype)
    if made.numel() == 0 or made.is_meta:
        return made
    least, most = torch.aminmax(made)  # one pass without a copy; a single NaN makes the result NaN
    if not math.isfinite(least.item()) or not math.isfinite(most.item()):
        became = "" if dtype is None or dtype == tensor.dtype else f" in {plain_dtype(dtype)}"
        wrong = int((~made.isfinite()).sum())
        raise ValueError(
            f"{folder}: {name} has {wrong:,} of {made.numel():,} elements that are NaN or infinite{became}; expected "
            "only finite elements"
        )
    return made


def raise_faults(folder: Path, faults: list[str]) -> None:
    """Raise a `ValueError` that lists the first faults if there are any."""
    if faults:
        first = "; ".join(cut(fault, 160) for fault in faults[:12])
        more = f"; and {len(faults) - 12} more" if len(faults) > 12 else ""
        raise ValueError(f"{folder}: the configuration does not match the weights: {first}{more}")
