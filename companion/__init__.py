"""companion: the package that the course The Executable Transformer builds. Its public names in one place."""

from companion.beam import Beam, beam_search
from companion.checkpoints import load_model, save_model
from companion.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    ModelConfig,
    MoEConfig,
    NormConfig,
    PositionConfig,
)
from companion.generation import Sampling, complete, generate
from companion.layers.attention import Attention, attend, attention_weights
from companion.layers.balance import switch_loss, update_bias, z_loss
from companion.layers.block import Block
from companion.layers.cache import CrossCache, KVCache
from companion.layers.feedforward import FeedForward
from companion.layers.linear import linear_attention
from companion.layers.moe import MoE, RoutingStats, route
from companion.layers.norms import LayerNorm, RMSNorm, rms_norm
from companion.layers.positions import Learned, half_from_interleaved, rotary_angles, rotate, sinusoidal
from companion.layers.tiled import tiled_attention
from companion.layers.window import sliding_window_attention
from companion.published import load_pretrained
from companion.transformer import Memory, Output, Transformer

__all__ = [
    "Attention",
    "AttentionConfig",
    "Beam",
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
    "Sampling",
    "Transformer",
    "attend",
    "attention_weights",
    "beam_search",
    "complete",
    "generate",
    "half_from_interleaved",
    "linear_attention",
    "load_model",
    "load_pretrained",
    "rms_norm",
    "rotary_angles",
    "rotate",
    "route",
    "save_model",
    "sinusoidal",
    "sliding_window_attention",
    "switch_loss",
    "tiled_attention",
    "update_bias",
    "z_loss",
]
