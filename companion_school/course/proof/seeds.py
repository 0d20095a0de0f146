"""Try correct answers on many hidden seeds, and bounded answers, which are correct only for some sizes.

A correct answer must pass on every seed that an instructor might draw. An answer that works only on small inputs, or
only for the sizes of the public cases, must not earn both marks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from companion_school.checking.call import Outcome, in_this_process
from companion_school.checking.examine import AnswerKey, examine, key_of
from companion_school.checking.exercise import Answer, Case, Exercise
from companion_school.course.grading.exercise_mark import hidden_key
from companion_school.course.hidden_seeds import HIDDEN_SEEDS, PUBLIC_SEED, hidden_seed
from companion_school.course.points import is_constant
from companion_school.course.proof.verify import Trial

BOUNDS = (4, 8, 16, 32)
"""Largest sizes for which the bounded answers are right."""
NOT_TOLD = {
    ("4.4", "right up to size 32"): "its right answers lose their digits on wide matrices, so there is no such case",
}
"""Bounded answers that no check can distinguish from right answers, each with the reason."""


def seed_trials(exercise: Exercise, number: int, strict: bool = True) -> Iterator[Trial]:
    """Try correct answers on hidden seeds, and bounded answers on the public seed and the first hidden seeds.

    Args:
        exercise: An exercise, or the exercise for a part of a stage.
        number: Number of hidden seeds to draw.
        strict: Whether correct answers must also be robust.
    """
    keys = [key_of(exercise, PUBLIC_SEED)]
    right = [("reference", 1, exercise.reference)]
    right += [("variant", at, answer) for at, answer in enumerate(exercise.variants, 1)]
    for at in range(number):
        seed = hidden_seed(b"companion course verify --seeds", exercise.id, at)
        key = key_of(exercise, seed)
        for kind, which, answer in right:
            verdict = examine(key, in_this_process(answer))
            good = verdict.is_robust if strict else verdict.is_right
            fault = None if good else f"should be {'right and robust' if strict else 'right'}, but:\n{verdict}"
            yield Trial(exercise.id, kind, f"{kind} {which}", seed, fault)
        if at < HIDDEN_SEEDS:
            keys.append(hidden_key(key, keys[0], exercise.variants))
    if not is_constant(exercise):
        yield from _bounded(exercise, keys)


def _bounded(exercise: Exercise, keys: Sequence[AnswerKey]) -> Iterator[Trial]:
    """Try answers that are correct only up to some size, and an answer that is correct only for the public shapes."""
    if not any(largest(case.arguments) for case in keys[0].cases):
        return
    shown = {_shapes(case.arguments) for case in keys[0].cases}
    limited = {f"right up to size {bound}": _up_to(bound) for bound in BOUNDS}
    limited["right for the public sizes"] = lambda case: _shapes(case.arguments) in shown
    for name, works in limited.items():
        if (exercise.id, name) in NOT_TOLD:
            continue
        passes = all(examine(key, _within(exercise.reference, works)).is_robust for key in keys)
        fault = "should not be right and robust, but is" if passes else None
        yield Trial(exercise.id, "bounded", name, PUBLIC_SEED, fault)


def _up_to(bound: int) -> Callable[[Case], bool]:
    return lambda case: largest(case.arguments) <= bound


def _within(answer: Answer, works: Callable[[Case], bool]) -> Callable[..., Outcome]:
    right, wrong = in_this_process(answer), in_this_process(lambda *arguments: spoiled(answer(*arguments)))
    return lambda case, again=False: (right if works(case) else wrong)(case, again)


def spoiled(value: Any) -> Any:
    """Return a value of the same type and shape but with different contents."""
    if isinstance(value, torch.Tensor):
        return ~value if value.dtype == torch.bool else value.detach() * 0 + 77
    if isinstance(value, Mapping):
        return {key: spoiled(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(spoiled(part) for part in value) if value else [77]
    if isinstance(value, bool) or value is None:
        return not value
    return value + 77 if isinstance(value, (int, float)) else f"{value} and more"


def _sizes(value: Any) -> list[int]:
    if isinstance(value, torch.Tensor):
        # A tensor with more than four axes is a table with one axis per part, so its number of entries counts.
        return [*value.shape, *[value.numel()] * (value.dim() > 4)]
    if isinstance(value, str):
        return [len(value)]
    if isinstance(value, (list, tuple)):
        return [len(value), *(size for part in value for size in _sizes(part))]
    if isinstance(value, Mapping):
        return [size for part in value.values() for size in _sizes(part)]
    return []


def largest(arguments: tuple[Any, ...]) -> int:
    """Return the largest size of an axis, list or text in the arguments or, if there are none, the largest integer."""
    sizes = [size for value in arguments for size in _sizes(value)]
    return max(sizes or [abs(value) for value in arguments if type(value) is int], default=0)


def _shapes(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    if isinstance(value, str):
        return len(value)
    if isinstance(value, (list, tuple)):
        return tuple(_shapes(part) for part in value)
    if isinstance(value, Mapping):
        return tuple((key, _shapes(part)) for key, part in value.items())
    return value if type(value) is int else None
