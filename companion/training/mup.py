"""A learning rate that stays right when a model is made wider (muP: Yang and Hu 2021; Yang et al. 2022, table 8).

With the width d_model of a model over that of a narrower one, m = d_model / width_base, an update changes what every
layer gives by as much in both, if

    what                                        begins with                rate             in the forward pass
    tables (tokens, positions), an own head     the narrow model's sizes   as it is         logits over m
    matrices of the blocks                      variance 1 / fan-in        1 / m            q k^T sqrt(d_0) / d_head
    those whose outputs do not grow (router)    m as small a variance      1 / m
    gains, biases                               as they are                as it is

where d_0 is the narrow model's d_head. Muon's steps, whose largest singular value is 0.2 sqrt(d_model) times the rate
and not d_model times, take 1 / sqrt(m) in place of 1 / m. Decay is multiplied by what the rate is divided by, so that
an update takes as much off.

What changes the forward pass is said in fields that a `ModelConfig` has anyway (`score_width`, `logit_divisor`), and
at m = 1 nothing changes at all. It is taken that d_ff and heads * d_head grow with d_model: a `d_head` that is given
is that of the narrow model too, else it grows.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from companion.config.model import ModelConfig
from companion.ground.fields import require, require_whole
from companion.layers.moe import MoE
from companion.training.hyperparameters import TrainingConfig
from companion.training.optimizer import hidden_matrices
from companion.transformer import Transformer


def wide_config(config: ModelConfig, width_base: int) -> ModelConfig:
    """The configuration whose forward pass is that of the table above.

    Raises `ValueError` for a `width_base` below 1, and for an encoder, latent or linear layers and gates by head, for
    which nothing is said there.
    """
    require_whole("width_base", width_base)
    attention = config.attention
    require(config.stack != "encoder", "stack", config.stack, "a model that writes, beside width_base")
    for name in ("latent", "linear"):
        require(getattr(attention, name) is None, name, getattr(attention, name), "None beside width_base")
    require(attention.gate != "head", "gate", attention.gate, "'width' or None beside width_base")
    wider = config.d_model / width_base
    if wider == 1:
        return config
    width, ends = attention.score_width or config.sizes.d_head, config.embedding
    if attention.d_head is None:
        attention = replace(attention, score_width=width * wider)
    ends = replace(ends, logit_divisor=ends.logit_divisor * wider)
    if ends.scaled:  # by the root of the width, which would grow
        ends = replace(ends, scaled=False, rounded=False, multiplier=math.sqrt(width_base))
    return replace(config, attention=attention, embedding=ends)


@torch.no_grad()
def begin_wide(model: Transformer, width_base: int) -> None:
    """Give a model that has just been made the beginning of the table above, in place. What `Transformer` draws for the
    blocks is right already; of tables and heads it draws smaller numbers the wider a model is, of a router larger ones.
    """
    wider = math.sqrt(model.config.d_model / width_base)
    model.embedding.weight *= wider
    if model.unembedding is not None:
        model.unembedding.weight *= wider
    for module in model.modules():
        if isinstance(module, MoE):
            for layer in (module.router, module.shared_gate):
                if layer is not None:
                    layer.weight /= wider


def wide_model(config: ModelConfig, width_base: int) -> Transformer:
    """A new model of the shape of `config` that begins, and computes, as the table above says. Train it with
    `TrainingConfig(width_base=...)`.

    Raises `ValueError` as `wide_config` does.
    """
    model = Transformer(wide_config(config, width_base))
    begin_wide(model, width_base)
    return model


def rate_shares(model: Transformer, config: TrainingConfig) -> dict[str, float]:
    """The share of the learning rate at which each hidden matrix learns, by name; nothing without a `width_base`."""
    if config.width_base is None:
        return {}
    wider, shapes = model.config.d_model / config.width_base, dict(model.named_parameters())
    names = hidden_matrices(model)
    muon = {name for name in names if config.optimizer == "muon" and min(shapes[name].shape[-2:]) > 1}
    return {name: wider**-0.5 if name in muon else 1 / wider for name in names}
