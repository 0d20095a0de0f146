"""Stage 6: batches, the loss, the optimizer, clipping, the learning rate, three updates of a model, and its score."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import torch
from torch import Tensor, nn

from companion_school.build.compared_runs import Node
from companion_school.build.isolated_modules import World
from companion_school.build.scenes.model import decoder
from companion_school.build.scenes.parts import VOCAB, decoder_nodes, draw, ids, mark
from companion_school.build.scenes.scene import scene
from companion_school.build.trace import Recorder

UPDATES, ACCUMULATED = 3, 2
_KINDS = ("embedding", "gains", "matrices")


def _kind(name: str, weight: Tensor) -> str:
    return "embedding" if "embedding" in name else "gains" if weight.ndim == 1 else "matrices"


def _together(model: nn.Module, kind: str, gradients: bool = False) -> Tensor:
    """Concatenate all weights of one kind, or their gradients (zeros if missing), into a vector."""
    named = [(name, weight) for name, weight in sorted(model.named_parameters()) if _kind(name, weight) == kind]
    some = [(torch.zeros_like(w) if w.grad is None else w.grad) if gradients else w.detach() for _, w in named]
    return torch.cat([one.flatten() for one in some])


def _mark(log: Recorder, model: nn.Module, name: str, gradients: bool = False) -> None:
    with log.unseen(), torch.no_grad():
        for kind in _KINDS:
            some = [weight for path, weight in model.named_parameters() if _kind(path, weight) == kind]
            made = [weight.grad if gradients else weight for weight in some]
            log.mark(f"{name}, {kind}", _together(model, kind, gradients), [one for one in made if one is not None])


def _three(key: str, says: str, parents: tuple[str, ...], home: str, place: str) -> list[Node]:
    """Return a node for each kind of weight. The name of the kind replaces `{}` in `says` and `parents`."""
    return [
        Node(f"{key}, {kind}", says.format(kind), mark(f"{key}, {kind}"),
             tuple(parent.format(kind) for parent in parents), (home,), place)
        for kind in _KINDS
    ]  # fmt: skip


@scene(
    "for batches from a text",
    [
        Node("inputs", "the distances from each id of a window to the next", mark("steps"), (), ("windows",)),
        Node("targets", "the distances of the targets from the inputs", mark("distance"), (), ("windows",)),
    ],
)
def batches(world: World, log: Recorder) -> None:
    x, y = world["training"].windows(torch.arange(60), 9, 4, torch.Generator().manual_seed(1))
    log.mark("steps", x[:, 1:] - x[:, :-1])
    log.mark("distance", y - x)


_LOSS = Node("loss", "the loss", mark("loss"), (), ("loss_of",))


@scene("for the loss", [_LOSS])
def loss(world: World, log: Recorder) -> None:
    log.mark("loss", world["training"].loss_of(draw("logits", 2, 5, VOCAB), ids("targets", 2, 5)))


@scene("for the loss where some targets are ignored", [_LOSS])
def filled(world: World, log: Recorder) -> None:
    targets = ids("targets", 2, 5)
    targets[0, 2:] = 3
    log.mark("loss", world["training"].loss_of(draw("logits", 2, 5, VOCAB), targets, 3))


class _Few(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(5, 4), nn.Module()
        self.norm.weight = nn.Parameter(draw("gain", 4))
        self.linear = nn.Linear(4, 3, bias=False)
        with torch.no_grad():
            self.embedding.weight.copy_(draw("few", 5, 4))
            self.linear.weight.copy_(draw("linear", 3, 4))


def _give_gradients(model: nn.Module, update: int) -> None:
    for name, weight in model.named_parameters():
        weight.grad = draw(f"{name} {update}", *weight.shape, scale=0.5)
        weight.grad.flatten()[0] = 1e-8  # so small that a misplaced eps changes the result


def _optimiser_nodes() -> list[Node]:
    nodes: list[Node] = []
    for update in (1, 2, 3):
        place, before = f"update {update}", f"update {update - 1}"
        for name in ("first", "second"):
            nodes.append(Node(f"{place}: {name}", f"the {name} moments", mark(f"{place}: {name}"),
                              (f"{before}: {name}",), ("AdamW.step",), place))  # fmt: skip
        above = (f"{place}: first", f"{place}: second", before + ", {}")
        nodes += _three(place, "the weights ({}) after the step", above, "AdamW.step", place)
    nodes.append(Node("left", "the gradients after a step", mark("left"), (), ("AdamW.step",)))
    return nodes


@scene("for three steps of AdamW", _optimiser_nodes())
def stepped(world: World, log: Recorder) -> None:
    with log.unseen():
        model = _Few()
    adam = world["training"].AdamW(model)
    for update in (1, 2, 3):
        with log.unseen():
            _give_gradients(model, update)
        adam.step(0.01)
        kept = getattr(adam, "state", None)
        if isinstance(kept, list) and all(isinstance(row, tuple) and len(row) == 4 for row in kept):
            for place, name in ((2, "first"), (3, "second")):
                moments = [row[place] for row in kept]
                log.mark(f"update {update}: {name}", torch.cat([one.flatten() for one in moments]), moments)
        _mark(log, model, f"update {update}")
        if update == 1:
            left = torch.cat([_together(model, kind, gradients=True) for kind in _KINDS])
            log.mark("left", left)


@scene(
    "for clipping",
    [
        Node("length", "the length returned by clip", mark("length"), (), ("clip",)),
        *_three("clipped", "the clipped gradients ({})", ("length",), "clip", ""),
        *_three("short", "gradients that are short enough ({})", ("length",), "clip", ""),
    ],
)
def clipped(world: World, log: Recorder) -> None:
    with log.unseen():
        model = _Few()
        _give_gradients(model, 1)
    log.mark("length", world["training"].clip(model, 0.7))
    _mark(log, model, "clipped", gradients=True)
    with log.unseen():
        _give_gradients(model, 2)
    world["training"].clip(model, 100.0)
    _mark(log, model, "short", gradients=True)


_RATES = {"while it rises": (1, 3, 8), "at its peak": (10,), "while it falls": (11, 30, 59), "at the end": (60,)}


@scene("for the rate", [Node(name, f"the rate {name}", mark(name), (), ("rate_at",)) for name in _RATES])
def rates(world: World, log: Recorder) -> None:
    for name, updates in _RATES.items():
        log.mark(name, tuple(float(world["training"].rate_at(update, 60, 0.02, 10)) for update in updates))


def _training_nodes() -> list[Node]:
    nodes: list[Node] = []
    for update in range(1, UPDATES + 1):
        place = f"update {update}"
        for n in range((update - 1) * ACCUMULATED, update * ACCUMULATED):
            starts = n % ACCUMULATED == 0
            begun, before = f"gradients before batch {n}", f"weights before batch {n}"
            older = (f"update {update - 1}: weights, {{}}",)
            nodes += _three(before, "the weights ({})", older, "train", place)
            if starts:
                nodes += _three(begun, f"the gradients ({{}}) when {place} begins", (), "AdamW.step", place)
            nodes += [] if n else decoder_nodes(2)
            made_of = (*([] if n else ["logits"]), *(f"{before}, {kind}" for kind in _KINDS))
            nodes.append(Node(f"loss of batch {n}", f"the loss of batch {n}", mark(f"loss {n}"), made_of, ("loss_of",),
                              place))  # fmt: skip
        last, opened = update * ACCUMULATED - 1, f"gradients before batch {(update - 1) * ACCUMULATED}"
        of = (f"loss of batch {last - 1}", f"loss of batch {last}", opened + ", {}")
        nodes += _three(f"{place}: gradients", "the gradients ({})", of, "train", place)
        sums = tuple(f"{place}: gradients, {kind}" for kind in _KINDS)
        nodes.append(Node(f"{place}: length", "the length of the gradients", mark(f"{place}: length"), sums, ("clip",),
                          place))  # fmt: skip
        nodes.append(
            Node(
                f"{place}: asked",
                "the update passed to rate_at",
                mark(f"{place}: asked"),
                (),
                ("train",),
                place,
            )
        )
        asked = (f"{place}: asked",)
        nodes.append(Node(f"{place}: rate", "the rate", mark(f"{place}: rate"), asked, ("rate_at", "train"), place))
        after = (f"{place}: gradients, {{}}", f"{place}: length")
        nodes += _three(f"{place}: clipped", "the gradients ({}) passed to the step", after, "clip", place)
        step = (f"{place}: clipped, {{}}", f"{place}: rate", f"weights before batch {last}, {{}}")
        nodes += _three(f"{place}: weights", "the weights ({}) after the step", step, "AdamW.step", place)
        told = (f"loss of batch {last}", f"loss of batch {last - 1}", *sums)
        nodes.append(
            Node(f"{place}: told", "the loss returned by train", mark(f"{place}: told"), told, ("train",), place)
        )
    return nodes


@scene("for three updates of a model, of two batches each", _training_nodes())
def trained(world: World, log: Recorder) -> None:
    model, code = decoder(world, log), world["training"]
    update = [1]

    def at(name: str, gradients: bool) -> Callable[[], None]:
        return lambda: _mark(log, model, f"update {update[0]}: {name}", gradients)

    def begins() -> None:
        at("clipped", True)()
        call = next(call for call in reversed(log.log.calls) if call.function == "AdamW.step")
        log.mark(f"update {update[0]}: rate", float(call.given[0].content))
        if (asked := next((call for call in reversed(log.log.calls) if call.function == "rate_at"), None)) is not None:
            log.mark(f"update {update[0]}: asked", float(asked.given[0].content))

    def given_by(function: str) -> object:
        call = next(call for call in reversed(log.log.calls) if call.function == function)
        return call.gave.content if call.gave else None

    def summed() -> None:
        for kind in _KINDS:
            log.backward(f"update {update[0]}: gradients, {kind}", _together(model, kind, gradients=True))

    log.when("clip", "call", summed)
    log.when("clip", "return", lambda: log.mark(f"update {update[0]}: length", given_by("clip")))
    log.when("AdamW.step", "call", begins)
    log.when("AdamW.step", "return", at("weights", False))

    def loss_at(n: int) -> Tensor:
        _mark(log, model, f"weights before batch {n}")
        _mark(log, model, f"gradients before batch {n}", gradients=True)
        some = ids(f"batch {n}", 2, 8)
        value = code.loss_of(model(some[:, :-1]), some[:, 1:])
        log.mark(f"loss {n}", value)
        return value

    told = code.train(model, loss_at, UPDATES, peak=0.03, warmup=2, accumulate=ACCUMULATED, most=0.6)
    for value in islice(told, UPDATES):
        log.mark(f"update {update[0]}: told", float(value))
        update[0] += 1


@scene(
    "for the bits per byte of a text",
    [Node("bits", "the output of bits_per_byte", mark("bits"), (), ("bits_per_byte",))],
)
def measured(world: World, log: Recorder) -> None:
    log.mark("bits", world["training"].bits_per_byte(decoder(world, log), ids("held out", 21), 6, 40))


SCENES = (batches, loss, filled, stepped, clipped, rates, trained, measured)
