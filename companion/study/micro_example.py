"""A transformer that fits on a sheet of paper: every weight of lesson 00, each with one decimal.

Ten words, vectors of width 4, two heads of width 2, four experts of which each token visits two: 224 numbers. The
lesson calculates with them by hand, `model` loads them into the companion's `Transformer`; the tests use the same copy.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from companion.config import (
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
"""What the norms add inside their square root."""


class Weights(NamedTuple):
    """The matrices of one block and of the embedding, for row vectors: a layer computes x @ W.

    E:           one row for each word (vocab, d_model); also the output head.
    Wq, Wk, Wv:  query, key and value matrices of each head (head, d_model, d_head).
    Wo:          joins the heads again (head * d_head, d_model).
    g1, g2:      gains of the two norms (d_model).
    Wr:          the router (d_model, expert).
    W1, W2:      the two matrices of each expert, (expert, d_model, d_ff) and (expert, d_ff, d_model).
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


def weights(dtype: torch.dtype = torch.float64) -> Weights:
    """The 224 numbers as fresh tensors."""
    return Weights(*(torch.tensor(_NUMBERS[name], dtype=dtype) for name in Weights._fields))


def config(placement: Literal["post", "pre"] = "post") -> ModelConfig:
    """The model's sizes: vocab 10, d_model 4, two heads of width 2, four experts of width 3, top-2, one block."""
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
    """The same numbers under the names of `Transformer`'s parameters.

    `nn.Linear` stores the transpose of the matrix that multiplies a row vector, and the heads' matrices side by side.
    With pre-norm there is one more norm, at the end; its gain is 1.
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
    """The companion's `Transformer` with these weights (default: `weights()`), in evaluation mode and their dtype."""
    w = weights() if w is None else w
    built = Transformer(config(placement)).to(w.E.dtype)
    built.load_state_dict(state(w, placement))
    return built.eval()
