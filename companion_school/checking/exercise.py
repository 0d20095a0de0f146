"""What an exercise is: a statement, an answer, the inputs that tell right from wrong, and the mistakes people make.

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

What a reader sees (stub, hints, solution), what an instructor hands out, and what both are graded with come from here.
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
"""What stands in place of a solution where an exercise is handed out."""
HINTS = 3
LONGEST_TASK = 90  # characters: a line of the table in the lesson
STAR = "★"
"""Begins the paragraph of a statement that says what makes an answer robust, and stands for that mark."""
KINDS = ("value", "type", "memory", "room", "gradients", "again")
"""What may be wrong with a call. Only "value" is about being right, unless an exercise says otherwise (`right`)."""
DIFFICULTIES = {1: "read off", 2: "write", 3: "think"}

Value = Any
"""What goes into an answer and comes out: tensor, number, truth value, text, None, or list, tuple, dict of these."""

Answer = Callable[..., Value]

Limit = Sequence[float] | Callable[..., Sequence[float]]
"""Numbers with which an argument is compared; or a function of all arguments that gives them."""


@dataclass(frozen=True)
class Case:
    """One input that an answer is tried on.

    shows:      the property that fails if the answer is wrong here, in words: "rows add up to one".
    arguments:  what the answer is called with.
    refuse:     the arguments are bad, and the answer must raise a `ValueError`.
    gradients:  compare the gradients with respect to all floating tensors among the arguments, too.
    tolerance:  how far a number may be from the expected one, absolute and relative; by default what the dtype allows.
    exact_zero: where 0 is expected, nothing else will do, however small; None: as the `Exercise` says.
    only_nan:   all that is asked is that the result has NaN in it, or that the arguments are refused.
    alias:      the result may share memory with the arguments; an `Exercise` says so for all its cases.
    layout:     the arguments may lie in memory in any order; likewise.
    room:       the bytes that the call may take at once, beside its arguments; by default as many as it likes.
    says:       where the arguments must be refused, what the message must hold.
    part:       only this part of the result is compared, by its number; by default the whole.
    robust:     why a case that looks like any other is one of the robust ones; or "".
    right:      why one that looks robust is one of the right ones; or "".

    Of the two marks of an answer, *right* and *robust*, a case belongs to the first, unless its arguments must be
    refused or are spoiled by NaN: then to the second. `robust` and `right` say otherwise, and why.
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
        """Whether the case belongs to the robust ones: it costs no point."""
        return bool(self.robust) or (not self.right and (self.refuse or self.only_nan))

    def compared(self, value: Value) -> Value:
        """What of a result is compared: all of it, or a part of what has parts. Where the answer to a question is
        given, small letters and spaces around them count as the letter."""
        if not self.arguments:
            value = as_given(value)
        has_part = self.part is not None and isinstance(value, (list, tuple)) and self.part < len(value)
        return value[self.part] if has_part else value


def as_given(value: Value) -> Value:
    """An answer to a question, its letter in capitals and without spaces around it; anything else as it is."""
    if isinstance(value, str):
        return value.strip().upper()
    return type(value)(map(as_given, value)) if type(value) in (tuple, list) else value


@dataclass(frozen=True)
class Group:
    """Cases of an exercise that earn some of its points together, whatever becomes of the others.

    name:    what an answer does that passes them, in words that a student reads: "several heads".
    points:  what they are worth; public and hidden cases have half of it each.
    shows:   the properties of its cases, as the cases say them. Empty for one group of an exercise: all other right
             ones, those of the laws among them.
    """

    name: str
    points: int
    shows: tuple[str, ...] = ()


class Draw:
    """Where cases get numbers and sizes: all from one seed, so that another seed asks the same of other inputs."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """Independent normal numbers, mean 0 and variance 1."""
        return torch.randn(*shape, generator=self._generator, dtype=torch.float64).to(dtype)

    def uniform(self, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """Independent numbers from 0 to 1."""
        return torch.rand(*shape, generator=self._generator, dtype=torch.float64).to(dtype)

    def whole(self, low: int, high: int) -> int:
        """One whole number from `low` to `high`, both included."""
        return int(torch.randint(low, high + 1, (), generator=self._generator))

    def wholes(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """A tensor of whole numbers from `low` to `high`, both included; int64."""
        return torch.randint(low, high + 1, shape, generator=self._generator)

    def sizes(self, count: int, low: int = 2, high: int = 7) -> tuple[int, ...]:
        """`count` sizes, no two of them equal, so that a wrong axis cannot pass."""
        if high - low + 1 < count:
            raise ValueError(f"sizes: expected at least {count} numbers from low={low} to high={high}")
        return tuple((torch.randperm(high - low + 1, generator=self._generator)[:count] + low).tolist())

    def shuffled(self, count: int) -> torch.Tensor:
        """0 ... count - 1 in random order."""
        return torch.randperm(count, generator=self._generator)


@dataclass(frozen=True)
class Mistake:
    """An answer that is wrong in a way that people are, and what to tell them."""

    message: str
    answer: Answer


@dataclass
class Exercise:
    """One exercise. `exercise` makes it; its three decorators fill it.

    id:          "2.3": lesson and number.
    task:        what you do, in a line: it stands in the lesson's table.
    name:        the function to write.
    statement:   Markdown.
    stub:        what the reader begins with: the signature, and `raise NotImplementedError`.
    solution:    the reference, as text to show.
    reference:   the same, to call.
    forbidden:   names that an answer must not use, such as "softmax" where the exercise is the softmax.
    exact_zero:  the statement speaks of exact zeros: where the reference gives 0, nothing else will do.
    excused:     laws (`derived_cases.EXCUSES`) that do not hold here, each with the reason.
    right:       what is robust by default and counts as right here, each with the reason: laws, `KINDS` of faults, and
                 properties that cases show.
    robust:      what counts as right by default and is robust here: laws, and properties that cases show.
    limits:      what an argument, by its name, is compared with: numbers, or a function of all arguments.
    room:        of all arguments, the bytes that an answer may take at once, where the statement speaks of it.
    groups:      of cases that earn points by themselves. The first is what the exercise begins with: an answer that
                 fails it earns nothing. Empty: all cases earn all points together.
    offered:     of a question: the answers that it has choices for; a check takes nothing else. Empty: any.
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
        """The tiny example of the statement, as in a Python session; None where there is none."""
        found = re.search(r"^```python\n(.*?)^```", self.statement, re.DOTALL | re.MULTILINE)
        return found and found[1]

    @property
    def idea(self) -> str:
        """What of the statement an answer needs in order to be right: all before the star."""
        return self.statement.partition(f"\n{STAR}")[0].rstrip()

    @property
    def asks(self) -> tuple[str, ...]:
        """What makes an answer robust, a line each: the list after the star."""
        listed = self.statement.partition(f"\n{STAR}")[2].partition("\n- ")[2]
        return tuple(" ".join(line.split()) for line in listed.split("\n- ") if line.strip())

    @property
    def lesson(self) -> int:
        """The number of its lesson."""
        return int(self.id.split(".")[0])

    def __call__(self, *arguments: Value) -> Value:
        """The reference's answer, so that one exercise's solution may use another's."""
        return self.reference(*arguments)

    def cases(self, make: Callable[[Draw], Iterable[Case]]) -> Callable[[Draw], Iterable[Case]]:
        """Decorator: the inputs, smallest first."""
        if self._cases is not None:
            raise ValueError(f"exercise {self.id}: its cases are given twice")
        self._cases = make
        return make

    def mistake(self, message: str) -> Callable[[Answer], Answer]:
        """Decorator: a known wrong answer, and the sentence that names what is wrong with it."""
        if any(known.message == message for known in self.mistakes):
            raise ValueError(f"exercise {self.id}: two mistakes have the message {message!r}")

        def add(answer: Answer) -> Answer:
            self.mistakes.append(Mistake(message, answer))
            return answer

        return add

    def variant(self, answer: Answer) -> Answer:
        """Decorator: a right answer that is written in another way."""
        self.variants.append(answer)
        return answer

    def group_of(self, case: Case) -> int:
        """The number of a case's group: the one that names its property, else the one that names none."""
        rest = next((at for at, group in enumerate(self.groups) if not group.shows), 0)
        return next((at for at, group in enumerate(self.groups) if case.shows in group.shows), rest)

    def inputs(self, seed: int = 0) -> Iterator[Case]:
        """The cases of a seed, smallest first. Seed 0 is what readers are checked with."""
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
    """Decorator: turns the reference solution into an `Exercise`.

    id:          lesson and number, as in "2.3".
    task:        what the reader does, in a line of at most 90 characters without a full stop. The lesson's table reads
                 this, title, points, difficulty and minutes from the text of the call: write them as they are, not as
                 names.
    points:      what it is worth when it is graded.
    difficulty:  1 (read off), 2 (write) or 3 (think).
    minutes:     what it takes someone who has just read the lesson.
    hints:       three, each giving away a little more.
    forbidden:   names that an answer must not use.
    exact_zero:  where the reference gives 0, nothing else will do, however small.
    excused:     laws that do not hold for this exercise, each with the reason: "one", "levels", "offset", "nan",
                 "dtype", "other", "tie", "scale" and "edge" (`derived_cases`), "memory" (the result may be an argument,
                 or a view into one) and "layout" (the arguments lie in memory in the order of their axes).
    right:       what is robust by default and counts as right here, by name and with the reason: "gradients" where the
                 exercise is about them or its answer goes into a model; "type", "memory", "again", "refusals", a law,
                 a property that cases show, or "all".
    robust:      what counts as right by default and is robust here: the laws "one", "other", "tie" and "edge", and
                 properties that cases show.
    limits:      for arguments, by name, the numbers with which the statement compares them, or a function of all
                 arguments that gives these: the arguments are made to meet them exactly, and to miss them by a little.
    room:        gives, of all arguments, the bytes that an answer may take at once beside them: measured on the largest
                 of the cases.
    groups:      of cases that earn points by themselves; without them, all cases earn all points together.

    Raises `ValueError` for an id that is not lesson and number, a task that is not a short line, not three hints,
    groups that do not share the points out, a function without statement or without the markers around its solution.
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
        raise ValueError(f"id={id!r}: expected lesson and number, as in '2.3'")
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
        raise ValueError(f"exercise {id}: groups: expected {points} points together, at least one each; got {total}")
    if len(groups) < 2 or len({group.name for group in groups}) < len(groups):
        raise ValueError(f"exercise {id}: groups: expected at least two, with names of their own")
    named = [shows for group in groups for shows in group.shows]
    if len(set(named)) != len(named):
        raise ValueError(f"exercise {id}: groups: expected each property in one group")
    if not groups[0].shows or sum(not group.shows for group in groups) != 1:
        raise ValueError(f"exercise {id}: groups: expected one without properties, for all other cases, not the first")


def _parts(id: str, reference: Answer) -> tuple[str, str]:
    """The stub and the solution: the function's text without decorator and docstring, with and without its body."""
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
