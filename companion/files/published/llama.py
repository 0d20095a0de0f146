"""A published LLaMA, or Mixtral with its experts, by our names: the configuration and every tensor (lesson 13)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from companion.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    ModelConfig,
    MoEConfig,
    NormConfig,
    PositionConfig,
)
from companion.files.models import assemble
from companion.files.published.folder import Fields, Places, load_published
from companion.transformer import Transformer


def load_llama(
    folder: str | Path, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Transformer:
    """A LLaMA (Touvron et al. 2023) in Hugging Face's layout, in evaluation mode: rotary positions in halves, grouped
    key-value heads, SwiGLU, RMS norms.

    Raises `ValueError` for a field it cannot honour (scaled rotary positions, say), a tensor without a place, and what
    `load_model` raises.
    """
    folder = Path(folder)
    fields = Fields(folder, "llama")
    fields.only("pretraining_tp", 1, default=1)
    config = fields.finish(
        lambda: ModelConfig(
            **_llama_sizes(fields, base=10000.0, eps=1e-6, kv_heads=None, bias=fields.take("attention_bias", False)),
            feed_forward=FeedForwardConfig(d_ff=fields.take("intermediate_size"), bias=fields.take("mlp_bias", False)),
        )
    )
    places = Places(load_published(folder, device), folder)
    _llama_tensors(places, config)
    for layer in range(config.layers):
        for part in ("weight", "bias") if config.feed_forward.bias else ("weight",):
            for short, name in (("gate", "gate"), ("up", "inner"), ("down", "outer")):
                old, new = f"model.layers.{layer}.mlp.{short}_proj", f"decoder.blocks.{layer}.feed_forward.{name}"
                places.move(f"{old}.{part}", f"{new}.{part}")
    return assemble(config, places.finish(), folder, dtype)


def load_mixtral(
    folder: str | Path, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Transformer:
    """A Mixtral (Jiang et al. 2024) in Hugging Face's layout, in evaluation mode: LLaMA with experts.

    Experts are read as released, three matrices each, or fused, as `transformers` 5 holds them in memory.
    Raises `ValueError` for a field it cannot honour, a tensor without a place, and what `load_model` raises.
    """
    folder = Path(folder)
    fields = Fields(folder, "mixtral")
    fields.only("sliding_window", None, default=None)
    fields.only("router_jitter_noise", 0.0, default=0.0)  # a factor of the states in training; ours adds to logits
    config = fields.finish(
        lambda: ModelConfig(
            **_llama_sizes(fields, base=1e6, eps=1e-5, kv_heads=8, bias=False),
            feed_forward=FeedForwardConfig(d_ff=fields.take("intermediate_size")),
            moe=MoEConfig(experts=fields.take("num_local_experts", 8), top_k=fields.take("num_experts_per_tok", 2)),
        )
    )
    assert config.moe is not None
    given = {name.replace(".block_sparse_moe.", ".mlp."): t for name, t in load_published(folder, device).items()}
    places = Places(given, folder)
    _llama_tensors(places, config)
    for layer in range(config.layers):
        old, new = f"model.layers.{layer}.mlp", f"decoder.blocks.{layer}.feed_forward"
        places.move(f"{old}.gate.weight", f"{new}.router.weight")
        if f"{old}.experts.gate_up_proj" in given:
            places.experts(f"{old}.experts.gate_up_proj", f"{new}.gate", f"{new}.inner")
            places.experts(f"{old}.experts.down_proj", f"{new}.outer")
            continue
        for short, name in (("w1", "gate"), ("w3", "inner"), ("w2", "outer")):
            names = [f"{old}.experts.{e}.{short}.weight" for e in range(config.moe.experts)]
            places.stack(names, f"{new}.{name}")
    return assemble(config, places.finish(), folder, dtype)


def _llama_sizes(fields: Fields, *, base: float, eps: float, kv_heads: int | None, bias: bool) -> dict[str, Any]:
    """What LLaMA and Mixtral say alike, each with its own defaults."""
    fields.only("hidden_act", "silu", default="silu")
    fields.only("attention_dropout", 0.0, default=0.0)  # ours would also drop embeddings and sub-layer outputs
    fields.only("rope_scaling", None, default=None)
    base = fields.take("rope_theta", base)
    rotary = fields.take("rope_parameters", None) or {}  # from transformers 5 on, base and scaling sit here
    for name, value in rotary.items():
        if name == "rope_theta":
            base = value
        elif (name, value) not in (("rope_type", "default"), ("partial_rotary_factor", 1.0)):
            raise fields.refuse(f"rope_parameters.{name}", value, "rotary positions that are not scaled")
    return {
        "vocab": fields.take("vocab_size"),
        "d_model": fields.take("hidden_size"),
        "layers": fields.take("num_hidden_layers"),
        "context": fields.take("max_position_embeddings"),
        "attention": AttentionConfig(
            heads=fields.take("num_attention_heads"),
            kv_heads=fields.take("num_key_value_heads", kv_heads),
            d_head=fields.take("head_dim", None),
            bias=bias,
        ),
        "positions": PositionConfig("rotary", base=base, layout="half"),
        "norm": NormConfig("rms", eps=fields.take("rms_norm_eps", eps)),
        "embedding": EmbeddingConfig(tied=fields.take("tie_word_embeddings", False)),
    }


def _llama_tensors(places: Places, config: ModelConfig) -> None:
    """Everything but the feed-forward networks, which LLaMA and Mixtral do not share."""
    places.drop(lambda name: name.endswith(".rotary_emb.inv_freq"))
    places.vocabulary("model.embed_tokens.weight", tied=config.embedding.tied)
    for layer in range(config.layers):
        old, new = f"model.layers.{layer}", f"decoder.blocks.{layer}"
        places.move(f"{old}.input_layernorm.weight", f"{new}.attention_norm.weight")
        places.move(f"{old}.post_attention_layernorm.weight", f"{new}.feed_forward_norm.weight")
        parts = ("weight", "bias") if config.attention.bias else ("weight",)
        for short, name in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "output")):
            places.pairs(f"{old}.self_attn.{short}_proj", f"{new}.attention.{name}", parts)
    places.move("model.norm.weight", "decoder.norm.weight")
