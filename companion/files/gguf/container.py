"""Read the metadata and the dequantized tensors of GGUF files (the format of llama.cpp, version 3).

The package `gguf`, which llama.cpp's authors publish, parses the file and dequantizes its tensors.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from companion.ground.fields import shown, why
from companion.ground.waiting import counted, waiting

if TYPE_CHECKING:
    from gguf import GGUFReader, ReaderTensor

SUFFIX = ".gguf"
_PLAIN = {"BF16": torch.bfloat16, "F16": torch.float16}
_REQUIRED = object()


def library() -> ModuleType:
    """Return the package `gguf`. Raises `ValueError` if the package is not installed."""
    try:
        import gguf
    except ImportError:
        raise ValueError(
            "reading or writing GGUF needs gguf; pip install 'executable-transformer[published]'"
        ) from None
    return gguf


def opened(path: str | Path) -> GGUFFile:
    """Open a GGUF file; the result is cached until the file changes. Raises the same errors as `GGUFFile`."""
    path = Path(path).absolute()
    if not path.is_file():
        raise ValueError(f"{path}: expected a GGUF file, found none")
    found = path.stat()
    return _opened(path, found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=4)
def _opened(path: Path, size: int, modified: int) -> GGUFFile:
    with waiting(f"reading {path.name}"):
        return GGUFFile(path)


class GGUFFile:
    """A GGUF file, with metadata accessed by key and tensors accessed by name.

    Raises:
        ValueError: If the file is damaged or truncated, or the package `gguf` is not installed.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        gguf = library()
        try:
            self._reader: GGUFReader = gguf.GGUFReader(self.path)
            for one in self._reader.tensors:
                if one.data_offset + one.n_bytes > self.path.stat().st_size:  # NumPy would return fewer elements
                    raise ValueError(f"{one.name} extends beyond the end of the file")
        except OSError as error:
            raise ValueError(f"{path}: cannot be read ({error.strerror or error})") from None
        except (ValueError, KeyError, IndexError, TypeError, OverflowError, MemoryError, AttributeError) as error:
            raise ValueError(
                f"{path}: expected a complete GGUF file, but it is damaged or truncated ({why(error)})"
            ) from None

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """All values by key. A single-precision number is converted to its shortest decimal form, such as 1e-05."""
        return {
            key: self._value(key, field) for key, field in self._reader.fields.items() if not key.startswith("GGUF.")
        }

    def _value(self, key: str, field: Any) -> Any:
        try:
            value = field.contents()
        except (ValueError, IndexError, TypeError) as error:
            raise ValueError(f"{self.path}: {key}: the value is damaged ({why(error)})") from None
        if field.types[-1].name == "FLOAT32" and len(field.types) == 1:
            return float(str(field.parts[field.data[0]][0]))
        return value

    def take(self, key: str, kind: type | tuple[type, ...], default: Any = _REQUIRED) -> Any:
        """Return the value of a key. Raises `ValueError` if the key is missing and there is no default, or if the value
        is of the wrong type."""
        value = self.metadata.get(key, default)
        if value is _REQUIRED:
            raise ValueError(f"{self.path}: {key} is missing")
        wrong = key in self.metadata and (not isinstance(value, kind) or (kind is int and isinstance(value, bool)))
        if wrong:
            kinds = kind if isinstance(kind, tuple) else (kind,)
            raise ValueError(
                f"{self.path}: {key}={shown(value)}: expected {' or '.join(one.__name__ for one in kinds)}"
            )
        return value

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor, with rows first, as in PyTorch."""
        return {one.name: tuple(int(size) for size in reversed(one.shape.tolist())) for one in self._reader.tensors}

    @cached_property
    def types(self) -> dict[str, str]:
        """The type of every tensor, such as Q4_K."""
        return {one.name: one.tensor_type.name for one in self._reader.tensors}

    @property
    def dtype(self) -> torch.dtype:
        """The dtype for reading the tensors: bfloat16 or float16 if all matrices have that type, otherwise float32."""
        kinds = {self.types[name] for name, shape in self.shapes.items() if len(shape) > 1}
        return _PLAIN.get(next(iter(kinds)), torch.float32) if len(kinds) == 1 else torch.float32

    def tensors(self, dtype: torch.dtype, device: torch.device | str | None) -> Iterator[tuple[str, Tensor]]:
        """Yield the name of each tensor, and the tensor itself, dequantized and converted to `dtype`.

        Raises:
            ValueError: If the package `gguf` cannot dequantize a tensor of this type.
        """
        for one in counted(self._reader.tensors, unit="tensor", what=f"reading {self.path.name}"):
            yield one.name, self._tensor(one, dtype, device)

    def vector(self, name: str) -> list[float]:
        """Return the elements of a small tensor."""
        (found,) = (one for one in self._reader.tensors if one.name == name)
        return self._tensor(found, torch.float32, None).flatten().tolist()

    def _tensor(self, one: ReaderTensor, dtype: torch.dtype, device: torch.device | str | None) -> Tensor:
        gguf = library()
        try:
            plain = gguf.dequantize(one.data, one.tensor_type)
        except (NotImplementedError, ValueError) as error:
            raise ValueError(
                f"{self.path}: {one.name} is {one.tensor_type.name}: expected a type that can be dequantized, such as "
                f"F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, Q5_K or Q6_K ({why(error)})"
            ) from None
        copy = not plain.flags.writeable or isinstance(getattr(plain, "base", None), mmap.mmap)
        return torch.from_numpy(plain.copy() if copy else plain).to(device=device, dtype=dtype)
