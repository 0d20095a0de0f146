"""A run of a stage's code whose tensors are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from companion_school.build.compared_runs import Node
from companion_school.build.isolated_modules import World
from companion_school.build.trace import Recorder

Play = Callable[[World, Recorder], None]


@dataclass(frozen=True)
class Scene:
    """One run.

    name:   under which circumstances, as a sentence goes on: "with a mask".
    play:   runs the code of a world.
    nodes:  what is compared, in the order of the stream.
    """

    name: str
    play: Play
    nodes: Sequence[Node]


def scene(name: str, *nodes: Sequence[Node]) -> Callable[[Play], Scene]:
    """Decorator: makes a scene of its `play`."""
    return lambda play: Scene(name, play, tuple(node for some in nodes for node in some))
