"""Command R and Command R7B as published (Cohere 2024 and 2025), relatives of LLaMA (lesson 13).

Attention and the feed-forward network run in parallel, after a shared layer norm that has no bias. In R7B, every three
local layers with rotary positions are followed by a global layer without positional encoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from companion.config.model import ModelConfig, WindowConfig
from companion.families import llama
from companion.families.llama import changed, configuration, decoder, layers_of
from companion.files.published.config_fields import rows
from companion.files.published.family import Family, Preset
from companion.files.published.rope import GLOBAL, LOCAL, layer_types
from companion.ground.fields import is_number, require_whole

if TYPE_CHECKING:
    from torch import Tensor

    from companion.files.published.checkpoint_folder import Fields

FIELDS = {name: row for name, row in llama.FIELDS.items() if name != "rms_norm_eps"} | rows(
    """
    mlp_bias                         must be false
    layer_norm_eps                   used = 1e-05           norm.eps
    logit_scale                      used = 0.0625          embedding.logit_divisor, one divided by it
    tie_word_embeddings              used = true            embedding.tied
    rope_theta                       used = 500000.0        positions.base
    use_qk_norm                      must be false or null   norms with a gain for each head are not supported
    model_max_length                 ignored                 by hand; of the tokenizer
    """
)

OF_COHERE2 = FIELDS | rows(
    """
    rope_theta                       used = 10000.0         positions.base
    sliding_window                   used = 4096            attention.window.width
    layer_types                      used = null            attention.window.pattern; 4.53 on
    sliding_window_pattern           used = 4               attention.window.pattern: every n-th is global; 4.51
    layer_switch                     must match sliding_window_pattern
    _sliding_window_pattern          must match sliding_window_pattern
    order_of_interleaved_layers      must be "local_attn_first"
    position_embedding_type          must be "rope_gptj"
    rotary_pct                       must be 1.0
    use_gated_activation             must be true
    use_parallel_block               must be true
    use_parallel_embedding           ignored                 by hand; of the code it was trained with
    use_embedding_sharing            ignored                 by hand; tie_word_embeddings says it
    cache_implementation             ignored                 4.48 to 4.51
    """
)
_OWN: dict[str, Any] = {
    "norm": {"kind": "layer", "placement": "parallel_shared", "bias": False},
    "positions": {"layout": "interleaved"},
}


def _cohere(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    return _with_its_own(fields, configuration(fields))


def _cohere2(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    every = fields.take("sliding_window_pattern")
    require_whole("sliding_window_pattern", every)
    usual = [LOCAL if (layer + 1) % every else GLOBAL for layer in range(layers_of(fields))]
    types = layer_types(fields, usual)
    return _with_its_own(fields, configuration(fields, types, [kind == LOCAL for kind in types]))


def _with_its_own(fields: Fields, config: ModelConfig) -> ModelConfig:
    scale = fields.take("logit_scale")
    if not is_number(scale) or not 1e-6 <= scale <= 1e6:
        raise fields.refuse("logit_scale", scale, "a number from 1e-6 to 1e6")
    return changed(config, **_OWN, embedding={"logit_divisor": 1 / scale})


FAMILIES = (
    Family("cohere", FIELDS, _cohere, llama.place, architecture="CohereForCausalLM"),
    Family("cohere2", OF_COHERE2, _cohere2, llama.place, architecture="Cohere2ForCausalLM"),
)

PRESETS = {
    "command-r": Preset(
        2024,
        34_980_831_232,
        changed(
            decoder(8192, 40, 64, 22528, context=131072, eps=1e-5, kv_heads=64, base=8e6, vocab=256000, tied=True),
            **_OWN,
            embedding={"logit_divisor": 16.0},
        ),
    ),
    "command-r7b": Preset(
        2024,
        8_028_033_024,
        changed(
            changed(
                decoder(4096, 32, 32, 14336, context=8192, eps=1e-5, kv_heads=8, base=5e4, vocab=256000, tied=True),
                **_OWN,
                embedding={"logit_divisor": 4.0},
                attention={"d_head": 128, "window": WindowConfig(4096, (True, True, True, False))},
            ),
            positions={"pattern": (True, True, True, False)},
        ),
    ),
}
