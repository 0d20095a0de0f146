"""Stage 13, gpt2.py: how GPT-2 differs from a LLaMA, and its checkpoints in your own model (lesson 13).

GPT-2's norms subtract a mean and have a bias, its networks have no gate, all its linear layers have biases, and it adds
learned positions to the embedding. Once this file is imported, `load` from stage 10 reads GPT-2 as well.
"""

import math

import torch
from attention import causal
from model import Config, Transformer
from published import LAYOUTS, renamed, take
from torch import Tensor, nn


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis; `weight` and `bias` are (d_model)."""

    def __init__(self, d_model: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight, self.bias = nn.Parameter(torch.ones(d_model)), nn.Parameter(torch.zeros(d_model))

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight + self.bias


def gelu(x: Tensor) -> Tensor:
    """GPT-2's GELU, with a tanh instead of the integral: x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))."""
    return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


class PlainFeedForward(nn.Module):
    """outer(gelu(inner(x))): two linear layers with biases, without a gate."""

    def __init__(self, d_model: int, d_ff: int):
        super().__init__()
        self.inner, self.outer = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(gelu(self.inner(x)))


class GPT2(Transformer):
    """Your decoder with GPT-2's parts: LayerNorms with this `eps`, plain networks, biases in every linear layer, and
    `positions`, an embedding of `places` learned positions. Nothing is rotated."""

    def __init__(self, config: Config, places: int, eps: float):
        super().__init__(config)
        d_model = config.d_model
        self.positions, self.decoder.norm = nn.Embedding(places, d_model), LayerNorm(d_model, eps)
        for block in self.decoder.blocks:
            block.attention_norm, block.feed_forward_norm = (LayerNorm(d_model, eps) for _ in range(2))
            block.feed_forward = PlainFeedForward(d_model, config.d_ff)
            for name in ("query", "key", "value", "output"):
                setattr(block.attention, name, nn.Linear(d_model, d_model))

    def forward(self, ids: Tensor, caches=None) -> Tensor:
        """(batch, token) -> (batch, token, vocab), as in your own model. Raises `ValueError` if the text is too
        long."""
        seen, new = len(caches[0]) if caches else 0, ids.shape[1]
        if seen + new > self.positions.num_embeddings:
            raise ValueError(
                f"{seen + new} tokens: this model has only {self.positions.num_embeddings} learned positions"
            )
        x = self.embedding(ids) + self.positions(torch.arange(seen, seen + new, device=ids.device))
        return self.decoder(x, caches, mask=causal(new, seen + new).to(ids.device)) @ self.embedding.weight.T


NAMES = {"wte": "embedding", "wpe": "positions", "ln_f": "decoder.norm"}
LAYER_NAMES = {
    "ln_1": "attention_norm",
    "attn.c_proj": "attention.output",
    "ln_2": "feed_forward_norm",
    "mlp.c_fc": "feed_forward.inner",
    "mlp.c_proj": "feed_forward.outer",
}
"""GPT-2's names and yours, first for the tensors that occur once, then for those in each layer."""


def gpt2(fields: dict, tensors: dict[str, Tensor]) -> tuple[GPT2, dict[str, Tensor]]:
    """Return an empty model with these sizes, and its tensors with your names. GPT-2 stores its matrices as (in, out),
    the transpose of yours, and combines those of queries, keys and values."""
    take(fields, {"activation_function": "gelu_new", "tie_word_embeddings": True, "scale_attn_weights": True})
    take(fields, {"scale_attn_by_inverse_layer_idx": False})
    d_model, heads, layers = fields["n_embd"], fields["n_head"], fields["n_layer"]
    config = Config(fields["vocab_size"], d_model, layers, heads, heads, fields.get("n_inner") or 4 * d_model)
    model = GPT2(config, fields["n_positions"], fields["layer_norm_epsilon"])
    names = dict(NAMES)
    for layer in range(layers):
        names |= {f"h.{layer}.{old}": f"decoder.blocks.{layer}.{new}" for old, new in LAYER_NAMES.items()}
        names |= {f"h.{layer}.{name}": f"decoder.blocks.{layer}.attention.{name}" for name in ("query", "key", "value")}
    own = {}
    for name, x in tensors.items():
        name = name.removeprefix("transformer.")
        if name.endswith((".attn.bias", ".attn.masked_bias")) or name == "lm_head.weight":
            continue  # a stored mask, or a second copy of the embedding
        if ".c_" in name:
            x = x.t()
        if ".attn.c_attn." in name:
            own |= {name.replace("attn.c_attn", to): y for to, y in zip(("query", "key", "value"), x.chunk(3))}  # noqa: B905
        else:
            own[name] = x
    return model, renamed(own, names)


LAYOUTS["gpt2"] = gpt2
