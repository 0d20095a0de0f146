"""Mistral and Mixtral as published (Jiang et al. 2023 and 2024): LLaMA with a window or with experts (lesson 13)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from companion.config.model import ModelConfig, MoEConfig, WindowConfig
from companion.families import llama
from companion.families.llama import changed, configuration, decoder, layers_of, place_all_but_networks, place_network
from companion.files.published.config_fields import rows
from companion.files.published.family import Family, Preset
from companion.files.published.rope import GLOBAL, LOCAL, layer_types

if TYPE_CHECKING:
    from torch import Tensor

    from companion.files.published.checkpoint_folder import Fields
    from companion.files.published.state_dict import StateDictMapper

FIELDS = llama.FIELDS | rows(
    """
    num_key_value_heads              used = 8               attention.kv_heads
    sliding_window                   used = 4096            attention.window.width; null: none
    layer_types                      used = null            attention.window.pattern
    attention_bias                   must be false
    mlp_bias                         must be false
    """
)

OF_MIXTRAL = FIELDS | rows(
    """
    rope_theta                       used = 1000000.0       positions.base
    rms_norm_eps                     used = 1e-05           norm.eps
    sliding_window                   used = null            attention.window.width; null: none
    num_local_experts                used = 8               moe.experts
    num_experts_per_tok              used = 2               moe.top_k
    router_jitter_noise              must be 0.0
    router_aux_loss_coef             ignored                 4.36 on; of a loss in training
    output_router_logits             ignored                 4.36 on
    """
)


def _mistral(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    width, layers = fields.take("sliding_window"), layers_of(fields)
    types = [GLOBAL if width is None else LOCAL] * layers
    if layer_types(fields, types) != types:
        raise fields.refuse("layer_types", fields.take("layer_types"), f"{layers} times {types[0]} (sliding_window)")
    return configuration(fields, types)


def _mixtral(fields: Fields, given: Mapping[str, Tensor]) -> ModelConfig:
    experts = MoEConfig(fields.take("num_local_experts"), fields.take("num_experts_per_tok"))
    return _mistral(fields, given).with_(moe=experts)


NAMES = {"gate": "gate_proj", "inner": "up_proj", "outer": "down_proj"}
"""Our names for the three matrices of an expert, and the usual published ones."""


def place(
    mapper: StateDictMapper,
    config: ModelConfig,
    names: Mapping[str, str] = NAMES,
    *,
    shared: str = "shared_experts",
    linear: Callable[[StateDictMapper, ModelConfig, int], None] | None = None,
) -> None:
    """Map all tensors of a model that is published under LLaMA's names, with experts in some or all of its layers.

    A tensor that is missing is not reported here, but by `mapper.finish`.

    Args:
        mapper: The published tensors, to be mapped to ours, or a `StateDictExporter` for the opposite direction.
        config: The configuration of the model.
        names: The published names of the three matrices of an expert, keyed by ours.
        shared: Published name of the shared expert, if there is one.
        linear: Function that maps a linear-attention layer except for its norms; it gets the mapper, the configuration
            and the index of the layer. Without this function, every layer is mapped as attention.

    Raises:
        ValueError: If there are more experts than tensors, or a tensor's shape does not fit.
    """
    if config.moe is not None and not any(".experts.gate_up_proj" in name for name in mapper.given):
        mapper.must_be_more_than("experts", config.moe.experts)  # check this before a list of that many names is built
    place_all_but_networks(mapper, config, linear)
    for layer in range(config.layers):
        old, new = f"model.layers.{layer}.mlp", f"decoder.blocks.{layer}.feed_forward"
        moe = config.network(layer)[1]
        if moe is None:
            place_network(mapper, config, old, new)
            continue
        mapper.move(f"{old}.gate.weight", f"{new}.router.weight")
        if moe.balanced:
            mapper.move(f"{old}.gate.e_score_correction_bias", f"{new}.bias")
        place_experts(mapper, moe.experts, names, f"{old}.experts", new)
        if moe.shared:
            place_network(mapper, config, f"{old}.{shared}", f"{new}.shared")
        if moe.shared_gate:
            mapper.move(f"{old}.{shared}_gate.weight", f"{new}.shared_gate.weight")


def place_experts(mapper: StateDictMapper, count: int, names: Mapping[str, str], old: str, new: str) -> None:
    """Map the experts of a layer, which are stored either in a single tensor or in one tensor per expert.

    Args:
        mapper: The published tensors, to be mapped to ours.
        count: The number of experts.
        names: Our names for the three matrices of an expert, and the published ones.
        old: Published name of the experts.
        new: Our name for the layer's feed-forward network.
    """
    if f"{old}.gate_up_proj" in mapper.given:
        mapper.experts(f"{old}.gate_up_proj", f"{new}.gate", f"{new}.inner")
        mapper.experts(f"{old}.down_proj", f"{new}.outer")
        return
    for ours, theirs in names.items():
        mapper.stack([f"{old}.{expert}.{theirs}.weight" for expert in range(count)], f"{new}.{ours}")


FAMILIES = (
    Family("mistral", FIELDS, _mistral, llama.place, architecture="MistralForCausalLM"),
    Family(
        "mixtral",
        OF_MIXTRAL,
        _mixtral,
        partial(place, names={"gate": "w1", "inner": "w3", "outer": "w2"}),
        architecture="MixtralForCausalLM",
        pieces={".block_sparse_moe.": ".mlp."},
    ),
)

PRESETS = {
    "mistral-7b-v0.1": Preset(
        2023,
        7_241_732_096,
        changed(
            decoder(4096, 32, 32, 14336, context=32768, eps=1e-5, kv_heads=8), attention={"window": WindowConfig(4096)}
        ),
    ),
    "mistral-7b-v0.3": Preset(
        2024, 7_248_023_552, decoder(4096, 32, 32, 14336, context=32768, eps=1e-5, kv_heads=8, base=1e6, vocab=32768)
    ),
    "mixtral-8x7b": Preset(
        2024,
        46_702_792_704,
        decoder(4096, 32, 32, 14336, context=32768, eps=1e-5, kv_heads=8, base=1e6, moe=MoEConfig(experts=8, top_k=2)),
        taught=True,
    ),
}
