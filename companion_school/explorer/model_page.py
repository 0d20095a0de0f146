"""A model of your own on the explorer's page: its weights, where the page computes it, else numbers from Python.

The page's engine knows the plain decoder and encoder-decoder (`models.not_computed`), if their weights are not too
many for a page, and the course's two kinds of tokens. Of every other model Python computes a pass, for one text; the
same page shows it, and asks for others where Python is there to answer (`server`), else lets alone what needs them.
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
"""Tokens of a translation that are written at most, as by the page."""
MOST = 16_000_000
"""The most numbers of a pass that a page holds: 64 MB."""
KEPT = (
    ".embedding", ".weights", ".scores", ".turned_query", ".turned_key", ".values", ".gate", ".inner", ".hidden",
    ".experts", "logits",
)  # fmt: skip
"""What of a pass the page shows, beside the stream after each block."""


class Tokens(Protocol):
    """What turns text into ids and back."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass(frozen=True)
class Reading:
    """What a model reads: the ids of a text, of an encoder-decoder its source beside what is written, and the text of
    each id."""

    tokens: Sequence[int]
    source: Sequence[int]
    piece: Callable[[int], str]


class ModelPage(NamedTuple):
    """A page, and whether the model runs on it; where not, it holds one pass."""

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
    """One HTML page on which this model can be looked into.

    model:  a decoder or an encoder-decoder of the package; or a decoder of your own, with the names of the build track.
    words:  what turns text into ids, and ids into text.
    text:   what is read; where the page computes, another can be typed there.
    start:  the id before a text, or of an encoder-decoder the first that is written. `None`: what `words` has, or none.
    stop:   of an encoder-decoder the id that ends what is written.

    Raises `ValueError` for a model that is an encoder, a text without tokens or longer than the model's context, and
    for a pass of more numbers than a page can hold.
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
    """What a model is: as its configuration says, or of the build track, whether it has an encoder."""
    own = "encoder_decoder" if isinstance(getattr(model, "encoder", None), nn.Module) else "decoder"
    return str(getattr(getattr(model, "config", None), "stack", own))


def computed_there(model: nn.Module, words: Any) -> dict[str, Any] | None:
    """What the page needs beside the weights to compute by itself; `None` where it cannot."""
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
    """The ids that a model reads of a text; an encoder-decoder writes its own, the most probable each time, with what
    is in `off` switched off."""
    if isinstance(words, NumberWords):
        ids, start, stop = words.encode(words.source.number(text))[0], BOS, EOS
    else:
        ids = list(words.encode(text))
        start = getattr(words, "separator", None) if start is None else start
    require(len(ids) > 0, "text", text, "text that there are tokens for")
    if stack_of(model) == "encoder_decoder":
        require_whole("start", start, 0)
        read_ids(model, words, ids)
        return read_ids(model, words, _written(model, ids, int(start or 0), stop, off), ids)
    return read_ids(model, words, ids if start is None else [start, *ids])


def read_ids(model: nn.Module, words: Any, tokens: Sequence[int], source: Sequence[int] = ()) -> Reading:
    """The same of ids. Raises `ValueError` for none, or more than the model's context."""
    most = getattr(getattr(model, "config", None), "context", len(tokens))
    require(0 < len(tokens) <= most, "text", f"{len(tokens)} tokens", f"at most {most:,} tokens, the model's context")
    if isinstance(words, NumberWords):
        return Reading(tokens, source, words.vocabulary.__getitem__)
    return Reading(tokens, source, partial(_spelled, words))


def _spelled(words: Any, id: int) -> str:
    """The text of one token, special ones in it where the tokenizer can say them."""
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
    """While this lasts, the model is in evaluation, and no other thread looks into one."""
    with ONE:
        was = model.training
        model.eval()
        try:
            yield
        finally:
            model.train(was)


def record(model: nn.Module, given: Reading, *, words: Any, off: Collection[str] = (), pieces: bool = False) -> bytes:
    """One pass of a model, as a file of the kind that the page reads; with `pieces` also the text of every id.

    Raises `ValueError` where it is too large, and as `activations.switched_off` does.
    """
    with _evaluated(model):
        rows = inside(model, given.tokens, given.source, off)
        kept = {name: found for name, found in rows.items() if name.endswith(KEPT) or _is_block(name)}
        count = sum(row.numel() for found in kept.values() for row in found)
        require(count <= MOST, "text", len(given.tokens), f"fewer tokens: their {count:,} numbers are above {MOST:,}")
        said: dict[str, Any] = {"recorded": _facts(model, given, rows, kept, words)}
    if pieces:
        config, vocab = getattr(model, "config", None), rows["logits"][0].shape[-1]
        context = getattr(config, "context", None)
        there = {"stack": stack_of(model)} | ({} if context is None else {"context": context})
        said |= {"config": there, "pieces": _pieces(given.piece, vocab), "stop": getattr(words, "separator", None)}
    tensors = {name: torch.cat([row.flatten().float() for row in found]) for name, found in kept.items()}
    return save(tensors, {name: json.dumps(what, ensure_ascii=False) for name, what in said.items()})


def _facts(model: nn.Module, given: Reading, rows: Rows, kept: Rows, words: Any) -> dict[str, Any]:
    """What a page has to know of a pass besides its numbers."""
    # A layer of latents has no such modules, and keeps something else.
    watched = [name.removesuffix(".values") for name in kept if name.endswith(".values")]
    config = getattr(model, "config", None)
    blocks = [name for name in rows if _is_block(name) and name.startswith("decoder")]
    mixture = config.moe if isinstance(config, ModelConfig) else None
    routers = [getattr(module, "router", None) for module in model.modules()]
    experts = max((router.out_features for router in routers if isinstance(router, nn.Linear)), default=0)
    decoded = given.source or isinstance(words, NumberWords)  # then the text is that of the source
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
    """The text of every id; a table may have more rows than there are tokens."""

    def known(id: int) -> str:
        try:
            return piece(id) or f"#{id}"
        except (ValueError, IndexError, KeyError):
            return f"#{id}"

    return [known(id) for id in range(vocab)]
