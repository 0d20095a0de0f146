"""Present a GGUF file as a published folder.

The folder's configuration and tokenizer files are temporary, and are removed when the process ends. The tensors are
read from the GGUF file itself. Therefore all code that reads published folders can read GGUF files too, without copying
gigabytes.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from companion.files.gguf.architectures import ROPE_FREQS, ROPE_LONG, ROPE_SHORT, architecture_of
from companion.files.gguf.container import SUFFIX, GGUFFile, opened
from companion.files.gguf.tokenizers import UNREADABLE, Vocabulary
from companion.files.models import CONFIG

ORIGIN = "gguf.json"
"""The file in such a folder that contains the path of the GGUF file."""


def is_gguf(path: str | Path) -> bool:
    """Return whether `path` is an existing file with the suffix .gguf."""
    return str(path).endswith(SUFFIX) and os.path.isfile(path)


def published_folder(path: str | Path) -> Path:
    """Return a temporary folder that represents a GGUF file. The folder is removed when the process ends.

    Raises:
        ValueError: If the file is damaged, or its architecture or one of its keys is unknown.
    """
    path = Path(path).absolute()
    found = path.stat()
    return _made(path, found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=8)
def _made(path: Path, size: int, modified: int) -> Path:
    files = text_files(opened(path))
    home = Path(tempfile.mkdtemp(prefix="companion-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    folder = home / path.name  # so that messages about its files name the GGUF file
    folder.mkdir()
    for name, text in {**files, ORIGIN: json.dumps({"file": str(path)})}.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def text_files(file: GGUFFile) -> dict[str, str]:
    """Return the text files of a published folder (the configuration and the tokenizer), keyed by name.

    If the tokenizer cannot be read, there is no error, because a model can run on ids without one; the file
    `UNREADABLE` gives the reason.
    """
    architecture = architecture_of(file)
    fields = {"architectures": [architecture.published_class], **architecture.fields(file)}
    try:
        vocabulary = Vocabulary(file)
        files = vocabulary.files()
        fields |= vocabulary.ids_with_a_meaning()
    except ValueError as error:
        files = {UNREADABLE: str(error)}
    return {CONFIG: json.dumps(fields, indent=2) + "\n", **files}


@contextmanager
def naming(folder: Path) -> Iterator[None]:
    """Make error messages in the `with` block name the GGUF file instead of the folder that represents it."""
    path = origin(folder)
    try:
        yield
    except ValueError as error:
        if path is None:
            raise
        said = str(error).replace(str(folder / CONFIG), str(path)).replace(str(folder), str(path))
        raise ValueError(said) from None


def origin(folder: Path) -> Path | None:
    """Return the GGUF file that a folder represents, or `None` for an ordinary folder that contains tensors."""
    if not (folder / ORIGIN).is_file():
        return None
    return Path(json.loads((folder / ORIGIN).read_text(encoding="utf-8"))["file"])


def published_tensors(
    path: Path, device: torch.device | str | None = None, *, dtype: torch.dtype | None = None, headers: bool = False
) -> dict[str, Tensor]:
    """Return the tensors of a GGUF file, keyed by their published names.

    Args:
        path: Path of the file.
        device: The device of the tensors (default: the CPU).
        dtype: The dtype of the tensors (default: `GGUFFile.dtype`).
        headers: Whether to return only shapes and dtypes, as tensors on the device "meta".
    """
    file = opened(path)
    architecture, dtype = architecture_of(file), dtype or file.dtype
    if headers:
        given = {name: torch.empty(shape, dtype=dtype, device="meta") for name, shape in file.shapes.items()}
    else:
        given = dict(file.tensors(dtype, device))
    for name in (ROPE_FREQS, ROPE_LONG, ROPE_SHORT):  # config.json already has them
        given.pop(name, None)
    return architecture.read_layout(given, architecture.fields(file))


def save_as_folder(path: str | Path, folder: Path) -> None:
    """Convert a GGUF file to an ordinary published folder with config.json, model.safetensors and the tokenizer.

    Raises:
        ValueError: If the file or its tokenizer cannot be read.
    """
    from companion.files.models import WEIGHTS, save_together

    texts = text_files(opened(path))
    if UNREADABLE in texts:
        raise ValueError(texts[UNREADABLE])
    save_together(folder, {WEIGHTS: published_tensors(Path(path))}, texts)
