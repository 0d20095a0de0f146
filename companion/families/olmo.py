"""OLMo 2 (OLMo Team 2024), as published: LLaMA with its norms behind, and normed queries and keys (lesson 13)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from companion.config.model import ModelConfig
from companion.families import llama
from companion.families.llama import changed, configuration, decoder
from companion.files.published.family import Family, Preset
from companion.files.published.policy import rows

if TYPE_CHECKING:
    from torch import Tensor

    from companion.files.published.folder import Fields

FIELDS = llama.FIELDS | rows(
    """
    rms_norm_eps                     taken = 1e-05           norm.eps
    mlp_bias                         must be false
    """
)
_OWN = {"attention": {"qk_norm": "width"}, "norm": {"placement": "after"}}


def _olmo2(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    return changed(configuration(fields), **_OWN)


FAMILIES = (Family("olmo2", FIELDS, _olmo2, llama.place),)

PRESETS = {
    "olmo-2-1b": Preset(
        2025,
        1_484_916_736,
        changed(decoder(2048, 16, 16, 8192, context=4096, eps=1e-6, kv_heads=16, base=5e5, vocab=100352), **_OWN),
    ),
}
