"""Phi-3 and Phi-4 as published (Abdin et al. 2024; Microsoft 2025), relatives of LLaMA (lesson 13).

The matrices of queries, keys and values are fused, and so are those of gate and up. Phi-4-mini rotates only a part of
each head, and divides each rotary frequency by a different number (LongRoPE).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from companion.config.model import ModelConfig, RotaryScaling, WindowConfig
from companion.families import glm, llama
from companion.families.llama import changed, configuration, decoder, layers_of
from companion.files.published.config_fields import rows
from companion.files.published.family import Family, Preset
from companion.files.published.rope import GLOBAL, LOCAL

if TYPE_CHECKING:
    from torch import Tensor

    from companion.files.published.checkpoint_folder import Fields
    from companion.files.published.state_dict import StateDictMapper

FIELDS = llama.FIELDS | rows(
    """
    attention_bias                   must be false
    mlp_bias                         must be false
    lm_head_bias                     must be false
    rms_norm_eps                     used = 1e-05           norm.eps
    original_max_position_embeddings used = 4096            positions.scaling.original, where there is a scaling
    partial_rotary_factor            used = 1.0             positions.partial_rotary_factor
    sliding_window                   used = null            attention.window.width; null: none
    full_attn_mod                    must be 1
    interpolate_factor               must be 1
    """
)


def _phi3(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    kind = GLOBAL if fields.take("sliding_window") is None else LOCAL
    return configuration(fields, [kind] * layers_of(fields))


def _place(mapper: StateDictMapper, config: ModelConfig) -> None:
    sizes = config.sizes
    wide, narrow = sizes.heads * sizes.d_head, sizes.kv_heads * sizes.d_head
    for layer in range(config.layers):
        old = f"model.layers.{layer}.self_attn"
        parts = {f"{old}.{short}_proj.weight": rows for short, rows in (("q", wide), ("k", narrow), ("v", narrow))}
        mapper.split(f"{old}.qkv_proj.weight", parts)
    glm.place(mapper, config)


FAMILIES = (Family("phi3", FIELDS, _phi3, _place, architecture="Phi3ForCausalLM"),)

_LONG = (
    *(1, 1.118320672, 1.250641126, 1.398617824, 1.564103225, 1.74916897, 1.956131817, 2.187582649),
    *(2.446418898, 2.735880826, 3.059592084, 3.421605075, 3.826451687, 4.279200023, 4.785517845, 5.351743533),
    *(5.984965424, 6.693110555, 7.485043894, 8.370679318, 9.36110372, 10.4687158, 11.70738129, 13.09260651),
    *(14.64173252, 16.37415215, 18.31155283, 20.47818807, 22.90118105, 25.61086418, 28.64115884, 32.03),
    *(32.1, 32.13, 32.23, 32.6, 32.61, 32.64, 32.66, 32.7, 32.71, 32.93, 32.97, 33.28, 33.49, 33.5, 44.16, 47.77),
)
PRESETS = {
    "phi-3-mini-4k": Preset(
        2024,
        3_821_079_552,
        changed(
            decoder(3072, 32, 32, 8192, context=4096, eps=1e-5, kv_heads=32, vocab=32064),
            attention={"window": WindowConfig(2047)},
        ),
    ),
    "phi-4": Preset(
        2024,
        14_659_507_200,
        decoder(5120, 40, 40, 17920, context=16384, eps=1e-5, kv_heads=10, base=250000.0, vocab=100352),
    ),
    "phi-4-mini": Preset(
        2025,
        3_836_021_760,
        changed(
            decoder(3072, 32, 24, 8192, context=131072, eps=1e-5, kv_heads=8, vocab=200064, tied=True),
            attention={"window": WindowConfig(262144)},
            positions={
                "partial_rotary_factor": 0.75,
                "scaling": RotaryScaling("longrope", 32.0, 4096, short=(1.0,) * 48, long=_LONG),
            },
        ),
    ),
}
