"""Save a learner's model as a folder that every command reads: `companion generate --checkpoint my/transformer`.

The learner's own `save` (stage 6) and `save_merges` (stage 1) write the files. The library reads these files back
before they replace an earlier model; if its output differs from that of the learner's code, saving fails.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from companion import load_pretrained
from companion.ground.atomic import write_atomic
from companion_school.build.isolated_modules import World

END = 0
"""Token id that ends a text: byte 0, which occurs in no text."""
PROBES = (
    "Once upon a time,\n there lived a mole named Mila.",
    "naïve 東京 \U0001f40d 3.14  !?",
    "x_y\n\n  end ",
    "It's ½.",
)
_SAMPLING = {"eos_token_id": END, "do_sample": True, "temperature": 0.7, "top_p": 0.9}


def save_model(folder: Path, code: World, model: Any, merges: Sequence[tuple[int, int]], context: int) -> list[str]:
    """Write a learner's model and tokenizer into a folder.

    Args:
        folder: Output folder. Other files in the folder are not changed.
        code: The learner's files.
        model: A trained `Transformer` from stage 5, on any device.
        merges: The merges of its tokenizer.
        context: Length of the longest training sequence, in tokens.

    Returns:
        The names of the files that were written.

    Raises:
        ValueError: If the files that `save` and `save_merges` wrote give different ids or logits from the learner's
            code. In this case, an earlier model is not replaced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".saving-") as place:
        made = Path(place)
        check_merges(code, merges, made)
        _written(code, "training", "save")(model, made, context)
        _check_logits(made, model, code["tokenizer"].encode(PROBES[0], list(merges))[:context])
        write_atomic(made / "generation_config.json", json.dumps(_SAMPLING, indent=2) + "\n")
        names = sorted(file.name for file in made.iterdir())
        for name in names:
            os.replace(made / name, folder / name)
    return names


def check_merges(code: World, merges: Sequence[tuple[int, int]], folder: Path) -> None:
    """Write the merges into a folder, and read them back with the `tokenizers` library.

    Raises:
        ValueError: If the learner's file has no `save_merges`, or the written file and `encode` give different ids.
    """
    _written(code, "tokenizer", "save_merges")(list(merges), folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in PROBES:
        mine, theirs = list(code["tokenizer"].encode(text, list(merges))), tokenizer.encode(text).ids
        if mine != theirs:
            what = f"tokenizer.json gives {theirs} for {text!r}, and your encode {mine}"
            raise ValueError(f"the tokenizer cannot be saved: {what}")


def _written(code: World, module: str, name: str) -> Any:
    if not hasattr(code[module], name):
        laid = "`companion build start` writes the stub that has it beside your file"
        raise ValueError(f"{module}.py: expected {name}, found none; {laid}")
    return getattr(code[module], name)


def _check_logits(folder: Path, model: Any, ids: Sequence[int]) -> None:
    given = torch.tensor([list(ids)])
    try:
        read = load_pretrained(folder)
    except ValueError as error:
        raise ValueError(
            f"the model cannot be saved, because the files that your save function wrote are not a valid model: {error}"
        ) from None
    device = next(model.parameters()).device
    with torch.no_grad():
        theirs, mine = read(given).logits, model(given.to(device)).cpu()
    if mine.shape != theirs.shape or not torch.allclose(mine.float(), theirs.float(), atol=1e-3, rtol=1e-3):
        what = "the saved files give other logits than your model; the commands read a Transformer from stages 2 to 5"
        raise ValueError(f"the model cannot be saved: {what}")
