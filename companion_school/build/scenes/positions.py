"""Stage 3: sinusoidal and rotary positions."""

from __future__ import annotations

import torch

from companion_school.build.compared_runs import Node
from companion_school.build.isolated_modules import World
from companion_school.build.scenes.parts import BATCH, D_HEAD, D_MODEL, HEADS, draw, function, gave, given, made_of
from companion_school.build.scenes.scene import scene
from companion_school.build.trace import Recorder

PLACES = 7
_ROTATES, _WAVES = function("rotate"), function("waves")
_FREQUENCIES = Node("frequencies", "the frequencies", gave(function("frequencies")), (), ("frequencies",))
_ANGLES = Node("angles", "the angles", made_of("mul", _ROTATES, PLACES * D_HEAD // 2), ("frequencies",), ("rotate",),
               inner=True)  # fmt: skip


@scene("for the frequencies", [_FREQUENCIES])
def frequencies(world: World, log: Recorder) -> None:
    world["positions"].frequencies(D_MODEL, 500.0)


@scene(
    "for the waves",
    [
        Node("base", "the base passed to frequencies", given(function("frequencies", _WAVES), 1), (), ("waves",)),
        Node(
            "frequencies", "the frequencies", gave(function("frequencies", _WAVES)), ("base",), ("frequencies", "waves")
        ),
        Node("waves", "the waves", gave(_WAVES), ("frequencies",), ("waves",)),
    ],
)
def waves(world: World, log: Recorder) -> None:
    world["positions"].waves(torch.arange(2, 2 + PLACES), D_MODEL, 300.0)


@scene(
    "for rotations at the positions 5, 6, ...",
    [
        Node("x", "the input of rotate", given(_ROTATES), (), ()),
        Node("base", "the base passed to frequencies", given(function("frequencies", _ROTATES), 1), (), ("rotate",)),
        Node(
            "frequencies",
            "the frequencies",
            gave(function("frequencies", _ROTATES)),
            ("base",),
            ("frequencies", "rotate"),
        ),
        _ANGLES,
        Node("turned", "the output of rotate", gave(_ROTATES), ("x", "angles"), ("rotate",)),
    ],
)
def turning(world: World, log: Recorder) -> None:
    x = draw("to turn", BATCH, HEADS, PLACES, D_HEAD)
    world["positions"].rotate(x, torch.arange(5, 5 + PLACES), 300.0)


SCENES = (frequencies, waves, turning)
