"""Stage 9: routing, capacity, the balancing loss, the mixture of experts, and a decoder that uses it."""

from __future__ import annotations

from companion_school.build.compared_runs import Node
from companion_school.build.isolated_modules import World
from companion_school.build.scenes.layers import goes_in
from companion_school.build.scenes.model import LAYERS, config, some_ids
from companion_school.build.scenes.parts import (
    BATCH,
    D_FF,
    D_MODEL,
    TOKENS,
    decoder_nodes,
    draw,
    experts_nodes,
    function,
    gave,
    mark,
    part,
    same_weights,
)
from companion_school.build.scenes.scene import scene
from companion_school.build.trace import Recorder

EXPERTS, TOP_K, CAPACITY = 5, 2, 0.75
_ROUTES = function("route")


@scene(
    "for the routing",
    [
        Node("chosen", "the chosen experts", part(_ROUTES, 1), (), ("route",)),
        Node("weights", "the weights of the chosen experts", part(_ROUTES, 0), ("chosen",), ("route",)),
    ],
)
def routing(world: World, log: Recorder) -> None:
    world["experts"].route(draw("router", 9, EXPERTS), TOP_K)


@scene("for the capacity", [Node("kept", "the choices that fit", gave(function("within")), (), ("within",))])
def capacity(world: World, log: Recorder) -> None:
    chosen = draw("choices", 9, EXPERTS).topk(TOP_K, dim=-1).indices
    world["experts"].within(chosen, EXPERTS, CAPACITY)


@scene("for the balance", [Node("balance", "the balance", mark("balance"), (), ("balance",))])
def balance(world: World, log: Recorder) -> None:
    log.mark("balance", world["experts"].balance(draw("balanced", 9, EXPERTS), TOP_K))


def _mixture(world: World, log: Recorder, limit: float | None) -> None:
    layer = world["experts"].Experts(D_MODEL, D_FF, EXPERTS, TOP_K, limit)
    same_weights(layer, log, "experts")
    layer(draw("x of experts", BATCH, TOKENS, D_MODEL))


@scene("for a mixture", [goes_in("experts")], experts_nodes("experts", "", "input", None))
def mixture(world: World, log: Recorder) -> None:
    _mixture(world, log, None)


@scene("for a mixture whose experts are full", [goes_in("experts")],
       experts_nodes("experts", "", "input", None, capacity=True))  # fmt: skip
def full(world: World, log: Recorder) -> None:
    _mixture(world, log, CAPACITY)


@scene("for a model with mixtures", decoder_nodes(LAYERS, experts=True))
def model(world: World, log: Recorder) -> None:
    made = world["experts"].put_experts(world["model"].Transformer(config(world)), EXPERTS, TOP_K)
    same_weights(made, log)
    made(some_ids())


SCENES = (routing, capacity, balance, mixture, full, model)
