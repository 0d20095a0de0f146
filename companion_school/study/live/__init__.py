"""Moving figures, which work with mouse or keyboard in JupyterLab or on a static page, without a kernel or network.

    from companion_school.study import live

    live.collapse([0.9, -0.4, 1.3], words=["The", "cat", "slept"], caption="Figure 2.1. Move the handle.")

Each function displays a single output that contains everything it needs. The mechanism is in `moving`.
"""

from companion_school.study.live.attention import collapse, hover
from companion_school.study.live.comparing import comparing
from companion_school.study.live.decoder import mask_and_shift, writing
from companion_school.study.live.depth import home
from companion_school.study.live.encoder import filler, hearing
from companion_school.study.live.experts import queues
from companion_school.study.live.family import edits, memory
from companion_school.study.live.generation import roofline, sampling, triangle
from companion_school.study.live.hashing import bands
from companion_school.study.live.heads import bricks, switchboard
from companion_school.study.live.newton_schulz import newton_schulz
from companion_school.study.live.number_lines import number_lines
from companion_school.study.live.patching import travels
from companion_school.study.live.restraint import bounded
from companion_school.study.live.rotary import dials, together
from companion_school.study.live.serving import mending, seats
from companion_school.study.live.shrinking import leaves
from companion_school.study.live.sizes import budget
from companion_school.study.live.spending import plan
from companion_school.study.live.stages import pipeline
from companion_school.study.live.state import rewritten
from companion_school.study.live.tiles import climb, sweep
from companion_school.study.live.tokens import cut
from companion_school.study.live.training import film, growing, lanes, valley
from companion_school.study.live.tuning import group, pull
from companion_school.study.live.walk import walk
from companion_school.study.live.waves import clocks

__all__ = [
    "bands",
    "bounded",
    "bricks",
    "budget",
    "climb",
    "clocks",
    "collapse",
    "comparing",
    "cut",
    "dials",
    "edits",
    "filler",
    "film",
    "group",
    "growing",
    "hearing",
    "home",
    "hover",
    "lanes",
    "leaves",
    "mask_and_shift",
    "memory",
    "mending",
    "newton_schulz",
    "number_lines",
    "pipeline",
    "plan",
    "pull",
    "queues",
    "rewritten",
    "roofline",
    "sampling",
    "seats",
    "sweep",
    "switchboard",
    "together",
    "travels",
    "triangle",
    "valley",
    "walk",
    "writing",
]
