"""Published GPT-2, BERT, Marian, LLaMA and its kin, as Hugging Face's `save_pretrained` writes them (lesson 13).

`load_pretrained` reads a folder of safetensors, sharded or not, whatever its kind; the files beside this one read a
layout each. What becomes of a field of the configuration stands in the table of `policy`: one that changes what the
model computes is translated or refused by name. Every tensor must find its place. Nothing is fetched from a network
unless the caller asks for it.

Dropout, which matters only if training goes on: ours acts on embeddings, attention weights and every sub-layer's output
with one probability.
"""

from __future__ import annotations

from pathlib import Path

import torch

from companion.files.models import CONFIG, WEIGHTS, load_model
from companion.files.published import bert, gpt2, llama, marian
from companion.files.published.folder import model_type
from companion.ground.boundary import check_device, check_dtype, check_kind
from companion.transformer import Transformer

FETCHED = (
    CONFIG, "generation_config.json", WEIGHTS, f"{WEIGHTS}.index.json", "model-*.safetensors",
    "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "source.spm", "target.spm",
)  # fmt: skip
"""The files of a published model that are read here; nothing else is downloaded, a pickle least of all."""


READERS = {**gpt2.READERS, **bert.READERS, **marian.READERS, **llama.READERS}
"""By `model_type`: who reads it."""


def load_pretrained(
    name: str | Path,
    *,
    download: bool = False,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Transformer:
    """A model of any layout known here: companion's own, or the one that `model_type` in config.json names.

    name:      a folder; or, with `download=True`, also what a hub calls it, "organisation/name".
    download:  fetch a model that is not a folder from the hub, through `huggingface_hub`.
    dtype:     `None`: as stored.
    device:    `None`: the CPU.

    Raises `ValueError` as `load_model` does, for an unknown `model_type`, a field that cannot be honoured, a tensor
    without a place, or of which two files have copies that differ, and for a model that cannot be fetched.
    """
    expected = "a folder, or with download=True the name that a hub has for a model"
    check_kind("name", name, (str, Path), expected)
    if name == "":  # as a path it would be the current folder
        raise ValueError(f"name='': expected {expected}")
    check_kind("download", download, bool, "True or False")
    check_dtype(dtype)
    check_device(device)
    folder = pretrained_folder(name, download=download)
    kind = model_type(folder)
    if kind is None:
        return load_model(folder, dtype=dtype, device=device)
    return READERS[kind].read(folder, kind, dtype=dtype, device=device)


def pretrained_folder(name: str | Path, *, download: bool = False) -> Path:
    """The folder of a checkpoint: `name` itself, or what was fetched from the hub under that name.

    Raises `ValueError` if there is no such folder, and nothing may or can be fetched.
    """
    folder = Path(name)
    if folder.is_dir():
        return folder
    if not download:
        raise ValueError(
            f"{name}: expected a folder with config.json and model.safetensors, found none; "
            "a model of this name on a hub is fetched only with download=True"
        )
    return fetch(str(name))


def fetch(name: str) -> Path:
    """Download the model that a hub has under "organisation/name" and give its folder, through `huggingface_hub`.

    Only configuration, safetensors and tokenizer files are fetched; what was fetched before is not fetched again.
    Raises `ValueError` if that library is missing, or the hub cannot be reached or has no such model.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ValueError(
            f"download=True: fetching {name} needs huggingface_hub; pip install 'executable-transformer[published]'"
        ) from None
    try:
        return Path(snapshot_download(name, allow_patterns=list(FETCHED)))
    except Exception as error:  # the hub's own errors, those of its network library, and the system's
        why = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{name}: expected a model that the hub has and that can be fetched now ({why})") from None
