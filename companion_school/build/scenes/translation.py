"""Stage 8: the decoder's shifted inputs, the encoder with padding, the decoder, and greedy translation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from companion_school.build.compared_runs import Node
from companion_school.build.isolated_modules import World
from companion_school.build.scenes.model import LAYERS, config
from companion_school.build.scenes.parts import (
    BATCH,
    TOKENS,
    block_nodes,
    function,
    gave,
    given,
    ids,
    mark,
    module,
    same_weights,
)
from companion_school.build.scenes.scene import scene
from companion_school.build.trace import Recorder

SOURCE, START, STOP = 5, 1, 2


def _source() -> tuple[Tensor, Tensor]:
    """Return two sources and a mask that is True at real tokens. The second source has three ids, then padding."""
    real = torch.arange(SOURCE) < torch.tensor([[SOURCE], [3]])
    return (3 + ids("source", BATCH, SOURCE, vocab=8)).masked_fill(~real, 0), real


def _translator(world: World, log: Recorder) -> Any:
    model = world["translation"].Translator(config(world))
    same_weights(model, log)
    return model


@scene(
    "for the decoder's input",
    [Node("forced", "the output of forced", gave(function("forced")), (), ("forced",))],
)
def shifted(world: World, log: Recorder) -> None:
    world["translation"].forced(ids("shifted", BATCH, TOKENS), START)


def _stack(path: str, name: str, enters: str, home: str, embeds: int, **block: Any) -> list[Node]:
    """Return the nodes of the encoder or the decoder, from the embedding to `{name}: norm`."""
    whole = module(path)
    embedded, into = f"{name}: embedding", f"{name}: stream at first"
    nodes = [
        Node(
            embedded,
            f"the output of the embedding for the {name}",
            gave(module("embedding", None, embeds)),
            (),
            (home,),
        ),
        Node(into, f"the stream that enters the {name}", given(whole), (embedded,), (home,), name),
    ]
    for number in range(LAYERS):
        place = f"{name}, block {number}"
        nodes += block_nodes(f"{path}.blocks.{number}", place, into, within=whole, turned="rotate", **block)
        into = f"{place}: stream"
    norm = module(f"{path}.norm", whole)
    nodes.append(Node(f"{name}: into norm", "the stream passed to the last norm", given(norm), (into,),
                      ("Stack.forward",), name))  # fmt: skip
    nodes.append(Node(f"{name}: norm", f"the output of the {name}", gave(whole), (f"{name}: into norm",),
                      ("RMSNorm.forward", "Stack.forward"), name))  # fmt: skip
    return nodes


_ENCODER = _stack("encoder", "encoder", "source", "Translator.encode", 0, queries=SOURCE, new_keys=SOURCE, keys=SOURCE,
                  mask_home=("Translator.encode",))  # fmt: skip
_LOOKS = {"source": "encoder: norm", "queries": TOKENS, "new_keys": SOURCE, "keys": SOURCE,
          "mask_home": ("CrossBlock.forward", "Translator.forward")}  # fmt: skip
_DECODER = _stack("decoder", "decoder", "target", "Translator.forward", 1, kind="CrossBlock.forward", cross=_LOOKS,
                  mask_home=("causal", "Translator.forward"))  # fmt: skip


@scene(
    "",
    _ENCODER,
    _DECODER,
    [Node("logits", "the logits", gave(module("")), ("decoder: norm",), ("Translator.forward",))],
)
def logits(world: World, log: Recorder) -> None:
    source, real = _source()
    _translator(world, log)(source, real, ids("target", BATCH, TOKENS))


@scene("for a greedy translation", [Node("text", "the translation", mark("text"), (), ("translate",))])
def written(world: World, log: Recorder) -> None:
    source, real = _source()
    log.mark("text", world["translation"].translate(_translator(world, log), source, real, START, STOP, 12))


SCENES = (shifted, logits, written)
