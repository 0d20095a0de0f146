"""EXAONE 4 as published (LG AI Research 2025), a relative of LLaMA (lesson 13).

Norms come after each sub-layer, and each head's queries and keys are normalized. In a model with local layers, the
global layers have no positional encoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from companion.config.model import ModelConfig, PositionConfig, RotaryScaling, WindowConfig
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
    num_key_value_heads              used = 32              attention.kv_heads
    attention_bias                   must be false
    mlp_bias                         must be false
    rms_norm_eps                     used = 1e-05           norm.eps
    sliding_window                   used = 4096            attention.window.width; null: none
    sliding_window_pattern           used = 4               attention.window.pattern: every n-th is global
    layer_types                      used = null            attention.window.pattern
    """
)
_OWN = {"attention": {"qk_norm": "head"}, "norm": {"placement": "after"}}


def _exaone4(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    layers, windowed = layers_of(fields), fields.take("sliding_window") is not None
    usual = [GLOBAL] * layers
    if fields.take("layer_types") is None:
        every = fields.take("sliding_window_pattern")
        if not windowed:  # the released code divides by zero here
            raise fields.refuse("sliding_window", None, "a number of tokens, unless layer_types is given")
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise fields.refuse("sliding_window_pattern", every, "a whole number >= 1, unless layer_types is given")
        usual = [LOCAL if (layer + 1) % every else GLOBAL for layer in range(layers)]
    types = layer_types(fields, usual)
    turning = [not windowed or kind == LOCAL for kind in types]
    if any(turning):
        return changed(configuration(fields, types, turning), **_OWN)
    return changed(configuration(fields, types), **_OWN).with_(positions=PositionConfig("none"))


FAMILIES = (Family("exaone4", FIELDS, _exaone4, llama.place, architecture="Exaone4ForCausalLM"),)

_EXTENDED = RotaryScaling("llama3", 16.0, 8192, slow=1.0, fast=4.0)
_LOCAL = (True, True, True, False)
PRESETS = {
    "exaone-4.0-1.2b": Preset(
        2025,
        1_279_391_488,
        changed(
            decoder(2048, 30, 32, 4096, context=65536, eps=1e-5, kv_heads=8, base=1e6, vocab=102400, tied=True),
            attention={"qk_norm": "head", "d_head": 64},
            norm={"placement": "after"},
            positions={"scaling": _EXTENDED},
        ),
    ),
    "exaone-4.0-32b": Preset(
        2025,
        32_003_216_384,
        changed(
            decoder(5120, 64, 40, 27392, context=131072, eps=1e-5, kv_heads=8, base=1e6, vocab=102400),
            attention={"qk_norm": "head", "d_head": 128, "window": WindowConfig(4096, _LOCAL)},
            norm={"placement": "after"},
            positions={"scaling": _EXTENDED, "pattern": _LOCAL},
        ),
    ),
}
