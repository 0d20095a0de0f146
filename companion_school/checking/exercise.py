"""Define exercises: their statements, solutions, common mistakes, and inputs that distinguish right from wrong answers.

An exercise is written once, as a function in `lesson_NN.py` whose body between the two markers is the solution:

    @exercise("2.3", "A softmax that can hide", task="Write a masked softmax", points=3, difficulty=2, minutes=15,
              hints=(..., ..., ...))
    def visible_softmax(scores, may_look):
        '''The statement, in Markdown: signature, shapes, dtype, what must be raised.'''
        ### BEGIN SOLUTION
        ...
        ### END SOLUTION

    @visible_softmax.cases
    def _(draw):
        yield Case("one visible key", (draw.normal(1, 3), look))

    @visible_softmax.mistake("your mask comes after the softmax: hidden scores still sit in the denominator")
    def _(scores, may_look): ...

    @visible_softmax.variant
    def _(scores, may_look): ...

The stub, hints and solution that a reader sees, the files that an instructor hands out, and the cases for grading are
all generated from this definition.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
STUB = "raise NotImplementedError"
"""Line that replaces the solution in the version of an exercise that students receive."""
HINTS = 3
LONGEST_TASK = 90  # characters; a longer task would not fit on one line of the lesson's table
STAR = "★"
"""Symbol of the mark *robust*. In a statement, it begins the paragraph that says what makes an answer robust."""
KINDS = ("value", "type", "memory", "room", "gradients", "again")
"""Kinds of faults that a call may have. Only "value" costs points, unless an exercise says otherwise (`right`)."""
DIFFICULTIES = {1: "read off", 2: "write", 3: "think"}

Value = Any
"""Argument or result of an answer: a tensor, number, bool, string or None, or a list, tuple or dict of these."""

Answer = Callable[..., Value]

Limit = Sequence[float] | Callable[..., Sequence[float]]
"""Values that an argument is compared with, or a function of all arguments that returns them."""


@dataclass(frozen=True)
class Case:
    """An input on which an answer is tested.

    An answer has two marks, *right* and *robust*. A case counts towards *right*, unless its arguments must be rejected
    or contain an added NaN; then it counts towards *robust*. The attributes `robust` and `right` override this.

    Attributes:
        shows: The property that a wrong answer violates in this case, in words, such as "rows add up to one".
        arguments: The arguments of the call.
        refuse: True if the arguments are invalid, so that the answer must raise a `ValueError`.
        gradients: Whether to compare gradients too, with respect to all floating-point tensors among the arguments.
        tolerance: Absolute and relative tolerance for each number; by default, it depends on the dtype.
        exact_zero: Whether entries that are expected to be 0 must be exactly 0; None means that the `Exercise` decides.
        only_nan: If true, an answer passes if its result contains NaN or if it rejects the arguments.
        alias: Whether the result may share memory with the arguments (set by the `Exercise` for all its cases).
        layout: Whether the arguments may have any memory layout (set by the `Exercise` for all its cases).
        room: Limit on the peak memory of the call in bytes, not counting its arguments; None for no limit.
        says: Text that the error message must contain if the arguments must be rejected.
        part: Index of the part of the result that is compared; None to compare the whole result.
        robust: Reason for counting the case towards *robust* where the default is *right*; "" to keep the default.
        right: Reason for counting the case towards *right* where the default is *robust*; "" to keep the default.
    """

    shows: str
    arguments: tuple[Value, ...]
    refuse: bool = False
    gradients: bool = False
    tolerance: float | None = None
    exact_zero: bool | None = None
    only_nan: bool = False
    alias: bool = False
    layout: bool = True
    room: int | None = None
    says: str = ""
    part: int | None = None
    robust: str = ""
    right: str = ""

    @property
    def is_robust(self) -> bool:
        """True if the case counts towards *robust*, so that failing it costs no points."""
        return bool(self.robust) or (not self.right and (self.refuse or self.only_nan))

    def compared(self, value: Value) -> Value:
        """Return the part of a result that is compared (`part`), or the whole result.

        If the case has no arguments, strings in the answer are normalized (`as_given`).
        """
        if not self.arguments:
            value = as_given(value)
        has_part = self.part is not None and isinstance(value, (list, tuple)) and self.part < len(value)
        return value[self.part] if has_part else value


def as_given(value: Value) -> Value:
    """Convert strings in an answer to upper case, strip surrounding spaces, and leave everything else unchanged."""
    if isinstance(value, str):
        return value.strip().upper()
    return type(value)(map(as_given, value)) if type(value) in (tuple, list) else value


@dataclass(frozen=True)
class Group:
    """A group of cases that together earn some of an exercise's points, independently of the other groups.

    The first group is an exception: an answer that fails it earns nothing.

    Attributes:
        name: What an answer that passes these cases can handle, in words that students understand, such as "several
            heads".
        points: Points for these cases: half for the public cases and half for the hidden ones.
        shows: Properties (`Case.shows`) of the cases in this group; empty for the group that gets all remaining cases,
            including the derived ones.
    """

    name: str
    points: int
    shows: tuple[str, ...] = ()


class Draw:
    """Random numbers and sizes for cases, drawn from a seed. A different seed gives different inputs of the same kind.

    Args:
        seed: Seed of the generator.
    """

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """Return independent standard normal numbers, drawn in float64 and converted to `dtype`."""
        return torch.randn(*shape, generator=self._generator, dtype=torch.float64).to(dtype)

    def uniform(self, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """Return independent uniform numbers from [0, 1), drawn in float64 and converted to `dtype`."""
        return torch.rand(*shape, generator=self._generator, dtype=torch.float64).to(dtype)

    def whole(self, low: int, high: int) -> int:
        """Return an integer from `low` to `high`, both included."""
        return int(torch.randint(low, high + 1, (), generator=self._generator))

    def wholes(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Return an int64 tensor of integers from `low` to `high`, both included."""
        return torch.randint(low, high + 1, shape, generator=self._generator)

    def sizes(self, count: int, low: int = 2, high: int = 7) -> tuple[int, ...]:
        """Return `count` distinct sizes from `low` to `high`, both included, so that a wrong axis cannot pass.

        Raises:
            ValueError: The range has fewer than `count` numbers.
        """
        if high - low + 1 < count:
            raise ValueError(f"sizes: expected at least {count} numbers from low={low} to high={high}")
        return tuple((torch.randperm(high - low + 1, generator=self._generator)[:count] + low).tolist())

    def shuffled(self, count: int) -> torch.Tensor:
        """Return the integers from 0 to count - 1 in random order."""
        return torch.randperm(count, generator=self._generator)


@dataclass(frozen=True)
class Mistake:
    """A typical wrong answer, and the message for readers whose answer makes the same mistake."""

    message: str
    answer: Answer


@dataclass
class Exercise:
    """An exercise, created by the decorator `exercise`. Its own three decorators add cases, mistakes and variants.

    Attributes:
        id: Lesson and number, such as "2.3".
        title: Title of the exercise.
        task: The task in one line, for the lesson's table.
        name: Name of the function to write.
        statement: The statement in Markdown.
        stub: The code that the reader starts from: the signature and `raise NotImplementedError`.
        solution: Text of the reference solution.
        reference: The reference solution as a function.
        hints: Three hints, each giving away a little more.
        points: Points for a right answer.
        difficulty: 1 (read off), 2 (write) or 3 (think).
        minutes: Expected time for someone who has just read the lesson.
        forbidden: Names that an answer must not use, such as "softmax" if the exercise is to write a softmax.
        exact_zero: Whether an answer must give exactly 0 where the reference does, as the statement asks.
        excused: Laws (`derived_cases.EXCUSES`) that do not apply to this exercise, each with a reason.
        right: Laws, `KINDS` of faults and properties of cases that count towards *right* in this exercise, although by
            default they count towards *robust*; each with the reason.
        robust: Laws and properties of cases that count towards *robust* in this exercise, although by default they
            count towards *right*; each with the reason.
        limits: For each argument, by name, the values with which the statement compares it, or a function of all
            arguments that returns these values.
        room: Function of all arguments that returns the memory limit in bytes; None if the statement sets no limit.
        groups: Groups of cases that earn points by themselves. An answer that fails the first group earns nothing. If
            there are no groups, the points are earned for all cases together.
        offered: The only accepted answers of a question with choices.
        mistakes: Known wrong answers.
        variants: Alternative solutions.
    """

    id: str
    title: str
    task: str
    name: str
    statement: str
    stub: str
    solution: str
    reference: Answer
    hints: tuple[str, ...]
    points: int
    difficulty: int
    minutes: int
    forbidden: tuple[str, ...] = ()
    exact_zero: bool = False
    excused: Mapping[str, str] = field(default_factory=dict)
    right: Mapping[str, str] = field(default_factory=dict)
    robust: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, Limit] = field(default_factory=dict)
    room: Callable[..., int] | None = None
    groups: tuple[Group, ...] = ()
    offered: tuple[Value, ...] = ()
    mistakes: list[Mistake] = field(default_factory=list)
    variants: list[Answer] = field(default_factory=list)
    _cases: Callable[[Draw], Iterable[Case]] | None = None

    @property
    def example(self) -> str | None:
        """The small example in the statement, which is its first Python code block, or None."""
        found = re.search(r"^```python\n(.*?)^```", self.statement, re.DOTALL | re.MULTILINE)
        return found and found[1]

    @property
    def idea(self) -> str:
        """The part of the statement before the star, which says what an answer needs in order to be right."""
        return self.statement.partition(f"\n{STAR}")[0].rstrip()

    @property
    def asks(self) -> tuple[str, ...]:
        """The items of the list after the star in the statement, which say what makes an answer robust."""
        listed = self.statement.partition(f"\n{STAR}")[2].partition("\n- ")[2]
        return tuple(" ".join(line.split()) for line in listed.split("\n- ") if line.strip())

    @property
    def lesson(self) -> int:
        """Number of the lesson."""
        return int(self.id.split(".")[0])

    def __call__(self, *arguments: Value) -> Value:
        """Call the reference solution. This allows the solution of one exercise to use that of another."""
        return self.reference(*arguments)

    def cases(self, make: Callable[[Draw], Iterable[Case]]) -> Callable[[Draw], Iterable[Case]]:
        """Register the decorated function, which yields the cases, smallest first.

        Raises:
            ValueError: The exercise already has cases.
        """
        if self._cases is not None:
            raise ValueError(f"exercise {self.id}: its cases are defined twice")
        self._cases = make
        return make

    def mistake(self, message: str) -> Callable[[Answer], Answer]:
        """Decorate a known wrong answer.

        Args:
            message: A sentence that says what is wrong with the answer.

        Raises:
            ValueError: Another mistake has the same message.
        """
        if any(known.message == message for known in self.mistakes):
            raise ValueError(f"exercise {self.id}: two mistakes have the message {message!r}")

        def add(answer: Answer) -> Answer:
            self.mistakes.append(Mistake(message, answer))
            return answer

        return add

    def variant(self, answer: Answer) -> Answer:
        """Decorate an alternative solution."""
        self.variants.append(answer)
        return answer

    def group_of(self, case: Case) -> int:
        """Return the index of a case's group: the one that lists its property, or else the one without a list."""
        rest = next((at for at, group in enumerate(self.groups) if not group.shows), 0)
        return next((at for at, group in enumerate(self.groups) if case.shows in group.shows), rest)

    def inputs(self, seed: int = 0) -> Iterator[Case]:
        """Yield the cases for a seed, smallest first. Readers' answers are checked with seed 0.

        Raises:
            ValueError: The exercise has no cases.
        """
        if self._cases is None:
            raise ValueError(f"exercise {self.id} has no cases")
        cases = self._cases(Draw(seed))
        alias, layout = "memory" in self.excused, "layout" not in self.excused
        for case in cases:
            zero = self.exact_zero if case.exact_zero is None else case.exact_zero
            robust = self.robust.get(case.shows, case.robust)
            right = self.right.get(case.shows, case.right)
            yield replace(case, exact_zero=zero, alias=alias, layout=layout, robust=robust, right=right)


def exercise(
    id: str,
    title: str,
    *,
    task: str,
    points: int,
    difficulty: int,
    minutes: int,
    hints: Sequence[str],
    forbidden: Sequence[str] = (),
    exact_zero: bool = False,
    excused: Mapping[str, str] | None = None,
    right: Mapping[str, str] | None = None,
    robust: Mapping[str, str] | None = None,
    limits: Mapping[str, Limit] | None = None,
    room: Callable[..., int] | None = None,
    groups: Sequence[Group] = (),
) -> Callable[[Answer], Exercise]:
    """Decorate a reference solution to turn it into an `Exercise`.

    The lesson's table reads `title`, `task`, `points`, `difficulty` and `minutes` from the text of the call, so write
    them as literals.

    Args:
        id: Lesson and number, as in "2.3".
        title: Title of the exercise.
        task: The task, in one line of at most 90 characters, without a period at the end.
        points: Points for a right answer.
        difficulty: 1 (read off), 2 (write) or 3 (think).
        minutes: Expected time for someone who has just read the lesson.
        hints: Three hints, each giving away a little more.
        forbidden: Names that an answer must not use.
        exact_zero: Whether an answer must give exactly 0 where the reference gives 0.
        excused: Laws that do not apply to this exercise, each with a reason: "one", "levels", "offset", "nan", "dtype",
            "other", "tie", "scale", "edge" and "large" (`derived_cases`), "memory" (the result may be an argument or a
            view into one) and "layout" (the arguments are in memory in the order of their axes).
        right: Names of things that count towards *right* in this exercise instead of *robust*, the default, each with
            the reason. A name is "gradients" (if the exercise is about gradients, or if its answer is used in a model),
            "type", "memory", "again", "refusals", a law (see `derived_cases`), a property that cases show, or "all".
        robust: Names of things that count towards *robust* in this exercise instead of *right*, the default, each with
            the reason. A name is one of the laws "one", "other", "tie" and "edge", or a property that cases show.
        limits: For each argument, by name, the values with which the statement compares it, or a function of all
            arguments that returns these values. Derived cases hit these values exactly or miss them narrowly.
        room: Function of all arguments that returns how many bytes an answer may use at any one time, not counting the
            arguments (tested on the largest case).
        groups: Groups of cases that earn points by themselves; without groups, the points are earned for all cases
            together.

    Raises:
        ValueError: The id does not consist of a lesson and a number, the task is not a short line, the number of hints
            is not three, the difficulty, points or minutes are out of range, the groups are invalid or their points do
            not add up, or the function has no statement or no markers around its solution.
    """
    _check_facts(id, task, hints, difficulty, points, minutes)
    if groups:
        _check_groups(id, groups, points)

    def make(reference: Answer) -> Exercise:
        statement = inspect.getdoc(reference)
        if not statement:
            raise ValueError(f"exercise {id}: expected its statement as the docstring of {reference.__name__}")
        stub, solution = _parts(id, reference)
        return Exercise(
            id=id,
            title=title,
            task=task,
            name=reference.__name__,
            statement=statement,
            stub=stub,
            solution=solution,
            reference=reference,
            hints=tuple(hints),
            points=points,
            difficulty=difficulty,
            minutes=minutes,
            forbidden=tuple(forbidden),
            exact_zero=exact_zero,
            excused=dict(excused or {}),
            right=dict(right or {}),
            robust=dict(robust or {}),
            limits=dict(limits or {}),
            room=room,
            groups=tuple(groups),
        )

    return make


def _check_facts(id: str, task: str, hints: Sequence[str], difficulty: int, points: int, minutes: int) -> None:
    if not re.fullmatch(r"\d{1,2}\.[1-9]\d?", id):
        raise ValueError(f"id={id!r}: expected a lesson and a number, as in '2.3'")
    if not 0 < len(task.strip()) <= LONGEST_TASK or set("\n|") & set(task) or task.endswith("."):
        what = f"expected a line of at most {LONGEST_TASK} characters, without | and without a full stop"
        raise ValueError(f"exercise {id}: task={task!r}: {what}")
    if len(hints) != HINTS or not all(hint.strip() for hint in hints):
        raise ValueError(f"exercise {id}: expected {HINTS} hints, got {len(hints)}")
    if difficulty not in DIFFICULTIES:
        raise ValueError(f"exercise {id}: difficulty={difficulty}: expected one of {sorted(DIFFICULTIES)}")
    if points < 1 or minutes < 1:
        raise ValueError(f"exercise {id}: expected at least one point and one minute, got {points} and {minutes}")


def _check_groups(id: str, groups: Sequence[Group], points: int) -> None:
    total = sum(group.points for group in groups)
    if total != points or any(group.points < 1 for group in groups):
        raise ValueError(
            f"exercise {id}: groups: expected at least one point per group and {points} in total, got {total}"
        )
    if len(groups) < 2 or len({group.name for group in groups}) < len(groups):
        raise ValueError(f"exercise {id}: groups: expected at least two groups with different names")
    named = [shows for group in groups for shows in group.shows]
    if len(set(named)) != len(named):
        raise ValueError(f"exercise {id}: groups: expected each property in exactly one group")
    if not groups[0].shows or sum(not group.shows for group in groups) != 1:
        raise ValueError(
            f"exercise {id}: groups: expected one group without properties, for all other cases, and not as the first"
        )


def _parts(id: str, reference: Answer) -> tuple[str, str]:
    """Return the stub and the solution. Both are the code without its decorator and docstring; the stub also lacks the
    body."""
    text = textwrap.dedent(inspect.getsource(reference))
    tree = ast.parse(text).body[0]
    assert isinstance(tree, ast.FunctionDef)
    lines = text.splitlines()
    docstring = tree.body[0]
    head = lines[tree.lineno - 1 : docstring.lineno - 1]
    body = lines[docstring.end_lineno :]
    marks = [number for number, line in enumerate(body) if line.strip() in (BEGIN, END)]
    if [body[number].strip() for number in marks] != [BEGIN, END]:
        raise ValueError(f"exercise {id}: expected {BEGIN!r} and {END!r} once each, around the solution")
    before, between, after = body[: marks[0]], body[marks[0] + 1 : marks[1]], body[marks[1] + 1 :]
    if any(line.strip() for line in (*before, *after)):
        raise ValueError(f"exercise {id}: expected nothing outside the solution's markers")
    stub = "\n".join([*head, f"    {STUB}"])
    return stub, "\n".join([*head, *between]).rstrip()
