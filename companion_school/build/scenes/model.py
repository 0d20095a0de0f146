"""Stage 5: a decoder of two blocks, and its number of parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from companion_school.build.compared_runs import Node
from companion_school.build.isolated_modules import PlainCache, World
from companion_school.build.scenes.parts import (
    BATCH,
    D_FF,
    D_MODEL,
    HEADS,
    KV_HEADS,
    TOKENS,
    VOCAB,
    decoder_nodes,
    ids,
    mark,
    same_weights,
)
from companion_school.build.scenes.scene import Scene, scene
from companion_school.build.trace import Recorder

LAYERS, PREFIX, NEW = 2, 4, 2


def config(world: World, **changed: Any) -> Any:
    sizes = {"vocab": VOCAB, "d_model": D_MODEL, "layers": LAYERS, "heads": HEADS, "kv_heads": KV_HEADS, "d_ff": D_FF}
    return world["model"].Config(**(sizes | {"base": 500.0} | changed))


def decoder(world: World, log: Recorder) -> Any:
    model = world["model"].Transformer(config(world))
    same_weights(model, log)
    return model


def some_ids(tokens: int = TOKENS) -> Any:
    some = ids("ids", BATCH, tokens)
    some[0, 1] = 0  # the embedding of id 0 is so small that a misplaced eps changes the result
    return some


@scene("", decoder_nodes(LAYERS))
def logits(world: World, log: Recorder) -> None:
    decoder(world, log)(some_ids())


def passes(make: Callable[[World], Any]) -> Scene:
    """Return a scene that reads a text in two passes, with a cache for each layer, created by `make`."""

    @scene(
        "with caches",
        decoder_nodes(LAYERS, tag="first pass, ", cached=True, queries=PREFIX, new_keys=PREFIX, keys=PREFIX),
        decoder_nodes(LAYERS, tag="next pass, ", turn=1, cached=True, queries=NEW, new_keys=NEW, keys=PREFIX + NEW),
    )
    def read(world: World, log: Recorder) -> None:
        model, text = decoder(world, log), ids("text", BATCH, PREFIX + NEW)
        caches = [make(world) for _ in range(LAYERS)]
        model(text[:, :PREFIX], caches)
        model(text[:, PREFIX:], caches)

    return read


@scene(
    "for the number of parameters",
    [Node("count", "the output of count", mark("count"), (), ("count",))],
)
def counted(world: World, log: Recorder) -> None:
    log.mark("count", world["model"].count(config(world)))


SCENES = (logits, passes(lambda _: PlainCache()), counted)
