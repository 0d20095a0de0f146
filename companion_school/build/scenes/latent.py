"""Stage 12: both ways of computing latent attention, the layer with and without a cache, and a decoder that uses it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from companion_school.build.compared_runs import Node
from companion_school.build.isolated_modules import World
from companion_school.build.scenes.layers import goes_in
from companion_school.build.scenes.model import LAYERS, config, some_ids
from companion_school.build.scenes.parts import (
    BATCH,
    D_HEAD,
    D_MODEL,
    D_ROPE,
    HEADS,
    RANK,
    TOKENS,
    asked_nodes,
    decoder_nodes,
    draw,
    function,
    latent_nodes,
    mark,
    same_weights,
)
from companion_school.build.scenes.scene import Scene, scene
from companion_school.build.trace import Recorder

D_V, PREFIX = 5, 6


def _inputs() -> tuple[Tensor, ...]:
    return (
        draw("q of latents", BATCH, HEADS, 3, D_HEAD + D_ROPE),
        draw("latents", BATCH, 1, TOKENS, RANK),
        draw("turned keys", BATCH, 1, TOKENS, D_ROPE),
        draw("U_k", HEADS, D_HEAD, RANK),
        draw("U_v", HEADS, D_V, RANK),
    )


def _way(name: str) -> Scene:
    @scene(f"for latents asked {name}", asked_nodes(name, function(name), "", queries=3))
    def ask(world: World, log: Recorder) -> None:
        getattr(world["latent"], name)(*_inputs(), torch.ones(3, TOKENS, dtype=torch.bool).tril(TOKENS - 3))

    return ask


def _layer(world: World, log: Recorder) -> Any:
    layer = world["latent"].LatentAttention(D_MODEL, HEADS, RANK, D_ROPE)
    same_weights(layer, log, "attention")
    return layer


def _turn(x: Tensor) -> Tensor:
    """A stand-in for rotary positions: like them, it transforms each position differently."""
    return x.flip(-1) * torch.arange(1, x.shape[2] + 1)[:, None]


_HOME = ("LatentAttention.forward",)


@scene("for the layer", [goes_in("attention")], latent_nodes("attention", "", "input", mask_home=_HOME))
def layer(world: World, log: Recorder) -> None:
    x, mask = draw("x of latents", BATCH, TOKENS, D_MODEL), torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    _layer(world, log)(x, mask=mask, turn=_turn)


@scene(
    "for one token with a cache",
    [goes_in("attention")],
    latent_nodes("attention", "", "input", turn=1, cached=True, queries=1, keys=PREFIX + 1, mask_home=_HOME),
)
def step(world: World, log: Recorder) -> None:
    made, cache, x = _layer(world, log), world["generation"].Cache(), draw("x of a step", BATCH, PREFIX + 1, D_MODEL)
    mask = torch.ones(PREFIX + 1, PREFIX + 1, dtype=torch.bool).tril()
    made(x[:, :PREFIX], mask=mask[:PREFIX, :PREFIX], turn=_turn, cache=cache)
    made(x[:, PREFIX:], mask=mask[PREFIX:], turn=_turn, cache=cache)


@scene("for a model with latents", decoder_nodes(LAYERS, latent=True))
def model(world: World, log: Recorder) -> None:
    made = world["latent"].put_latents(world["model"].Transformer(config(world)), RANK, D_ROPE)
    same_weights(made, log)
    made(some_ids())


@scene(
    "for the bytes in the caches",
    [Node(name, f"the bytes of {name}", mark(name), (), ("bytes_kept",)) for name in ("keys and values", "latents")],
)
def kept(world: World, log: Recorder) -> None:
    log.mark("keys and values", world["latent"].bytes_kept(config(world), 100))
    log.mark("latents", world["latent"].bytes_kept(config(world), 100, RANK, D_ROPE, 2))


SCENES = (_way("expanded"), _way("absorbed"), layer, step, model, kept)
