"""Export one of our models as a GGUF file, for llama.cpp, Ollama and LM Studio.

`companion.families.export` first reads the metadata back from an `Unwritten` file. Therefore, if the architecture
cannot represent a part of the model, an error names this part before anything is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from companion.config.model import ModelConfig
from companion.files.gguf.architectures import BY_KIND, Architecture, shared_keys, tensors_of
from companion.files.gguf.container import GGUFFile, library
from companion.files.gguf.tokenizers import tokenizer_metadata
from companion.ground.atomic import replacing, writing
from companion.ground.waiting import counted

GGUFType = Literal["F32", "F16", "BF16", "Q8_0"]
"""The types in which matrices are written. Vectors are written in F32, as llama.cpp does."""
BLOCK = 32
"""Elements in a block of Q8_0. A matrix whose row length is not a multiple of this is written in F16."""


def metadata_of(config: ModelConfig, architecture: Architecture) -> dict[str, Any]:
    """Return a model's metadata, with keys that do not begin with the architecture's name."""
    return shared_keys(config) | architecture.writes(config)


class Unwritten(GGUFFile):
    """A GGUF file that has not been written yet, with the metadata and the shapes that it will contain.

    Args:
        path: The path that error messages name.
        architecture: The architecture of llama.cpp to export as.
        config: The model's configuration.
        published: The shapes of the model's tensors, keyed by their published names.
    """

    def __init__(
        self,
        path: str | Path,
        architecture: Architecture,
        config: ModelConfig,
        published: Mapping[str, tuple[int, ...]],
    ) -> None:
        self.path, self._vectors = Path(path), tensors_of(config, architecture)
        self.metadata = {f"{architecture.name}.{key}": one for key, one in metadata_of(config, architecture).items()}
        shapes = {architecture.stored(name): shape for name, shape in published.items() if ".experts." not in name}
        self.shapes = shapes | {name: tuple(one.shape) for name, one in self._vectors.items()}

    def vector(self, name: str) -> list[float]:
        return self._vectors[name].tolist()


def write_gguf(
    path: str | Path,
    config: ModelConfig,
    kind: str,
    fields: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    type: GGUFType = "F16",
    tokenizer: Mapping[str, Any] | None = None,
    template: str | None = None,
    name: str = "",
) -> None:
    """Write a model to a GGUF file, completely or not at all.

    Args:
        path: Path of the file.
        config: The model's configuration.
        kind: The `model_type` of the model when it is published.
        fields: The fields of the model's config.json.
        tensors: The model's tensors, keyed by their published names.
        type: The GGUF type of the model's matrices in the file.
        tokenizer: The keys of `tokenizer.ggml`, as `tokenizer_keys` returns them.
        template: The chat template.
        name: The model's name.
    """
    gguf = library()
    architecture = BY_KIND[kind]
    stored = architecture.write_layout(tensors, fields) | tensors_of(config, architecture)
    size = sum(tensor.numel() for tensor in stored.values()) * {"F32": 4, "Q8_0": 2}.get(type, 2)
    with writing(path, size), replacing(Path(path)) as [draft]:
        writer = gguf.GGUFWriter(draft, architecture.name)
        writer.add_type("model")
        if name:
            writer.add_name(name)
        writer.add_file_type(int(gguf.LlamaFileType[f"MOSTLY_{type}" if type != "F32" else "ALL_F32"]))
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        for key, value in metadata_of(config, architecture).items():
            _add(writer, f"{architecture.name}.{key}", value)
        for key, value in (tokenizer or {}).items():
            _add(writer, f"tokenizer.ggml.{key}", value)
        if template is not None:
            writer.add_chat_template(template)
        for one, tensor in counted(stored.items(), unit="tensor", total=len(stored), what="converting"):
            data, raw = converted(tensor, type, always_plain="ffn_gate_inp" in one)
            writer.add_tensor(one, data, raw_dtype=raw)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def converted(tensor: Tensor, type: GGUFType, *, always_plain: bool = False) -> tuple[np.ndarray[Any, Any], Any]:
    """Return a tensor's data in the format of a GGUF file, and its GGUF type."""
    gguf = library()
    plain = tensor.detach().to("cpu", torch.float32).contiguous().numpy()
    if plain.ndim < 2 or always_plain:
        type = "F32"
    elif type == "Q8_0" and plain.shape[-1] % BLOCK:
        type = "F16"
    raw = gguf.GGMLQuantizationType[type]
    return gguf.quantize(plain, raw), raw


def _add(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    else:
        kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        kinds[type(value)](key, value)


def tokenizer_keys(text: str, vocab: int, special: Mapping[str, int | None]) -> dict[str, Any]:
    """Return the keys of `tokenizer.ggml` for the text of a tokenizer.json, with the ids of special tokens."""
    found = tokenizer_metadata(text, vocab)
    names = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"}
    return found | {names[key]: value for key, value in special.items() if value is not None}
