"""The dense models of Granite 3 and 4 as published (IBM 2024 and 2025): LLaMA with four multipliers (lesson 13)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from companion.config.model import ModelConfig, PositionConfig
from companion.families import llama
from companion.families.llama import changed, configuration, decoder, layers_of
from companion.files.published.config_fields import rows
from companion.files.published.family import Family, Preset
from companion.ground.fields import is_number

if TYPE_CHECKING:
    from torch import Tensor

    from companion.files.published.checkpoint_folder import Fields
    from companion.files.published.state_dict import StateDictMapper

FIELDS = llama.FIELDS | rows(
    """
    embedding_multiplier             used = 1.0             embedding.multiplier
    attention_multiplier             used = 1.0             attention.score_width: one over its square
    residual_multiplier              used = 1.0             residual
    logits_scaling                   used = 1.0             embedding.logit_divisor
    """
)

OF_HYBRIDS = FIELDS | rows(
    """
    mlp_bias                         must be false
    layer_types                      used = null            refused unless attention is in every layer
    num_local_experts                used = 8               refused unless 0
    shared_intermediate_size         used = 1024            feed_forward.d_ff
    intermediate_size                ignored                 4.51 on; of missing experts
    position_embedding_type          used = null            positions.kind: "rope", or none
    normalization_function           must be "rmsnorm"
    init_method                      ignored                 by hand; of a training
    num_experts_per_tok              ignored                 4.51 on; of missing experts
    router_aux_loss_coef             ignored                 4.51 on; the same
    output_router_logits             ignored                 4.51 on; the same
    mamba_n_heads                    ignored                 4.51 on; of missing layers, as are all that follow
    mamba_n_groups                   ignored                 4.51 on
    mamba_d_state                    ignored                 4.51 on
    mamba_d_head                     ignored                 4.51 on
    mamba_d_conv                     ignored                 4.51 on
    mamba_expand                     ignored                 4.51 on
    mamba_chunk_size                 ignored                 4.51 on
    mamba_conv_bias                  ignored                 4.51 on
    mamba_proj_bias                  ignored                 4.51 on
    time_step_limit                  ignored                 5.0 on
    """
)


def _granite(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    found = {}
    for name in ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"):
        found[name] = fields.take(name)
        if not is_number(found[name]) or not 1e-6 <= found[name] <= 1e6:
            raise fields.refuse(name, found[name], "a number from 1e-6 to 1e6")
    return multiplied(configuration(fields), *found.values())


def multiplied(config: ModelConfig, embedding: float, scores: float, residual: float, logits: float) -> ModelConfig:
    """Return `config` with the four multipliers; `logits` divides rather than multiplies.

    Scores are computed as `scores` times q k, so `score_width` is 1 / scores^2.
    """
    return changed(
        config.with_(residual=residual),
        attention={"score_width": scores**-2},
        embedding={"multiplier": embedding, "logit_divisor": logits},
    )


def _hybrid(fields: Fields, given: Mapping[str, Tensor]) -> ModelConfig:
    types, experts = fields.take("layer_types"), fields.take("num_local_experts")
    if (
        types is None
        or not isinstance(types, list)
        or any(kind not in ("attention", "full_attention") for kind in types)
    ):
        raise fields.refuse("layer_types", types, "attention in every layer: our models have no state-space layers")
    if len(types) != layers_of(fields):
        raise fields.refuse("layer_types", types, f"the types of {layers_of(fields)} layers")
    if experts != 0 or isinstance(experts, bool):
        raise fields.refuse(
            "num_local_experts", experts, "0: experts with an additional dense network are not supported"
        )
    config, order = _granite(fields, given), fields.take("position_embedding_type")
    if order not in ("rope", "nope", None):
        raise fields.refuse("position_embedding_type", order, "'rope', 'nope' or null")
    return config if order == "rope" else config.with_(positions=PositionConfig("none"))


def _place_hybrid(mapper: StateDictMapper, config: ModelConfig) -> None:
    for layer in range(config.layers):
        mlp, d_ff = f"model.layers.{layer}.mlp", config.feed_forward.d_ff
        mapper.split(f"{mlp}.input_linear.weight", {f"{mlp}.gate_proj.weight": d_ff, f"{mlp}.up_proj.weight": d_ff})
    llama.place(mapper, config)


def _hybrid_says(config: ModelConfig) -> Mapping[str, Any]:
    order = "rope" if config.positions.kind == "rotary" else "nope"
    return {
        "layer_types": ["attention"] * config.layers,
        "num_local_experts": 0,
        "position_embedding_type": order,
        **{"mamba_n_heads": 1, "mamba_d_head": 2 * config.d_model, "mamba_expand": 2},  # unused, but they must agree
    }


FAMILIES = (
    Family("granite", FIELDS, _granite, llama.place, architecture="GraniteForCausalLM"),
    Family(
        "granitemoehybrid",
        OF_HYBRIDS,
        _hybrid,
        _place_hybrid,
        architecture="GraniteMoeHybridForCausalLM",
        pieces={".shared_mlp.": ".mlp.", ".mlp.output_linear.": ".mlp.down_proj."},
        says=_hybrid_says,
    ),
)

_LATER: dict[str, Any] = {"context": 131072, "eps": 1e-5, "kv_heads": 8, "base": 1e7, "vocab": 100352, "tied": True}
PRESETS = {
    "granite-3.3-8b": Preset(
        2025,
        8_170_864_640,
        multiplied(decoder(4096, 40, 32, 12800, **(_LATER | {"vocab": 49159})), 12.0, 0.0078125, 0.22, 16.0),
    ),
    "granite-4.0-micro": Preset(
        2025, 3_402_836_480, multiplied(decoder(2560, 40, 40, 8192, **_LATER), 12.0, 0.015625, 0.22, 10.0)
    ),
    "granite-4.1-8b": Preset(
        2026, 8_380_551_168, multiplied(decoder(4096, 40, 32, 12800, **_LATER), 12.0, 0.0078125, 0.22, 16.0)
    ),
}
