"""Qwen 2 and 3 as published (Yang et al. 2024 and 2025): LLaMA with biases, QK norms and experts (lesson 13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from companion.config.model import ModelConfig, MoEConfig
from companion.families import llama, mistral
from companion.families.llama import changed, configuration, decoder, layers_of
from companion.files.published.config_fields import alike, rows
from companion.files.published.family import Family, Preset
from companion.files.published.rope import GLOBAL, LOCAL, layer_types, shortest
from companion.ground.fields import require_whole, shown

if TYPE_CHECKING:
    from torch import Tensor

    from companion.files.published.checkpoint_folder import Fields

OF_QWEN2 = llama.FIELDS | rows(
    """
    num_key_value_heads              used = 32              attention.kv_heads
    attention_bias                   must be true
    mlp_bias                         must be false
    use_sliding_window               used = false           attention.window
    sliding_window                   used = 4096            attention.window.width, where there is one
    max_window_layers                used = 28              attention.window.pattern: those from this one on
    layer_types                      used = null            attention.window.pattern; 4.53 on
    use_mrope                        must be false
    """
)

OF_QWEN3 = OF_QWEN2 | rows(
    """
    head_dim                         used = 128             attention.d_head
    attention_bias                   used = false           attention.bias
    """
)

OF_QWEN3_MOE = llama.FIELDS | rows(
    """
    num_key_value_heads              used = 4               attention.kv_heads
    mlp_bias                         must be false
    moe_intermediate_size            used = 768             feed_forward.d_ff, of an expert
    intermediate_size                used = 6144            moe.plain_d_ff, where a layer has no experts
    num_experts                      used = null            moe.experts; null: 128
    num_local_experts                used = null            the same, as 5.0 on writes it
    num_experts_per_tok              used = 8               moe.top_k
    norm_topk_prob                   used = false           moe.gating
    decoder_sparse_step              used = 1               moe.pattern: every n-th layer has experts,
    mlp_only_layers                  used = null            but these
    qkv_bias                         must be null or false
    use_qk_norm                      must be null or true
    shared_expert_intermediate_size  must be null or 0
    use_sliding_window               must be false
    sliding_window                   ignored                 4.51 on; of a window that is not used
    max_window_layers                ignored                 4.51; the same
    router_aux_loss_coef             ignored                 4.51 on; of a loss in training
    output_router_logits             ignored                 4.51 on
    """
)


def _qwen2(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    config = configuration(fields, _qwen_layers(fields))
    return config.with_(attention=replace(config.attention, output_bias=False))


def _qwen3(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    config = configuration(fields, _qwen_layers(fields))
    return config.with_(attention=replace(config.attention, qk_norm="head"))


def _qwen_layers(fields: Fields) -> Sequence[str]:
    used, first = fields.flag("use_sliding_window"), fields.take("max_window_layers")
    if used and (isinstance(first, bool) or not isinstance(first, int)):
        raise fields.refuse("max_window_layers", first, "a whole number")
    windowed = used and fields.take("sliding_window") is not None
    usual = [LOCAL if windowed and layer >= first else GLOBAL for layer in range(layers_of(fields))]
    types = layer_types(fields, usual)
    if LOCAL in types and not used:
        raise fields.refuse("use_sliding_window", used, f"true, because layer_types names {LOCAL}")
    return types


def _qwen3_moe(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    config = configuration(fields)
    said = [name for name in ("num_experts", "num_local_experts") if fields.take(name) is not None]
    experts = fields.take(said[0]) if said else 128
    if len(said) == 2 and not alike(experts, fields.take(said[1])):
        raise fields.refuse(said[1], fields.take(said[1]), f"{shown(experts)}, as {said[0]}")
    config = config.with_(attention=replace(config.attention, qk_norm="head"))
    return with_mixtures(fields, config, experts)


def with_mixtures(fields: Fields, config: ModelConfig, experts: int, **further: Any) -> ModelConfig:
    """Return `config` with `experts` experts in the layers that `decoder_sparse_step` and `mlp_only_layers` select.

    `further` contains more arguments of `MoEConfig`.
    """
    step, plain = fields.take("decoder_sparse_step"), fields.take("mlp_only_layers") or []
    require_whole("decoder_sparse_step", step)
    if not isinstance(plain, list):
        raise fields.refuse("mlp_only_layers", plain, "a list of layer indices")
    pattern = [(layer + 1) % step == 0 and layer not in plain for layer in range(layers_of(fields))]
    if not any(pattern):
        return changed(config, feed_forward={"d_ff": fields.take("intermediate_size")})
    moe = MoEConfig(
        experts,
        fields.take("num_experts_per_tok"),
        "softmax_topk_renormalised" if fields.flag("norm_topk_prob") else "softmax_topk",
        pattern=shortest(pattern),
        plain_d_ff=None if all(pattern) else fields.take("intermediate_size"),
        **further,
    )
    return config.with_(moe=moe)


FAMILIES = (
    Family("qwen2", OF_QWEN2, _qwen2, llama.place, architecture="Qwen2ForCausalLM"),
    Family("qwen3", OF_QWEN3, _qwen3, llama.place, architecture="Qwen3ForCausalLM"),
    Family(
        "qwen3_moe",
        OF_QWEN3_MOE,
        _qwen3_moe,
        mistral.place,
        architecture="Qwen3MoeForCausalLM",
    ),
)


def _third(
    d_model: int, layers: int, heads: int, kv_heads: int, d_ff: int, *, tied: bool, moe: MoEConfig | None = None
) -> ModelConfig:
    """Return a configuration of Qwen 3 (Yang et al. 2025), with a norm over the queries and keys of each head."""
    plain = decoder(
        d_model, layers, heads, d_ff, context=40960, eps=1e-6, kv_heads=kv_heads, base=1e6, moe=moe, vocab=151936,
        tied=tied,
    )  # fmt: skip
    return changed(plain, attention={"d_head": 128, "qk_norm": "head"})


PRESETS = {
    "qwen2.5-0.5b": Preset(
        2024,
        494_032_768,
        changed(
            decoder(896, 24, 14, 4864, context=32768, eps=1e-6, kv_heads=2, base=1e6, vocab=151936, tied=True),
            attention={"bias": True, "output_bias": False},
        ),
    ),
    "qwen3-0.6b": Preset(2025, 596_049_920, _third(1024, 28, 16, 8, 3072, tied=True)),
    "qwen3-30b-a3b": Preset(
        2025,
        30_532_122_624,
        _third(
            2048, 48, 32, 4, 768, tied=False, moe=MoEConfig(experts=128, top_k=8, gating="softmax_topk_renormalised")
        ),
    ),
}
