"""SmolLM2 and SmolLM3 as published (lesson 13).

SmolLM2 is LLaMA. SmolLM3 has rotary positions in three of every four layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from companion.config.model import ModelConfig, PositionConfig
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
    num_key_value_heads              used = 4               attention.kv_heads
    rope_theta                       used = 2000000.0       positions.base
    no_rope_layers                   used = null            positions.pattern: 1 rotates, 0 does not
    no_rope_layer_interval           used = 4               positions.pattern: every n-th does not
    use_sliding_window               used = false           attention.window
    sliding_window                   used = null            attention.window.width
    layer_types                      used = null            attention.window.pattern
    tie_word_embeddings              used = true            embedding.tied
    pretraining_tp                   ignored                 by hand
    max_window_layers                ignored                 by hand
    """
)


def _smollm3(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    used = fields.flag("use_sliding_window")
    turning = turning_layers(fields)
    windowed = used and fields.take("sliding_window") is not None
    types = layer_types(fields, [LOCAL if windowed and not one else GLOBAL for one in turning])
    if LOCAL in types and not used:
        raise fields.refuse("use_sliding_window", used, f"true, because layer_types names {LOCAL}")
    if not any(turning):  # only the causal mask conveys order in such a model
        return configuration(fields, types).with_(positions=PositionConfig("none"))
    return configuration(fields, types, turning)


def turning_layers(fields: Fields, *nothing: Any) -> list[bool]:
    """Return, for each layer, whether it rotates queries and keys.

    Args:
        fields: The fields of config.json.
        nothing: Values of `no_rope_layers` that mean the same as leaving the field out.

    Raises:
        ValueError: If a field does not describe a pattern of layers.
    """
    layers, turning, every = layers_of(fields), fields.take("no_rope_layers"), fields.take("no_rope_layer_interval")
    if turning is None or turning in nothing:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise fields.refuse("no_rope_layer_interval", every, "a whole number >= 1")
        return [(layer + 1) % every != 0 for layer in range(layers)]
    known = isinstance(turning, list) and all(type(one) is int and one in (0, 1) for one in turning)
    if not known or len(turning) != layers:
        raise fields.refuse("no_rope_layers", turning, f"{layers} times 1 or 0")
    return [one == 1 for one in turning]


FAMILIES = (Family("smollm3", FIELDS, _smollm3, llama.place, architecture="SmolLM3ForCausalLM"),)

PRESETS = {
    "smollm2-135m": Preset(
        2025,
        134_515_008,
        decoder(576, 30, 9, 1536, context=8192, eps=1e-5, kv_heads=3, base=1e5, vocab=49152, tied=True),
    ),
    "smollm3-3b": Preset(
        2025,
        3_075_098_624,
        changed(
            decoder(2048, 36, 16, 11008, context=65536, eps=1e-6, kv_heads=4, base=5e6, vocab=128256, tied=True),
            positions={"pattern": (True, True, True, False)},
        ),
    ),
}
