"""Scale hyperparameters with a model's width (muP: Yang and Hu 2021; Yang et al. 2022, table 8).

Let m = d_model / width_base be the width of a model divided by the width of a narrower one. An update changes the
outputs of every layer by the same amount in both models, if

    parameters                                  initialization             learning rate       forward pass
    tables (tokens, positions), untied head     the narrow model's sizes   unchanged           logits over m
    matrices of the blocks                      variance 1 / fan-in        1 / m               q k^T sqrt(d_0) / d_head
    those whose outputs do not grow (router)    variance over m            1 / m
    gains, biases                               unchanged                  unchanged

where d_0 is the narrow model's d_head. The largest singular value of a Muon step is 0.2 sqrt(d_model) times the rate,
whereas that of an AdamW step is about d_model times the rate, so Muon's steps are scaled by 1 / sqrt(m) instead of 1 /
m. Weight decay is multiplied by the factor by which the rate is divided, so that each update shrinks the weights by the
same amount.

Changes to the forward pass use existing fields of `ModelConfig` (`score_width`, `logit_divisor`), and at m = 1 nothing
changes. This assumes that d_ff and heads * d_head grow with d_model. If `d_head` is given, the narrow model has the
same `d_head`; otherwise it grows.
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
    """Return the configuration, with the forward pass changed according to the table above.

    Raises:
        ValueError: if `width_base` is below 1, or if the model is an encoder or has latent or linear attention layers
            or per-head gates, which the table does not cover.
    """
    require_whole("width_base", width_base)
    attention = config.attention
    require(config.stack != "encoder", "stack", config.stack, "a model that generates text, with width_base")
    for name in ("latent", "linear"):
        require(getattr(attention, name) is None, name, getattr(attention, name), "None with width_base")
    require(attention.gate != "head", "gate", attention.gate, "'width' or None with width_base")
    wider = config.d_model / width_base
    if wider == 1:
        return config
    width, ends = attention.score_width or config.sizes.d_head, config.embedding
    if attention.d_head is None:
        attention = replace(attention, score_width=width * wider)
    ends = replace(ends, logit_divisor=ends.logit_divisor * wider)
    if ends.scaled:  # scaled by the square root of the width, and therefore too large
        ends = replace(ends, scaled=False, rounded=False, multiplier=math.sqrt(width_base))
    return replace(config, attention=attention, embedding=ends)


@torch.no_grad()
def begin_wide(model: Transformer, width_base: int) -> None:
    """Rescale a newly initialized model in place, according to the table above.

    `Transformer` already initializes the blocks this way. In wider models, tables and heads are initialized to smaller
    values, and routers to larger ones.
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
    """Make a new model with the shape given by `config`, initialized and run as described in the table above.

    Train it with `TrainingConfig(width_base=...)`.

    Raises:
        ValueError: in the same cases as `wide_config`.
    """
    model = Transformer(wide_config(config, width_base))
    begin_wide(model, width_base)
    return model


def lr_scales(model: Transformer, config: TrainingConfig) -> dict[str, float]:
    """Return the learning-rate multipliers of the hidden matrices by name; the result is empty without `width_base`."""
    if config.width_base is None:
        return {}
    wider, shapes = model.config.d_model / config.width_base, dict(model.named_parameters())
    names = hidden_matrices(model)
    muon = {name for name in names if config.optimizer == "muon" and min(shapes[name].shape[-2:]) > 1}
    return {name: wider**-0.5 if name in muon else 1 / wider for name in names}
