"""File format of the explorer's models: int8 matrices and all other data that a page needs.

The files are safetensors. A matrix is stored under its name as int8 values from -127 to 127. The scale of each row,
which is its largest absolute value / 127, is stored under the same name with `.scale` appended (Dettmers et al. 2022,
section 2.1). Vectors are stored in float32. The experts' matrices are transposed to (expert, d_ff, d_model) and
(expert, d_model, d_ff), so that each row computes one output. The header contains, as JSON, the `config`, the
tokenizer's data (`pairs` or `names`), and `made_of`, a hash of everything that affected the training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from safetensors import safe_open

from companion.config.model import AttentionConfig, EmbeddingConfig, ModelConfig, MoEConfig, PositionConfig
from companion.data.number_words import BOS, EOS, NumberWords
from companion.data.tokenizer import BytePairTokenizer
from companion.files.models import load_tensors, save_tensors
from companion.ground.fields import shown
from companion.quantization.rounding import in_eight_bits
from companion.transformer import Transformer

LARGEST = 8_000_000
"""Maximum number of weights on a page, which take 32 MB, or a third more in base64."""
NAMES = ("story", "experts", "translator")
"""The models that ship: the story model of lesson 14, its twin with experts, and the translator of number names."""


def not_computed(config: ModelConfig) -> str | None:
    """Return the name of the first part of a configuration that the page's engine does not support, or `None`."""
    norm, ends, attention, moe = config.norm, config.embedding, config.attention, config.moe
    plain_ends = replace(EmbeddingConfig(), scaled=ends.scaled, rounded=ends.rounded)
    plain_heads = AttentionConfig(attention.heads, attention.kv_heads, attention.d_head, attention.d_v, attention.bias)
    plain_moe = moe and MoEConfig(moe.experts, moe.top_k, capacity=moe.capacity, noise=moe.noise)
    computed = {
        "stack": config.stack != "encoder",
        "residual": config.residual == 1,
        "norm": norm.placement == "pre" and not norm.unit_offset and norm.bias and norm.first,
        "positions": replace(config.positions, base=1e4) in (PositionConfig("rotary"), PositionConfig("sinusoidal")),
        "embedding": ends == plain_ends,
        "attention": replace(attention, output_bias=None) == plain_heads and config.sizes.d_v == config.sizes.d_head,
        "activation": config.feed_forward.activation in ("swiglu", "relu"),
        "moe": moe is None or (moe == plain_moe and not config.feed_forward.bias),
        "width": config.d_model % 2 == config.feed_forward.d_ff % 2 == config.sizes.d_head % 2 == 0,
    }
    return next((name for name, right in computed.items() if not right), None)


def save_live(path: Path, model: Transformer, said: Mapping[str, Any], *, rounded: bool = True) -> None:
    """Write a model in the format of this module.

    Args:
        path: The file to write.
        model: The model, whose parameters are converted to float32.
        said: Additional header entries.
        rounded: Whether to store matrices as int8; otherwise everything is stored in float32.

    Raises:
        ValueError: The page's engine does not support the model.
    """
    if (fault := not_computed(model.config)) is not None:
        raise ValueError(f"model: expected a model that the page can run, but this one has a different {fault}")
    tensors = {}
    for name, tensor in model.float().state_dict().items():
        matrix = tensor.mT if tensor.ndim == 3 else tensor
        if tensor.ndim == 1 or not rounded:
            tensors[name] = matrix.contiguous()
        else:
            tensors[name], tensors[f"{name}.scale"] = in_eight_bits(matrix)
    header = {"config": json.loads(model.config.to_json()), **said}
    save_tensors(path, tensors, {name: json.dumps(what, ensure_ascii=False) for name, what in header.items()})


def live_file(name: str) -> Path:
    """Return the path of a model that ships with the package.

    Raises:
        ValueError: The name is not in `NAMES`.
    """
    if name not in NAMES:
        raise ValueError(f"model {shown(name)}: expected one of {', '.join(NAMES)}")
    return Path(str(resources.files("companion_school.records").joinpath("live", f"{name}.safetensors")))


def header(path: Path) -> dict[str, Any]:
    """Read the header of a model file."""
    with safe_open(path, framework="pt") as file:
        return {name: json.loads(text) for name, text in file.metadata().items()}


def load_live(path: Path) -> Transformer:
    """Load a model in float32 with the same weights as on the page."""
    model = Transformer(ModelConfig.from_json(json.dumps(header(path)["config"])))
    kept, tensors = load_tensors(path), {}
    for name, tensor in kept.items():
        if not name.endswith(".scale"):
            scale = kept.get(f"{name}.scale")
            tensors[name] = tensor if scale is None else tensor.float() * scale[..., None]
    model.load_state_dict({name: tensor.mT if tensor.ndim == 3 else tensor for name, tensor in tensors.items()})
    return model.eval()


def pairs_of(tokenizer: BytePairTokenizer) -> dict[str, Any]:
    """Return a tokenizer's data for the page: its vocabulary by id, its merges in order, and the separator."""
    bpe = json.loads(tokenizer.to_json())["model"]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in bpe["merges"]]
    return {"vocab": sorted(bpe["vocab"], key=bpe["vocab"].get), "merges": merges, "separator": tokenizer.separator}


def names_of(words: NumberWords) -> dict[str, Any]:
    """Return a number-name tokenizer's data for the page."""
    return {"vocabulary": list(words.vocabulary), "parts": words.source.parts, "bos": BOS, "eos": EOS}
