"""Our weights in other libraries' models, which are equivalent decoders from transformers and x-transformers."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.compare import Comparison
from companion.config.model import ModelConfig
from companion.families.export import export_model
from companion.ground.installed import installed
from companion.layers.positions import half_from_interleaved
from companion.transformer import Transformer

Writer = Callable[[Tensor, int], list[int]]
"""Function that takes a prompt (1, token) and the number of new tokens, and returns greedily chosen tokens."""


@dataclass(frozen=True)
class Peer:
    """Another library's decoder with our weights.

    Attributes:
        model: The library's module.
        logits: Function for training, which maps token ids (batch, token) to logits (batch, token, vocab) without a
            cache.
        prefill: Function that fills a cache with the token ids (1, token) and returns the last logits, (1, vocab).
        generate: The library's own cached generation.
        variants: Other ways of generating, by name.
    """

    model: nn.Module
    logits: Callable[[Tensor], Tensor]
    prefill: Callable[[Tensor], Tensor]
    generate: Writer
    variants: dict[str, Writer] = field(default_factory=dict)


def drawn(config: ModelConfig, seed: int = 0) -> Transformer:
    """Return a new decoder with random norm gains. If all gains were 1, swapping two of them would go unnoticed."""
    torch.manual_seed(seed)
    model = Transformer(config)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1:
                p.uniform_(0.5, 1.5)
    return model.eval()


def built(
    ours: Transformer, names: Collection[str], comparison: Comparison | None = None
) -> Iterator[tuple[str, Peer]]:
    """Yield every peer that can be built here, in fp32 on the CPU.

    For all others, the reason is recorded in the comparison.
    """
    original = copy.deepcopy(ours).cpu()
    for name in names:
        kind, why = "missing", f"not installed (pip install {name})"
        if installed(name):
            try:
                yield name, PEERS[name](original)
                continue
            except Exception as error:  # the library's interface has probably changed
                kind, why = "failed", f"{type(error).__name__}: {error}"
        if comparison is not None:
            comparison.omit(name, kind, why)  # type: ignore[arg-type]


def load_in_transformers(folder: Path) -> Any:
    """Return the model in a folder as transformers loads it, in fp32."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # benchmarks must not access the network
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def _transformers(ours: Transformer) -> Peer:
    with tempfile.TemporaryDirectory() as folder:
        export_model(folder, ours, kind="llama")
        model = load_in_transformers(Path(folder))

    def generate(prompt: Tensor, new: int, **options: Any) -> list[int]:
        mask = torch.ones_like(prompt)
        written = model.generate(prompt, attention_mask=mask, max_new_tokens=new, do_sample=False, **options)
        return written[0, prompt.shape[1] :].tolist()

    return Peer(
        model,
        lambda tokens: model(tokens, use_cache=False).logits,
        torch.inference_mode()(lambda tokens: model(tokens, use_cache=True, logits_to_keep=1).logits[:, -1]),
        generate,
        {"static cache": lambda prompt, new: generate(prompt, new, cache_implementation="static")},
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
            ff_mult=(config.feed_forward.d_ff + 0.5) / config.d_model,  # truncated after multiplying by the width
            verbose=False,
        ),
    )
    # Permute query and key rows: x-transformers rotates neighboring elements, but we rotate elements half a head apart.
    place = torch.argsort(half_from_interleaved(sizes.d_head))
    # Query head i reads key head i mod kv_heads in x-transformers, but neighboring query heads share one in ours.
    order = torch.arange(sizes.heads).view(sizes.kv_heads, -1).T.flatten()
    decoder: Any = ours.decoder
    layers = model.attn_layers.layers
    with torch.no_grad():
        model.token_emb.emb.weight.copy_(ours.embedding.weight)
        _fill_gain(model.attn_layers.final_norm, decoder.norm)
        for block, (norm, attention, _), (norm_after, network, _) in zip(
            decoder.blocks, layers[::2], layers[1::2], strict=True
        ):
            _fill_gain(norm[0], block.attention_norm)
            _fill_gain(norm_after[0], block.feed_forward_norm)
            own, feed_forward = block.attention, block.feed_forward
            query, key = (one.weight.unflatten(0, (-1, sizes.d_head))[:, place] for one in (own.query, own.key))
            attention.to_q.weight.copy_(query[order].flatten(0, 1))
            attention.to_k.weight.copy_(key.flatten(0, 1))
            attention.to_v.weight.copy_(own.value.weight)
            attention.to_out.weight.copy_(own.output.weight.unflatten(1, (sizes.heads, -1))[:, order].flatten(1))
            network.ff[0].proj.weight.copy_(torch.cat((feed_forward.inner.weight, feed_forward.gate.weight)))
            network.ff[0].proj.bias = None  # the library's gate has a bias even with ff_no_bias, but LLaMA's does not
            network.ff[-1].weight.copy_(feed_forward.outer.weight)
    wrapper = AutoregressiveWrapper(model)

    def generate(prompt: Tensor, new: int) -> list[int]:
        return wrapper.generate(prompt, new, temperature=0.0, cache_kv=True)[0].tolist()

    def prefill(tokens: Tensor) -> Tensor:
        with torch.inference_mode():
            return model(tokens, return_intermediates=True)[0][:, -1]

    return Peer(model, model, prefill, generate)


def _fill_gain(norm: Any, ours: Any) -> None:
    """Copy our norm's gain into another norm, which may store the gain as its difference from 1."""
    norm.g.copy_(ours.weight - float(norm.unit_offset))


PEERS: dict[str, Callable[[Transformer], Peer]] = {"transformers": _transformers, "x-transformers": _x_transformers}
"""Functions that build a peer with the weights of ours, by package name as pip knows it."""
