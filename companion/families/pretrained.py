"""A model out of whatever a folder, or a name on a hub, holds (lesson 13).

`load_pretrained` reads a folder of safetensors, sharded or not, of any family. What becomes of a field of the
configuration stands in the table of its family: one that changes what the model computes is translated or refused by
name. Every tensor must find its place. Nothing is fetched from a network unless the caller asks for it.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from companion.families.registry import UNBUILT, families
from companion.files.models import CONFIG, WEIGHTS, load_model, read_config
from companion.files.published.family import Family
from companion.ground.arguments import check_device, check_dtype, check_kind
from companion.ground.fields import shown
from companion.transformer import Transformer

ADAPTER, INDEX = "adapter_config.json", f"{WEIGHTS}.index.json"
FETCHED = (
    CONFIG, "generation_config.json", WEIGHTS, INDEX, "model-*.safetensors",
    "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "vocab.json", "merges.txt",
    "source.spm", "target.spm",
)  # fmt: skip
"""The files of a published model that are read here; nothing else is downloaded, a pickle least of all."""


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
    family = family_of(folder)
    if family is None:
        return load_model(folder, dtype=dtype, device=device)
    return family.read(folder, dtype=dtype, device=device)


def family_of(folder: Path) -> Family | None:
    """The family that a folder says its model is of; `None` for one of companion's own.

    Raises `ValueError` for a kind that is not known here, and as `read_config` does.
    """
    if (folder / ADAPTER).is_file() and not any((folder / name).is_file() for name in (WEIGHTS, INDEX)):
        raise ValueError(
            f"{folder}: {ADAPTER} says that this is an adapter, the changes to another model: expected the folder of "
            "that model, with the changes merged into it"
        )
    config, known = read_config(folder), families()
    kind = config.get("model_type")
    if "model_type" not in config:
        if "architectures" in config:  # which no configuration of ours has, and every published one
            raise ValueError(
                f"{folder / CONFIG}: the field model_type is missing, which says what kind of model this is"
            )
        return None
    if not isinstance(kind, str) or kind not in known:
        text = config.get("text_config")
        inside = text.get("model_type") if isinstance(text, dict) else None
        part = f"; its text_config is a {inside}, which a folder of its own could hold" if inside in known else ""
        for one in (kind, inside):
            if isinstance(one, str) and one in UNBUILT:
                part = f"; a {one} has {UNBUILT[one]}, which is not built here"
        expected = f"expected one of {', '.join(known)}, or none"
        raise ValueError(f"{folder / CONFIG}: model_type={shown(kind)}: {expected}{part}")
    return known[kind]


def pretrained_folder(name: str | Path, *, download: bool = False) -> Path:
    """The folder of a checkpoint: `name` itself, or what was fetched from the hub under that name.

    Raises `ValueError` if there is no such folder, and nothing may or can be fetched.
    """
    folder = Path(name)
    if os.path.isdir(folder):  # a name that is too long for a path is none
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
