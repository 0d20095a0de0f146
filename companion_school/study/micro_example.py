"""A transformer that fits on a sheet of paper: all weights from lesson 00, each with one decimal place.

The model has ten words, vectors of width 4, two heads of width 2, four experts (two per token) and 224 parameters. The
lesson calculates with these parameters by hand, and `model` loads them into the companion's `Transformer`. The tests
use the same parameters.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from companion.config.model import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    ModelConfig,
    MoEConfig,
    NormConfig,
    PositionConfig,
)
from companion.transformer import Transformer

VOCABULARY = ("<pad>", "hello", "boss", "happy", "the", "world", "is", "good", "new", "ai")
TOKENS = ("hello", "world", "ai")
EPS = 1e-6
"""Epsilon in the square root of the norms."""


class Weights(NamedTuple):
    """The embedding and the matrices of one block. The matrices multiply row vectors: a layer computes x @ W.

    Attributes:
        E: Embedding with one row per word (vocab, d_model), which is also the output head.
        Wq: Query matrix of each head (head, d_model, d_head).
        Wk: Key matrix of each head (head, d_model, d_head).
        Wv: Value matrix of each head (head, d_model, d_head).
        Wo: Output matrix of attention (head * d_head, d_model).
        g1: Gain of the first norm (d_model).
        g2: Gain of the second norm (d_model).
        Wr: Router (d_model, expert).
        W1: First matrix of each expert (expert, d_model, d_ff).
        W2: Second matrix of each expert (expert, d_ff, d_model).
    """

    E: Float[Tensor, "vocab d_model"]
    Wq: Float[Tensor, "head d_model d_head"]
    Wk: Float[Tensor, "head d_model d_head"]
    Wv: Float[Tensor, "head d_model d_head"]
    Wo: Float[Tensor, "wide d_model"]
    g1: Float[Tensor, "d_model"]
    g2: Float[Tensor, "d_model"]
    Wr: Float[Tensor, "d_model expert"]
    W1: Float[Tensor, "expert d_model d_ff"]
    W2: Float[Tensor, "expert d_ff d_model"]


class OneNetwork(NamedTuple):
    """The matrices of a block with a single feed-forward network instead of experts.

    The fields are those of `Weights` except the router. `W1` has shape (d_model, d_ff) and `W2` (d_ff, d_model).
    """

    E: Float[Tensor, "vocab d_model"]
    Wq: Float[Tensor, "head d_model d_head"]
    Wk: Float[Tensor, "head d_model d_head"]
    Wv: Float[Tensor, "head d_model d_head"]
    Wo: Float[Tensor, "wide d_model"]
    g1: Float[Tensor, "d_model"]
    W1: Float[Tensor, "d_model d_ff"]
    W2: Float[Tensor, "d_ff d_model"]
    g2: Float[Tensor, "d_model"]


SENTENCES = (
    *("the boss is happy", "the world is good", "the ai is new"),
    *("is the boss happy", "is the world good", "is the ai new"),
    *("hello boss", "hello world", "hello world ai is new", "hello boss the ai is new"),
)
"""The ten sentences that `trained` was trained on."""

# fmt: off
_NUMBERS: dict[str, list] = {
    "E": [[0, 0, 0, 0], [0.8, -0.4, 0.2, 0.1], [0.1, 0.8, 0.3, 0.9], [0.9, 0.2, 0.7, 0.1], [0.3, 0.3, 0.2, 0.5],
          [-0.2, 0.1, 0.6, 0.9], [0, 0.5, -0.6, 0.2], [0.7, -0.1, -0.5, 0.4], [-0.5, 0.6, 0.1, -0.3],
          [0.3, 0.7, 0.9, -0.6]],
    "Wq": [[[0, 0.5], [0.5, 0], [-1, 1], [0.5, 0.5]], [[-1, 0.5], [0.5, -1], [0.5, 0.5], [0, -1]]],
    "Wk": [[[1, 0.5], [-1, 1], [1, -1], [0.5, -1]], [[-1, 1], [-1, 1], [0.5, 1], [0, 1]]],
    "Wv": [[[0, -0.5], [1, 0], [-0.5, 1], [1, 0]], [[0, -0.5], [1, 1], [0, 1], [-0.5, -0.5]]],
    "Wo": [[1, 0, 0, 0], [1, -1, 0, -1], [0, -1, 1, 0], [1, 0, -1, 1]],
    "g1": [1, 0.5, 1, 1.5],
    "g2": [1, 1, 1, 1],
    "Wr": [[-1, 0, 0, -1], [2, 2, 1, 2], [2, 2, 0, 1], [1, 1, 1, 0]],
    "W1": [[[1, 0.5, 0], [1, 1, 0.5], [0, 0, 0.5], [0.5, 0, 0]],
           [[1, 1, 0.5], [0.5, -1, -1], [0, 1, 0.5], [-1, 1, 1]],
           [[-1, 1, 1], [-1, 0.5, 0], [1, -1, -1], [0, 0.5, 0]],
           [[0, -1, 0], [0, 0.5, 0.5], [0, 1, 1], [-1, 0, 1]]],
    "W2": [[[0, 0, 1, -1], [0, -1, 0, 1], [-1, -1, 0, -1]],
           [[0.5, 0, -1, 1], [0, 1, 0, -1], [0.5, -1, 0.5, 1]],
           [[-1, -1, 0, 0], [1, 0, 1, 0], [0, 0, 1, -1]],
           [[0, 0, -1, 1], [0.5, -1, 0, 0], [0.5, 1, -1, 0.5]]],
}
# fmt: on
# fmt: off
_TRAINED: dict[str, list] = {
    "E": [[0.81, -0.49, 0.02, 0.29], [0.72, -0.73, -0.02, -0.06], [-0.95, 0.71, 0.82, 0.72], [2.5, -2.74, -0.32,
          2.2], [0.67, -0.73, 2.34, 0.82], [-0.09, 1.48, 0.91, 1.57], [0.96, 0.94, -1.37, -0.42], [0.04, -0.52,
          -1.54, 1.55], [-0.81, -1.34, -0.31, -1.39], [0.68, 1.17, 0.98, -0.94]],
    "Wq": [[[0.18, 0.65], [0.75, 0.3], [-0.54, 1.14], [1.02, 0.44]], [[-1.28, 0.07], [0.21, -1.17], [0.62, 0.21],
          [0.04, -1.27]]],
    "Wk": [[[0.98, 0.55], [-0.84, 1.2], [1.45, -0.49], [1.06, -0.95]], [[-0.06, 1.36], [-0.7, 0.31], [0.72, 2.06],
          [-0.5, 0.72]]],
    "Wv": [[[-0.53, -0.63], [1.06, 0.54], [-0.48, 0.55], [1.64, -0.07]], [[0.56, -1.03], [1.22, 0.26], [-0.14,
          1.24], [-0.38, -0.91]]],
    "Wo": [[0.97, -0.96, 0.21, -0.31], [0.72, -1.17, 0.08, -1.11], [0.22, -1.38, 0.99, -0.82], [1.49, 0.03, -1.23,
          0.89]],
    "g1": [1.07, 0.4, 1.54, 1.11],
    "W1": [[0.63, 1.8, 0.1], [-0.33, 0.14, -0.87], [-0.47, 0.72, -0.41], [-1.26, 0.89, 1.24]],
    "W2": [[0.03, -0.31, -1.43, 1.28], [-0.96, 1.22, 0.18, -1.11], [0.28, -1.34, 0.09, 0.6]],
    "g2": [1.99, 3.57, 4.27, 2.73],
}
# fmt: on


def weights(dtype: torch.dtype = torch.float64) -> Weights:
    """Return the 224 parameters as new tensors."""
    return Weights(*(torch.tensor(_NUMBERS[name], dtype=dtype) for name in Weights._fields))


def one_network(dtype: torch.dtype = torch.float64) -> OneNetwork:
    """Return the 136 parameters with which the lesson begins: `weights` without the router and with only expert 1."""
    w = weights(dtype)
    return OneNetwork(w.E, w.Wq, w.Wk, w.Wv, w.Wo, w.g1, w.W1[1], w.W2[1], w.g2)


def trained(dtype: torch.dtype = torch.float64) -> OneNetwork:
    """Return `one_network` after the lesson's 601 updates on `SENTENCES`, rounded to two decimals."""
    return OneNetwork(*(torch.tensor(_TRAINED[name], dtype=dtype) for name in OneNetwork._fields))


def sentences() -> Int[Tensor, "sentence token"]:
    """Return the ids of `SENTENCES`, padded to the same length with id 0."""
    ids = [[VOCABULARY.index(word) for word in sentence.split()] for sentence in SENTENCES]
    longest = max(map(len, ids))
    return torch.tensor([row + [0] * (longest - len(row)) for row in ids])


def config(placement: Literal["post", "pre"] = "post") -> ModelConfig:
    """Return the configuration: 10 words, d_model 4, one block, 2 heads of width 2, 4 experts of width 3, top-2."""
    return ModelConfig(
        vocab=len(VOCABULARY),
        d_model=4,
        layers=1,
        context=16,
        attention=AttentionConfig(heads=2),
        feed_forward=FeedForwardConfig(d_ff=3, activation="relu"),
        positions=PositionConfig("rotary"),
        norm=NormConfig("rms", placement, eps=EPS),
        embedding=EmbeddingConfig(tied=True, scaled=True),
        moe=MoEConfig(experts=4, top_k=2),
    )


def state(w: Weights, placement: Literal["post", "pre"] = "post") -> dict[str, Tensor]:
    """Return the weights as a state dict of `Transformer`.

    `nn.Linear` stores the transpose of the matrix that multiplies a row vector, and the heads' matrices are
    concatenated. With pre-norm, the model ends with an additional norm, whose gain is 1.
    """

    def beside(per_head: Tensor) -> Tensor:
        return torch.cat(tuple(per_head), dim=1).T

    block = {
        "attention.query.weight": beside(w.Wq),
        "attention.key.weight": beside(w.Wk),
        "attention.value.weight": beside(w.Wv),
        "attention.output.weight": w.Wo.T,
        "attention_norm.weight": w.g1,
        "feed_forward.router.weight": w.Wr.T,
        "feed_forward.inner": w.W1,
        "feed_forward.outer": w.W2,
        "feed_forward_norm.weight": w.g2,
    }
    named = {"embedding.weight": w.E} | {f"decoder.blocks.0.{name}": value for name, value in block.items()}
    return named | ({"decoder.norm.weight": torch.ones_like(w.g1)} if placement == "pre" else {})


def model(w: Weights | None = None, placement: Literal["post", "pre"] = "post") -> Transformer:
    """Build the companion's `Transformer` with these weights and their dtype, in evaluation mode.

    Args:
        w: The weights; default: `weights()`.
        placement: Post-norm or pre-norm.
    """
    w = weights() if w is None else w
    built = Transformer(config(placement)).to(w.E.dtype)
    built.load_state_dict(state(w, placement))
    return built.eval()
