"""Stage 4: the norm, the feed-forward network, the block, and the initial weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from companion_school.build.compared_runs import Find, Node
from companion_school.build.isolated_modules import World
from companion_school.build.scenes.parts import (
    BATCH,
    D_FF,
    D_MODEL,
    TOKENS,
    attention_sizes,
    block_nodes,
    draw,
    gave,
    given,
    module,
    network_nodes,
    same_weights,
)
from companion_school.build.scenes.scene import scene
from companion_school.build.trace import Log, Recorder, Value


def _x() -> Tensor:
    x = draw("x of layers", BATCH, TOKENS, D_MODEL)
    x[0, 0] *= 1e-3  # so small that a misplaced eps changes the result
    return x + draw("level", BATCH, TOKENS, 1) * x.abs()


def goes_in(path: str) -> Node:
    return Node("input", "the input", given(module(path)), (), ())


@scene(
    "for the norm",
    [goes_in("norm"), Node("norm", "the output of RMSNorm", gave(module("norm")), ("input",), ("RMSNorm.forward",))],
)
def norm(world: World, log: Recorder) -> None:
    layer = world["layers"].RMSNorm(D_MODEL)
    same_weights(layer, log, "norm")
    layer(_x())


@scene("for the network", [goes_in("network")], network_nodes("network", "", "input", None, 0, ""))
def network(world: World, log: Recorder) -> None:
    layer = world["layers"].FeedForward(D_MODEL, D_FF)
    same_weights(layer, log, "network")
    layer(_x())


def _double(x: Tensor) -> Tensor:
    return 2 * x.flip(-1)


@scene(
    "for a block",
    [goes_in("block")],
    block_nodes("block", "", "input", turned="given", mask_home=("Block.forward",)),
)
def block(world: World, log: Recorder) -> None:
    layer = world["layers"].Block(*attention_sizes(), D_FF)
    same_weights(layer, log, "block")
    layer(_x(), mask=torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril(), turn=_double)


_DRAWN = ("embedding.weight", "attention.query.weight", "attention.output.weight", "feed_forward.gate.weight",
          "feed_forward.outer.weight", "norm.weight")  # fmt: skip


class _Bare(nn.Module):
    """A module that only holds parameters, under the same names as in a model."""

    def __init__(self) -> None:
        super().__init__()
        for name in _DRAWN:
            here: Any = self
            *folders, last = name.split(".")
            for folder in folders:
                if folder not in dict(here.named_children()):
                    here.add_module(folder, nn.Module())
                here = getattr(here, folder)
            here.register_parameter(last, nn.Parameter(torch.ones(160 if "norm" in name else (160, 160))))


def _spread(name: str) -> Find:
    def find(log: Log) -> Value | None:
        value = log.marks.get(name)
        return replace(value, content=round(float(value.content), 1)) if value else None

    return find


@scene(
    "for the initial weights",
    [Node(name, f"the standard deviation of {name} as a multiple of the right one", _spread(name), (), ("initialise",))
     for name in _DRAWN],
)  # fmt: skip
def drawn(world: World, log: Recorder) -> None:
    model, writes = _Bare(), 6
    world["layers"].initialise(model, 160, writes)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            right = (1 if "embedding" in name else 0.4) / 160 / (writes if "out" in name else 1)
            share = weight.std() / right**0.5 if weight.ndim > 1 else weight.mean()
            log.mark(name, float(share), made=[weight])


SCENES = (norm, network, block, drawn)
