"""OLMo 2 and 3 as published (OLMo Team 2024 and 2025), relatives of LLaMA (lesson 13).

Norms come after each sub-layer, and queries and keys are normalized. OLMo 3 also has local layers, whose rotary
frequencies are not scaled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from companion.config.model import ModelConfig, RotaryScaling, WindowConfig
from companion.families import llama
from companion.families.llama import changed, configuration, decoder, layers_of
from companion.files.published.config_fields import rows
from companion.files.published.family import Family, Preset
from companion.files.published.rope import GLOBAL, LOCAL, layer_types

if TYPE_CHECKING:
    from torch import Tensor

    from companion.files.published.checkpoint_folder import Fields

FIELDS = llama.FIELDS | rows(
    """
    rms_norm_eps                     used = 1e-05           norm.eps
    mlp_bias                         must be false
    """
)

OF_OLMO3 = FIELDS | rows(
    """
    rope_theta                       used = 500000.0        positions.base, attention.window.base
    sliding_window                   used = 4096            attention.window.width
    layer_types                      used = null            attention.window.pattern; null: every fourth is global
    """
)
_OWN = {"attention": {"qk_norm": "width"}, "norm": {"placement": "after"}}


def _olmo2(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    return changed(configuration(fields), **_OWN)


def _olmo3(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    base = fields.given.get("rope_theta", 500000.0)
    if base != 500000.0 and fields.given.get("rope_parameters") is None:
        raise fields.refuse("rope_theta", base, "500000.0: versions of the released code treat others differently")
    usual = [LOCAL if (layer + 1) % 4 else GLOBAL for layer in range(layers_of(fields))]
    return changed(configuration(fields, layer_types(fields, usual), local_base="rope_theta"), **_OWN)


FAMILIES = (
    Family("olmo2", FIELDS, _olmo2, llama.place, architecture="Olmo2ForCausalLM"),
    Family("olmo3", OF_OLMO3, _olmo3, llama.place, architecture="Olmo3ForCausalLM"),
)

PRESETS = {
    "olmo-2-1b": Preset(
        2025,
        1_484_916_736,
        changed(decoder(2048, 16, 16, 8192, context=4096, eps=1e-6, kv_heads=16, base=5e5, vocab=100352), **_OWN),
    ),
    "olmo-3-7b": Preset(
        2025,
        7_298_011_136,
        changed(
            decoder(4096, 32, 32, 11008, context=65536, eps=1e-6, kv_heads=32, base=5e5, vocab=100278),
            attention={"qk_norm": "width", "window": WindowConfig(4096, (True, True, True, False), base=5e5)},
            norm={"placement": "after"},
            positions={"scaling": RotaryScaling("yarn", 8.0, 8192, slow=1.0, fast=32.0, magnitude=1.2079441541679836)},
        ),
    ),
}
