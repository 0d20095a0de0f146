"""Show your own model on the explorer's page.

The page's engine can run plain decoders and encoder-decoders (see `models.not_computed`) with the course's two kinds of
tokenizers, if the weights fit on a page. For other models, Python computes one pass over a text, and the page shows
this pass. If a server is running (`server`), the page requests more passes from it. Otherwise, the page disables all
controls that need more passes.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from safetensors.torch import save
from torch import nn

from companion.config.model import ModelConfig
from companion.data.number_words import BOS, EOS, NumberWords
from companion.data.tokenizer import BytePairTokenizer
from companion.ground.fields import require, require_whole
from companion.transformer import Transformer
from companion_school.explorer.activations import ONE, Rows, inside, logits_of, memory_of, switched_off
from companion_school.explorer.logit_lens import logit_lens
from companion_school.explorer.models import LARGEST, names_of, not_computed, pairs_of, save_live
from companion_school.explorer.page_files import Shown, model_script, page

WRITTEN = 40
"""Maximum number of tokens in a translation, as on the page."""
MOST = 16_000_000
"""Maximum number of activations of a pass in a page: 64 MB."""
KEPT = (
    ".embedding", ".weights", ".scores", ".turned_query", ".turned_key", ".values", ".gate", ".inner", ".hidden",
    ".experts", "logits",
)  # fmt: skip
"""Endings of the names of activations that the page shows in addition to the residual stream after each block."""


class Tokens(Protocol):
    """A tokenizer, which converts text to ids and back."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass(frozen=True)
class Reading:
    """The input of a model.

    Attributes:
        tokens: Ids that the decoder reads.
        source: Ids that the encoder of an encoder-decoder reads; empty for a decoder.
        piece: Function that returns the text of an id.
    """

    tokens: Sequence[int]
    source: Sequence[int]
    piece: Callable[[int], str]


class ModelPage(NamedTuple):
    """A page as HTML. `runs` is True if the model runs on the page; otherwise the page contains a single pass."""

    html: str
    runs: bool


def model_page(
    model: nn.Module,
    words: Tokens | NumberWords,
    text: str,
    *,
    start: int | None = None,
    stop: int | None = None,
    title: str = "Your model",
) -> ModelPage:
    """Return an HTML page that shows the inside of a model.

    Args:
        model: A decoder or an encoder-decoder from the package, or your own model if it uses the names of the build
            track.
        words: The tokenizer.
        text: The text that the model reads, which readers can replace if the model runs on the page.
        start: Id placed before the text or, for an encoder-decoder, the first id of the output (default: the separator
            of `words`, if there is one).
        stop: Id that ends the output of an encoder-decoder.
        title: Title of the page.

    Raises:
        ValueError: The model is an encoder, the text has no tokens or more than fit in the model's context, or the pass
            has more activations than a page can hold.
    """
    stack = stack_of(model)
    require(stack != "encoder", "model", stack, "a decoder or an encoder-decoder")
    shown = Shown("yours", title, text, "Source" if stack == "encoder_decoder" else "Text")
    said = computed_there(model, words)
    if said is None:
        file = record(model, reading(model, words, text, start=start, stop=stop), words=words, pieces=True)
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.safetensors"
            save_live(path, model, said, rounded=False)  # type: ignore[arg-type]
            file = path.read_bytes()
    return ModelPage(page([shown], {"yours": model_script("yours", file)}, title), said is not None)


def stack_of(model: nn.Module) -> str:
    """Return the kind of a model: its `config.stack` if present, otherwise "encoder_decoder" or "decoder"."""
    own = "encoder_decoder" if isinstance(getattr(model, "encoder", None), nn.Module) else "decoder"
    return str(getattr(getattr(model, "config", None), "stack", own))


def computed_there(model: nn.Module, words: Any) -> dict[str, Any] | None:
    """Return the tokenizer data that the page needs to run the model itself, or `None` if the page cannot run it."""
    if not isinstance(model, Transformer) or not_computed(model.config) is not None:
        return None
    if sum(weight.numel() for weight in model.parameters()) > LARGEST:
        return None
    if isinstance(words, BytePairTokenizer) and model.config.stack == "decoder":
        return {"pairs": pairs_of(words)}
    if isinstance(words, NumberWords) and words.source_pieces == "parts" and model.config.stack == "encoder_decoder":
        return {"names": names_of(words)}
    return None


def reading(
    model: nn.Module,
    words: Any,
    text: str,
    *,
    start: int | None = None,
    stop: int | None = None,
    off: Collection[str] = (),
) -> Reading:
    """Tokenize a text for a model. An encoder-decoder also generates its output, using greedy decoding.

    Args:
        model: The model.
        words: The tokenizer.
        text: The text.
        start: First id, as in `model_page`.
        stop: Id that ends the output, as in `model_page`.
        off: Heads and experts that are switched off during generation.

    Raises:
        ValueError: The text has no tokens or more than fit in the model's context, or an encoder-decoder has no
            `start`.
    """
    if isinstance(words, NumberWords):
        ids, start, stop = words.encode(words.source.number(text))[0], BOS, EOS
    else:
        ids = list(words.encode(text))
        start = getattr(words, "separator", None) if start is None else start
    require(len(ids) > 0, "text", text, "a text with at least one token")
    if stack_of(model) == "encoder_decoder":
        require_whole("start", start, 0)
        read_ids(model, words, ids)
        return read_ids(model, words, _written(model, ids, int(start or 0), stop, off), ids)
    return read_ids(model, words, ids if start is None else [start, *ids])


def read_ids(model: nn.Module, words: Any, tokens: Sequence[int], source: Sequence[int] = ()) -> Reading:
    """Return a model's input for the given ids.

    Raises:
        ValueError: There are no ids, or more than fit in the model's context.
    """
    most = getattr(getattr(model, "config", None), "context", len(tokens))
    require(0 < len(tokens) <= most, "text", f"{len(tokens)} tokens", f"at most {most:,} tokens, the model's context")
    if isinstance(words, NumberWords):
        return Reading(tokens, source, words.vocabulary.__getitem__)
    return Reading(tokens, source, partial(_spelled, words))


def _spelled(words: Any, id: int) -> str:
    """Return the text of a token, including special tokens if the tokenizer has text for them."""
    return "⏎" if id == getattr(words, "separator", None) else str(getattr(words, "spell", words.decode)([id]))


@torch.no_grad()
def _written(model: nn.Module, source: Sequence[int], start: int, stop: int | None, off: Collection[str]) -> list[int]:
    most = min(WRITTEN, getattr(getattr(model, "config", None), "context", WRITTEN))
    with _evaluated(model), switched_off(model, off):
        memory, tokens = memory_of(model, source), [start]
        while len(tokens) < most:
            following = int(logits_of(model, torch.tensor([tokens]), memory)[0, -1].argmax())
            if following == stop:
                break
            tokens.append(following)
    return tokens


@contextmanager
def _evaluated(model: nn.Module) -> Iterator[None]:
    with ONE:
        was = model.training
        model.eval()
        try:
            yield
        finally:
            model.train(was)


def record(model: nn.Module, given: Reading, *, words: Any, off: Collection[str] = (), pieces: bool = False) -> bytes:
    """Record one pass of a model as a file that the page reads.

    Args:
        model: The model.
        given: Its input.
        words: The tokenizer.
        off: Heads and experts to switch off.
        pieces: Whether to include the text of every id.

    Raises:
        ValueError: The pass is too large for a page, or `activations.switched_off` raises an error.
    """
    with _evaluated(model):
        rows = inside(model, given.tokens, given.source, off)
        kept = {name: found for name, found in rows.items() if name.endswith(KEPT) or _is_block(name)}
        count = sum(row.numel() for found in kept.values() for row in found)
        require(count <= MOST, "text", len(given.tokens), f"fewer tokens: {count:,} activations are more than {MOST:,}")
        said: dict[str, Any] = {"recorded": _facts(model, given, rows, kept, words)}
    if pieces:
        config, vocab = getattr(model, "config", None), rows["logits"][0].shape[-1]
        context = getattr(config, "context", None)
        there = {"stack": stack_of(model)} | ({} if context is None else {"context": context})
        said |= {"config": there, "pieces": _pieces(given.piece, vocab), "stop": getattr(words, "separator", None)}
    tensors = {name: torch.cat([row.flatten().float() for row in found]) for name, found in kept.items()}
    return save(tensors, {name: json.dumps(what, ensure_ascii=False) for name, what in said.items()})


def _facts(model: nn.Module, given: Reading, rows: Rows, kept: Rows, words: Any) -> dict[str, Any]:
    """Return everything that a page needs to know about a pass, except the activations."""
    # A latent attention layer has no module `key` and caches something else.
    watched = [name.removesuffix(".values") for name in kept if name.endswith(".values")]
    config = getattr(model, "config", None)
    blocks = [name for name in rows if _is_block(name) and name.startswith("decoder")]
    mixture = config.moe if isinstance(config, ModelConfig) else None
    routers = [getattr(module, "router", None) for module in model.modules()]
    experts = max((router.out_features for router in routers if isinstance(router, nn.Linear)), default=0)
    decoded = given.source or isinstance(words, NumberWords)  # the page shows the source as the text
    first = 1 if given.tokens[0] == getattr(words, "separator", None) else 0
    return {
        "sizes": {name: [row.numel() for row in found] for name, found in kept.items()},
        "kept": [name for name in watched if f"{name}.key" in rows],
        "tokens": {"encoder": list(given.source), "decoder": list(given.tokens)},
        "text": None if decoded else words.decode(list(given.tokens[first:])),
        "counts": {
            "layers": len(blocks),
            "heads": getattr(getattr(config, "attention", config), "heads", 1),
            "experts": mixture.experts if mixture is not None else experts,
        },
        "lens": logit_lens(model, {name: rows[name] for name in ["decoder.embedding", *blocks]}),
    }


def _is_block(name: str) -> bool:
    return name.split(".")[1:2] == ["blocks"] and name.count(".") == 2


def _pieces(piece: Callable[[int], str], vocab: int) -> list[str]:
    """Return the text of every id. Ids without a token, which occur if the embedding has extra rows, become #id."""

    def known(id: int) -> str:
        try:
            return piece(id) or f"#{id}"
        except (ValueError, IndexError, KeyError):
            return f"#{id}"

    return [known(id) for id in range(vocab)]
