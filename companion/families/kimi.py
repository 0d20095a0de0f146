"""Kimi Linear as published (Kimi Team 2025; lesson 17).

Every three delta layers, whose states decay per channel, are followed by one layer of latent attention without
positional encoding. The experts are like those of DeepSeek-V3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from companion.config.model import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LatentConfig,
    LinearConfig,
    ModelConfig,
    MoEConfig,
    NormConfig,
    PositionConfig,
)
from companion.families import deepseek, llama
from companion.families.deepseek import EPS
from companion.families.llama import changed, decoder, layers_of
from companion.files.published.config_fields import rows
from companion.files.published.family import Family, Preset
from companion.files.published.rope import GLOBAL, LINEAR, layer_types, shortest

if TYPE_CHECKING:
    from torch import Tensor

    from companion.files.published.checkpoint_folder import Fields
    from companion.files.published.state_dict import StateDictMapper

FIELDS = llama.FIELDS | rows(
    """
    num_key_value_heads              must match num_attention_heads
    head_dim                         ignored                 of no layer, and not the same in all files
    qk_head_dim                      ignored                 5.20 on; the sum of the next two
    qk_nope_head_dim                 used = 128             attention.d_head
    qk_rope_head_dim                 used = 64              attention.latent.d_rope, which is not rotated
    v_head_dim                       used = 128             attention.d_v
    kv_lora_rank                     used = 512             attention.latent.kv_lora_rank
    q_lora_rank                      used = null            attention.latent.q_lora_rank; null: none
    mla_use_nope                     must be true            by hand
    tie_word_embeddings              must be false           some released code ignores it
    attention_bias                   must be false
    mlp_bias                         must be false
    rms_norm_eps                     used = 1e-05           norm.eps; that of latents is 1e-06
    model_max_length                 used = 1048576         context
    max_position_embeddings          ignored                 5.20 on; the same
    linear_attn_config               used = null            attention.linear: its sizes, and which layers it is
    linear_num_heads                 used = 32              attention.linear.heads; 5.20 on
    linear_head_dim                  used = 128             attention.linear.d_head, d_v and rank; 5.20 on
    linear_conv_kernel_dim           used = 4               attention.linear.convolution; 5.20 on
    layer_types                      used = null            attention.linear.pattern; 5.20 on
    mlp_layer_types                  used = null            moe.pattern; 5.20 on
    moe_intermediate_size            used = 1024            feed_forward.d_ff, of an expert
    intermediate_size                used = 9216            moe.plain_d_ff
    first_k_dense_replace            used = 1               moe.pattern: as many layers without experts come first
    moe_layer_freq                   must be 1
    num_experts                      used = 256             moe.experts
    num_experts_per_token            used = 8               moe.top_k
    num_shared_experts               used = 1               moe.shared
    num_expert_group                 used = 1               moe.groups
    topk_group                       used = 1               moe.top_groups
    use_grouped_topk                 ignored                 by hand; the two fields above say it
    moe_renormalize                  used = true            moe.gating
    moe_router_activation_func       must be "sigmoid"
    routed_scaling_factor            used = 2.446           moe.scale
    num_nextn_predict_layers         ignored                 by hand; layers that predict further tokens are not read
    rope_theta                       ignored                 by hand; no rotary positions
    rope_scaling                     must be null
    rope_parameters                  ignored                 5.0 on; no rotary positions
    output_router_logits             ignored                 5.20 on
    """
)


def _config(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    linear = _linear(fields)
    config = ModelConfig(
        vocab=fields.take("vocab_size"),
        d_model=fields.take("hidden_size"),
        layers=layers_of(fields),
        context=fields.take("model_max_length"),
        attention=deepseek.latent_attention(fields, linear=linear),
        feed_forward=FeedForwardConfig(fields.take("moe_intermediate_size"), _activation(fields)),
        positions=PositionConfig("none"),
        norm=NormConfig("rms", eps=fields.small("rms_norm_eps")),
        embedding=EmbeddingConfig(tied=False),
    )
    return _with_experts(fields, config)


def _activation(fields: Fields) -> Any:
    if fields.activation("hidden_act") != "silu":
        raise fields.refuse("hidden_act", fields.take("hidden_act"), "'silu'")
    return "swiglu"


def _linear(fields: Fields) -> LinearConfig | None:
    """Return the sizes and the pattern of the linear layers, or `None` if there are no linear layers.

    The object `linear_attn_config` contains them; it counts layers from 1. Values missing from this object are taken
    from separate fields.
    """
    said = fields.take("linear_attn_config") or {}
    if not isinstance(said, Mapping) or set(said) - _SAID:
        raise fields.refuse("linear_attn_config", said, f"an object with only {', '.join(sorted(_SAID))}")
    layers = layers_of(fields)
    usual = [GLOBAL if layer and layer % 4 == 0 else LINEAR for layer in range(layers)]
    if {"kda_layers", "full_attn_layers"} <= set(said):
        both = said["kda_layers"], said["full_attn_layers"]
        numbers = [number for part in both if isinstance(part, list) for number in part]
        if not all(isinstance(number, int) for number in numbers) or sorted(numbers) != list(range(1, layers + 1)):
            wanted = f"each layer from 1 to {layers} in one of its two lists"
            raise fields.refuse("linear_attn_config", said, wanted)
        usual = [LINEAR if layer + 1 in both[0] else GLOBAL for layer in range(layers)]
    pattern = [kind == LINEAR for kind in layer_types(fields, usual, LINEAR)]
    if not any(pattern):
        return None
    d_head = said.get("head_dim", fields.take("linear_head_dim"))
    return LinearConfig(
        pattern=shortest(pattern),
        heads=said.get("num_heads", fields.take("linear_num_heads")),
        d_head=d_head,
        d_v=d_head,
        decay="channel",
        convolution=said.get("short_conv_kernel_size", fields.take("linear_conv_kernel_dim")),
        gate="sigmoid",
        rank=d_head,
    )


def _says(config: ModelConfig) -> Mapping[str, Any]:
    """Return the object that `_linear` reads, in the form that releases use.

    The fields of `transformers` 5.20, which are exported as well, give the same values.
    """
    linear = [layer for layer in range(config.layers) if config.linear(layer)]
    said: dict[str, Any] = {
        "kda_layers": [layer + 1 for layer in linear],
        "full_attn_layers": [layer + 1 for layer in config.attending],
    }
    if (sizes := config.linear_config) is not None:
        said |= {"head_dim": sizes.d_head, "num_heads": sizes.heads, "short_conv_kernel_size": sizes.convolution}
    return {"linear_attn_config": said}


_SAID = {"kda_layers", "full_attn_layers", "head_dim", "num_heads", "short_conv_kernel_size"}


def _with_experts(fields: Fields, config: ModelConfig) -> ModelConfig:
    pattern = deepseek.mixed_layers(fields, config.layers)
    if not any(pattern):
        return changed(config, feed_forward={"d_ff": fields.take("intermediate_size")})
    return config.with_(
        moe=MoEConfig(
            fields.take("num_experts"),
            fields.take("num_experts_per_token"),
            "sigmoid" if fields.flag("moe_renormalize") else "sigmoid_topk",
            shared=fields.take("num_shared_experts"),
            balanced=True,
            groups=fields.take("num_expert_group"),
            top_groups=fields.take("topk_group"),
            scale=fields.take("routed_scaling_factor"),
            pattern=shortest(pattern),
            plain_d_ff=None if all(pattern) else fields.take("intermediate_size"),
        )
    )


_LINEAR = {
    "q_proj": "query",
    "k_proj": "key",
    "v_proj": "value",
    "f_a_proj": "decay_down",
    "f_b_proj": "decay",
    "b_proj": "strength",
    "g_a_proj": "gate_down",
    "g_b_proj": "gate",
    "o_norm": "norm",
    "o_proj": "output",
}
"""Our names for the modules of a linear layer, keyed by their published names."""


def _place_linear(mapper: StateDictMapper, config: ModelConfig, layer: int) -> None:
    sizes = config.linear_config
    assert sizes is not None and sizes.heads is not None and sizes.d_head is not None
    old, new = f"model.layers.{layer}.self_attn", f"decoder.blocks.{layer}.attention"
    for theirs, ours in _LINEAR.items():
        mapper.move(f"{old}.{theirs}.weight", f"{new}.{ours}.weight")
    shape = sizes.heads * sizes.d_head, 1, sizes.convolution
    parts = {f"{old}.{part}_conv1d.weight": shape for part in ("q", "k", "v")}
    mapper.joined(parts, f"{new}.convolution.weight", sizes.convolution)
    mapper.move(f"{old}.dt_bias", f"{new}.decay_bias")
    mapper.joined({f"{old}.A_log": (1, 1, sizes.heads, 1)}, f"{new}.decay_rate")


def place(mapper: StateDictMapper, config: ModelConfig) -> None:
    deepseek.place(mapper, config, names={"gate": "w1", "inner": "w3", "outer": "w2"}, linear=_place_linear)


def _rename(name: str) -> str:
    """Rename the networks of layers without experts, which `transformers` also calls `block_sparse_moe`."""
    return name.replace(".block_sparse_moe.", ".mlp.")


FAMILIES = (
    Family(
        "kimi_linear",
        FIELDS,
        _config,
        place,
        _rename,
        architecture="KimiLinearForCausalLM",
        pieces={f".block_sparse_moe.{part}.": f".mlp.{part}." for part in ("gate", "experts", "shared_experts")},
        says=_says,
    ),
)

_FULL = (4, 8, 12, 16, 20, 24, 27)
"""The layers with attention, counted from 1."""
PRESETS = {
    "kimi-linear-48b-a3b": Preset(
        2025,
        49_122_675_072,
        decoder(
            2304, 27, 32, 1024, context=1048576, eps=1e-5, vocab=163840,
            moe=MoEConfig(
                256, 8, "sigmoid", shared=1, balanced=True, scale=2.446, pattern=(False,) + (True,) * 26,
                plain_d_ff=9216,
            ),
        ).with_(
            attention=AttentionConfig(
                32,
                d_head=128,
                d_v=128,
                latent=LatentConfig(512, 64, eps=EPS),
                linear=LinearConfig(
                    shortest([layer not in _FULL for layer in range(1, 28)]),
                    heads=32, d_head=128, d_v=128, decay="channel", gate="sigmoid", rank=128,
                ),
            ),
            positions=PositionConfig("none"),
        ),
    ),
}  # fmt: skip
