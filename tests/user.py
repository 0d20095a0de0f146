"""A user's file: every public name of companion once, as somebody writes it who checks types with `mypy --strict`."""

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
    """A small decoder with experts."""
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
    """A layer that keeps latents."""
    config = AttentionConfig(heads=4, latent=LatentConfig(rank=8, d_rope=2))
    layer = LatentAttention(16, config, positions=PositionConfig("rotary"))
    answer: Tensor = layer(x, positions=torch.arange(x.shape[1]))
    return answer


def linear_layer(x: Tensor) -> Tensor:
    """A layer that keeps a matrix a head; and its recurrence alone."""
    layer = LinearAttention(16, AttentionConfig(heads=4, linear=LinearConfig(heads=2, key_heads=1, d_v=6)))
    answer: Tensor = layer(x)
    q = k = v = torch.zeros(1, 2, 3, 4)
    state: Tensor | None = recurrence(q, k, v, strength=torch.ones(1, 2, 3)).state
    assert state is not None
    return answer


def written(model: Transformer, folder: Path) -> list[list[int]]:
    """Text from a model, in every way; and the model saved and loaded."""
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
    """A published model from its folder, written once more in the layout that it had."""
    model: Transformer = load_pretrained(folder, dtype=torch.float32)
    kind: str = export_model(folder / "again", model).kind
    assert kind
    return model


def tuned(model: Transformer, folder: Path) -> Tensor:
    """Adapters in a model, in the files that peft reads; and the losses that tune them."""
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
    """Layers by themselves, (batch, token, d_model)."""
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
    """Attention, in every way, on (batch, head, token, d_head)."""
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
    """What a call of a model gives, without a type said twice."""
    return model(tokens).logits


def attended(layer: Attention | LatentAttention | LinearAttention | FeedForward | LayerNorm, x: Tensor) -> Tensor:
    """And a call of a layer."""
    return layer(x)


def told(out: Output, memory: Memory | None = None, cross: CrossCache | None = None) -> tuple[Tensor, KVCache | None]:
    """What a call of a model gives."""
    return out.logits, out.cache


def costs() -> list[str]:
    """The modules of costs."""
    return [account.__name__, chips.__name__, sizing.__name__]
