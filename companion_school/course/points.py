"""What an exercise of a problem set is worth: points for its public cases and its hidden ones, group by group."""

from __future__ import annotations

from dataclasses import dataclass

from companion_school.checking.exercise import Exercise
from companion_school.course.hidden_seeds import PUBLIC_SEED

PUBLIC_SHARE = 0.5


def is_constant(exercise: Exercise) -> bool:
    """Whether the answer is one fixed result, as where a number is read off: no case has arguments."""
    return all(not case.arguments for case in exercise.inputs(PUBLIC_SEED))


@dataclass(frozen=True)
class Part:
    """Points that are earned together: those of a group of an exercise's cases, or all of them where it has none.

    name:            the group's; empty where there are none.
    public, hidden:  the points for its public cases, and for its hidden ones.
    """

    name: str
    public: float
    hidden: float


def parts(exercise: Exercise) -> list[Part]:
    """How an exercise's points are earned, by the groups of its cases.

    Half of them for public cases, half for hidden ones. Where the answer is one fixed result, its check in a student's
    hands must not know it: all points are for the hidden check.
    """
    share = 0.0 if is_constant(exercise) else PUBLIC_SHARE
    named = [(group.name, group.points) for group in exercise.groups] or [("", exercise.points)]
    return [Part(name, points * share, points * (1 - share)) for name, points in named]


def shares(exercise: Exercise) -> tuple[float, float]:
    """An exercise's points for the public cases and for the hidden ones, all groups together."""
    earned = parts(exercise)
    return sum(part.public for part in earned), sum(part.hidden for part in earned)
