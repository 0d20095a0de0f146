"""Compare every tensor of the explorer's engine with PyTorch's."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from companion.data import number_names, number_words
from companion.data.stories import stories
from companion.layers.moe import MoE
from companion.transformer import Transformer
from companion_school.explorer.activations import Rows, inside

EXPLORER = Path(__file__).parents[1] / "companion_school" / "explorer"
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
    """Return texts for a model, in the form that `passOf` takes: stories, and ten texts that are not stories."""
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
    """Return a file in base64, as a page receives it."""
    return base64.b64encode(file.read_bytes()).decode()


@torch.no_grad()
def with_answers(found: Rows, model: Transformer) -> Rows:
    """Add the output of each chosen expert to the rows."""
    for name, module in model.named_modules():
        if isinstance(module, MoE):
            x, chosen = torch.stack(found[f"{name}_norm"]), torch.stack(found[f"{name}.experts"])
            found[f"{name}.answers"] = list(module.answers(x, chosen, None).flatten(1))
    return found


def differences(said: dict[str, Any], numbers: np.ndarray, model: Transformer) -> dict[str, float]:
    """Return the largest difference between the engine's and PyTorch's values of each tensor.

    If a tensor's largest value is above one, the difference is relative to it. Raises `AssertionError` for a tensor
    that only one of them has, or whose size differs.
    """
    expected = with_answers(inside(model, said["tokens"], said["source"]), model)
    turned = model.config.positions.kind == "rotary"
    otherwise = ("embedding", "coder", ".attention", ".cross", ".outer", ".values")  # our names for these differ

    def shared(name: str) -> bool:
        plain = ".turned" in name and (not turned or "cross" in name)  # the engine does not store what is not rotated
        return name.endswith(".embedding") or not (plain or name.endswith(otherwise))

    assert {name for name in expected if shared(name)} == {name for name, _ in said["names"]}
    at, found = 0, {}
    for name, sizes in said["names"]:
        rows = expected[name]
        assert sizes == [row.numel() for row in rows], name
        whole = torch.cat([row.flatten().double() for row in rows]).numpy()
        mine, at = numbers[at : at + len(whole)], at + len(whole)
        found[name] = float(np.abs(mine - whole).max() / max(1.0, np.abs(whole).max()))
    return found
