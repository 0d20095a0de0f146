"""Load a model from a folder, a GGUF file or a hub (lesson 13).

`load_pretrained` reads safetensors folders of any family, sharded or not, and GGUF files. Each family has a table of
the fields in config.json. A field that changes what the model computes is either translated or rejected with an error
that names it. Every tensor must have a counterpart in the model. Nothing is downloaded unless the caller asks for it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from companion.config.model import ModelConfig
from companion.families.registry import UNBUILT, families
from companion.files.gguf.folder import is_gguf, naming, published_folder
from companion.files.models import CONFIG, WEIGHTS, load_model, read_config
from companion.files.published.family import Family
from companion.files.published.fetching import at_hand, get, how_to_get, is_hub_name
from companion.ground.arguments import check_device, check_dtype, check_kind
from companion.ground.fields import shown
from companion.transformer import Transformer

ADAPTER, INDEX = "adapter_config.json", f"{WEIGHTS}.index.json"
_OURS = {one.name for one in dataclasses.fields(ModelConfig)}
OTHERS = {
    "word_embedding_dimension": "the pooling configuration of sentence-transformers; the model is one folder above",
    "peft_type": "the configuration of an adapter for another model",
    "weight_map": "the index of a model's files; its config.json is in the same folder",
    "added_tokens": "a tokenizer; the model's config.json is in the same folder",
    "tokenizer_class": "the settings of a tokenizer; the model's config.json is in the same folder",
    "added_tokens_decoder": "the settings of a tokenizer; the model's config.json is in the same folder",
    "do_sample": "the generation settings of a model; its config.json is in the same folder",
    "temperature": "the generation settings of a model; its config.json is in the same folder",
    "image_mean": "the settings of an image processor; the model's config.json is in the same folder",
    "n_layers": "a configuration in the format of Meta or Mistral; use the same model in Hugging Face's format",
    "max_seq_length": "the settings of sentence-transformers; the model's config.json is in the same folder",
    "bits": "a quantization configuration, which is not supported; use a release in bf16 or a GGUF file",
}
"""Descriptions of the other JSON files of a published model, each keyed by a field that only that file has."""


def load_pretrained(
    name: str | Path,
    *,
    download: bool = False,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Transformer:
    """Load a model in evaluation mode, from companion's own layout or the one that `model_type` in config.json names.

    Args:
        name: A folder, a GGUF file, or the name of a model that `companion get` has fetched.
        download: Whether to fetch a missing model, as `companion get` does. Models on a hub are named
            "organization/name".
        dtype: Dtype of the weights (default: as stored).
        device: Device of the weights (default: the CPU).

    Raises:
        ValueError: In the same cases as `load_model`, and if the `model_type` is unknown, a field cannot be honored, a
            tensor has no counterpart or differs between two files, or the model cannot be downloaded.
    """
    expected = "a folder, a GGUF file, or the name of a model"
    check_kind("name", name, (str, Path), expected)
    if name == "":  # as a path, it would mean the current folder
        raise ValueError(f"name='': expected {expected}")
    check_kind("download", download, bool, "True or False")
    check_dtype(dtype)
    check_device(device)
    folder = pretrained_folder(name, download=download)
    with naming(folder):
        family = family_of(folder)
        if family is None:
            return load_model(folder, dtype=dtype, device=device)
        return family.read(folder, dtype=dtype, device=device)


def family_of(folder: Path) -> Family | None:
    """Return the family that a folder's config.json names, or `None` for a model in companion's own layout.

    Raises:
        ValueError: If the `model_type` is unknown or the folder contains an adapter, and in the same cases as
            `read_config`.
    """
    if (folder / ADAPTER).is_file() and not any((folder / name).is_file() for name in (WEIGHTS, INDEX)):
        raise ValueError(
            f"{folder}: {ADAPTER} says that this is an adapter for another model; expected the folder of "
            "the full model with the adapter merged into it"
        )
    return family_in(read_config(folder), folder / CONFIG)


def family_in(config: Mapping[str, Any], path: Path) -> Family | None:
    """Return the family that a config.json describes, or `None` if it is a configuration of this package.

    Raises:
        ValueError: If there is no such family, or the fields come from a different kind of file.
    """
    kind, known = config.get("model_type"), families()
    if "model_type" not in config:
        if "architectures" in config:  # every published configuration has this field, and ours never do
            raise ValueError(f"{path}: the field model_type, which names the architecture, is missing")
        if not config.keys() & _OURS:
            what = next((what for name, what in OTHERS.items() if name in config), None)
            got = (
                f"this is {what}" if what else f"got the fields {shown(list(config)[:5])}" if config else "got no field"
            )
            raise ValueError(f"{path}: expected a model's configuration with a model_type; {got}")
        return None
    if not isinstance(kind, str) or kind not in known:
        text = config.get("text_config")
        inside = text.get("model_type") if isinstance(text, dict) else None
        part = f"; its text_config is a {inside}, which can be read from a folder of its own" if inside in known else ""
        for one in (kind, inside):
            if isinstance(one, str) and one in UNBUILT:
                part = f"; {one} models have {UNBUILT[one]}; this is not supported"
        classes = config.get("architectures")
        for one in known.values():
            if not part and one.architecture and isinstance(classes, list) and one.architecture in classes:
                part = f"; its architecture, {one.architecture}, is that of model_type={one.kind!r}"
        expected = f"expected one of {', '.join(known)}, or none"
        raise ValueError(f"{path}: model_type={shown(kind)}: {expected}{part}")
    return known[kind]


def pretrained_folder(name: str | Path, *, download: bool = False) -> Path:
    """Return the folder of a checkpoint.

    Args:
        name: A folder, a GGUF file, or the name of a model that was fetched before.
        download: Whether to fetch the model if it is missing.

    Raises:
        ValueError: If there is no such folder, and downloading the model is not allowed or fails.
    """
    folder = Path(name)
    if os.path.isdir(folder):  # False for a name that is too long to be a path, where Path.is_dir() may raise
        return folder
    if is_gguf(folder):
        return published_folder(folder)
    if isinstance(name, str) and (found := at_hand(name)):
        return found.folder
    if download:
        return get(str(name)).folder
    if hint := how_to_get(str(name)):
        raise ValueError(hint)
    fetched = is_hub_name(str(name)) and folder.suffix != ".gguf"
    raise ValueError(
        f"{name}: expected a folder with config.json and model.safetensors, or a GGUF file, found none"
        + (f"; `companion get {name}` fetches a model of this name from the Hugging Face hub" if fetched else "")
    )
