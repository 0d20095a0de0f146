"""Count the parameters of a model in closed form, and check whether this machine can hold them (lesson 13)."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

from companion.config.model import ModelConfig
from companion.ground.arguments import check_kind
from companion.ground.fields import require, shown
from companion.ground.memory import check_room

OBJECTS = 30_000
"""Minimum number of bytes that Python needs for the modules of one layer, on any device."""


@dataclass(frozen=True)
class Parameters:
    """Number of parameters of a model, by part.

    Attributes:
        embedding: The token embeddings and the segment embeddings.
        positions: The learned position vectors, or the biases of relative positions.
        attention: The matrices, biases and sinks of all attention layers, and all parameters of linear layers except
            their norms.
        feed_forward: All feed-forward networks, including all experts and shared experts.
        router: The routers of mixtures of experts.
        norms: All norms, including those of queries, keys and latents.
        head: The output head; 0 if it only reuses the embedding table. For BERT, its dense layer, norm and bias are
            included.
        medusa_heads: The matrices and biases of the heads for later tokens.
        pooler: The dense layer that computes one vector for a sequence, and the classifier of that vector.
        active: Parameters that take part in one token's forward pass: all but the experts that it does not visit and
            the heads for later tokens.
    """

    embedding: int
    positions: int
    attention: int
    feed_forward: int
    router: int
    norms: int
    head: int
    medusa_heads: int
    pooler: int
    active: int

    @property
    def total(self) -> int:
        """Number of parameters, each counted once."""
        return sum(self.parts.values())

    @property
    def parts(self) -> dict[str, int]:
        """The parts by name; they sum to `total`."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "active"}


def parameters(config: ModelConfig) -> Parameters:
    """Count the parameters of `Transformer(config)` in closed form.

    An attention layer has d_model (head + kv_head) (d_head + d_v) weights, which is 4 d_model^2 in standard multi-head
    attention. `attention_weights` also handles latents, and `linear_weights` counts the weights of a linear layer. A
    feed-forward network has 2 d_model d_ff weights, or 3 d_model d_ff if it is gated. Biases, norms, gates and sinks
    are added.
    """
    d_model, sizes, moe = config.d_model, config.sizes, config.moe
    encoder, decoder = stacks(config)
    cross = decoder if encoder else 0  # in an encoder-decoder, every decoder layer has cross-attention
    attention = attention_weights(config)
    if config.attention.bias:
        attention += sizes.heads * sizes.d_head + sizes.kv_heads * (sizes.d_head + sizes.d_v)
        attention += config.attention.gates(sizes.d_v)
    attention += sizes.heads * config.attention.sinks
    attention += d_model * config.attention.biased_output
    gains = 2 if config.norm.kind == "layer" and config.norm.bias else 1  # a gain, and for most layer norms a bias
    norm, entrances = d_model * gains, 2 if config.embedding.apart else 1
    qk_heads = {None: 0, "unit": 0, "head": 2, "width": sizes.heads + sizes.kv_heads}[config.attention.qk_norm]
    latents = 0 if sizes.latent is None else sizes.latent.kv_lora_rank + (sizes.latent.q_lora_rank or 0)
    ends, dense = config.embedding, (d_model + 1) * d_model
    head = 0 if ends.tied else config.vocab * d_model
    head += {
        "linear": 0,
        "biased": config.vocab,
        "masked": config.vocab + (d_model + ends.dense_bias) * d_model + norm,
    }[ends.head]
    later = config.medusa_heads * dense
    layers, linear, small = encoder + decoder, config.linears, config.linear_config
    memory = (0, 0) if small is None else (linear_weights(config) + linear_vectors(config), small.d_v)
    mixtures = (encoder > 0) * config.mixtures + (decoder > 0) * config.mixtures  # layers with experts
    chosen = 0 if moe is None else routed(config) // moe.experts * moe.top_k
    parts = {
        "embedding": (config.vocab + ends.segments) * d_model,
        "positions": {
            "learned": entrances * config.context * d_model,
            "relative": ((encoder > 0) + (decoder > 0)) * config.positions.buckets * sizes.heads,
        }.get(config.positions.kind, 0),
        "attention": (layers + cross - linear) * attention + linear * memory[0],
        "feed_forward": routed(config) + mixtures * shared(config) + (layers - mixtures) * plain_network(config),
        "router": 0 if moe is None else mixtures * (d_model + moe.router_bias) * moe.experts,
        "norms": (norms_of_blocks(config) + entrances * ends.norm) * norm
        + (layers + cross - linear) * (qk_heads * sizes.d_head + latents) * gains
        + linear * (memory[1] or 0),
        "head": head,
        "medusa_heads": later,
        "pooler": dense * ends.pooled + (d_model + 1) * ends.classes,
    }
    return Parameters(**parts, active=sum(parts.values()) - routed(config) + chosen - later)


def norms_of_blocks(config: ModelConfig) -> int:
    """Count the parameters of the norms that are as wide as the stream, including the last norm of each stack."""
    encoder, decoder = stacks(config)
    layers, cross, several = encoder + decoder, decoder if encoder else 0, (encoder > 0) + (decoder > 0)
    per_block = {"both": 4, "parallel_shared": 1}.get(config.norm.placement, 2)
    last = several if config.norm.placement != "post" else 0
    missing = 0 if config.norm.first else several
    return per_block * layers + per_block // 2 * cross + last - missing


def check_makeable(config: object) -> None:
    """Check that a model fits into this machine's memory before it is built.

    Raises:
        ValueError: If `config` is not a `ModelConfig`, or the model is larger than the memory of the device that it
            would be built on (on "meta", which stores no data: larger than PyTorch can count). The message names the
            largest size in the model's configuration.
    """
    check_kind("config", config, ModelConfig, "a ModelConfig")
    assert isinstance(config, ModelConfig)
    widths = config.sizes
    sizes = {f.name: getattr(config, f.name) for f in fields(config)} | {"d_ff": config.feed_forward.d_ff}
    sizes |= {f.name: getattr(widths, f.name) for f in fields(widths)}
    for part in (config.moe, config.embedding, config.attention.latent, config.linear_config):
        sizes |= {} if part is None else {f.name: getattr(part, f.name) for f in fields(part)}
    name = max((name for name in sizes if type(sizes[name]) is int), key=lambda name: sizes[name])
    asked, device = f"{name}={shown(sizes[name])}", torch.get_default_device()
    modules, numbers = config.layers * OBJECTS, parameters(config).total * torch.get_default_dtype().itemsize
    check_room(asked, "this model", modules)
    check_room(asked, "this model", numbers, device)
    require(numbers < 2**63, name, sizes[name], "smaller sizes, which PyTorch can count")


def stacks(config: ModelConfig) -> tuple[int, int]:
    """Return the number of layers in the encoder and in the decoder."""
    return (config.layers if config.stack != "decoder" else 0), (config.layers if config.stack != "encoder" else 0)


def attention_weights(config: ModelConfig) -> int:
    """Count the weights in the four matrices of one attention layer, and in the matrix of its gate.

    With latents, keys and values are computed from the latent, and queries from the stream or from a small vector. The
    latent and this vector are computed from the stream.
    """
    sizes, latent = config.sizes, config.sizes.latent
    if latent is not None:
        queries = sizes.heads * (sizes.d_head + latent.d_rope)
        narrow = latent.q_lora_rank
        query = config.d_model * queries if narrow is None else narrow * (config.d_model + queries)
        down, output = config.d_model * (latent.kv_lora_rank + latent.d_rope), config.d_model * sizes.heads * sizes.d_v
        return query + down + expansion_weights(config) + output + config.d_model * config.attention.gates(sizes.d_v)
    four = (sizes.heads + sizes.kv_heads) * (sizes.d_head + sizes.d_v)
    return config.d_model * (four + config.attention.gates(sizes.d_v))


def linear_weights(config: ModelConfig) -> int:
    """Count the weights in the matrices of one linear layer; 0 if the model has none.

    These matrices are the projections to queries, keys, values, write strengths and decay, the gate, and the output
    projection.
    """
    sizes, d_model = config.linear_config, config.d_model
    if sizes is None:
        return 0
    keys, values = (sizes.key_heads or 0) * (sizes.d_head or 0), (sizes.heads or 0) * (sizes.d_v or 0)

    def by_way(width: int, narrow: int | None) -> int:
        return width * d_model if narrow is None else narrow * (d_model + width)

    by_channel = sizes.decay == "channel"
    strength = (sizes.heads or 0) * d_model if sizes.rule == "delta" else 0
    decay = by_way(rates(config), sizes.rank if by_channel else None)
    gate = 0 if sizes.gate is None else by_way(values, sizes.rank)
    return d_model * (2 * keys + 2 * values) + strength + decay + gate


def linear_vectors(config: ModelConfig) -> int:
    """Count the parameters of one linear layer's convolution and decay."""
    sizes = config.linear_config
    if sizes is None:
        return 0
    channels = 2 * (sizes.key_heads or 0) * (sizes.d_head or 0) + (sizes.heads or 0) * (sizes.d_v or 0)
    return channels * sizes.convolution + (rates(config) + (sizes.heads or 0) if rates(config) else 0)


def rates(config: ModelConfig) -> int:
    """Return the number of decay factors that a linear layer computes for each token."""
    sizes = config.linear_config
    if sizes is None or sizes.decay not in ("head", "channel"):
        return 0
    return (sizes.heads or 0) * ((sizes.d_head or 0) if sizes.decay == "channel" else 1)


def expansion_weights(config: ModelConfig) -> int:
    """Count the weights in the matrix that expands a latent to keys and values; 0 without latents."""
    sizes = config.sizes
    return 0 if sizes.latent is None else sizes.latent.kv_lora_rank * sizes.heads * (sizes.d_head + sizes.d_v)


def matrices(config: ModelConfig) -> int:
    """Return the number of matrices in one feed-forward network: 2, or 3 with a gate."""
    return 3 if config.feed_forward.gated else 2


def network(config: ModelConfig, d_ff: int) -> int:
    """Count the parameters of one feed-forward network of hidden width `d_ff`, including its biases if it has any."""
    biases = ((matrices(config) - 1) * d_ff + config.d_model) * config.feed_forward.bias
    return matrices(config) * config.d_model * d_ff + biases


def routed(config: ModelConfig) -> int:
    """Count the parameters of all routed experts, which routers choose from."""
    experts = 0 if config.moe is None else config.moe.experts
    return sum(map(bool, stacks(config))) * config.mixtures * experts * network(config, config.feed_forward.d_ff)


def shared_d_ff(config: ModelConfig) -> int:
    """Return the total hidden width of a layer's shared experts."""
    return 0 if config.moe is None else config.moe.shared * (config.moe.shared_d_ff or config.feed_forward.d_ff)


def shared(config: ModelConfig) -> int:
    """Count the parameters of the shared experts of one layer, and of the gate on their output."""
    if config.moe is None or not config.moe.shared:
        return 0
    return network(config, shared_d_ff(config)) + config.d_model * config.moe.shared_gate


def plain_d_ff(config: ModelConfig) -> int:
    """Return the hidden width of the network in a layer without experts."""
    return (config.moe and config.moe.plain_d_ff) or config.feed_forward.d_ff


def plain_network(config: ModelConfig) -> int:
    """Count the parameters of the network in a layer without experts."""
    return network(config, plain_d_ff(config))
