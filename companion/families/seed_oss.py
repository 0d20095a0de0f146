"""Seed-OSS as published (ByteDance 2025): LLaMA with wide heads and biases on queries, keys and values (lesson 13)."""

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
    num_key_value_heads              used = 8               attention.kv_heads
    head_dim                         used = 128             attention.d_head
    attention_bias                   used = true            attention.bias
    attention_out_bias               used = false           attention.output_bias
    """
)


def _seed(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    return changed(configuration(fields), attention={"output_bias": fields.take("attention_out_bias")})


FAMILIES = (Family("seed_oss", FIELDS, _seed, llama.place, architecture="SeedOssForCausalLM"),)

PRESETS = {
    "seed-oss-36b": Preset(
        2025,
        36_151_104_512,
        changed(
            decoder(5120, 64, 80, 27648, context=524288, eps=1e-6, kv_heads=8, base=1e7, vocab=155136),
            attention={"d_head": 128, "bias": True, "output_bias": False},
        ),
    ),
}
