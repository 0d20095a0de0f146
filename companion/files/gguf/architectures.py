"""Map the architectures of GGUF files to our published families.

The mapping covers metadata keys and the corresponding config.json fields, names of tensors, and tensors that llama.cpp
stores in a different layout. The mapping works in both directions. An unknown key of an architecture is rejected with
an error that names it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import pi
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from companion.ground.fields import shown

if TYPE_CHECKING:
    from companion.config.model import ModelConfig
    from companion.files.gguf.container import GGUFFile

ROPE_FREQS, ROPE_LONG, ROPE_SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
"""Tensors that hold the divisors of rotary frequencies, which belong to the configuration."""
_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Published names of tensors, keyed by their names in GGUF files. Names of a layer's tensors are given without the
prefixes `model.layers.0.` and `blk.0.`."""
_QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_AROUND = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_NEUTRAL = {"vocab_size", "rope.scaling.finetuned", "expert_group_count", "expert_group_used_count"}
"""Keys that do not affect the logits, or that only repeat the shapes of tensors."""


class Said:
    """The metadata that describes the architecture of a file's model.

    `take` returns the value of a key, and `finish` raises `ValueError` for a key that was never taken.
    """

    def __init__(self, file: GGUFFile, name: str) -> None:
        self.file, self.name = file, name
        self._taken: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return f"{self.name}.{key}" in self.file.metadata

    def take(self, key: str, kind: type | tuple[type, ...] = int, *default: Any) -> Any:
        self._taken.add(key)
        return self.file.take(f"{self.name}.{key}", kind, *default)

    def refuse(self, key: str, value: Any, expected: str) -> ValueError:
        return ValueError(f"{self.file.path}: {self.name}.{key}={shown(value)}: expected {expected}")

    def only(self, key: str, *values: Any) -> None:
        """Raise `ValueError` if the key exists but its value is not one of these."""
        self._taken.add(key)
        value = self.file.metadata.get(f"{self.name}.{key}", values[0])
        if value not in values:
            raise self.refuse(key, value, f"{' or '.join(map(shown, values))}, the only supported value")

    def finish(self) -> None:
        for key, value in self.file.metadata.items():
            short = key.removeprefix(f"{self.name}.")
            if short != key and short not in self._taken and short not in _NEUTRAL:
                raise ValueError(f"{self.file.path}: {key}={shown(value)}: this key is not supported")


@dataclass(frozen=True)
class Architecture:
    """An architecture of llama.cpp.

    Attributes:
        name: The value of `general.architecture`.
        kind: The `model_type` of the same models in published folders.
        published_class: The class in `transformers` that reads those folders.
        reads: Function that takes the metadata and the common fields of config.json and returns the other fields.
        writes: Function that takes a configuration and returns the metadata keys that are not common to all
            architectures.
        own: Names of tensors that differ from LLaMA's. An empty name removes one of LLaMA's tensors.
        permuted: Whether the rows of queries and keys are permuted for interleaved rotary pairs, as in LLaMA.
        raised: Whether the weights of norms are stored with 1 added, as in Gemma.
        packed: Whether the gate and up matrices of the experts, stored separately in the file, are published as one
            matrix with interleaved columns.
    """

    name: str
    kind: str
    published_class: str
    reads: Callable[[Said, dict[str, Any]], dict[str, Any]]
    writes: Callable[[ModelConfig], dict[str, Any]]
    own: Mapping[str, str] = field(default_factory=dict)
    permuted: bool = False
    raised: bool = False
    packed: bool = False

    def fields(self, file: GGUFFile) -> dict[str, Any]:
        """Return the fields of config.json. Raises `ValueError` for a key that is missing, invalid or unknown."""
        said = Said(file, self.name)
        shared = _shared(said)
        fields = {"model_type": self.kind, **shared, **self.reads(said, shared)}
        said.finish()
        return fields

    def published(self, name: str) -> str:
        """Return the published name of a tensor. An unknown tensor keeps its name, and is rejected as unexpected
        later."""
        found = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
        theirs = None if found is None else self._names.get(found[2])
        if found is None or theirs is None:
            return name
        layer = "" if found[1] is None else f"model.layers.{found[1]}."
        if theirs.endswith("sinks"):
            return f"{layer}{theirs}"
        return f"{layer}{theirs}.{found[3]}"

    def stored(self, name: str) -> str:
        """Return the name that a published tensor has in a GGUF file."""
        found = re.fullmatch(r"(?:model\.layers\.(\d+)\.)?([\w.]+?)(?:\.(weight|bias))?", name)
        assert found is not None
        ours = {theirs: one for one, theirs in self._names.items()}[found[2]]
        return f"{'' if found[1] is None else f'blk.{found[1]}.'}{ours}.{found[3] or 'weight'}"

    @property
    def _names(self) -> dict[str, str]:
        names = {**_NAMES, **self.own}
        return {ours: theirs for ours, theirs in names.items() if theirs}

    def read_layout(self, tensors: dict[str, Tensor], fields: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return a file's tensors in their published layouts, keyed by their published names."""
        found = {self.published(name): tensor for name, tensor in tensors.items()}
        for name, tensor in found.items():
            if self.raised and name.endswith("norm.weight"):
                found[name] = tensor - 1
            elif (heads := self._interleaved(name, fields)) and tensor.shape[0] % (2 * heads) == 0:
                found[name] = tensor.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2).contiguous()
        return _packed(found) if self.packed else found

    def write_layout(self, tensors: Mapping[str, Tensor], fields: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return published tensors in the layouts of a GGUF file, keyed by their names in the file."""
        found = _unpacked(tensors) if self.packed else dict(tensors)
        for name, tensor in found.items():
            if self.raised and name.endswith("norm.weight"):
                found[name] = tensor.float() + 1
            elif heads := self._interleaved(name, fields):
                found[name] = tensor.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2).contiguous()
        return {self.stored(name): tensor for name, tensor in found.items()}

    def _interleaved(self, name: str, fields: Mapping[str, Any]) -> int:
        """Return the number of heads of a tensor whose rows are permuted for interleaved pairs, or 0 for others."""
        if not self.permuted or (found := re.search(r"self_attn\.([qk])_proj\.(weight|bias)$", name)) is None:
            return 0
        return fields["num_attention_heads" if found[1] == "q" else "num_key_value_heads"]


def _packed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Convert experts to gpt-oss's layout of (expert, in, out), with the columns of gate and up interleaved."""
    made: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        before, mark, part = name.partition("mlp.experts.")
        if not mark:
            made[name] = tensor
            continue
        which, kind = part.split("_proj.")
        tensor = tensor.transpose(1, 2) if kind == "weight" else tensor
        bias = "" if kind == "weight" else "_bias"
        if which == "down":
            made[f"{before}{mark}down_proj{bias}"] = tensor.contiguous()
        elif which == "gate" and (beside := tensors.get(f"{before}{mark}up_proj.{kind}")) is not None:
            beside = beside.transpose(1, 2) if kind == "weight" else beside
            if beside.shape == tensor.shape:
                made[f"{before}{mark}gate_up_proj{bias}"] = torch.stack([tensor, beside], -1).flatten(-2)
    return made


def _unpacked(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    made: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        before, mark, part = name.partition("mlp.experts.")
        if not mark:
            made[name] = tensor
            continue
        kind = "bias" if part.endswith("_bias") else "weight"
        parts = {"down": tensor}
        if not part.startswith("down"):
            parts = {"gate": tensor[..., 0::2], "up": tensor[..., 1::2]}
        for which, one in parts.items():
            made[f"{before}{mark}{which}_proj.{kind}"] = one.transpose(1, 2).contiguous() if kind == "weight" else one
    return made


# Fields of config.json


def _shared(said: Said) -> dict[str, Any]:
    """Return the config.json fields that all architectures share."""
    heads, width = said.take("attention.head_count"), said.take("embedding_length")
    if heads < 1:
        raise said.refuse("attention.head_count", heads, "a whole number >= 1")
    head = said.take("attention.key_length", int, width // heads)
    said.only("attention.value_length", head)
    shapes = said.file.shapes
    if "token_embd.weight" not in shapes:
        raise ValueError(f"{said.file.path}: the tensor token_embd.weight is missing")
    return {
        "vocab_size": shapes["token_embd.weight"][0],
        "hidden_size": width,
        "num_hidden_layers": said.take("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": said.take("attention.head_count_kv", int, heads),
        "head_dim": head,
        "intermediate_size": said.take("feed_forward_length"),
        "max_position_embeddings": said.take("context_length"),
        "rms_norm_eps": said.take("attention.layer_norm_rms_epsilon", float),
        "rope_theta": said.take("rope.freq_base", float, 10000.0),
        "tie_word_embeddings": "output.weight" not in shapes,
    }


def shared_keys(config: ModelConfig) -> dict[str, Any]:
    """Return, for a configuration, the metadata keys that all architectures share."""
    sizes = config.sizes
    return {
        "context_length": config.context,
        "embedding_length": config.d_model,
        "block_count": config.layers,
        "feed_forward_length": config.feed_forward.d_ff,
        "attention.head_count": sizes.heads,
        "attention.head_count_kv": sizes.kv_heads,
        "attention.key_length": sizes.d_head,
        "attention.value_length": sizes.d_head,
        "attention.layer_norm_rms_epsilon": float(config.norm.eps),
        "rope.freq_base": float(config.positions.base),
        "rope.dimension_count": sizes.d_head,
        "vocab_size": config.vocab,
    }


def _whole_heads(said: Said, shared: dict[str, Any]) -> None:
    """Raise `ValueError` if only a part of each head is rotated."""
    said.only("rope.dimension_count", shared["head_dim"])


def _scaling(said: Said, kinds: tuple[str, ...] = ("none", "linear", "yarn")) -> dict[str, Any] | None:
    """Return the scaling of rotary frequencies as a value for `rope_scaling`, or `None` if there is no scaling."""
    kind = said.take("rope.scaling.type", str, "none")
    if kind not in kinds:
        raise said.refuse("rope.scaling.type", kind, f"one of {', '.join(kinds)}")
    if kind == "none":
        for key in ("rope.scaling.factor", "rope.scale_linear"):
            said.only(key, 1.0, 0.0)
        said.only("rope.scaling.original_context_length", said.take("context_length"))
        return None
    found: dict[str, Any] = {"rope_type": kind, "factor": said.take("rope.scaling.factor", float)}
    if kind == "yarn":
        found["original_max_position_embeddings"] = said.take("rope.scaling.original_context_length")
        said.only("rope.scaling.yarn_ext_factor", 1.0, -1.0)
        said.only("rope.scaling.yarn_attn_factor", 1.0)
        said.only("rope.scaling.attn_factor", 1.0)
        found["beta_fast"] = said.take("rope.scaling.yarn_beta_fast", float, 32.0)
        found["beta_slow"] = said.take("rope.scaling.yarn_beta_slow", float, 1.0)
    return found


def _scaling_keys(config: ModelConfig) -> dict[str, Any]:
    scaling = config.positions.scaling
    if scaling is None or scaling.kind not in ("linear", "yarn"):
        return {}
    found: dict[str, Any] = {"rope.scaling.type": scaling.kind, "rope.scaling.factor": float(scaling.factor)}
    if scaling.kind == "yarn":
        low, high = scaling.ramp
        found |= {"rope.scaling.original_context_length": scaling.original}
        found |= {"rope.scaling.yarn_beta_fast": float(high), "rope.scaling.yarn_beta_slow": float(low)}
    return found


_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""The scaling of all releases of Llama 3.1 to 3.3. A GGUF file has only the divisors that result from it."""


def llama3_factors(base: float, head: int, factor: float, low: float, high: float, original: int) -> Tensor:
    """Return the divisor of each rotary frequency (Grattafiori et al. 2024), which llama.cpp stores as a tensor."""
    lengths = 2 * pi * base ** (torch.arange(0, head, 2, dtype=torch.float64) / head)
    smooth = ((original / lengths - low) / (high - low)).clamp(0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).float()


def _llama(said: Said, shared: dict[str, Any]) -> dict[str, Any]:
    _whole_heads(said, shared)
    said.only("expert_count", 0)
    said.only("expert_used_count", 0)
    scaling = _scaling(said)
    names = said.file.shapes
    if ROPE_FREQS in names:
        scaling = _by_factors(said.file.vector(ROPE_FREQS), shared)
    return {
        "rope_scaling": scaling,
        "attention_bias": "blk.0.attn_q.bias" in names,
        "mlp_bias": "blk.0.ffn_up.bias" in names,
    }


def _by_factors(factors: list[float], shared: dict[str, Any]) -> dict[str, Any]:
    """Return the scaling that divides frequencies by these factors: llama3 if they match it, otherwise longrope."""
    head, most = shared["head_dim"], max(factors)
    if len(factors) == head // 2 and most > 1:
        known = llama3_factors(shared["rope_theta"], head, most, *_LLAMA3.values())  # type: ignore[arg-type]
        if torch.allclose(known, torch.tensor(factors), rtol=1e-4):
            return {"rope_type": "llama3", "factor": round(most, 4), **_LLAMA3}
    longest = {"factor": 1.0, "attention_factor": 1.0, "short_factor": factors, "long_factor": factors}
    return {"rope_type": "longrope", "original_max_position_embeddings": shared["max_position_embeddings"], **longest}


def _qwen2(said: Said, shared: dict[str, Any]) -> dict[str, Any]:
    _whole_heads(said, shared)
    return {"rope_scaling": _scaling(said), "use_sliding_window": False}


def _gemma(said: Said, shared: dict[str, Any]) -> dict[str, Any]:
    _whole_heads(said, shared)
    # As in llama.cpp, queries are scaled by the width of a head, except in the two 27B models.
    large = {"gemma2": 46, "gemma3": 62}[said.name] == shared["num_hidden_layers"]
    width = shared["hidden_size"] // shared["num_attention_heads"] if large else shared["head_dim"]
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": width,
        "sliding_window": said.take("attention.sliding_window"),
    }


def _gemma2(said: Said, shared: dict[str, Any]) -> dict[str, Any]:
    return _gemma(said, shared) | {
        "rope_scaling": _scaling(said),
        "attn_logit_softcapping": said.take("attn_logit_softcapping", float, None),
        "final_logit_softcapping": said.take("final_logit_softcapping", float, None),
        "layer_types": _types(said, shared, 2),
    }


def _gemma3(said: Said, shared: dict[str, Any]) -> dict[str, Any]:
    scaling = _scaling(said, ("none", "linear")) or {"rope_type": "default"}
    return _gemma(said, shared) | {
        "rope_parameters": {
            "full_attention": {**scaling, "rope_theta": shared["rope_theta"]},
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": said.take("rope.freq_base_swa", float, 10000.0),
            },
        },
        "final_logit_softcapping": said.take("final_logit_softcapping", float, None),
        "layer_types": _types(said, shared, 6),
    }


def _types(said: Said, shared: dict[str, Any], every: int) -> list[str]:
    """Return the kind of each layer. Unless the file says otherwise, one layer in `every` is global."""
    layers = shared["num_hidden_layers"]
    pattern = said.take("attention.sliding_window_pattern", (int, list), every)
    if isinstance(pattern, int) and not isinstance(pattern, bool) and pattern > 0:
        pattern = [(layer + 1) % pattern != 0 for layer in range(layers)]
    if not isinstance(pattern, list) or len(pattern) != layers:
        raise said.refuse("attention.sliding_window_pattern", pattern, f"a number, or {layers} times true or false")
    return ["sliding_attention" if one else "full_attention" for one in pattern]


def _phi3(said: Said, shared: dict[str, Any]) -> dict[str, Any]:
    width = said.take("rope.dimension_count", int, shared["head_dim"])
    original = said.take("rope.scaling.original_context_length", int, said.take("context_length"))
    scaling, shapes = None, said.file.shapes
    said.only("rope.scaling.type", "none", "longrope")
    if ROPE_LONG in shapes and ROPE_SHORT in shapes:
        magnitude = said.take("rope.scaling.attn_factor", float, None)
        scaling = {
            "rope_type": "longrope",
            "short_factor": said.file.vector(ROPE_SHORT),
            "long_factor": said.file.vector(ROPE_LONG),
            **({} if magnitude is None else {"attention_factor": magnitude}),
        }
    else:
        said.only("rope.scaling.attn_factor", 1.0)
    return {
        "rope_scaling": scaling,
        "original_max_position_embeddings": original,
        "partial_rotary_factor": width / shared["head_dim"],
        "sliding_window": said.take("attention.sliding_window", int, 0) or None,
    }


def _gpt_oss(said: Said, shared: dict[str, Any]) -> dict[str, Any]:
    _whole_heads(said, shared)
    scaling = _scaling(said, ("none", "yarn"))
    experts = {
        "num_local_experts": said.take("expert_count"),
        "num_experts_per_tok": said.take("expert_used_count"),
        "intermediate_size": said.take("expert_feed_forward_length", int, shared["intermediate_size"]),
    }
    return experts | {
        "rope_scaling": None if scaling is None else scaling | {"truncate": False},
        "sliding_window": said.take("attention.sliding_window"),
        "layer_types": _types(said, shared, 2),
    }


# Keys of the metadata


def _window_keys(config: ModelConfig) -> dict[str, Any]:
    window = config.attention.window
    return {} if window is None else {"attention.sliding_window": window.width}


def _gemma_keys(config: ModelConfig) -> dict[str, Any]:
    window = config.attention.window
    found: dict[str, Any] = _window_keys(config) | _scaling_keys(config)
    if config.attention.softcap is not None:
        found["attn_logit_softcapping"] = float(config.attention.softcap)
    if config.embedding.logit_softcap is not None:
        found["final_logit_softcapping"] = float(config.embedding.logit_softcap)
    if window is not None:
        local = [config.local(layer) for layer in range(config.layers)]
        found["attention.sliding_window_pattern"] = local
        if window.base is not None:
            found["rope.freq_base_swa"] = float(window.base)
    return found


def _phi3_keys(config: ModelConfig) -> dict[str, Any]:
    order, window = config.positions, config.attention.window
    if window is not None and window.width < config.context:
        raise ValueError(f"attention.window.width={window.width}: llama.cpp ignores windows for the phi3 architecture")
    found = _window_keys(config) | {"rope.dimension_count": round(config.sizes.d_head * order.partial_rotary_factor)}
    if order.scaling is not None:
        from companion.layers.positions import magnitude_of

        found |= {"rope.scaling.original_context_length": order.scaling.original}
        found |= {"rope.scaling.attn_factor": float(magnitude_of(order.scaling))}
    return found


def _gpt_oss_keys(config: ModelConfig) -> dict[str, Any]:
    assert config.moe is not None
    experts = {"expert_count": config.moe.experts, "expert_used_count": config.moe.top_k}
    return (
        experts
        | {"expert_feed_forward_length": config.feed_forward.d_ff}
        | _window_keys(config)
        | _scaling_keys(config)
    )


def tensors_of(config: ModelConfig, architecture: Architecture) -> dict[str, Tensor]:
    """Return the tensors that follow from the configuration, namely the divisors of rotary frequencies."""
    scaling, head = config.positions.scaling, config.sizes.d_head
    if scaling is None:
        return {}
    if architecture.name == "llama" and scaling.kind == "llama3":
        low, high = scaling.ramp
        assert scaling.original is not None
        return {ROPE_FREQS: llama3_factors(config.positions.base, head, scaling.factor, low, high, scaling.original)}
    if architecture.name == "llama" and scaling.kind == "longrope" and scaling.short == scaling.long:
        return {ROPE_FREQS: torch.tensor(scaling.long)}
    if architecture.name == "phi3" and scaling.kind == "longrope":
        return {ROPE_LONG: torch.tensor(scaling.long), ROPE_SHORT: torch.tensor(scaling.short)}
    return {}


ARCHITECTURES = (
    Architecture("llama", "llama", "LlamaForCausalLM", _llama, _scaling_keys, permuted=True),
    Architecture("qwen2", "qwen2", "Qwen2ForCausalLM", _qwen2, _scaling_keys),
    Architecture("qwen3", "qwen3", "Qwen3ForCausalLM", _qwen2, _scaling_keys, _QK_NORMS),
    Architecture("gemma2", "gemma2", "Gemma2ForCausalLM", _gemma2, _gemma_keys, _AROUND, raised=True),
    Architecture("gemma3", "gemma3_text", "Gemma3ForCausalLM", _gemma3, _gemma_keys, _AROUND | _QK_NORMS, raised=True),
    Architecture(
        "phi3", "phi3", "Phi3ForCausalLM", _phi3, _phi3_keys,
        {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj", "ffn_gate": ""},
    ),
    Architecture(
        "gpt-oss", "gpt_oss", "GptOssForCausalLM", _gpt_oss, _gpt_oss_keys,
        {
            "ffn_norm": "",
            "post_attention_norm": "post_attention_layernorm",
            "attn_sinks": "self_attn.sinks",
            "ffn_gate_inp": "mlp.router",
            "ffn_gate_exps": "mlp.experts.gate_proj",
            "ffn_up_exps": "mlp.experts.up_proj",
            "ffn_down_exps": "mlp.experts.down_proj",
        },
        packed=True,
    ),
)  # fmt: skip
"""The architectures that are read and written."""
BY_NAME = {one.name: one for one in ARCHITECTURES}
BY_KIND = {one.kind: one for one in ARCHITECTURES}


def architecture_of(file: GGUFFile) -> Architecture:
    """Return the architecture of a file. Raises `ValueError` if the architecture is not supported."""
    name = file.take("general.architecture", str)
    if name not in BY_NAME:
        raise ValueError(f"{file.path}: general.architecture={shown(name)}: expected one of {', '.join(BY_NAME)}")
    return BY_NAME[name]
