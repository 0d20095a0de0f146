"""gpt-oss as published (OpenAI 2025): LLaMA with attention sinks and with local attention in every second layer.

The experts have biases and a clamped gate (lesson 16).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from companion.config.model import ModelConfig, MoEConfig, RotaryScaling, WindowConfig
from companion.families import llama
from companion.families.llama import changed, configuration, decoder, layers_of, place_all_but_networks
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
    head_dim                         used = 64              attention.d_head
    attention_bias                   used = true            attention.bias
    mlp_bias                         must be true
    hidden_act                       used = "silu"          feed_forward.activation, of the clamped gate
    swiglu_alpha                     must be 1.702
    swiglu_limit                     must be 7.0
    num_local_experts                used = 128             moe.experts
    num_experts_per_tok              used = 4               moe.top_k
    experts_per_token                must match num_experts_per_tok
    rope_theta                       used = 150000.0        positions.base
    initial_context_length           ignored                 by hand; the scaling says it
    rms_norm_eps                     used = 1e-05           norm.eps
    sliding_window                   used = 128             attention.window.width
    layer_types                      used = null            attention.window.pattern; null: every second
    router_aux_loss_coef             ignored                 4.55 on; of a loss in training
    output_router_logits             ignored                 4.55 on
    quantization_config              used = null            MXFP4, which is dequantized
    """
)
_OWN: dict[str, Any] = {
    "attention": {"sinks": True},
    "feed_forward": {"activation": "swiglu_clamped", "bias": True},
}


def _gpt_oss(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    if fields.given.get("rope_scaling") is None and fields.given.get("rope_parameters") is None:
        raise fields.refuse("rope_scaling", None, "a yarn scaling, which released code uses by default")
    packed = fields.take("quantization_config")
    if packed is not None and (not isinstance(packed, Mapping) or packed.get("quant_method") != "mxfp4"):
        expected = "null, or MXFP4 (quant_method 'mxfp4'); use a release in one of these formats"
        raise fields.refuse("quantization_config", packed, expected)
    if fields.take("hidden_act") != "silu":
        raise fields.refuse("hidden_act", fields.take("hidden_act"), "'silu', which the clamped gate uses")
    types = layer_types(fields, [GLOBAL if layer % 2 else LOCAL for layer in range(layers_of(fields))])
    experts = MoEConfig(fields.take("num_local_experts"), fields.take("num_experts_per_tok"), router_bias=True)
    return changed(configuration(fields, types), **_OWN).with_(moe=experts)


def place(mapper: StateDictMapper, config: ModelConfig) -> None:
    """Map all tensors.

    The experts of a layer are stored as one tensor, (expert, in, out), where the columns of the gate and up matrices
    alternate. OpenAI's releases store this tensor in MXFP4.
    """
    place_all_but_networks(mapper, config)
    for layer in range(config.layers):
        old, new = f"model.layers.{layer}.mlp", f"decoder.blocks.{layer}.feed_forward"
        for name in ("gate_up_proj", "down_proj"):
            mapper.unpack(f"{old}.experts.{name}")
        mapper.pairs(f"{old}.router", f"{new}.router")
        for part in ("", "_bias"):
            names = f"{new}.gate{part}", f"{new}.inner{part}"
            mapper.columns(f"{old}.experts.gate_up_proj{part}", *names, in_turn=True)
            mapper.move(f"{old}.experts.down_proj{part}", f"{new}.outer{part}")


FAMILIES = (Family("gpt_oss", FIELDS, _gpt_oss, place, architecture="GptOssForCausalLM"),)


def _preset(layers: int, experts: int) -> ModelConfig:
    """Return a configuration of gpt-oss (OpenAI 2025, model card)."""
    moe = MoEConfig(experts, 4, router_bias=True)
    plain = decoder(
        2880, layers, 64, 2880, context=131072, eps=1e-5, kv_heads=8, base=150000.0, moe=moe, vocab=201088, d_head=64
    )  # fmt: skip
    heads = {"bias": True, "window": WindowConfig(128, (True, False))}
    scaling = RotaryScaling("yarn", 32.0, 4096, slow=1.0, fast=32.0, whole=False)
    return changed(changed(plain, **_OWN), attention=heads, positions={"scaling": scaling})


PRESETS = {
    "gpt-oss-20b": Preset(2025, 20_914_757_184, _preset(24, 32)),
    "gpt-oss-120b": Preset(2025, 116_829_156_672, _preset(36, 128)),
}
