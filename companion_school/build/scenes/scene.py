"""A run of a stage's code in which tensors are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from companion_school.build.compared_runs import Node
from companion_school.build.isolated_modules import World
from companion_school.build.trace import Recorder

Play = Callable[[World, Recorder], None]


@dataclass(frozen=True)
class Scene:
    """One run of a stage's code.

    Attributes:
        name: The conditions of the run, worded so that they continue a sentence, such as "with a mask".
        play: Runs the code of a world and marks values on a recorder.
        nodes: The tensors that are compared, in the model's order of computation.
    """

    name: str
    play: Play
    nodes: Sequence[Node]


def scene(name: str, *nodes: Sequence[Node]) -> Callable[[Play], Scene]:
    """Turn the decorated function `play` into a scene with these nodes."""
    return lambda play: Scene(name, play, tuple(node for some in nodes for node in some))
