"""Published GPT-2, BERT, LLaMA, Mixtral and Marian, as Hugging Face's `save_pretrained` writes them (lesson 13).

`load_pretrained` reads a folder of safetensors, sharded or not, whatever its kind; each other loader reads one kind.
A field of the configuration that changes what the model computes is translated or refused by name, and every tensor
must find its place. Nothing is fetched from a network unless the caller asks for it.

Dropout, which matters only if training goes on: ours acts on embeddings, attention weights and every sub-layer's output
with one probability.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
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
from companion.files.models import CONFIG, assemble, load_model, read_config
from companion.files.published_folder import Fields, Places, SpecialTokens, fetch, load_published, special_tokens
from companion.layers.positions import sinusoidal
from companion.transformer import Transformer

__all__ = [
    "SpecialTokens",
    "load_bert",
    "load_gpt2",
    "load_llama",
    "load_marian",
    "load_mixtral",
    "load_pretrained",
    "pretrained_folder",
    "special_tokens",
]

_ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""Published names of activations, and ours."""


def load_pretrained(
    name: str | Path,
    *,
    download: bool = False,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Transformer:
    """A model of any layout known here: companion's own, or the one that `model_type` in config.json names.

    name:      a folder; or, with `download=True`, also what a hub calls it, "organisation/name".
    download:  fetch a model that is not a folder from the hub, through `huggingface_hub`.
    dtype:     `None`: as stored.
    device:    `None`: the CPU.

    Raises `ValueError` as `load_model` and the other loaders do, for an unknown `model_type`, and for a model that
    cannot be fetched.
    """
    folder = pretrained_folder(name, download=download)
    kind = read_config(folder).get("model_type")
    if kind is None:
        return load_model(folder, dtype=dtype, device=device)
    loaders = {
        "gpt2": load_gpt2,
        "bert": load_bert,
        "llama": load_llama,
        "mixtral": load_mixtral,
        "marian": load_marian,
    }
    if kind not in loaders:
        raise ValueError(f"{folder / CONFIG}: model_type={kind!r}: expected one of {', '.join(loaders)}, or none")
    return loaders[kind](folder, dtype=dtype, device=device)


def pretrained_folder(name: str | Path, *, download: bool = False) -> Path:
    """The folder of a checkpoint: `name` itself, or what was fetched from the hub under that name.

    Raises `ValueError` if there is no such folder, and nothing may or can be fetched.
    """
    folder = Path(name)
    if folder.is_dir():
        return folder
    if not download:
        raise ValueError(
            f"{name}: expected a folder with config.json and model.safetensors, found none; "
            "a model of this name on a hub is fetched only with download=True"
        )
    return fetch(str(name))


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
    d_model, activation = fields.take("n_embd"), fields.take("activation_function", "gelu_new")
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
                activation=fields.translate("activation_function", activation, _ACTIVATIONS),
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
    _tables(places, "wte.weight", config)
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


def load_bert(
    folder: str | Path, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Transformer:
    """A BERT (Devlin et al. 2019) in Hugging Face's layout, in evaluation mode: an encoder, post-norm.

    The tensors say which of its ends the file has: the masked-token head, the pooler, the classifier of sentence pairs.
    Without a masked-token head, logits are products with the table of tokens.
    Raises `ValueError` for a field it cannot honour, a tensor without a place, and what `load_model` raises.
    """
    folder = Path(folder)
    fields = Fields(folder, "bert")
    for name in ("is_decoder", "add_cross_attention"):
        fields.only(name, False, default=False)
    fields.only("position_embedding_type", "absolute", default="absolute")
    fields.only("tie_word_embeddings", True, default=True)
    dropout = fields.take("hidden_dropout_prob", 0.1)
    fields.only("attention_probs_dropout_prob", dropout, default=0.1)
    # Without a head, names have no prefix; the first releases call a norm's gain and bias gamma and beta.
    given = {}
    for name, tensor in load_published(folder, device).items():
        name = name.removeprefix("bert.").replace("LayerNorm.gamma", "LayerNorm.weight")
        given[name.replace("LayerNorm.beta", "LayerNorm.bias")] = tensor
    masked = any(name.startswith("cls.predictions.") for name in given)
    pooled = any(name.startswith("pooler.") for name in given)
    classifier = given.get("cls.seq_relationship.weight")
    config = fields.finish(
        lambda: ModelConfig(
            vocab=fields.take("vocab_size"),
            d_model=fields.take("hidden_size"),
            layers=fields.take("num_hidden_layers"),
            context=fields.take("max_position_embeddings"),
            attention=AttentionConfig(heads=fields.take("num_attention_heads"), bias=True),
            feed_forward=FeedForwardConfig(
                d_ff=fields.take("intermediate_size"),
                activation=fields.translate("hidden_act", fields.take("hidden_act", "gelu"), _ACTIVATIONS),
                bias=True,
            ),
            positions=PositionConfig("learned"),
            norm=NormConfig("layer", "post", eps=fields.take("layer_norm_eps", 1e-12)),
            embedding=EmbeddingConfig(
                norm=True,
                segments=fields.take("type_vocab_size", 2),
                head="masked" if masked else "linear",
                pooled=pooled,
                classes=0 if classifier is None or not pooled else classifier.shape[0],
            ),
            stack="encoder",
            dropout=dropout,
        )
    )
    places = Places(given, folder)
    places.drop(lambda name: name == "embeddings.position_ids")
    places.same(["embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"], "embedding.weight")
    places.move("embeddings.position_embeddings.weight", "positions.weight")
    places.move("embeddings.token_type_embeddings.weight", "segments.weight")
    places.pairs("embeddings.LayerNorm", "embedding_norm")
    for layer in range(config.layers):
        old, new = f"encoder.layer.{layer}", f"encoder.blocks.{layer}"
        for name in ("query", "key", "value"):
            places.pairs(f"{old}.attention.self.{name}", f"{new}.attention.{name}")
        places.pairs(f"{old}.attention.output.dense", f"{new}.attention.output")
        places.pairs(f"{old}.attention.output.LayerNorm", f"{new}.attention_norm")
        places.pairs(f"{old}.intermediate.dense", f"{new}.feed_forward.inner")
        places.pairs(f"{old}.output.dense", f"{new}.feed_forward.outer")
        places.pairs(f"{old}.output.LayerNorm", f"{new}.feed_forward_norm")
    if masked:
        places.same(["cls.predictions.bias", "cls.predictions.decoder.bias"], "head_bias")
        places.pairs("cls.predictions.transform.dense", "transform.dense")
        places.pairs("cls.predictions.transform.LayerNorm", "transform.norm")
    if pooled:
        places.pairs("pooler.dense", "pooler.dense")
    if config.embedding.classes:
        places.pairs("cls.seq_relationship", "classifier")
    return assemble(config, places.finish(), folder, dtype)


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


def load_marian(
    folder: str | Path, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Transformer:
    """A Marian translator (Junczys-Dowmunt et al. 2018) in Hugging Face's layout, in evaluation mode: the 2017
    encoder-decoder, post-norm, with all sines before all cosines, and one bias per token id on its logits.

    Its decoder starts from the padding token (`special_tokens`). Raises `ValueError` for a field it cannot honour
    (stacks of unequal sizes or tables, say), a tensor without a place, and what `load_model` raises.
    """
    folder = Path(folder)
    fields = Fields(folder, "marian", encoder_decoder=True)
    for name in ("normalize_before", "normalize_embedding", "add_final_layer_norm", "add_bias_logits", "is_decoder"):
        fields.only(name, False, default=False)
    for name in ("static_position_embeddings", "share_encoder_decoder_embeddings", "tie_word_embeddings"):
        fields.only(name, True, default=True)
    for name in ("encoder_layerdrop", "decoder_layerdrop", "attention_dropout", "activation_dropout"):
        fields.only(name, 0.0, default=0.0)
    fields.take("extra_pos_embeddings", None)  # counted rows of a table that the sinusoids replaced
    vocab = fields.take("vocab_size")
    fields.only("decoder_vocab_size", vocab, default=vocab)
    activation = fields.take("activation_function", "gelu")
    config = fields.finish(
        lambda: ModelConfig(
            vocab=vocab,
            d_model=fields.take("d_model"),
            layers=fields.alike("encoder_layers", "decoder_layers", "num_hidden_layers"),
            context=fields.take("max_position_embeddings"),
            attention=AttentionConfig(
                heads=fields.alike("encoder_attention_heads", "decoder_attention_heads"), bias=True
            ),
            feed_forward=FeedForwardConfig(
                d_ff=fields.alike("encoder_ffn_dim", "decoder_ffn_dim"),
                activation=fields.translate("activation_function", activation, _ACTIVATIONS),
                bias=True,
            ),
            positions=PositionConfig("sinusoidal", layout="half"),
            norm=NormConfig("layer", "post", eps=1e-5),
            embedding=EmbeddingConfig(scaled=fields.take("scale_embedding", False), head="biased"),
            stack="encoder_decoder",
            dropout=fields.take("dropout", 0.1),
        )
    )
    places = Places(load_published(folder, device), folder)
    _check_sinusoids(places, config)
    tables = ["model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head"]
    places.same([f"{name}.weight" for name in tables], "embedding.weight")
    places.move("final_logits_bias", "head_bias")
    if (bias := places.moved.get("head_bias")) is not None:
        places.moved["head_bias"] = bias.flatten()  # stored (1, vocab)
    for stack in ("encoder", "decoder"):
        for layer in range(config.layers):
            old, new = f"model.{stack}.layers.{layer}", f"{stack}.blocks.{layer}"
            sublayers = {"self_attn": "attention"} | ({"encoder_attn": "cross"} if stack == "decoder" else {})
            for theirs, ours in sublayers.items():
                for short, name in (("q", "query"), ("k", "key"), ("v", "value"), ("out", "output")):
                    places.pairs(f"{old}.{theirs}.{short}_proj", f"{new}.{ours}.{name}")
                places.pairs(f"{old}.{theirs}_layer_norm", f"{new}.{ours}_norm")
            places.pairs(f"{old}.fc1", f"{new}.feed_forward.inner")
            places.pairs(f"{old}.fc2", f"{new}.feed_forward.outer")
            places.pairs(f"{old}.final_layer_norm", f"{new}.feed_forward_norm")
    return assemble(config, places.finish(), folder, dtype)


def _tables(places: Places, embedding: str, config: ModelConfig) -> None:
    """The table of tokens and the head, which a tied model may store twice."""
    if config.embedding.tied:
        places.same([embedding, "lm_head.weight"], "embedding.weight")
    else:
        places.move(embedding, "embedding.weight")
        places.move("lm_head.weight", "unembedding.weight")


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
    _tables(places, "model.embed_tokens.weight", config)
    for layer in range(config.layers):
        old, new = f"model.layers.{layer}", f"decoder.blocks.{layer}"
        places.move(f"{old}.input_layernorm.weight", f"{new}.attention_norm.weight")
        places.move(f"{old}.post_attention_layernorm.weight", f"{new}.feed_forward_norm.weight")
        parts = ("weight", "bias") if config.attention.bias else ("weight",)
        for short, name in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "output")):
            places.pairs(f"{old}.self_attn.{short}_proj", f"{new}.attention.{name}", parts)
    places.move("model.norm.weight", "decoder.norm.weight")


def _check_sinusoids(places: Places, config: ModelConfig) -> None:
    """Some files carry the sinusoids: they must be the ones that are computed here, and are left out."""
    for stack in ("encoder", "decoder"):
        name = f"model.{stack}.embed_positions.weight"
        table: Tensor | None = places.given.pop(name, None)
        if table is None:
            continue
        positions = torch.arange(table.shape[0], device=table.device)
        if (
            table.ndim != 2
            or table.shape[1] != config.d_model
            or not torch.allclose(table.float(), sinusoidal(positions, config.d_model, layout="half"), atol=1e-2)
        ):
            raise ValueError(f"{places.folder}: {name} {tuple(table.shape)}: expected sines, then cosines")
