"""Stage 2: an attention layer in several runs: plain, masked, with rotated queries and keys, a cache, or a source."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from companion_school.build.compared_runs import Node
from companion_school.build.isolated_modules import World
from companion_school.build.scenes.parts import (
    BATCH,
    D_MODEL,
    HEADS,
    TOKENS,
    attention_nodes,
    attention_sizes,
    draw,
    function,
    gave,
    given,
    mark,
    module,
    same_weights,
)
from companion_school.build.scenes.scene import scene
from companion_school.build.trace import Recorder

EARLIER, SOURCE = 3, 5
_GOES_IN = Node("input", "the input", given(module("attention")), (), ())


def _layer(world: World, log: Recorder) -> Any:
    layer = world["attention"].Attention(*attention_sizes())
    same_weights(layer, log, "attention")
    return layer


def _x(tokens: int = TOKENS) -> Tensor:
    return draw("x", BATCH, tokens, D_MODEL)


def _turned(x: Tensor) -> Tensor:
    """A stand-in for the rotary positions of stage 3."""
    return x.flip(-1) + 0.1 * torch.arange(x.shape[2], dtype=x.dtype)[:, None]


class _Earlier:
    """A stand-in for the cache of stage 7 that already holds three tokens."""

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        shape = (k.shape[0], k.shape[1], EARLIER, k.shape[3])
        return torch.cat([draw("kept k", *shape), k], dim=2), torch.cat([draw("kept v", *shape), v], dim=2)


@scene("without a mask", [_GOES_IN], attention_nodes("attention", "", "input", masked=False))
def bare(world: World, log: Recorder) -> None:
    _layer(world, log)(_x())


@scene("with as many key heads as query heads", [Node("answer", "the output of attention", mark("answer"))])
def dense(world: World, log: Recorder) -> None:
    layer = world["attention"].Attention(D_MODEL, HEADS, HEADS)
    same_weights(layer, log, "attention")
    log.mark("answer", layer(_x()))


@scene(
    "with a causal mask",
    [Node("causal", "the output of causal", gave(function("causal")), (), ("causal",)), _GOES_IN],
    attention_nodes("attention", "", "input", mask_home=("causal",)),
    [Node("gradient", "the gradient of the input", mark("gradient"), (": attention",), ())],
)
def masked(world: World, log: Recorder) -> None:
    x = _x().requires_grad_()
    given = _layer(world, log)(x, mask=world["attention"].causal(TOKENS, TOKENS))
    (given * draw("upstream", *given.shape)).sum().backward()
    log.mark("gradient", x.grad)


@scene(
    "with fewer queries than keys",
    [Node("causal", "the mask returned by causal", gave(function("causal")), (), ("causal",))],
)
def fewer(world: World, log: Recorder) -> None:
    world["attention"].causal(EARLIER, TOKENS)


@scene(
    "with `turn`",
    [_GOES_IN],
    attention_nodes("attention", "", "input", masked=False, turned="given"),
)
def turned(world: World, log: Recorder) -> None:
    _layer(world, log)(_x(), turn=_turned)


@scene(
    "with a cache that holds three tokens",
    [_GOES_IN],
    attention_nodes("attention", "", "input", masked=False, keys=TOKENS + EARLIER),
)
def cached(world: World, log: Recorder) -> None:
    _layer(world, log)(_x(), cache=_Earlier())


@scene(
    "with a source that is partly hidden",
    [_GOES_IN, Node("source", "the source", given(module("attention"), 1), (), ())],
    attention_nodes(
        "attention", "", "input", source="source", new_keys=SOURCE, keys=SOURCE, mask_home=("Attention.forward",)
    ),
)
def crossed(world: World, log: Recorder) -> None:
    real = torch.arange(SOURCE) < torch.tensor([[SOURCE], [3]])
    _layer(world, log)(_x(), draw("source", BATCH, SOURCE, D_MODEL), real[:, None, None])


SCENES = (bare, dense, masked, fewer, turned, cached, crossed)
