"""The dense models of ERNIE 4.5 as published (Baidu 2025): LLaMA with interleaved rotary pairs (lesson 13)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from companion.config.model import ModelConfig
from companion.families import llama
from companion.families.llama import changed, configuration, decoder
from companion.files.published.config_fields import rows
from companion.files.published.family import Family, Preset

if TYPE_CHECKING:
    from torch import Tensor

    from companion.files.published.checkpoint_folder import Fields

FIELDS = llama.FIELDS | rows(
    """
    num_key_value_heads              used = 2               attention.kv_heads
    head_dim                         used = 128             attention.d_head
    use_bias                         used = false           attention.bias, feed_forward.bias
    attention_bias                   must be false
    mlp_bias                         must be false
    rope_theta                       used = 500000.0        positions.base
    rms_norm_eps                     used = 1e-05           norm.eps
    tie_word_embeddings              used = true            embedding.tied
    """
)


def _ernie(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    biased = {"bias": fields.take("use_bias")}
    return changed(configuration(fields), attention=biased, feed_forward=biased, positions={"layout": "interleaved"})


FAMILIES = (Family("ernie4_5", FIELDS, _ernie, llama.place, architecture="Ernie4_5ForCausalLM"),)

PRESETS = {
    "ernie-4.5-0.3b": Preset(
        2025,
        360_748_032,
        changed(
            decoder(1024, 18, 16, 3072, context=131072, eps=1e-5, kv_heads=2, base=5e5, vocab=103424, tied=True),
            attention={"d_head": 128},
            positions={"layout": "interleaved"},
        ),
    ),
}
