"""The text model of Llama 4 as published (Meta 2025): LLaMA in which some layers have no positional encoding and the
router scales the inputs of the experts (lesson 16).

Local layers see only a chunk of the text, and layers without positional encoding sharpen their scores after a certain
number of tokens. Neither feature is implemented here. But neither has an effect within the first chunk, so a
configuration is accepted if its context ends there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from companion.config.model import ModelConfig, MoEConfig, RotaryScaling
from companion.families import llama
from companion.families.llama import (
    changed,
    configuration,
    decoder,
    layers_of,
    place_all_but_networks,
    place_network,
)
from companion.families.smollm import turning_layers
from companion.files.published.config_fields import rows
from companion.files.published.family import Family, Preset
from companion.files.published.rope import shortest
from companion.ground.fields import shown

if TYPE_CHECKING:
    from torch import Tensor

    from companion.files.published.checkpoint_folder import Fields
    from companion.files.published.state_dict import StateDictMapper

FIELDS = llama.FIELDS | rows(
    """
    num_key_value_heads              used = 8               attention.kv_heads
    head_dim                         used = 128             attention.d_head
    mlp_bias                         must be false
    rope_theta                       used = 500000.0        positions.base
    rms_norm_eps                     used = 1e-05           norm.eps
    intermediate_size                used = 8192            feed_forward.d_ff, of an expert
    intermediate_size_mlp            used = 16384           moe.plain_d_ff
    num_local_experts                used = 16              moe.experts
    num_experts_per_tok              used = 1               moe.top_k
    interleave_moe_layer_step        used = 1               moe.pattern: every n-th layer has experts
    moe_layers                       used = null            moe.pattern: the layers that have some
    no_rope_layers                   used = null            positions.pattern: 1 rotates, 0 does not
    no_rope_layer_interval           used = 4               positions.pattern: every n-th does not
    use_qk_norm                      used = true            attention.qk_norm
    attention_chunk_size             used = 8192            must not be shorter than max_position_embeddings
    layer_types                      ignored                 4.54 on; which layers see chunks
    attn_temperature_tuning          used = true            must not begin within max_position_embeddings
    floor_scale                      used = 8192            the tokens after which it begins
    attn_scale                       ignored                 4.51 on; of scores that are sharpened
    router_jitter_noise              must be 0.0
    router_aux_loss_coef             ignored                 4.51 on; of a loss in training
    output_router_logits             ignored                 4.51 on
    for_llm_compressor               ignored                 4.51 to 4.57
    """
)


def _llama4(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    turning, normed = turning_layers(fields, []), fields.flag("use_qk_norm")
    if not any(turning):
        raise fields.refuse("no_rope_layers", fields.take("no_rope_layers"), "at least one layer that rotates")
    _check_one_chunk(fields, turning)
    config = configuration(fields, turning=turning)
    config = changed(config, attention={"qk_norm": "unit" if normed else None}, positions={"layout": "interleaved"})
    mixed, plain = _mixed(fields), fields.take("intermediate_size_mlp")
    if not any(mixed):
        return changed(config, feed_forward={"d_ff": plain})
    return config.with_(
        moe=MoEConfig(
            fields.take("num_local_experts"),
            fields.take("num_experts_per_tok"),
            "sigmoid_topk",
            shared=1,
            weighted="input",
            pattern=shortest(mixed),
            plain_d_ff=None if all(mixed) else plain,
        )
    )


def _check_one_chunk(fields: Fields, turning: list[bool]) -> None:
    """Raise `ValueError` if the context is so long that layers would see only a chunk of it or sharpen their scores."""
    context, chunk, tuned = (
        fields.take(name) for name in ("max_position_embeddings", "attention_chunk_size", "attn_temperature_tuning")
    )
    for name, value in (("max_position_embeddings", context), ("floor_scale", fields.take("floor_scale"))):
        if type(value) is not int or value < 1:
            raise fields.refuse(name, value, "a whole number >= 1")
    if chunk is not None and (type(chunk) is not int or chunk < context):
        expected = f"at least max_position_embeddings={shown(context)}: chunks are not supported; give the latter a"
        raise fields.refuse("attention_chunk_size", chunk, f"{expected} smaller value to read shorter texts")
    if tuned and not all(turning) and fields.take("floor_scale") <= context:
        expected = f"false, or floor_scale above max_position_embeddings={shown(context)}: scores that are scaled in"
        raise fields.refuse("attn_temperature_tuning", tuned, f"{expected} long texts are not supported")


def _mixed(fields: Fields) -> list[bool]:
    """Return, for each layer, whether it has experts."""
    layers, named, every = layers_of(fields), fields.take("moe_layers"), fields.take("interleave_moe_layer_step")
    if named is None:
        if type(every) is not int or every < 1:
            raise fields.refuse("interleave_moe_layer_step", every, "a whole number >= 1")
        return [(layer + 1) % every == 0 for layer in range(layers)]
    if not isinstance(named, list) or any(type(layer) is not int or not 0 <= layer < layers for layer in named):
        raise fields.refuse("moe_layers", named, f"layer indices from 0 to {layers - 1}")
    return [layer in named for layer in range(layers)]


def _says(config: ModelConfig) -> Mapping[str, Any]:
    return {"attention_chunk_size": config.context, "attn_temperature_tuning": False}


def place(mapper: StateDictMapper, config: ModelConfig) -> None:
    """Map all tensors.

    The experts of a layer are stored as one tensor, (expert, in, out), with the gate and up matrices side by side.
    """
    place_all_but_networks(mapper, config)
    for layer in range(config.layers):
        old, new = f"model.layers.{layer}.mlp", f"decoder.blocks.{layer}.feed_forward"
        if config.network(layer)[1] is None:
            place_network(mapper, config, old, new)
            continue
        mapper.move(f"{old}.router.weight", f"{new}.router.weight")
        mapper.columns(f"{old}.experts.gate_up_proj", f"{new}.gate", f"{new}.inner")
        mapper.move(f"{old}.experts.down_proj", f"{new}.outer")
        place_network(mapper, config, f"{old}.shared_expert", f"{new}.shared")


FAMILIES = (
    Family(
        "llama4_text",
        FIELDS,
        _llama4,
        place,
        architecture="Llama4ForCausalLM",
        says=_says,
        pieces={".feed_forward.": ".mlp."},
    ),
)


def _scout() -> ModelConfig:
    """Return the text model of Llama 4 Scout (Meta 2025), with a context that ends within the first chunk."""
    moe = MoEConfig(16, 1, "sigmoid_topk", shared=1, weighted="input")
    plain = decoder(
        5120, 48, 40, 8192, context=8191, eps=1e-5, kv_heads=8, base=5e5, moe=moe, vocab=202048, d_head=128
    )  # fmt: skip
    scaling = RotaryScaling("llama3", 16.0, 8192, slow=1.0, fast=1.0)
    positions = {"layout": "interleaved", "scaling": scaling, "pattern": (True, True, True, False)}
    return changed(plain, attention={"qk_norm": "unit"}, positions=positions)


PRESETS = {"llama-4-scout": Preset(2025, 107_769_861_120, _scout())}
