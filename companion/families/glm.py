"""GLM-4 to GLM-4.7 as published (GLM Team 2024 and 2025), relatives of LLaMA (lessons 13 and 16).

GLM-4 rotates half of each head, in interleaved pairs; from version 0414 on, it also has norms on both sides of each
sub-layer. GLM-4.5 to 4.7 have experts balanced by a bias, and GLM-4.7-Flash has the layers of DeepSeek-V3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from companion.config.model import LatentConfig, ModelConfig, MoEConfig
from companion.families import deepseek, llama
from companion.families.llama import changed, configuration, decoder, layers_of
from companion.files.published.config_fields import rows
from companion.files.published.family import Family, Preset
from companion.files.published.rope import shortest

if TYPE_CHECKING:
    from torch import Tensor

    from companion.files.published.checkpoint_folder import Fields
    from companion.files.published.state_dict import StateDictMapper

FIELDS = llama.FIELDS | rows(
    """
    num_key_value_heads              used = 2               attention.kv_heads
    head_dim                         used = 128             attention.d_head
    attention_bias                   used = true            attention.bias, of queries, keys and values
    mlp_bias                         must be false
    partial_rotary_factor            used = 0.5             positions.partial_rotary_factor
    rms_norm_eps                     used = 1.5625e-07      norm.eps
    """
)

OF_LITE = deepseek.OF_V3 | rows(
    """
    num_key_value_heads              must match num_attention_heads
    q_lora_rank                      used = 768             attention.latent.q_lora_rank; null: none
    qk_nope_head_dim                 used = 192             attention.d_head
    v_head_dim                       used = 256             attention.d_v
    partial_rotary_factor            must be 1.0 or null
    rms_norm_eps                     used = 1e-05           norm.eps; that of latents is 1e-06
    moe_intermediate_size            used = 1536            feed_forward.d_ff, of an expert
    intermediate_size                used = 10240           moe.plain_d_ff
    first_k_dense_replace            used = 1               moe.pattern: as many layers without experts come first
    mlp_layer_types                  used = null            moe.pattern; 5.0 on
    n_routed_experts                 used = 64              moe.experts
    num_local_experts                must match n_routed_experts
    num_experts_per_tok              used = 4               moe.top_k
    n_group                          used = 1               moe.groups
    topk_group                       used = 1               moe.top_groups
    routed_scaling_factor            used = 1.8             moe.scale
    """
)

OF_MOE = llama.FIELDS | rows(
    """
    num_key_value_heads              used = 8               attention.kv_heads
    attention_bias                   used = false           attention.bias, of queries, keys and values
    mlp_bias                         must be false
    use_qk_norm                      used = false           attention.qk_norm
    partial_rotary_factor            used = 0.5             positions.partial_rotary_factor
    rms_norm_eps                     used = 1e-05           norm.eps
    moe_intermediate_size            used = 1408            feed_forward.d_ff, of an expert
    intermediate_size                used = 10944           moe.plain_d_ff
    first_k_dense_replace            used = 1               moe.pattern: as many layers without experts come first
    n_routed_experts                 used = 128             moe.experts
    num_local_experts                must match n_routed_experts
    num_experts_per_tok              used = 8               moe.top_k
    n_shared_experts                 used = 1               moe.shared
    n_group                          used = 1               moe.groups
    topk_group                       used = 1               moe.top_groups
    norm_topk_prob                   used = true            moe.gating
    routed_scaling_factor            used = 1.0             moe.scale
    num_nextn_predict_layers         ignored                 by hand; layers that predict further tokens are not read
    num_mtp_layers                   ignored                 5.24 on; the same
    output_router_logits             ignored                 5.24 on
    """
)


def _glm(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    return changed(
        configuration(fields), attention={"output_bias": False}, positions={"layout": "interleaved"}
    )  # fmt: skip


def _glm4(fields: Fields, given: Mapping[str, Tensor]) -> ModelConfig:
    return changed(_glm(fields, given), norm={"placement": "both"})


def _glm4_lite(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    config, layout = deepseek.with_latents(fields), "interleaved" if fields.flag("rope_interleave") else "half"
    pattern = deepseek.mixed_layers(fields, layers_of(fields))
    config = changed(config, positions={"layout": layout})
    if not any(pattern):
        return changed(config, feed_forward={"d_ff": fields.take("intermediate_size")})
    moe = MoEConfig(
        fields.take("n_routed_experts"),
        fields.take("num_experts_per_tok"),
        "sigmoid" if fields.flag("norm_topk_prob") else "sigmoid_topk",
        shared=fields.take("n_shared_experts"),
        balanced=True,
        groups=fields.take("n_group"),
        top_groups=fields.take("topk_group"),
        scale=fields.take("routed_scaling_factor"),
        pattern=shortest(pattern),
        plain_d_ff=None if all(pattern) else fields.take("intermediate_size"),
    )
    return config.with_(moe=moe)


def _glm4_moe(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    qk_norm = "head" if fields.flag("use_qk_norm") else None
    config = changed(configuration(fields), attention={"output_bias": False, "qk_norm": qk_norm})
    return deepseek.with_balanced_experts(fields, config)


def place(mapper: StateDictMapper, config: ModelConfig) -> None:
    """Map all tensors; the gate and up matrices of a network are stored as one matrix."""
    d_ff = config.feed_forward.d_ff
    for layer in range(config.layers):
        mlp = f"model.layers.{layer}.mlp"
        mapper.split(f"{mlp}.gate_up_proj.weight", {f"{mlp}.gate_proj.weight": d_ff, f"{mlp}.up_proj.weight": d_ff})
    llama.place(mapper, config)


_NORMS = {
    ".post_attention_layernorm.": ".pre_feedforward_layernorm.",
    ".post_self_attn_layernorm.": ".post_attention_layernorm.",
    ".post_mlp_layernorm.": ".post_feedforward_layernorm.",
}
"""GLM's names for norms on both sides of a sub-layer, and Gemma's names for the same norms."""
FAMILIES = (
    Family("glm", FIELDS, _glm, place, architecture="GlmForCausalLM"),
    Family("glm4", FIELDS, _glm4, place, architecture="Glm4ForCausalLM", pieces=_NORMS),
    Family("glm4_moe_lite", OF_LITE, _glm4_lite, deepseek.place, architecture="Glm4MoeLiteForCausalLM"),
    Family("glm4_moe", OF_MOE, _glm4_moe, deepseek.place, architecture="Glm4MoeForCausalLM"),
)


def _of_nine_billion(placement: str, *, context: int, eps: float) -> ModelConfig:
    own: dict[str, Any] = {"bias": True, "output_bias": False, "d_head": 128}
    return changed(
        decoder(4096, 40, 32, 13696, context=context, eps=eps, kv_heads=2, vocab=151552),
        attention=own,
        positions={"partial_rotary_factor": 0.5, "layout": "interleaved"},
        norm={"placement": placement},
    )


def _with_experts(
    d_model: int, layers: int, widths: tuple[int, int], moe: MoEConfig, *, plain: int, normed: bool
) -> ModelConfig:
    """Return a configuration of GLM with experts (GLM Team 2025). `widths`: d_ff of the first `plain` layers and of an
    expert."""
    moe = replace(moe, pattern=(False,) * plain + (True,) * (layers - plain), plain_d_ff=widths[0])
    return changed(
        decoder(
            d_model, layers, 96, widths[1], context=131072, eps=1e-5, kv_heads=8, base=1e6, moe=moe, vocab=151552,
            d_head=128,
        ),
        attention={"bias": True, "output_bias": False, "qk_norm": "head" if normed else None},
        positions={"partial_rotary_factor": 0.5},
    )  # fmt: skip


_BALANCED = MoEConfig(128, 8, "sigmoid", shared=1, balanced=True)
PRESETS = {
    "glm-4-9b-chat": Preset(2024, 9_399_951_360, _of_nine_billion("pre", context=131072, eps=1.5625e-07)),
    "glm-4-9b-0414": Preset(2025, 9_400_279_040, _of_nine_billion("both", context=32768, eps=1e-5)),
    "glm-4.5-air": Preset(
        2025, 106_852_245_504, _with_experts(4096, 46, (10944, 1408), _BALANCED, plain=1, normed=False)
    ),
    "glm-4.5": Preset(
        2025,
        352_797_814_784,
        _with_experts(5120, 92, (12288, 1536), replace(_BALANCED, experts=160, scale=2.5), plain=3, normed=True),
    ),
    "glm-4.7-flash": Preset(
        2026,
        29_943_390_976,
        changed(
            decoder(2048, 47, 20, 1536, context=202752, eps=1e-5, base=1e6, vocab=154880, d_head=192),
            attention={"d_v": 256, "latent": LatentConfig(512, 64, 768, eps=deepseek.EPS)},
            positions={"layout": "interleaved"},
        ).with_(
            moe=MoEConfig(
                64, 4, "sigmoid", shared=1, balanced=True, scale=1.8, pattern=(False,) + (True,) * 46, plain_d_ff=10240
            )
        ),
    ),
}
"""The parameter counts of models with experts leave out the layer for multi-token prediction."""
