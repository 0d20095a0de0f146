"""GLM-4 (GLM Team 2024 and 2025), as published: LLaMA that turns half of each head, in interleaved pairs, and in its
second form has norms on both sides (lesson 13)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from companion.config.model import ModelConfig
from companion.families import llama
from companion.families.llama import changed, configuration, decoder
from companion.files.published.family import Family, Preset
from companion.files.published.policy import rows

if TYPE_CHECKING:
    from torch import Tensor

    from companion.files.published.folder import Fields
    from companion.files.published.places import Places

FIELDS = llama.FIELDS | rows(
    """
    num_key_value_heads              taken = 2               attention.kv_heads
    head_dim                         taken = 128             attention.d_head
    attention_bias                   taken = true            attention.bias, of queries, keys and values
    mlp_bias                         must be false
    partial_rotary_factor            taken = 0.5             positions.share
    rms_norm_eps                     taken = 1.5625e-07      norm.eps
    """
)


def _glm(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    return changed(
        configuration(fields), attention={"output_bias": False}, positions={"layout": "interleaved"}
    )  # fmt: skip


def _glm4(fields: Fields, given: Mapping[str, Tensor]) -> ModelConfig:
    return changed(_glm(fields, given), norm={"placement": "both"})


def _as_gemma(name: str) -> str:
    """The names that Gemma has for the norms on both sides."""
    name = name.replace(".post_attention_layernorm.", ".pre_feedforward_layernorm.")
    name = name.replace(".post_self_attn_layernorm.", ".post_attention_layernorm.")
    return name.replace(".post_mlp_layernorm.", ".post_feedforward_layernorm.")


def place(places: Places, config: ModelConfig) -> None:
    """Gate and hidden matrix of a network lie in one tensor."""
    d_ff = config.feed_forward.d_ff
    for layer in range(config.layers):
        mlp = f"model.layers.{layer}.mlp"
        places.split(f"{mlp}.gate_up_proj.weight", {f"{mlp}.gate_proj.weight": d_ff, f"{mlp}.up_proj.weight": d_ff})
    llama.place(places, config)


FAMILIES = (
    Family("glm", FIELDS, _glm, place),
    Family("glm4", FIELDS, _glm4, place, _as_gemma),
)


def _of_nine_billion(placement: str, *, context: int, eps: float) -> ModelConfig:
    own: dict[str, Any] = {"bias": True, "output_bias": False, "d_head": 128}
    return changed(
        decoder(4096, 40, 32, 13696, context=context, eps=eps, kv_heads=2, vocab=151552),
        attention=own,
        positions={"share": 0.5, "layout": "interleaved"},
        norm={"placement": placement},
    )


PRESETS = {
    "glm-4-9b-chat": Preset(2024, 9_399_951_360, _of_nine_billion("pre", context=131072, eps=1.5625e-07)),
    "glm-4-9b-0414": Preset(2025, 9_400_279_040, _of_nine_billion("both", context=32768, eps=1e-5)),
}
