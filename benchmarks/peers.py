"""Our weights in other libraries' models: the same decoder in transformers and x-transformers."""

from __future__ import annotations

import copy
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.compare import Comparison
from companion.config.model import ModelConfig
from companion.layers.positions import half_from_interleaved
from companion.transformer import Transformer

PEERS = ("transformers", "x-transformers")
"""Package names as pip knows them."""


class Missing(Exception):
    """Raised if the package is not installed."""


def drawn(config: ModelConfig, seed: int = 0) -> Transformer:
    """Return a new decoder with random norm gains. If all gains were one, swapping two of them would go unnoticed."""
    torch.manual_seed(seed)
    model = Transformer(config)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1:
                p.uniform_(0.5, 1.5)
    return model.eval()


def built(ours: Transformer, *comparisons: Comparison, names: Sequence[str] = PEERS) -> Iterator[tuple[str, Peer]]:
    """Yield every peer that can be built. Record in the comparisons why the others are left out."""
    original = copy.deepcopy(ours).cpu()
    for name in names:
        try:
            yield name, build(name, original)
        except Missing as error:
            for comparison in comparisons:
                comparison.omit(name, "missing", error)
        except Exception as error:  # the library's interface has changed
            for comparison in comparisons:
                comparison.omit(name, "failed", f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class Peer:
    """Another library's decoder with our weights.

    Attributes:
        name: The library's name.
        model: Its module.
        logits: Function of token ids (batch, token) that returns (batch, token, vocab) without filling a cache, for
            training.
        generate: Function of a prompt (1, token) and the number of new tokens that returns the new ids, chosen greedily
            by the library's own cached generation.
        variants: Other ways to generate, by name.
        prefill: Function of token ids (1, token) that fills a cache and returns the last logits, (1, vocab); `None` if
            the library has none.
    """

    name: str
    model: nn.Module
    logits: Callable[[Tensor], Tensor]
    generate: Callable[[Tensor, int], list[int]]
    variants: dict[str, Callable[[Tensor, int], list[int]]] = field(default_factory=dict)
    prefill: Callable[[Tensor], Tensor] | None = None


def build(name: str, ours: Transformer) -> Peer:
    """Build a peer with the weights of `ours`, in fp32 on the CPU.

    Exceptions of the library itself, for example after a change of its interface, are passed on.

    Raises:
        Missing: If the package is not installed.
        ValueError: If the name is unknown or the library does not support the layout of `ours`.
    """
    if name not in PEERS:
        raise ValueError(f"peer={name!r}: expected one of {', '.join(PEERS)}")
    if importlib.util.find_spec(name.replace("-", "_")) is None:
        raise Missing(f"not installed (pip install {name})")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the benchmark must not access the network
    return _transformers(ours) if name == "transformers" else _x_transformers(ours)


def _transformers(ours: Transformer) -> Peer:
    import transformers

    transformers.logging.set_verbosity_error()
    config, sizes = ours.config, ours.config.sizes
    layout: Any = transformers.LlamaConfig  # typed as Any because its signature does not list everything it accepts
    model: Any = transformers.LlamaForCausalLM(
        layout(
            vocab_size=config.vocab,
            hidden_size=config.d_model,
            num_hidden_layers=config.layers,
            num_attention_heads=sizes.heads,
            num_key_value_heads=sizes.kv_heads,
            head_dim=sizes.d_head,
            intermediate_size=config.feed_forward.d_ff,
            max_position_embeddings=config.context,
            rms_norm_eps=config.norm.eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.positions.base},
            tie_word_embeddings=True,
            attn_implementation="sdpa",
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
    )
    given = weights(ours)
    table = given.pop("embedding")
    tensors = {"model.embed_tokens.weight": table, "lm_head.weight": table, "model.norm.weight": given.pop("norm")}
    names = {
        "attention_norm": "input_layernorm",
        "query": "self_attn.q_proj",
        "key": "self_attn.k_proj",
        "value": "self_attn.v_proj",
        "output": "self_attn.o_proj",
        "feed_forward_norm": "post_attention_layernorm",
        "gate": "mlp.gate_proj",
        "inner": "mlp.up_proj",
        "outer": "mlp.down_proj",
    }
    for (layer, part), tensor in _by_layer(given):
        tensors[f"model.layers.{layer}.{names[part]}.weight"] = tensor
    model.load_state_dict(tensors)

    def generate(prompt: Tensor, new: int, **options: Any) -> list[int]:
        written = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=new,
            do_sample=False,
            use_cache=True,
            **options,
        )
        return written[0, prompt.shape[1] :].tolist()

    return Peer(
        "transformers",
        model,
        lambda tokens: model(tokens, use_cache=False).logits,
        generate,
        {"static cache": lambda prompt, new: generate(prompt, new, cache_implementation="static")},
        torch.inference_mode()(lambda tokens: model(tokens, use_cache=True, logits_to_keep=1).logits[:, -1]),
    )


def _x_transformers(ours: Transformer) -> Peer:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    config, sizes = ours.config, ours.config.sizes
    model: Any = TransformerWrapper(
        num_tokens=config.vocab,
        max_seq_len=config.context,
        use_abs_pos_emb=False,
        tie_embedding=True,
        tie_embedding_scale=1.0,
        attn_layers=Decoder(
            dim=config.d_model,
            depth=config.layers,
            heads=sizes.heads,
            attn_dim_head=sizes.d_head,
            attn_kv_heads=sizes.kv_heads,
            attn_flash=True,
            rotary_pos_emb=True,
            rotary_emb_dim=sizes.d_head,
            use_rmsnorm=True,
            ff_glu=True,
            ff_swish=True,
            ff_no_bias=True,
            ff_mult=(config.feed_forward.d_ff + 0.5) / config.d_model,  # truncated after multiplication by the width
            verbose=False,
        ),
    )
    if config.positions.base != 10000.0:
        raise ValueError(f"positions.base={config.positions.base}: expected 10000, which x-transformers has built in")
    given = weights(ours)
    # x-transformers rotates neighbouring elements as a pair, but ours are half a head apart, so the rows of the query
    # and key projections are permuted.
    place = torch.argsort(half_from_interleaved(sizes.d_head))
    # In x-transformers, query head i reads key head i mod kv_heads; in ours, neighbouring query heads share a key head.
    order = torch.arange(sizes.heads).view(sizes.kv_heads, -1).T.flatten()
    with torch.no_grad():
        model.token_emb.emb.weight.copy_(given.pop("embedding"))
        _fill_gain(model.attn_layers.final_norm, given.pop("norm"))
        for layer in range(config.layers):
            (norm, *_), attention, _ = model.attn_layers.layers[2 * layer]
            (norm_after, *_), network, _ = model.attn_layers.layers[2 * layer + 1]
            own = {part: given[f"{layer}.{part}"] for part in PARTS}
            _fill_gain(norm, own["attention_norm"])
            _fill_gain(norm_after, own["feed_forward_norm"])
            query, key = (own[name].view(-1, sizes.d_head, config.d_model)[:, place] for name in ("query", "key"))
            attention.to_q.weight.copy_(query[order].flatten(0, 1))
            attention.to_k.weight.copy_(key.flatten(0, 1))
            attention.to_v.weight.copy_(own["value"])
            attention.to_out.weight.copy_(own["output"].unflatten(1, (sizes.heads, -1))[:, order].flatten(1))
            network.ff[0].proj.weight.copy_(torch.cat((own["inner"], own["gate"])))
            network.ff[0].proj.bias = None  # the library's gate has a bias even with ff_no_bias; LLaMA's has none
            network.ff[-1].weight.copy_(own["outer"])
    wrapper = AutoregressiveWrapper(model)

    def generate(prompt: Tensor, new: int) -> list[int]:
        return wrapper.generate(prompt, new, temperature=0.0, cache_kv=True)[0].tolist()

    def prefill(tokens: Tensor) -> Tensor:
        with torch.inference_mode():
            return model(tokens, return_intermediates=True)[0][:, -1]

    return Peer("x-transformers", model, model, generate, prefill=prefill)


def _fill_gain(norm: Any, gain: Tensor) -> None:
    """Copy a gain into a norm, which may store it as the difference from one."""
    norm.g.copy_(gain - float(norm.unit_offset))


PARTS = ("attention_norm", "query", "key", "value", "output", "feed_forward_norm", "gate", "inner", "outer")


def weights(ours: Transformer) -> dict[str, Tensor]:
    """Return copies of the tensors of `ours`.

    They are named `embedding`, `norm` and, for each of `PARTS`, by layer and part, as in `0.query`.

    Raises:
        ValueError: If the model does not have LLaMA's layout with a tied embedding table.
    """
    _check(ours.config)
    found = dict(ours.state_dict())
    given = {"embedding": found["embedding.weight"], "norm": found["decoder.norm.weight"]}
    for layer in range(ours.config.layers):
        for part in PARTS:
            home = "attention." if part in ("query", "key", "value", "output") else ""
            home = "feed_forward." if part in ("gate", "inner", "outer") else home
            given[f"{layer}.{part}"] = found[f"decoder.blocks.{layer}.{home}{part}.weight"]
    if len(given) != len(found):
        raise ValueError(f"model has {len(found)} tensors: expected {len(given)}, as in LLaMA with a tied table")
    return {name: tensor.detach().clone() for name, tensor in given.items()}


def _by_layer(given: dict[str, Tensor]) -> list[tuple[tuple[str, str], Tensor]]:
    return [((name.split(".")[0], name.split(".")[1]), tensor) for name, tensor in given.items()]


def _check(config: ModelConfig) -> None:
    """Raise `ValueError` unless the config has the layout that all the libraries support."""
    for name, value, expected in (
        ("stack", config.stack, "decoder"),
        ("positions.kind", config.positions.kind, "rotary"),
        ("positions.pairing", config.positions.pairing, "half"),
        ("norm.kind", config.norm.kind, "rms"),
        ("positions.share", config.positions.share, 1.0),
        ("positions.scaling", config.positions.scaling, None),
        ("positions.pattern", config.positions.pattern, (True,)),
        ("attention.window", config.attention.window, None),
        ("attention.score_width", config.attention.score_width, None),
        ("attention.score_cap", config.attention.score_cap, None),
        ("attention.sinks", config.attention.sinks, False),
        ("attention.gate", config.attention.gate, None),
        ("norm.placement", config.norm.placement, "pre"),
        ("norm.unit_offset", config.norm.unit_offset, False),
        ("feed_forward.activation", config.feed_forward.activation, "swiglu"),
        ("embedding.tied", config.embedding.tied, True),
        ("embedding.scaled", config.embedding.scaled, False),
        ("embedding.multiplier", config.embedding.multiplier, 1.0),
        ("embedding.logit_divisor", config.embedding.logit_divisor, 1.0),
        ("embedding.logit_cap", config.embedding.logit_cap, None),
        ("moe", config.moe, None),
        ("dropout", config.dropout, 0.0),
        ("residual", config.residual, 1.0),
    ):
        if value != expected:
            raise ValueError(
                f"{name}={value!r}: expected {expected!r}, as in LLaMA's layout, which every compared library supports"
            )
