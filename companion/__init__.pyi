"""The public names of companion, in reading order; `__init__.py` imports each name when it is first used."""

from .config.model import (
    AttentionConfig as AttentionConfig,
    EmbeddingConfig as EmbeddingConfig,
    FeedForwardConfig as FeedForwardConfig,
    LatentConfig as LatentConfig,
    LinearConfig as LinearConfig,
    ModelConfig as ModelConfig,
    MoEConfig as MoEConfig,
    NormConfig as NormConfig,
    PositionConfig as PositionConfig,
    RotaryScaling as RotaryScaling,
    WindowConfig as WindowConfig,
)
from .layers.positions import (
    Learned as Learned,
    half_from_interleaved as half_from_interleaved,
    rotary_angles as rotary_angles,
    rotate as rotate,
    sinusoidal as sinusoidal,
)
from .layers.attention import Attention as Attention, attend as attend, attention_weights as attention_weights
from .layers.latent import LatentAttention as LatentAttention
from .layers.kernels.tiled import tiled_attention as tiled_attention
from .layers.kernels.window import sliding_window_attention as sliding_window_attention
from .layers.linear_attention import linear_attention as linear_attention, recurrence as recurrence
from .layers.gated_delta_net import LinearAttention as LinearAttention
from .layers.cache import CrossCache as CrossCache, KVCache as KVCache
from .layers.norms import LayerNorm as LayerNorm, RMSNorm as RMSNorm, rms_norm as rms_norm
from .layers.feedforward import FeedForward as FeedForward
from .layers.routing import RoutingStats as RoutingStats, route as route
from .layers.moe import MoE as MoE
from .layers.balance import switch_loss as switch_loss, update_bias as update_bias, z_loss as z_loss
from .layers.block import Block as Block
from .transformer import Memory as Memory, Output as Output, Transformer as Transformer
from .costs import account as account, chips as chips, sizing as sizing
from .generation.sampling import Sampling as Sampling
from .generation.generate import complete as complete, generate as generate
from .generation.draft import Draft as Draft
from .generation.serving import Handle as Handle, Server as Server
from .generation.beam import Beam as Beam, beam_search as beam_search
from .files.models import load_model as load_model, save_model as save_model
from .families.pretrained import load_pretrained as load_pretrained
from .families.export import export_model as export_model
from .layers.low_rank import LowRank as LowRank
from .families.adapters import (
    adapt as adapt,
    load_adapters as load_adapters,
    merged_model as merged_model,
    save_adapters as save_adapters,
)
from .training.preferences import (
    group_advantages as group_advantages,
    policy_loss as policy_loss,
    preference_loss as preference_loss,
)
