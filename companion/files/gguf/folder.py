"""A GGUF file as a published folder: the files of configuration and tokenizer that it would have, made for as long as
the process lives, and the tensors straight from the file.

So whatever reads published folders reads GGUF files too, and the gigabytes stay where they are.
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
"""The file of such a folder that says where its tensors are."""


def is_gguf(path: str | Path) -> bool:
    """Whether the path is that of a GGUF file."""
    return str(path).endswith(SUFFIX) and os.path.isfile(path)


def published_folder(path: str | Path) -> Path:
    """Return a folder that stands for a GGUF file; it is removed when the process ends.

    Raises `ValueError` for a damaged file, and for an architecture or a key that is not known, by name.
    """
    path = Path(path).absolute()
    found = path.stat()
    return _made(path, found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=8)
def _made(path: Path, size: int, modified: int) -> Path:
    files = text_files(opened(path))
    home = Path(tempfile.mkdtemp(prefix="companion-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    folder = home / path.name  # so that messages about its files name the model
    folder.mkdir()
    for name, text in {**files, ORIGIN: json.dumps({"file": str(path)})}.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def text_files(file: GGUFFile) -> dict[str, str]:
    """Return the files that a published folder has beside its tensors. If the tokenizer is not known, a file says why,
    because a model can be run on ids without one."""
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
    """Within it, messages about a folder that stands for a GGUF file name that file."""
    path = origin(folder)
    try:
        yield
    except ValueError as error:
        if path is None:
            raise
        said = str(error).replace(str(folder / CONFIG), str(path)).replace(str(folder), str(path))
        raise ValueError(said) from None


def origin(folder: Path) -> Path | None:
    """The GGUF file that a folder stands for; `None` for a folder that holds its tensors itself."""
    if not (folder / ORIGIN).is_file():
        return None
    return Path(json.loads((folder / ORIGIN).read_text(encoding="utf-8"))["file"])


def published_tensors(
    path: Path, device: torch.device | str | None = None, *, dtype: torch.dtype | None = None, headers: bool = False
) -> dict[str, Tensor]:
    """The tensors of a GGUF file by their published names.

    dtype:    `None`: that of the file's matrices if they have one, else float32.
    headers:  only their shapes and dtypes, on the device "meta".
    """
    file = opened(path)
    architecture, dtype = architecture_of(file), dtype or file.dtype
    if headers:
        given = {name: torch.empty(shape, dtype=dtype, device="meta") for name, shape in file.shapes.items()}
    else:
        given = dict(file.tensors(dtype, device))
    for name in (ROPE_FREQS, ROPE_LONG, ROPE_SHORT):  # in config.json by now
        given.pop(name, None)
    return architecture.read_layout(given, architecture.fields(file))


def save_as_folder(path: str | Path, folder: Path) -> None:
    """Write a GGUF file as a published folder that everybody reads: config.json, model.safetensors, the tokenizer."""
    from companion.files.models import WEIGHTS, save_together

    texts = text_files(opened(path))
    if UNREADABLE in texts:
        raise ValueError(texts[UNREADABLE])
    save_together(folder, {WEIGHTS: published_tensors(Path(path))}, texts)
