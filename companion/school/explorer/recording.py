"""A model of your own on the explorer's page: its weights, where the page computes it, else numbers from Python.

The page's engine knows the plain decoder and encoder-decoder (`models.not_computed`), if their weights are not too
many for a page, and the course's two kinds of tokens. Of every other model Python computes one pass, for one text; the
same page shows it, and lets alone what would need another pass.
"""

from __future__ import annotations

import html
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from companion.config.model import ModelConfig
from companion.data.number_words import BOS, EOS, NumberWords
from companion.data.tokenizer import BytePairTokenizer
from companion.ground.atomic import write_atomic
from companion.ground.fields import require, require_whole
from companion.school.explorer.files import Shown, model_script, page
from companion.school.explorer.inside import Rows, inside
from companion.school.explorer.models import LARGEST, names_of, not_computed, pairs_of, save_live, save_with_header
from companion.transformer import Transformer

LENS = 3
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


def model_page(
    model: nn.Module,
    words: Tokens | NumberWords,
    text: str,
    *,
    start: int | None = None,
    stop: int | None = None,
    title: str = "Your model",
) -> str:
    """One HTML page on which this model can be looked into.

    model:  a decoder or an encoder-decoder of the package; or a decoder of your own, with the names of the build track.
    words:  what turns text into ids, and ids into text.
    text:   what is read; where the page computes, another can be typed there.
    start:  the id before a text, or of an encoder-decoder the first that is written. `None`: what `words` has, or none.
    stop:   of an encoder-decoder the id that ends what is written.

    Raises `ValueError` for a model that is an encoder, a text without tokens or longer than the model's context, and
    for a pass of more numbers than a page can hold.
    """
    config = getattr(model, "config", None)
    stack = getattr(config, "stack", "decoder")
    require(stack != "encoder", "model", stack, "a decoder or an encoder-decoder")
    shown = Shown("yours", title, text, "Source" if stack == "encoder_decoder" else "Text")
    said = _computed_there(model, words)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        if said is not None:
            save_live(file, model, said, rounded=False)  # type: ignore[arg-type]
        else:
            save_recorded(file, model, reading(model, words, text, start=start, stop=stop))
        return page([shown], {"yours": model_script("yours", file.read_bytes())}, title)


def _computed_there(model: nn.Module, words: Any) -> dict[str, Any] | None:
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


def reading(model: nn.Module, words: Any, text: str, *, start: int | None = None, stop: int | None = None) -> Reading:
    """The ids that a model reads of a text; an encoder-decoder writes its own, the most probable each time."""
    piece: Callable[[int], str]
    if isinstance(words, NumberWords):
        ids = words.encode(words.source.number(text))[0]
        start, stop, piece = BOS, EOS, words.vocabulary.__getitem__
    else:
        ids, piece = list(words.encode(text)), partial(_spelled, words)
        start = getattr(words, "separator", None) if start is None else start
    require(len(ids) > 0, "text", text, "text that there are tokens for")
    config = getattr(model, "config", None)
    if getattr(config, "stack", "decoder") == "encoder_decoder":
        require_whole("start", start, 0)
        return Reading(_written(model, ids, int(start or 0), stop), ids, piece)
    tokens = ids if start is None else [start, *ids]
    most = getattr(config, "context", len(tokens))
    require(len(tokens) <= most, "text", text, f"at most {most:,} tokens, the model's context")
    return Reading(tokens, (), piece)


def _spelled(words: Any, id: int) -> str:
    """The text of one token, special ones in it where the tokenizer can say them."""
    return "⏎" if id == getattr(words, "separator", None) else str(getattr(words, "spell", words.decode)([id]))


@torch.no_grad()
def _written(model: Any, source: Sequence[int], start: int, stop: int | None) -> list[int]:
    memory, tokens = model.encode(torch.tensor([source])), [start]
    while len(tokens) < min(WRITTEN, model.config.context):
        following = int(model(torch.tensor([tokens]), source=memory).logits[0, -1].argmax())
        if following == stop:
            break
        tokens.append(following)
    return tokens


def save_recorded(path: Path, model: nn.Module, given: Reading) -> None:
    """One pass of a model, in a file of the kind that the page reads. Raises `ValueError` where it is too large."""
    was = model.training
    model.eval()
    try:
        rows = inside(model, given.tokens, given.source)
    finally:
        model.train(was)
    kept = {name: found for name, found in rows.items() if name.endswith(KEPT) or _is_block(name)}
    count = sum(row.numel() for found in kept.values() for row in found)
    require(count <= MOST, "text", len(given.tokens), f"fewer tokens: their {count:,} numbers are above {MOST:,}")
    # A layer of latents has no such modules, and keeps something else.
    watched = [name.removesuffix(".values") for name in kept if name.endswith(".values")]
    attends = [name for name in watched if f"{name}.key" in rows]
    config = getattr(model, "config", None)
    blocks = [name for name in rows if _is_block(name) and name.startswith("decoder")]
    mixture = config.moe if isinstance(config, ModelConfig) else None
    experts = max((int(row.max()) + 1 for name in rows if name.endswith(".experts") for row in rows[name]), default=0)
    recorded = {
        "sizes": {name: [row.numel() for row in found] for name, found in kept.items()},
        "kept": attends,
        "tokens": {"encoder": list(given.source), "decoder": list(given.tokens)},
        "counts": {
            "layers": len(blocks),
            "heads": getattr(getattr(config, "attention", config), "heads", 1),
            "experts": mixture.experts if mixture is not None else experts,
        },
        "lens": lens(model, {name: rows[name] for name in ["decoder.embedding", *blocks]}),
    }
    tensors = {name: torch.cat([row.flatten().float() for row in found]) for name, found in kept.items()}
    vocab = rows["logits"][0].shape[-1]
    said = {"config": {"stack": getattr(config, "stack", "decoder")}, "pieces": _pieces(given.piece, vocab)}
    save_with_header(path, tensors, {**said, "recorded": recorded})


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


@torch.no_grad()
def lens(model: Any, states: Rows) -> dict[str, list[list[list[float]]]]:
    """Of each state of the stream the likeliest tokens with their chances, by the last norm and the head."""

    def head(x: Tensor) -> Tensor:
        x = model.decoder.norm(x)
        return model.head(x) if hasattr(model, "head") else x @ model.embedding.weight.T

    found = {}
    for name, rows in states.items():
        chances = head(torch.stack(rows)[None])[0].float().softmax(-1).topk(LENS, -1)
        found[name] = [
            [[int(id), float(p)] for id, p in zip(ids, ps, strict=True)]
            for ids, ps in zip(chances.indices, chances.values, strict=True)
        ]
    return found


class Explorer:
    """The page in a notebook: what a cell shows whose last line this is."""

    def __init__(self, page: str, height: int) -> None:
        self.page, self.height = page, height

    def _repr_html_(self) -> str:
        frame = 'style="border:0;width:100%" title="The explorer"'
        return f'<iframe {frame} height="{self.height}" srcdoc="{html.escape(self.page)}"></iframe>'

    def save(self, path: str | Path) -> None:
        """Write the page as a file."""
        write_atomic(path, self.page)


def explore(
    model: nn.Module,
    words: Tokens | NumberWords,
    text: str,
    *,
    start: int | None = None,
    stop: int | None = None,
    height: int = 900,
) -> Explorer:
    """Look inside a model in a notebook: `explore(model, tokenizer, "Once upon a time")`.

    height: of the frame, in pixels; `model_page` says what the rest is, and what is refused.
    """
    return Explorer(model_page(model, words, text, start=start, stop=stop), height)
