"""Stage 7: the cache, a model that reads a text in two passes, sampling probabilities, and greedy generation."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import torch

from companion_school.build.compared_runs import Find, Node
from companion_school.build.isolated_modules import World
from companion_school.build.scenes.model import decoder, passes
from companion_school.build.scenes.parts import (
    BATCH,
    D_HEAD,
    KV_HEADS,
    VOCAB,
    draw,
    mark,
)
from companion_school.build.scenes.scene import Scene, scene
from companion_school.build.trace import Log, Recorder, Value

STEPS = 5


def _cache_nodes() -> list[Node]:
    nodes = []
    for n, when in enumerate(("at first", "after the first part", "after the second part")):
        if n:
            for name in ("keys", "values"):
                says = f"the {name} returned by the cache {when}"
                nodes.append(Node(f"{name} {n}", says, mark(f"{name} {n}"), (), ("Cache.extend",)))
        nodes.append(Node(f"length {n}", f"the cache's length {when}", mark(f"length {n}"), (), ("Cache.__len__",)))
    return nodes


@scene("for a cache", _cache_nodes())
def cache(world: World, log: Recorder) -> None:
    kept = world["generation"].Cache()
    log.mark("length 0", len(kept))
    for n, tokens in ((1, 3), (2, 2)):
        shape = (BATCH, KV_HEADS, tokens, D_HEAD)
        keys, values = kept.extend(draw(f"k {n}", *shape), draw(f"v {n}", *shape))
        log.mark(f"keys {n}", keys)
        log.mark(f"values {n}", values)
        log.mark(f"length {n}", len(kept))


def _choice(name: str, **chosen: float | int) -> Scene:
    def play(world: World, log: Recorder) -> None:
        log.mark("p", world["generation"].probabilities(draw("choice", VOCAB, scale=1.5), **chosen))

    node = Node("p", "the probabilities", mark("p"), (), ("probabilities",))
    return Scene(f"with {name}", play, (node,))


_CHOICES = (
    _choice("no rule"),
    _choice("a temperature", temperature=0.6),
    _choice("top_k", top_k=4),
    _choice("top_p", top_p=0.7),
    _choice("min_p", min_p=0.25),
    _choice("all rules", temperature=1.3, top_k=7, top_p=0.8, min_p=0.1),
)


def _last_of(step: int) -> Find:
    """Find the logits of the last token in a call to the model.

    Only these are compared, because the number of tokens that a call reads depends on whether a cache is used.
    """

    def find(log: Log) -> Value | None:
        call = log.module("", None, step)
        value = call.gave if call else None
        return Value(value.content[0, -1]) if value and isinstance(value.content, torch.Tensor) else None

    return find


def _read(step: int) -> Find:
    return lambda log: call.argument(0) if (call := log.module("", None, step)) else None


def _writing(cached: bool) -> list[Node]:
    nodes: list[Node] = []
    for step in range(STEPS):
        place = f"token {step}"
        before = (f"written {step - 1}",) if step else ()
        nodes.append(Node(f"read {step}", f"the ids that the model reads for token {step}", _read(step), before,
                          ("generate",), place))  # fmt: skip
        nodes.append(Node(f"logits {step}", f"the last logits for token {step}", _last_of(step), (f"read {step}",),
                          ("Transformer.forward",), place))  # fmt: skip
        nodes.append(Node(f"written {step}", f"token {step} of the text", mark(f"token {step}"), (f"logits {step}",),
                          ("generate",), place))  # fmt: skip
    nodes.append(Node("tokens", "the number of generated tokens", mark("tokens"), (), ("generate",)))
    return nodes


def _write(cached: bool) -> Callable[[World, Recorder], None]:
    def write(world: World, log: Recorder) -> None:
        model, prompt = decoder(world, log), [5, 9, 4]
        told = world["generation"].generate(model, prompt, STEPS, temperature=0.0, cached=cached)
        tokens = 0
        for step, token in enumerate(islice(told, STEPS + 2)):
            log.mark(f"token {step}", int(token))
            tokens += 1
        log.mark("tokens", tokens)

    return write


plain = scene("for greedy text without a cache", _writing(False))(_write(False))
fast = scene("for greedy text with a cache", _writing(True))(_write(True))

SCENES = (cache, passes(lambda world: world["generation"].Cache()), *_CHOICES, plain, fast)
