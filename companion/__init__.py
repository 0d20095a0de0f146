"""companion: the package that the course The Executable Transformer builds. Public names in reading order."""

from companion.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    ModelConfig,
    MoEConfig,
    NormConfig,
    PositionConfig,
)
from companion.layers.attention import Attention, attend, attention_weights
from companion.layers.balance import switch_loss, update_bias, z_loss
from companion.layers.block import Block
from companion.layers.cache import CrossCache, KVCache
from companion.layers.feedforward import FeedForward
from companion.layers.moe import MoE, RoutingStats, route
from companion.layers.norms import LayerNorm, RMSNorm, rms_norm
from companion.layers.positions import Learned, half_from_interleaved, rotary_angles, rotate, sinusoidal
from companion.transformer import Memory, Output, Transformer

__all__ = [
    "Attention",
    "AttentionConfig",
    "Block",
    "CrossCache",
    "EmbeddingConfig",
    "FeedForward",
    "FeedForwardConfig",
    "KVCache",
    "LayerNorm",
    "Learned",
    "Memory",
    "MoE",
    "MoEConfig",
    "ModelConfig",
    "NormConfig",
    "Output",
    "PositionConfig",
    "RMSNorm",
    "RoutingStats",
    "Transformer",
    "attend",
    "attention_weights",
    "half_from_interleaved",
    "rms_norm",
    "rotary_angles",
    "rotate",
    "route",
    "sinusoidal",
    "switch_loss",
    "update_bias",
    "z_loss",
]
