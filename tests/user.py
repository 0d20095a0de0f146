"""A user's file that uses every public name of companion once and is checked with `mypy --strict`."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from companion import (
    Attention,
    AttentionConfig,
    Beam,
    Block,
    CrossCache,
    Draft,
    EmbeddingConfig,
    FeedForward,
    FeedForwardConfig,
    Handle,
    KVCache,
    LatentAttention,
    LatentConfig,
    LayerNorm,
    Learned,
    LinearAttention,
    LinearConfig,
    LowRank,
    Memory,
    ModelConfig,
    MoE,
    MoEConfig,
    NormConfig,
    Output,
    PositionConfig,
    RMSNorm,
    RotaryScaling,
    RoutingStats,
    Sampling,
    Server,
    Transformer,
    WindowConfig,
    account,
    adapt,
    attend,
    attention_weights,
    beam_search,
    chips,
    complete,
    export_model,
    generate,
    group_advantages,
    half_from_interleaved,
    linear_attention,
    load_adapters,
    load_model,
    load_pretrained,
    merged_model,
    policy_loss,
    preference_loss,
    recurrence,
    rms_norm,
    rotary_angles,
    rotate,
    route,
    save_adapters,
    save_model,
    sinusoidal,
    sizing,
    sliding_window_attention,
    switch_loss,
    tiled_attention,
    update_bias,
    z_loss,
)


def config() -> ModelConfig:
    """Return the configuration of a small decoder with experts."""
    return ModelConfig(
        vocab=17,
        d_model=16,
        layers=2,
        context=32,
        attention=AttentionConfig(heads=4, kv_heads=2, window=WindowConfig(8)),
        feed_forward=FeedForwardConfig(d_ff=24, activation="swiglu"),
        positions=PositionConfig("rotary", scaling=RotaryScaling("linear", 2.0)),
        norm=NormConfig("rms"),
        embedding=EmbeddingConfig(tied=True),
        moe=MoEConfig(experts=3, top_k=2, balanced=True),
    )


def latent_layer(x: Tensor) -> Tensor:
    """Run a layer with latent attention."""
    config = AttentionConfig(heads=4, latent=LatentConfig(kv_lora_rank=8, d_rope=2))
    layer = LatentAttention(16, config, positions=PositionConfig("rotary"))
    answer: Tensor = layer(x, positions=torch.arange(x.shape[1]))
    return answer


def linear_layer(x: Tensor) -> Tensor:
    """Run a layer with a matrix-valued state per head, and only its recurrence."""
    layer = LinearAttention(16, AttentionConfig(heads=4, linear=LinearConfig(heads=2, key_heads=1, d_v=6)))
    answer: Tensor = layer(x)
    q = k = v = torch.zeros(1, 2, 3, 4)
    state: Tensor | None = recurrence(q, k, v, strength=torch.ones(1, 2, 3)).state
    assert state is not None
    return answer


def written(model: Transformer, folder: Path) -> list[list[int]]:
    """Generate text from a model in every way, save it and load it."""
    prompts = [[1, 2, 3]]
    out: list[list[int]] = complete(model, prompts, max_new_tokens=3, sampling=Sampling(temperature=0.0))
    for step in generate(model, prompts, max_new_tokens=2, draft=Draft("ngram")):
        first: int | None = step[0]
        out.append([] if first is None else [first])
    beams: list[list[Beam]] = beam_search(model, prompts, width=2, max_new_tokens=2)
    out.append([*beams[0][0].tokens])
    save_model(folder, model)
    again: Transformer = load_model(folder, dtype=torch.float32)
    handle: Handle = Server(again, rows=2).submit(prompts[0], max_new_tokens=2)
    out.append(handle.result())
    return out


def published(folder: Path) -> Transformer:
    """Load a published model from its folder, and write it again in the same layout."""
    model: Transformer = load_pretrained(folder, dtype=torch.float32)
    kind: str = export_model(folder / "again", model).kind
    assert kind
    return model


def tuned(model: Transformer, folder: Path) -> Tensor:
    """Put adapters into a model, save them in peft's files, and compute the losses that tune them."""
    adapt(model, 2)
    parts: list[LowRank] = [module for module in model.modules() if isinstance(module, LowRank)]
    save_adapters(folder / "adapters", model)
    plain: Transformer = merged_model(model)
    load_adapters(folder / "adapters", plain)
    answers = torch.zeros(3, 2, requires_grad=True)
    asked: Tensor = preference_loss(answers, torch.ones(3, 2), beta=0.1).loss
    gains: Tensor = group_advantages(torch.tensor([[0.0, 1.0, 1.0]]))
    scored = torch.ones(3, 2, dtype=torch.bool)
    improved: Tensor = policy_loss(answers, answers.detach(), answers.detach(), gains[0], scored).loss
    return asked.sum() + improved.sum() + len(parts)


def layers(x: Tensor) -> Tensor:
    """Run single layers on (batch, token, d_model)."""
    one = config()
    x = Attention(16, one.attention, causal=True)(LayerNorm(16)(x))
    x = FeedForward(16, one.feed_forward)(RMSNorm(16)(x))
    x = rms_norm(x, torch.ones(16), 1e-6)
    block, learned = Block(one, causal=True), Learned(32, 16)
    assert one.moe is not None
    experts = MoE(16, one.feed_forward, one.moe)
    stats: RoutingStats = route(torch.randn(5, 3), 2)
    loss: Tensor = switch_loss(stats) + z_loss(stats)
    update_bias(experts, torch.tensor([3, 4, 3]), 0.01)
    return x + loss + sum(weight.sum() for part in (block, learned) for weight in part.parameters()) * 0


def attention() -> list[Tensor]:
    """Run attention in every way on (batch, head, token, d_head)."""
    q, k, v = torch.randn(3, 1, 2, 6, 8).unbind(0)
    angles: Tensor = rotary_angles(torch.arange(6), 8)
    q, k = rotate(q, angles), rotate(k[..., half_from_interleaved(8)], angles)
    return [
        attend(q, k, v, causal=True),
        attention_weights(q, k, causal=True),
        tiled_attention(q, k, v, causal=True),
        sliding_window_attention(q, k, v, 3),
        linear_attention(q, k, v),
        sinusoidal(torch.arange(6), 8),
    ]


def given(model: Transformer, tokens: Tensor) -> Tensor:
    """Check the inferred type of a model call's result."""
    return model(tokens).logits


def attended(layer: Attention | LatentAttention | LinearAttention | FeedForward | LayerNorm, x: Tensor) -> Tensor:
    """Check the inferred type of a layer call's result."""
    return layer(x)


def told(out: Output, memory: Memory | None = None, cross: CrossCache | None = None) -> tuple[Tensor, KVCache | None]:
    """Check the types of the fields of a model's result."""
    return out.logits, out.cache


def costs() -> list[str]:
    """Use the modules of `costs`."""
    return [account.__name__, chips.__name__, sizing.__name__]
