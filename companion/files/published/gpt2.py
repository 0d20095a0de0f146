"""A published GPT-2 (Radford et al. 2019), by our names: the configuration and every tensor (lesson 13)."""

from __future__ import annotations

from pathlib import Path

import torch

from companion.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    ModelConfig,
    NormConfig,
    PositionConfig,
)
from companion.files.models import assemble
from companion.files.published.folder import Fields, Places, load_published
from companion.transformer import Transformer


def load_gpt2(
    folder: str | Path, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Transformer:
    """A GPT-2 (Radford et al. 2019) in Hugging Face's layout, in evaluation mode.

    There, matrices are stored (in, out), the transpose of `nn.Linear`'s, and query, key and value are one.
    Raises `ValueError` for a field it cannot honour, a tensor without a place, and what `load_model` raises.
    """
    folder = Path(folder)
    fields = Fields(folder, "gpt2")
    for name in ("reorder_and_upcast_attn", "scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        fields.only(name, False, default=False)
    fields.only("scale_attn_weights", True, default=True)
    context = fields.take("n_positions")
    fields.only("n_ctx", context, default=context)  # an older name for the same number
    d_model = fields.take("n_embd")
    dropout = fields.take("resid_pdrop", 0.1)
    for name in ("embd_pdrop", "attn_pdrop"):
        fields.only(name, dropout, default=0.1)
    config = fields.finish(
        lambda: ModelConfig(
            vocab=fields.take("vocab_size"),
            d_model=d_model,
            layers=fields.take("n_layer"),
            context=context,
            attention=AttentionConfig(heads=fields.take("n_head"), bias=True),
            feed_forward=FeedForwardConfig(
                d_ff=fields.take("n_inner", None) or 4 * d_model,
                activation=fields.activation("activation_function", "gelu_new"),
                bias=True,
            ),
            positions=PositionConfig("learned"),
            norm=NormConfig("layer", eps=fields.take("layer_norm_epsilon", 1e-5)),
            embedding=EmbeddingConfig(tied=fields.take("tie_word_embeddings", True)),
            dropout=dropout,
        )
    )
    # The first release has neither the prefix nor a head, and keeps its causal mask as a tensor.
    given = {name.removeprefix("transformer."): tensor for name, tensor in load_published(folder, device).items()}
    places = Places(given, folder)
    places.drop(lambda name: name.endswith((".attn.bias", ".attn.masked_bias")))
    places.vocabulary("wte.weight", tied=config.embedding.tied)
    places.move("wpe.weight", "positions.weight")
    for layer in range(config.layers):
        old, new = f"h.{layer}", f"decoder.blocks.{layer}"
        places.pairs(f"{old}.ln_1", f"{new}.attention_norm")
        places.pairs(f"{old}.ln_2", f"{new}.feed_forward_norm")
        for part in ("weight", "bias"):
            names = [f"{new}.attention.{name}.{part}" for name in ("query", "key", "value")]
            places.move(f"{old}.attn.c_attn.{part}", *names, transpose=True)
            places.move(f"{old}.attn.c_proj.{part}", f"{new}.attention.output.{part}", transpose=True)
            places.move(f"{old}.mlp.c_fc.{part}", f"{new}.feed_forward.inner.{part}", transpose=True)
            places.move(f"{old}.mlp.c_proj.{part}", f"{new}.feed_forward.outer.{part}", transpose=True)
    places.pairs("ln_f", "decoder.norm")
    return assemble(config, places.finish(), folder, dtype)
