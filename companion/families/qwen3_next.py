"""Qwen3-Next as published (Qwen Team 2025; lesson 17).

Every three gated delta layers are followed by one layer of gated attention. The networks have many small experts, and
one shared expert with a gate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from companion.config.model import LinearConfig, ModelConfig, MoEConfig
from companion.families import llama, mistral
from companion.families.llama import changed, configuration, decoder, layers_of
from companion.families.qwen import with_mixtures
from companion.files.published.config_fields import rows
from companion.files.published.family import Family, Preset
from companion.files.published.rope import GLOBAL, LINEAR, layer_types, shortest
from companion.ground.fields import require_whole

if TYPE_CHECKING:
    from torch import Tensor

    from companion.files.published.checkpoint_folder import Fields
    from companion.files.published.state_dict import StateDictMapper

FIELDS = llama.FIELDS | rows(
    """
    num_key_value_heads              used = 2               attention.kv_heads
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
    moe_intermediate_size            used = 512             feed_forward.d_ff, of an expert
    shared_expert_intermediate_size  used = 512             moe.shared_d_ff
    intermediate_size                used = 5632            moe.plain_d_ff, where a layer has no experts
    num_experts                      used = 512             moe.experts
    num_experts_per_tok              used = 10              moe.top_k
    norm_topk_prob                   used = true            moe.gating
    decoder_sparse_step              used = 1               moe.pattern: every n-th layer has experts,
    mlp_only_layers                  used = null            but these
    use_sliding_window               must be false
    router_aux_loss_coef             ignored                 4.57 on; of a loss in training
    output_router_logits             ignored                 4.57 on
    """
)


def _config(fields: Fields, _: Mapping[str, Tensor]) -> ModelConfig:
    config = with_linear_layers(fields, configuration(fields))
    shared = fields.take("shared_expert_intermediate_size")
    shared_d_ff = None if shared == config.feed_forward.d_ff else shared
    experts = fields.take("num_experts")
    return with_mixtures(fields, config, experts, shared=1, shared_d_ff=shared_d_ff, shared_gate=True)


def with_linear_layers(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Return `config` with the linear layers that the fields describe, gated attention in all others, and Qwen3-Next's
    norms.

    Raises:
        ValueError: If `full_attention_interval` is not a whole number >= 1, or a field is missing.
    """
    every = fields.take("full_attention_interval")
    require_whole("full_attention_interval", every)
    usual = [LINEAR if (layer + 1) % every else GLOBAL for layer in range(layers_of(fields))]
    pattern = [kind == LINEAR for kind in layer_types(fields, usual, LINEAR)]
    own = {"linear": _linear(fields, pattern) if any(pattern) else None, "gate": "width", "qk_norm": "head"}
    return changed(config, attention=own, norm={"unit_offset": True})


def _linear(fields: Fields, pattern: Sequence[bool]) -> LinearConfig:
    return LinearConfig(
        pattern=shortest(pattern),
        heads=fields.take("linear_num_value_heads"),
        key_heads=fields.take("linear_num_key_heads"),
        d_head=fields.take("linear_key_head_dim"),
        d_v=fields.take("linear_value_head_dim"),
        convolution=fields.take("linear_conv_kernel_dim"),
    )


def _place_linear(mapper: StateDictMapper, config: ModelConfig, layer: int) -> None:
    """Map a linear layer.

    One matrix produces queries, keys, values and gates; another one produces strengths and decays. The rows of both are
    grouped by key head.
    """
    sizes = config.linear_config
    assert sizes is not None and sizes.heads is not None and sizes.key_heads is not None
    assert sizes.d_head is not None and sizes.d_v is not None
    old, new = f"model.layers.{layer}.linear_attn", f"decoder.blocks.{layer}.attention"
    share = sizes.heads // sizes.key_heads
    widths = {"query": sizes.d_head, "key": sizes.d_head, "value": share * sizes.d_v, "gate": share * sizes.d_v}
    for source, parts in (("qkvz", widths), ("ba", {"strength": share, "decay": share})):
        names = {f"{old}.{part}": width for part, width in parts.items()}
        mapper.groups(f"{old}.in_proj_{source}.weight", sizes.key_heads, names)
        for part in parts:
            mapper.move(f"{old}.{part}", f"{new}.{part}.weight")
    place_rest(mapper, config, old, new)


def place_rest(mapper: StateDictMapper, config: ModelConfig, old: str, new: str) -> None:
    """Map the tensors of a linear layer, except the matrices that read the residual stream."""
    sizes = config.linear_config
    assert sizes is not None and sizes.heads and sizes.key_heads and sizes.d_head and sizes.d_v
    channels = 2 * sizes.key_heads * sizes.d_head + sizes.heads * sizes.d_v
    shape = channels, 1, sizes.convolution
    mapper.joined({f"{old}.conv1d.weight": shape}, f"{new}.convolution.weight", sizes.convolution)
    mapper.move(f"{old}.dt_bias", f"{new}.decay_bias")
    mapper.move(f"{old}.A_log", f"{new}.decay_rate")
    mapper.move(f"{old}.norm.weight", f"{new}.norm.weight")
    mapper.move(f"{old}.out_proj.weight", f"{new}.output.weight")


def place(mapper: StateDictMapper, config: ModelConfig) -> None:
    split_gates(mapper, config)
    mistral.place(mapper, config, shared="shared_expert", linear=_place_linear)


def split_gates(mapper: StateDictMapper, config: ModelConfig) -> None:
    """Split the queries and gates of attention, which are stored in one tensor and grouped by head."""
    mapper.drop(lambda name: name.startswith("mtp."))  # the layers for multi-token prediction
    sizes = config.sizes
    for layer in config.attending:
        old = f"model.layers.{layer}.self_attn"
        for part in ("weight", "bias")[: 1 + config.attention.bias]:
            names = {f"{old}.{name}_proj.{part}": sizes.d_head for name in ("q", "gate")}
            mapper.groups(f"{old}.q_proj.{part}", sizes.heads, names)


FAMILIES = (Family("qwen3_next", FIELDS, _config, place, architecture="Qwen3NextForCausalLM"),)

_PLAIN = decoder(
    2048, 48, 16, 512,
    context=262144, eps=1e-6, kv_heads=2, base=1e7, vocab=151936, d_head=256,
    moe=MoEConfig(512, 10, "softmax_topk_renormalised", shared=1, shared_gate=True),
)  # fmt: skip
PRESETS = {
    "qwen3-next-80b-a3b": Preset(
        2025,
        79_674_391_296,
        changed(
            replace(_PLAIN, positions=replace(_PLAIN.positions, partial_rotary_factor=0.25)),
            attention={
                "qk_norm": "head",
                "gate": "width",
                "linear": LinearConfig((True, True, True, False), heads=32, key_heads=16, d_head=128, d_v=128),
            },
            norm={"unit_offset": True},
        ),
    ),
}
"""The parameter count leaves out the layer for multi-token prediction."""
