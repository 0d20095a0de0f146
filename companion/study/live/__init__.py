"""Figures that move, by mouse and keyboard, in JupyterLab and on a static page, without kernel and network.

    from companion.study import live

    live.collapse([0.9, -0.4, 1.3], words=["The", "cat", "slept"], caption="Figure 2.1. Move the handle.")

Each of them shows one output that holds everything it needs; `moving` is the mechanism.
"""

from companion.study.live.attention import collapse, hover
from companion.study.live.decoder import mask_and_shift, writing
from companion.study.live.depth import home
from companion.study.live.encoder import filler, hearing
from companion.study.live.experts import queues
from companion.study.live.family import edits, memory
from companion.study.live.generation import roofline, sampling, triangle
from companion.study.live.heads import bricks, switchboard
from companion.study.live.rotary import dials, together
from companion.study.live.tiles import climb, sweep
from companion.study.live.tokens import cut
from companion.study.live.training import growing, lanes, valley
from companion.study.live.walk import walk
from companion.study.live.waves import clocks

__all__ = [
    "bricks",
    "climb",
    "clocks",
    "collapse",
    "cut",
    "dials",
    "edits",
    "filler",
    "growing",
    "hearing",
    "home",
    "hover",
    "lanes",
    "mask_and_shift",
    "memory",
    "queues",
    "roofline",
    "sampling",
    "sweep",
    "switchboard",
    "together",
    "triangle",
    "valley",
    "walk",
    "writing",
]
