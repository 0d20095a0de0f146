"""companion: the package that the course The Executable Transformer builds.

The public names are listed in `__init__.pyi` beside this file, in reading order. Each name is imported when it is first
used, so that `companion --help` and errors about mistyped flags appear without the delay of importing torch.
"""

import ast
import importlib
import importlib.util
from pathlib import Path
from typing import Any

if importlib.util.find_spec("torch") is None:
    raise ModuleNotFoundError(
        "companion was found, but its dependencies are not installed. Run `make lab` in the course's folder; "
        "in a notebook, then choose Kernel > Change Kernel... > The Executable Transformer",
        name="torch",
    )


def _public() -> dict[str, str]:
    """Map each public name to the module that defines it, as listed in the stub.

    This function parses the stub itself instead of relying on a library, so that the models need only PyTorch, numpy,
    safetensors and jaxtyping.
    """
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    lines = [line for line in stub.body if isinstance(line, ast.ImportFrom)]
    return {entry.name: f"{__name__}.{line.module}" for line in lines for entry in line.names}


_MODULES = _public()
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__.copy()
