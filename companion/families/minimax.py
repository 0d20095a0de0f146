"""MiniMax-M2 as published (MiniMax 2025), a relative of LLaMA (lesson 16).

Queries and keys are normalized over all heads together, half of each head is rotated, and the experts are balanced by a
bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from companion.config.model import ModelConfig, MoEConfig
from companion.families import llama, mistral
from companion.families.llama import changed, configuration, decoder
from companion.files.published.config_fields import rows
from companion.files.published.family import Family, Preset
from companion.ground.fields import is_number

if TYPE_CHECKING:
    from torch import Tensor

    from companion.files.published.checkpoint_folder import Fields
    from companion.files.published.state_dict import StateDictMapper

FIELDS = llama.FIELDS | rows(
    """
    num_key_value_heads              used = 8               attention.kv_heads
    head_dim                         used = 128             attention.d_head
    attention_bias                   must be false
    mlp_bias                         must be false
    use_qk_norm                      must be true
    qk_norm_type                     must be "per_layer"
    intermediate_size                used = 1536            feed_forward.d_ff, of an expert
    num_local_experts                used = 256             moe.experts
    num_experts                      must match num_local_experts
    num_experts_per_tok              used = 8               moe.top_k
    scoring_func                     must be "sigmoid"
    use_routing_bias                 must be true
    shared_intermediate_size         must be 0               shared experts are not read
    router_jitter_noise              must be 0.0
    rope_theta                       used = 5000000.0       positions.base
    rotary_dim                       used = null            elements of each head that are rotated; null: next row
    partial_rotary_factor            used = 1.0             positions.partial_rotary_factor
    sliding_window                   must be null
    attn_type_list                   used = null            by layer, 1 for attention to all tokens
    router_aux_loss_coef             ignored                 by hand; of a loss in training
    output_router_logits             ignored                 5.0 on
    use_mtp                          ignored                 by hand; layers that predict further tokens are not read
    num_mtp_modules                  ignored                 by hand; the same
    mtp_transformer_layers           ignored                 by hand; the same
    auto_map                         ignored                 by hand; the code that it names computes the same
    quantization_config              must be null            8-bit weights are not supported: use a release in bf16
    """
)


def _config(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    config, width, kinds = configuration(fields), fields.take("rotary_dim"), fields.take("attn_type_list")
    if kinds is not None and kinds != [1] * config.layers:
        raise fields.refuse("attn_type_list", kinds, f"{config.layers} times 1, which is attention to all tokens")
    if width is not None:
        d_head, said = config.sizes.d_head, (fields.given.get("rope_parameters") or {}).get("partial_rotary_factor")
        said = fields.given.get("partial_rotary_factor", said)
        share = width / d_head if is_number(width) else 0.0
        if not 0 < share <= 1 or said not in (None, share):
            expected = f"at most head_dim={d_head}" if said is None else f"{said} times head_dim={d_head}"
            raise fields.refuse("rotary_dim", width, f"an even number, {expected}")
        config = changed(config, positions={"partial_rotary_factor": share})
    experts = fields.take("num_local_experts"), fields.take("num_experts_per_tok")
    moe = MoEConfig(*experts, "sigmoid", balanced=True)
    return changed(config, attention={"qk_norm": "width"}).with_(moe=moe)


def _place(mapper: StateDictMapper, config: ModelConfig) -> None:
    """Map all tensors, but drop the layers for multi-token prediction, which follow the last ordinary layer."""
    mapper.drop(lambda name: name.startswith(("model.mtp", f"model.layers.{config.layers}.")))
    mistral.place(mapper, config, names={"gate": "w1", "inner": "w3", "outer": "w2"})


_PIECES = {".block_sparse_moe.": ".mlp.", ".mlp.e_score_correction_bias": ".mlp.gate.e_score_correction_bias"}
FAMILIES = (Family("minimax_m2", FIELDS, _config, _place, architecture="MiniMaxM2ForCausalLM", pieces=_PIECES),)

PRESETS = {
    "minimax-m2": Preset(
        2025,
        228_689_748_992,
        changed(
            decoder(
                3072, 62, 48, 1536, context=196608, eps=1e-6, kv_heads=8, base=5e6, vocab=200064, d_head=128,
                moe=MoEConfig(256, 8, "sigmoid", balanced=True),
            ),
            attention={"qk_norm": "width"},
            positions={"partial_rotary_factor": 0.5},
        ),
    )
}  # fmt: skip
