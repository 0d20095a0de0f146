"""The text models of Qwen3.5 as published (Qwen Team 2026; lesson 17).

These models have the layers of Qwen3-Next, with a dense feed-forward network or with experts. In a linear layer, the
gate, strength and decay matrices are separate tensors; those of queries, keys and values share one tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from companion.config.model import LinearConfig, ModelConfig, MoEConfig
from companion.families import llama, mistral, qwen3_next
from companion.families.llama import changed, configuration, decoder
from companion.files.published.config_fields import rows
from companion.files.published.family import Family, Preset

if TYPE_CHECKING:
    from torch import Tensor

    from companion.files.published.checkpoint_folder import Fields
    from companion.files.published.state_dict import StateDictMapper

FIELDS = llama.FIELDS | rows(
    """
    num_key_value_heads              used = 4               attention.kv_heads
    head_dim                         used = 256             attention.d_head
    mlp_bias                         must be false
    partial_rotary_factor            used = 0.25            positions.partial_rotary_factor
    linear_num_value_heads           used = 32              attention.linear.heads
    linear_num_key_heads             used = 16              attention.linear.key_heads
    linear_key_head_dim              used = 128             attention.linear.d_head
    linear_value_head_dim            used = 128             attention.linear.d_v
    linear_conv_kernel_dim           used = 4               attention.linear.convolution
    full_attention_interval          used = 4               attention.linear.pattern: every n-th has attention
    layer_types                      used = null            attention.linear.pattern; 5.0 on
    attn_output_gate                 must be true
    mlp_only_layers                  must be [] or null
    mamba_ssm_dtype                  ignored                 by hand; states are in fp32 at least
    mtp_num_hidden_layers            ignored                 by hand; layers that predict further tokens are not read
    mtp_use_dedicated_embeddings     ignored                 by hand; the same
    """
)

OF_MOE = FIELDS | rows(
    """
    num_key_value_heads              used = 2               attention.kv_heads
    moe_intermediate_size            used = 512             feed_forward.d_ff, of an expert
    shared_expert_intermediate_size  used = 512             moe.shared_d_ff
    intermediate_size                ignored                 by hand; all layers have experts
    num_experts                      used = 256             moe.experts
    num_experts_per_tok              used = 8               moe.top_k
    router_aux_loss_coef             ignored                 5.2 on; of a loss in training
    output_router_logits             ignored                 5.2 on
    """
)


def _dense(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    return qwen3_next.with_linear_layers(fields, configuration(fields))


def _moe(fields: Fields, given: Mapping[str, Tensor]) -> ModelConfig:
    config, shared = _dense(fields, given), fields.take("shared_expert_intermediate_size")
    moe = MoEConfig(
        fields.take("num_experts"),
        fields.take("num_experts_per_tok"),
        "softmax_topk_renormalised",
        shared=1,
        shared_d_ff=None if shared == config.feed_forward.d_ff else shared,
        shared_gate=True,
    )
    return config.with_(moe=moe)


def _place_linear(mapper: StateDictMapper, config: ModelConfig, layer: int) -> None:
    """Map a linear layer, whose query, key and value matrices are stacked by rows."""
    sizes = config.linear_config
    assert sizes is not None and sizes.heads and sizes.key_heads and sizes.d_head and sizes.d_v
    old, new = f"model.layers.{layer}.linear_attn", f"decoder.blocks.{layer}.attention"
    keys = sizes.key_heads * sizes.d_head
    widths = {"query": keys, "key": keys, "value": sizes.heads * sizes.d_v}
    mapper.split(f"{old}.in_proj_qkv.weight", {f"{old}.{part}.weight": width for part, width in widths.items()})
    for part in widths:
        mapper.move(f"{old}.{part}.weight", f"{new}.{part}.weight")
    for short, part in (("z", "gate"), ("b", "strength"), ("a", "decay")):
        mapper.move(f"{old}.in_proj_{short}.weight", f"{new}.{part}.weight")
    qwen3_next.place_rest(mapper, config, old, new)


def _place(mapper: StateDictMapper, config: ModelConfig) -> None:
    qwen3_next.split_gates(mapper, config)
    mistral.place(mapper, config, shared="shared_expert", linear=_place_linear)


_PIECES = {"model.language_model.": "model."}
"""In the folder of a vision-language model, the tensors of the text model have an additional prefix."""
FAMILIES = (
    Family("qwen3_5_text", FIELDS, _dense, _place, architecture="Qwen3_5ForCausalLM", pieces=_PIECES),
    Family("qwen3_5_moe_text", OF_MOE, _moe, _place, architecture="Qwen3_5MoeForCausalLM", pieces=_PIECES),
)


def _preset(d_model: int, layers: int, kv_heads: int, d_ff: int, moe: MoEConfig | None = None) -> ModelConfig:
    plain = decoder(
        d_model, layers, 16, d_ff, context=32768, eps=1e-6, kv_heads=kv_heads, vocab=248320, d_head=256, moe=moe
    )
    linear = LinearConfig((True, True, True, False), heads=32, key_heads=16, d_head=128, d_v=128)
    own = {"qk_norm": "head", "gate": "width", "linear": linear}
    return changed(plain, attention=own, positions={"partial_rotary_factor": 0.25}, norm={"unit_offset": True})


PRESETS = {
    "qwen3.5-9b": Preset(2026, 8_953_803_264, _preset(4096, 32, 4, 12288)),
    "qwen3.5-35b-a3b": Preset(
        2026,
        34_660_610_688,
        _preset(2048, 40, 2, 512, MoEConfig(256, 8, "softmax_topk_renormalised", shared=1, shared_gate=True)),
    ),
}
"""These are the text models with the defaults of the released code. The parameter counts leave out the layer for
multi-token prediction."""
