"""Split an exercise's points between its public and hidden cases, group by group."""

from __future__ import annotations

from dataclasses import dataclass

from companion_school.checking.exercise import Exercise
from companion_school.course.hidden_seeds import PUBLIC_SEED

PUBLIC_SHARE = 0.5


def is_constant(exercise: Exercise) -> bool:
    """Return True if no case has arguments, so that the answer is a single fixed result, such as a number."""
    return all(not case.arguments for case in exercise.inputs(PUBLIC_SEED))


@dataclass(frozen=True)
class Part:
    """Points for one group of cases, or for an exercise without groups.

    Attributes:
        name: Name of the group; empty if the exercise has no groups.
        public: Points for the public cases.
        hidden: Points for the hidden cases.
    """

    name: str
    public: float
    hidden: float


def parts(exercise: Exercise) -> list[Part]:
    """Split an exercise's points among the groups of its cases.

    Half of each group's points are for its public cases and half for its hidden cases. If the answer is one fixed
    result, the check that students run must not reveal it, so all points are for the hidden check.
    """
    share = 0.0 if is_constant(exercise) else PUBLIC_SHARE
    named = [(group.name, group.points) for group in exercise.groups] or [("", exercise.points)]
    return [Part(name, points * share, points * (1 - share)) for name, points in named]


def shares(exercise: Exercise) -> tuple[float, float]:
    """Return an exercise's points for public cases and for hidden cases, summed over all groups."""
    earned = parts(exercise)
    return sum(part.public for part in earned), sum(part.hidden for part in earned)
