"""Every tensor inside a model's pass, by the names of the explorer's engine, as PyTorch has it."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from companion.data import number_names, number_words
from companion.data.stories import stories
from companion.layers.attention import Attention, attention_weights
from companion.layers.moe import MoE
from companion.transformer import Transformer

EXPLORER = Path(__file__).parents[1] / "companion" / "school" / "explorer"
ENGINE = "".join((EXPLORER / name).read_text("utf-8") for name in ("words.js", "engine.js"))
PASS = """
// Reads half of a text at once and the rest token by token; gives every number of the pass, and the names of its rows.
const passOf = (engine, words, { text, source, off }) => {
  const tokens = [...words.start, ...words.target(text)], half = Math.ceil(tokens.length / 2);
  const pass = engine.begin({ source: source && words.encode(source), off: new Set(off) });
  engine.read(pass, tokens.slice(0, half));
  for (const token of tokens.slice(half)) engine.read(pass, [token]);
  const names = Object.entries(pass.seen).map(([name, rows]) => [name, rows.map((row) => row.length)]);
  const numbers = new Float32Array(names.reduce((total, [, sizes]) => sizes.reduce((a, b) => a + b, total), 0));
  let at = 0;
  for (const row of Object.values(pass.seen).flat()) { numbers.set(row, at); at += row.length; }
  return { tokens, source: pass.tokens.encoder, names, numbers };
};
const openModel = (text) => {
  const model = readModel(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0))), words = makeWords(model);
  words.target = model.names ? (given) => JSON.parse(given) : words.encode;
  return [makeEngine(model), words];
};
"""
"""What a test runs beside the engine, in Node or in a browser."""


def texts_of(name: str, count: int = 100) -> list[dict[str, Any]]:
    """Texts for a model, as `passOf` takes them: stories, and ten texts that are none."""
    if name == "translator":
        words, numbers = number_words.task("de", "en"), number_words.held_out(count, seed=5)
        german = number_names.language("de")
        return [{"source": german.name(n), "text": json.dumps(words.encode(n)[1])} for n in numbers]
    told = [story.text for story in stories(count - 10, seed=7)]
    odd = [
        "",
        " ",
        "Mila  has\n\n a cat's 12 eggs…",
        "Größe! 日本 🦊",
        "don't  we'll",
        "\t\r\n x",
        "a" * 40,
        "1,000.5",
        "¡½®­",
        "É",
    ]
    return [{"text": text[: 20 + i]} for i, text in enumerate(told)] + [{"text": text} for text in odd]


def base64_of(file: Path) -> str:
    """A file as a page is given it."""
    return base64.b64encode(file.read_bytes()).decode()


@torch.no_grad()
def tensors(model: Transformer, tokens: Sequence[int], source: Sequence[int]) -> dict[str, list[Tensor]]:
    """Of each name the rows of a pass, one for each token."""
    found: dict[str, list[Tensor]] = {}
    hooks = [
        module.register_forward_hook(_keeper(name, found), with_kwargs=True)
        for name, module in model.named_modules()
        if name and not isinstance(module, nn.ModuleList | nn.Dropout)
    ]
    given = {"source": torch.tensor([source])} if source else {}
    found["logits"] = list(model(torch.tensor([tokens]), **given).logits[0])
    for hook in hooks:
        hook.remove()
    return found


def _keeper(name: str, found: dict[str, list[Tensor]]) -> Any:
    def keep(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        kept = found.setdefault(name, [])
        kept += list((out[0] if isinstance(out, tuple) else out)[0])
        if name.endswith("blocks.0.attention_norm"):
            found[f"{name.split('.')[0]}.embedding"] = list(args[0][0])
        if name.endswith(("cross_norm", "feed_forward_norm")):
            block = name.rpartition(".")[0]
            after = "cross" if name.endswith("feed_forward_norm") and f"{block}.cross" in found else "attention"
            found[f"{block}.after_{after}"] = list(args[0][0])
        if name.endswith("feed_forward.outer"):
            found[name.replace("outer", "hidden")] = list(args[0][0])
        if isinstance(module, MoE):
            routing = out[1]
            found[f"{name}.experts"], found[f"{name}.weights"] = list(routing.experts[0]), list(routing.weights[0])
            answers = module.answers(args[0][0], routing.experts[0], None)
            found[f"{name}.answers"] = list(answers.flatten(1))
        if isinstance(module, Attention):
            found.update(_of_attention(name, module, found, causal=name.startswith("decoder") and "cross" not in name))

    return keep


def _of_attention(name: str, layer: Attention, found: dict[str, list[Tensor]], *, causal: bool) -> dict[str, Any]:
    """What attention makes of its projections, all heads of a row side by side, of the keys it sees."""
    heads, places = layer.sizes.heads, torch.arange(len(found[f"{name}.query"]))
    q, k, v = (
        torch.stack(found[f"{name}.{part}"]).unflatten(1, (heads, -1)).transpose(0, 1)[None]
        for part in ("query", "key", "value")
    )
    made = {}
    if layer.rotary is not None:
        turn = layer.rotary.at(places, q.dtype)
        q, k = layer.rotary.turn(q, turn), layer.rotary.turn(k, turn)
        made = {
            f"{name}.turned_{part}": list(x[0].transpose(0, 1).flatten(1)) for part, x in (("query", q), ("key", k))
        }
    scores, weights = q @ k.mT / math.sqrt(q.shape[-1]), attention_weights(q, k, causal=causal)
    read = (weights @ v)[0].transpose(0, 1).flatten(1)
    for part, table in (("scores", scores), ("weights", weights)):
        made[f"{name}.{part}"] = [table[0, :, i, : i + 1 if causal else None].flatten() for i in places]
    return made | {f"{name}.heads": list(read)}


def differences(said: dict[str, Any], numbers: np.ndarray, model: Transformer) -> dict[str, float]:
    """By name the largest difference of a pass of the engine from PyTorch's, as a share of that tensor's largest
    number where that is above one. Raises `AssertionError` for a tensor that only one has, or of another size."""
    expected = tensors(model, said["tokens"], said["source"])
    otherwise = (
        "embedding",
        "coder",
        ".attention",
        ".cross",
        ".outer",
    )  # ours have other names
    theirs = {name for name in expected if name.endswith(".embedding") or not name.endswith(otherwise)}
    assert theirs == {name for name, _ in said["names"]}
    at, found = 0, {}
    for name, sizes in said["names"]:
        rows = expected[name]
        assert sizes == [row.numel() for row in rows], name
        whole = torch.cat([row.flatten().double() for row in rows]).numpy()
        mine, at = numbers[at : at + len(whole)], at + len(whole)
        found[name] = float(np.abs(mine - whole).max() / max(1.0, np.abs(whole).max()))
    return found
