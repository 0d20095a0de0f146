"""OLMoE as published (Muennighoff et al. 2024): LLaMA with 64 small experts and QK norms over all heads (lesson 13)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from companion.config.model import ModelConfig, MoEConfig
from companion.families import llama, mistral
from companion.families.llama import changed, configuration, decoder
from companion.files.published.config_fields import rows
from companion.files.published.family import Family, Preset

if TYPE_CHECKING:
    from torch import Tensor

    from companion.files.published.checkpoint_folder import Fields

FIELDS = llama.FIELDS | rows(
    """
    rms_norm_eps                     used = 1e-05           norm.eps
    mlp_bias                         must be false
    num_experts                      used = 64              moe.experts
    num_experts_per_tok              used = 8               moe.top_k
    norm_topk_prob                   used = false           moe.gating
    clip_qkv                         must be null            our queries, keys and values are not clamped
    router_aux_loss_coef             ignored                 4.46 on; of a loss in training
    output_router_logits             ignored                 4.46 on
    """
)


def _olmoe(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    normalised = fields.flag("norm_topk_prob")
    experts = MoEConfig(
        fields.take("num_experts"),
        fields.take("num_experts_per_tok"),
        "softmax_topk_renormalised" if normalised else "softmax_topk",
    )
    return changed(configuration(fields), attention={"qk_norm": "width"}).with_(moe=experts)


FAMILIES = (Family("olmoe", FIELDS, _olmoe, mistral.place, architecture="OlmoeForCausalLM"),)

PRESETS = {
    "olmoe-1b-7b": Preset(
        2024,
        6_919_161_856,
        changed(
            decoder(
                *(2048, 16, 16, 1024),
                context=4096, eps=1e-5, kv_heads=16, vocab=50304, moe=MoEConfig(64, 8, "softmax_topk"),
            ),
            attention={"qk_norm": "width"},
        ),
    ),
}  # fmt: skip
