"""DeepSeek-V2 and V3 as published (DeepSeek-AI 2024): LLaMA with latent attention and group-limited routing
(lesson 15)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from companion.config.model import (
    AttentionConfig,
    LatentConfig,
    ModelConfig,
    MoEConfig,
    PositionConfig,
    RotaryScaling,
)
from companion.families import llama, mistral
from companion.families.llama import (
    changed,
    configuration,
    decoder,
    layers_of,
)
from companion.files.published.config_fields import rows
from companion.files.published.family import Family, Preset
from companion.files.published.rope import sharpened, shortest
from companion.ground.fields import require_whole

if TYPE_CHECKING:
    from torch import Tensor

    from companion.files.published.checkpoint_folder import Fields
    from companion.files.published.state_dict import StateDictMapper

OF_V2 = llama.FIELDS | rows(
    """
    num_key_value_heads              must match num_attention_heads
    head_dim                         ignored                 5.0 on; the rotated width, repeated
    qk_head_dim                      ignored                 5.0 on; the sum of the next two
    qk_nope_head_dim                 used = 128             attention.d_head
    qk_rope_head_dim                 used = 64              attention.latent.d_rope
    v_head_dim                       used = 128             attention.d_v
    kv_lora_rank                     used = 512             attention.latent.kv_lora_rank
    q_lora_rank                      used = 1536            attention.latent.q_lora_rank; null: none
    attention_bias                   must be false
    mlp_bias                         must be false
    rms_norm_eps                     used = 1e-06           norm.eps; that of latents is 1e-06
    moe_intermediate_size            used = 1407            feed_forward.d_ff, of an expert
    intermediate_size                used = 11008           moe.plain_d_ff
    first_k_dense_replace            used = 0               moe.pattern: as many layers without experts come first
    moe_layer_freq                   must be 1
    n_routed_experts                 used = 64              moe.experts
    num_experts_per_tok              used                    moe.top_k
    n_shared_experts                 used = 2               moe.shared
    n_group                          used = null            moe.groups, where topk_method asks for them
    topk_group                       used = null            moe.top_groups
    topk_method                      used = "greedy"        moe.groups; greedy: 1
    routed_scaling_factor            used = 1.0             moe.scale
    scoring_func                     must be "softmax"
    norm_topk_prob                   must be false
    ep_size                          ignored                 by hand; of one way to spread experts
    aux_loss_alpha                   ignored                 by hand; of a loss in training
    seq_aux                          ignored                 by hand; the same
    output_router_logits             ignored                 5.0 on
    """
)

OF_V3 = OF_V2 | rows(
    """
    moe_intermediate_size            used = 2048            feed_forward.d_ff, of an expert
    intermediate_size                used = 18432           moe.plain_d_ff
    first_k_dense_replace            used = 3               moe.pattern: as many layers without experts come first
    n_routed_experts                 used = 256             moe.experts
    num_experts_per_tok              used = 8               moe.top_k
    n_shared_experts                 used = 1               moe.shared
    n_group                          used = 8               moe.groups
    topk_group                       used = 4               moe.top_groups
    topk_method                      must be "noaux_tc"
    routed_scaling_factor            used = 2.5             moe.scale
    scoring_func                     must be "sigmoid"
    norm_topk_prob                   used = true            moe.gating
    rope_interleave                  used = true            positions.layout
    num_nextn_predict_layers         ignored                 by hand; layers that predict further tokens are not read
    num_mtp_layers                   ignored                 5.0 on; the same
    """
)

EPS = 1e-6
"""Epsilon of the norms of latents, which is independent of the other norms' epsilon."""


def latent_attention(fields: Fields, **further: Any) -> AttentionConfig:
    """Return the latent attention that the fields describe; `further` contains more arguments of `AttentionConfig`."""
    return AttentionConfig(
        fields.take("num_attention_heads"),
        d_head=fields.take("qk_nope_head_dim"),
        d_v=fields.take("v_head_dim"),
        latent=LatentConfig(
            fields.take("kv_lora_rank"),
            fields.take("qk_rope_head_dim"),
            fields.take("q_lora_rank"),
            eps=None if fields.small("rms_norm_eps") == EPS else EPS,
        ),
        **further,
    )


def with_latents(fields: Fields) -> ModelConfig:
    """Return the configuration of the model without its experts."""
    attention = latent_attention(fields)
    config = configuration(fields, attention=attention)
    return changed(
        config,
        attention={"score_width": _score_width(attention, sharpened(fields))},
        positions={"layout": "interleaved"},
    )


def _score_width(attention: AttentionConfig, sharper: float) -> float | None:
    """Return a width such that dividing scores by its square root makes them larger by the factor `sharper`.

    `None` means the default, d_head + d_rope.
    """
    assert attention.latent is not None and attention.d_head is not None
    return None if sharper == 1 else (attention.d_head + attention.latent.d_rope) / sharper**2


def with_experts(fields: Fields, config: ModelConfig, **chosen: Any) -> ModelConfig:
    """Return `config` with experts in every layer after the first `first_k_dense_replace`.

    `chosen` contains more arguments of `MoEConfig`.
    """
    plain, layers = fields.take("first_k_dense_replace"), layers_of(fields)
    if isinstance(plain, bool) or not isinstance(plain, int) or plain < 0:
        raise fields.refuse("first_k_dense_replace", plain, "a whole number >= 0")
    if plain >= layers:
        return changed(config, feed_forward={"d_ff": fields.take("intermediate_size")})
    return config.with_(
        moe=MoEConfig(
            fields.take("n_routed_experts"),
            fields.take("num_experts_per_tok"),
            shared=fields.take("n_shared_experts"),
            scale=fields.take("routed_scaling_factor"),
            pattern=shortest([False] * plain + [True] * (layers - plain)),
            plain_d_ff=fields.take("intermediate_size") if plain else None,
            **chosen,
        )
    )


def mixed_layers(fields: Fields, layers: int) -> list[bool]:
    """Return, for each layer, whether it has experts.

    The layers with experts are those that `mlp_layer_types` calls sparse or, without that field, all layers after the
    first `first_k_dense_replace`.
    """
    plain, kinds = fields.take("first_k_dense_replace"), fields.take("mlp_layer_types")
    require_whole("first_k_dense_replace", plain, 0)
    if kinds is None:
        return [layer >= plain for layer in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or set(kinds) - {"dense", "sparse"}:
        raise fields.refuse("mlp_layer_types", kinds, f"{layers} kinds of networks, each dense or sparse")
    return [kind == "sparse" for kind in kinds]


def with_balanced_experts(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Return `config` with the experts of DeepSeek-V3, scored by sigmoids, chosen within groups and balanced by a bias.
    Raises `ValueError` if a field is missing or invalid."""
    return with_experts(
        fields,
        config,
        gating="sigmoid" if fields.flag("norm_topk_prob") else "sigmoid_topk",
        balanced=True,
        groups=fields.take("n_group"),
        top_groups=fields.take("topk_group"),
    )


def _v2(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    method = fields.take("topk_method")
    if method not in ("greedy", "group_limited_greedy"):
        raise fields.refuse("topk_method", method, "'greedy' or 'group_limited_greedy'")
    groups = {"groups": fields.take("n_group"), "top_groups": fields.take("topk_group"), "group_best": 1}
    chosen = groups if method == "group_limited_greedy" else {}
    return with_experts(fields, with_latents(fields), gating="softmax_topk", **chosen)


def _v3(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    interleaved, config = fields.flag("rope_interleave"), with_latents(fields)
    return with_balanced_experts(fields, config if interleaved else changed(config, positions={"layout": "half"}))


FURTHER = 4
"""Maximum number of layers for multi-token prediction (MTP) that a file may have after the last ordinary layer. V3 has
one."""


def place(mapper: StateDictMapper, config: ModelConfig, **named: Any) -> None:
    """Map all tensors, but drop the layers for multi-token prediction.

    The shared experts of a layer are stored as one network. `named` contains more arguments of `mistral.place`.
    """
    further = tuple(f"model.layers.{config.layers + more}." for more in range(FURTHER))
    mapper.drop(lambda name: name.startswith(further))
    mistral.place(mapper, config, **named)


FAMILIES = (
    Family("deepseek_v2", OF_V2, _v2, place, architecture="DeepseekV2ForCausalLM"),
    Family("deepseek_v3", OF_V3, _v3, place, architecture="DeepseekV3ForCausalLM"),
)


def _preset(
    d_model: int,
    layers: int,
    heads: int,
    widths: tuple[int, int],
    moe: MoEConfig,
    *,
    plain: int = 1,
    q_lora_rank: int | None = 1536,
    mscale: float = 0.707,
    vocab: int = 102400,
) -> ModelConfig:
    """Return a configuration of DeepSeek (DeepSeek-AI 2024). `widths`: d_ff of the first `plain` layers and of an
    expert."""
    attention = AttentionConfig(heads, d_head=128, d_v=128, latent=LatentConfig(512, 64, q_lora_rank))
    sharper = (0.1 * mscale * math.log(40) + 1) ** 2
    moe = replace(moe, pattern=(False,) * plain + (True,) * (layers - plain), plain_d_ff=widths[0])
    config = decoder(d_model, layers, heads, widths[1], context=163840, eps=1e-6, moe=moe, vocab=vocab)
    return config.with_(
        attention=replace(attention, score_width=_score_width(attention, sharper)),
        positions=PositionConfig(
            layout="interleaved", scaling=RotaryScaling("yarn", 40, 4096, slow=1, fast=32, magnitude=1.0)
        ),
    )


_GROUPS = MoEConfig(160, 6, "softmax_topk", shared=2, groups=8, top_groups=3, group_best=1, scale=16.0)
_BALANCED = MoEConfig(256, 8, "sigmoid", shared=1, balanced=True, groups=8, top_groups=4, scale=2.5)
PRESETS = {
    "deepseek-v2-lite": Preset(
        2024,
        15_706_484_224,
        _preset(2048, 27, 16, (10944, 1408), MoEConfig(64, 6, "softmax_topk", shared=2), q_lora_rank=None),
    ),
    "deepseek-v2": Preset(2024, 235_741_434_880, _preset(5120, 60, 128, (12288, 1536), _GROUPS)),
    "deepseek-v3": Preset(
        2024,
        671_026_404_352,
        _preset(7168, 61, 128, (18432, 2048), _BALANCED, plain=3, mscale=1.0, vocab=129280),
    ),
}
"""The parameter counts leave out the layers for multi-token prediction. With them, V3 has 685 billion parameters."""
