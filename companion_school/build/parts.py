"""What a stage is examined by: its parts, each a function or a class of its file, with cases, mistakes and variants.

A stage's parts stand in `checks/`, in a module of the stage's own name, in the order of its file:

    @part(2, points=2)
    def attend(code, q, k, v, mask):
        '''The formula, in words that stand in the report.'''
        return code.attend(q, k, v, mask)

    @attend.cases
    def _(draw):
        yield Case("weights are a softmax of scaled scores", (q, k, v, None), gradients=True)

    attend.mistake("you divide by d_head, not by its root", "math.sqrt(q.shape[-1])", "q.shape[-1]")
    attend.mistake("your causal mask looks ahead", '''def causal(queries, keys): ...''')
    attend.variant('''def attend(q, k, v, mask=None): ...''')

The function is the *probe*: it has what a case holds, asks the learner's file for what it needs (`code` is a `World`:
its attributes are the names of the stage's file, `code["model"]` is another file), and gives what is compared.
Its text travels to the grader's sandbox: it uses PyTorch, `math`, what `isolated_modules` defines, and nothing else. To
try a layer it gives it weights, as arguments of the case, by `run_with`: so their gradients are compared as any
other's.

From a part an exercise is made (`checking.exercise`), and all that holds for exercises holds for it: laws, refusals, a
second call in another memory layout, known mistakes that are named, partial credit.

A mistake is the reference with pieces of its text replaced, each of which it holds once; or with a definition put in
the place of its own. Of what people do wrong it takes what a person would write, and tells them in one sentence what
it is that they did. A variant is a right answer that is written otherwise: another formula, other names inside, loops.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, wraps
from typing import Any

from companion_school.build import elsewhere, isolated_modules
from companion_school.build.stages import STAGES, Stage
from companion_school.build.stubs import names, reference
from companion_school.checking.exercise import Answer, Case, Draw, Exercise, Limit, Mistake

FORBIDDEN = (
    "scaled_dot_product_attention", "MultiheadAttention", "TransformerEncoderLayer", "TransformerEncoder",
    "TransformerDecoderLayer", "TransformerDecoder",
)  # fmt: skip
"""What no file may use before the race."""
_OPERATORS = ("scaled_dot_product_attention",)
OPEN = 11
"""The stage from which on everything goes."""
SECONDS = 30.0

Patch = tuple[tuple[str, str], ...] | str
"""Pieces of the reference's text, each with what stands in its place; or a definition that replaces its own."""


@dataclass(eq=False)
class Part:
    """One function or class of a stage's file, and how it is examined. `part` makes it, its methods fill it.

    name:       by which the report calls it: that of its probe, which is that of a definition, as a rule.
    shows:      what it does, in a line.
    points:     its share of the stage's.
    probe:      the function that asks the learner's file.
    forbidden:  names that the file must not use, besides `FORBIDDEN`.
    seconds:    that its cases may take together, on a slow machine.
    remark:     looks at files that are right (a `World`): what else is to be said of them, or None.
    """

    stage: Stage
    name: str
    shows: str
    points: int
    probe: Callable[..., Any]
    excused: Mapping[str, str]
    limits: Mapping[str, Limit]
    forbidden: tuple[str, ...]
    exact_zero: bool
    seconds: float
    mistakes: list[tuple[str, Patch]] = field(default_factory=list)
    variants: list[str] = field(default_factory=list)
    remark: Callable[[Any], str | None] | None = None
    _cases: Callable[[Draw], Iterable[Case]] | None = None

    def cases(self, make: Callable[[Draw], Iterable[Case]]) -> Callable[[Draw], Iterable[Case]]:
        """Decorator: the inputs, smallest first."""
        self._cases = make
        return make

    def remarks(self, make: Callable[[Any], str | None]) -> Callable[[Any], str | None]:
        """Decorator: what else is to be said of files that are right."""
        self.remark = make
        return make

    def mistake(self, message: str, *pieces: str) -> None:
        """A known mistake: what is said of it; then a piece of the reference's text and what stands in its place, and
        further such pairs; or a definition alone, which replaces the reference's.

        Raises `ValueError` for a piece that the reference does not hold just once, or two mistakes of one message.
        """
        if any(known == message for known, _ in self.mistakes):
            raise ValueError(f"{self.stage.id} {self.name}: two mistakes have the message {message!r}")
        patch = _dedented(pieces[0]) if len(pieces) == 1 else tuple(zip(pieces[::2], pieces[1::2], strict=True))
        patched(self.stage.number, patch)
        self.mistakes.append((message, patch))

    def variant(self, definition: str) -> None:
        """A right answer that is written otherwise: definitions that replace the reference's."""
        self.variants.append(_dedented(definition))

    def answer(self, sources: Mapping[str, str], files: Mapping[str, str] | None = None) -> Answer:
        """The probe on these sources, as a function of what a case holds. They are read at the first call."""
        code = isolated_modules.World(sources, self.stage.module, files)
        probe = self.probe

        @wraps(probe)
        def answer(*arguments: Any) -> Any:
            return probe(code, *arguments)

        own = inspect.signature(probe)
        answer.__signature__ = own.replace(parameters=list(own.parameters.values())[1:])  # type: ignore[attr-defined]
        return answer

    def program(self, sources: Mapping[str, str]) -> str:
        """The same as the text of a function `answer`, which needs PyTorch and nothing else."""
        probe = re.sub(r"\A.*?^def \w+", "def probe", inspect.getsource(self.probe), count=1, flags=re.S | re.M)
        return (
            f"{inspect.getsource(isolated_modules)}\n\n{_without_future(inspect.getsource(elsewhere))}\n\n"
            f"import math\n\n\n{probe}\n\n"
            f"CODE = World({dict(sources)!r}, {self.stage.module!r})\n\n\n"
            "def answer(*arguments):\n    return probe(CODE, *arguments)\n"
        )

    @cache  # noqa: B019  (there are some sixty parts, and they stay)
    def exercise(self) -> Exercise:
        """What the engine of the checks examines answers by."""
        right = references(self.stage)
        number = self.stage.number
        return Exercise(
            id=f"{self.stage.id} {self.name}",
            title=self.stage.title,
            task=self.shows.rstrip("."),
            name=self.name,
            statement=self.shows,
            stub="",
            solution="",
            reference=self.answer(right),
            hints=(),
            points=self.points,
            difficulty=2,
            minutes=self.stage.minutes,
            forbidden=self.watched,
            exact_zero=self.exact_zero,
            excused=self.excused,
            right={"all": "what others build on has to stand all that they may bring"},
            limits=self.limits,
            mistakes=[
                Mistake(message, self.answer(right | {self.stage.module: patched(number, patch)}))
                for message, patch in self.mistakes
            ],
            variants=[self.answer(right | {self.stage.module: patched(number, text)}) for text in self.variants],
            _cases=self._cases,
        )

    @property
    def title(self) -> str:
        """Its name as a reader sees it: that of the definition, and behind a comma what of it is tried."""
        own = max((name for name in names(self.stage.number) if self.name.startswith(name)), key=len, default=self.name)
        return own + self.name[len(own) :].replace("_", ", ", 1).replace("_", " ")

    @property
    def without(self) -> tuple[str, ...]:
        """Names that the learner's file must not use, wherever they stand in its text."""
        return (*FORBIDDEN, *self.forbidden) if self.stage.number < OPEN else ()

    @property
    def watched(self) -> tuple[str, ...]:
        """Those of them that are noticed by the operators that PyTorch runs, under whatever name they were called."""
        return tuple(name for name in self.without if name in _OPERATORS)


def part(
    stage: int,
    *,
    points: int,
    excused: Mapping[str, str] | None = None,
    limits: Mapping[str, Limit] | None = None,
    forbidden: Sequence[str] = (),
    exact_zero: bool = False,
    seconds: float = SECONDS,
) -> Callable[[Callable[..., Any]], Part]:
    """Decorator: makes a part of its probe. The arguments are those of `Part` and of `checking.exercise.exercise`."""

    def make(probe: Callable[..., Any]) -> Part:
        shows = inspect.getdoc(probe) or ""
        if not shows:
            raise ValueError(f"stage {stage}: expected a docstring of {probe.__name__}: what the part does, in a line")
        without, zero = tuple(forbidden), exact_zero
        return Part(
            STAGES[stage], probe.__name__, shows, points, probe, excused or {}, limits or {}, without, zero, seconds,
        )  # fmt: skip

    return make


@cache
def parts(number: int) -> tuple[Part, ...]:
    """The parts of a stage, in the order of its file. None where its check is not written yet."""
    name = f"companion_school.build.checks.{STAGES[number].module}"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return ()
    return tuple(value for value in vars(module).values() if isinstance(value, Part))


def points_of(stage: Stage) -> int:
    """What all parts of a stage are worth."""
    return sum(part.points for part in parts(stage.number))


def references(stage: Stage) -> dict[str, str]:
    """The references of a stage and of those that it needs, by module."""
    return {STAGES[number].module: reference(number) for number in (*stage.needs, stage.number)}


@cache
def patched(number: int, patch: Patch) -> str:
    """The reference of a stage with a patch. Raises `ValueError` for one that does not fit."""
    source = reference(number)
    if isinstance(patch, str):
        return _with_definitions(source, patch)
    for old, new in patch:
        if source.count(old) != 1:
            raise ValueError(
                f"stage {number}: expected {old!r} once in the reference, found it {source.count(old)} times"
            )
        source = source.replace(old, new)
    return source


def _without_future(source: str) -> str:
    """The text of a module to stand behind another's: `from __future__` may only be at the top."""
    return source.replace("from __future__ import annotations\n", "")


def _dedented(definition: str) -> str:
    return textwrap.dedent(definition).strip() + "\n"


def _with_definitions(source: str, definitions: str) -> str:
    """The source with some of its definitions replaced, where they stand; imports and others are put before them."""
    tree, own = ast.parse(source), ast.parse(definitions)
    lines, pieces = source.splitlines(), definitions.splitlines()

    def text(node: ast.stmt, of: list[str]) -> list[str]:
        decorators = getattr(node, "decorator_list", [])
        return of[min([node.lineno, *(one.lineno for one in decorators)]) - 1 : node.end_lineno]

    there = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    replaced = {name: text(node, pieces) for node in own.body if (name := getattr(node, "name", None)) in there}
    further = [line for node in own.body if getattr(node, "name", None) not in there for line in text(node, pieces)]
    if not replaced:
        raise ValueError(f"expected a definition of one of {', '.join(there)}")
    for name, node in sorted(there.items(), key=lambda item: -item[1].lineno):
        if name in replaced:
            start = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            lines[start - 1 : node.end_lineno] = replaced[name]
    first = min(min([node.lineno, *(one.lineno for one in node.decorator_list)]) for node in there.values())
    lines[first - 1 : first - 1] = [*further, "", ""] if further else []
    return "\n".join(lines) + "\n"
