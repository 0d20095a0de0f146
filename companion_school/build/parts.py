"""Parts of a stage: the functions and classes to check, with their test cases, known mistakes and variants.

The parts of a stage are defined in `checks/`, in a module with the same name as the stage's file, and in the order of
that file:

    @part(2, points=2)
    def attend(code, q, k, v, mask):
        '''The line that the report shows if the part is right.'''
        return code.attend(q, k, v, mask)

    @attend.cases
    def _(draw):
        yield Case("weights are a softmax of scaled scores", (q, k, v, None), gradients=True)

    attend.mistake("you divide by d_head, not by its root", "math.sqrt(q.shape[-1])", "q.shape[-1]")
    attend.mistake("your causal mask looks ahead", '''def causal(queries, keys): ...''')
    attend.variant('''def attend(q, k, v, mask=None): ...''')

The decorated function is called the *probe*. It receives the arguments of a case, calls the learner's code and returns
the values that are compared. `code` is a `World`: its attributes are the names defined in the stage's file, and
`code["model"]` gives access to the names in another file, here model.py. Because the probe's source is copied into the
grader's sandbox, the probe may use only PyTorch, `math`, `simulated_device` and what `isolated_modules` defines. To
check a layer, a probe passes weights from the case to `run_with`, so that their gradients are compared like those of
any other argument.

Each part is turned into an exercise (`checking.exercise`), with everything that an exercise has: tested properties,
rejected inputs, a second call with a different memory layout, messages for known mistakes, and partial credit.

A mistake is the reference with one definition or some pieces of its text replaced (each piece must occur exactly once).
It should be code that a person might plausibly write, and it comes with a sentence that explains what is wrong. A
variant is a correct answer that is written differently, for example with a different formula, other local names, or
loops.
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

from companion_school.build import isolated_modules, simulated_device
from companion_school.build.stages import STAGES, Stage
from companion_school.build.stubs import names, reference
from companion_school.checking.exercise import Answer, Case, Draw, Exercise, Limit, Mistake

FORBIDDEN = (
    "scaled_dot_product_attention", "MultiheadAttention", "TransformerEncoderLayer", "TransformerEncoder",
    "TransformerDecoderLayer", "TransformerDecoder",
)  # fmt: skip
"""Names that learners' files must not use before the race."""
_OPERATORS = ("scaled_dot_product_attention",)
OPEN = 11
"""The first stage where every name is allowed."""
SECONDS = 30.0

Patch = tuple[tuple[str, str], ...] | str
"""Pieces of the reference's text, each with its replacement, or a definition that replaces the reference's own."""


@dataclass(eq=False)
class Part:
    """A function or class in a stage's file, together with its check.

    It is created by the decorator `part`, and its methods add the cases, mistakes and variants.

    Attributes:
        stage: The stage.
        name: Name in reports, which is the name of the probe and usually begins with the name of a definition.
        shows: The probe's docstring, which says what is right if the part is right.
        points: The part's share of the stage's points.
        probe: The function that calls the learner's file.
        excused: See `checking.exercise.exercise`, which also explains `limits` and `exact_zero`.
        forbidden: Names that the file must not use, besides those in `FORBIDDEN`.
        seconds: Limit on the total processor time for all cases, generous enough for slow machines.
        mistakes: The known mistakes, each with a message and a patch to the reference.
        variants: Definitions of correct answers that are written differently.
        remark: Function that takes a right solution (a `World`) and returns a remark on it, or None.
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
        """Register the decorated function, which yields the test cases, smallest first."""
        self._cases = make
        return make

    def remarks(self, make: Callable[[Any], str | None]) -> Callable[[Any], str | None]:
        """Register the decorated function, which returns a remark on a right solution, or None."""
        self.remark = make
        return make

    def mistake(self, message: str, *pieces: str) -> None:
        """Add a known mistake.

        Args:
            message: A sentence that tells learners what they did wrong.
            pieces: Pieces of the reference's text, each followed by its replacement; or a single definition that
                replaces the reference's.

        Raises:
            ValueError: If a piece does not occur exactly once in the reference, or another mistake has this message.
        """
        if any(known == message for known, _ in self.mistakes):
            raise ValueError(f"{self.stage.id} {self.name}: two mistakes have the message {message!r}")
        patch = _dedented(pieces[0]) if len(pieces) == 1 else tuple(zip(pieces[::2], pieces[1::2], strict=True))
        patched(self.stage.number, patch)
        self.mistakes.append((message, patch))

    def variant(self, definition: str) -> None:
        """Add a correct answer that is written differently, as definitions that replace those of the reference."""
        self.variants.append(_dedented(definition))

    def answer(self, sources: Mapping[str, str], files: Mapping[str, str] | None = None) -> Answer:
        """Return a function that calls the probe with these sources and the arguments of a case.

        The sources are executed when the function is first called.
        """
        code = isolated_modules.World(sources, self.stage.module, files)
        probe = self.probe

        @wraps(probe)
        def answer(*arguments: Any) -> Any:
            return probe(code, *arguments)

        own = inspect.signature(probe)
        answer.__signature__ = own.replace(parameters=list(own.parameters.values())[1:])  # type: ignore[attr-defined]
        return answer

    def program(self, sources: Mapping[str, str]) -> str:
        """Return a module's source that defines the function of `Part.answer` as `answer` and needs only PyTorch."""
        probe = re.sub(r"\A.*?^def \w+", "def probe", inspect.getsource(self.probe), count=1, flags=re.S | re.M)
        return (
            f"{inspect.getsource(isolated_modules)}\n\n{_without_future(inspect.getsource(simulated_device))}\n\n"
            f"import math\n\n\n{probe}\n\n"
            f"CODE = World({dict(sources)!r}, {self.stage.module!r})\n\n\n"
            "def answer(*arguments):\n    return probe(CODE, *arguments)\n"
        )

    @cache  # noqa: B019  (there are fewer than a hundred parts, and they live as long as the process)
    def exercise(self) -> Exercise:
        """Return this part as an exercise, so that `checking.examine` can check answers to it."""
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
            right={"all": "later stages build on this part, so it must handle all their inputs"},
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
        """The name in reports: the name of the definition, followed by the aspect that is checked, if there is one."""
        own = max((name for name in names(self.stage.number) if self.name.startswith(name)), key=len, default=self.name)
        return own + self.name[len(own) :].replace("_", ", ", 1).replace("_", " ")

    @property
    def without(self) -> tuple[str, ...]:
        """The names that must not occur in the learner's file."""
        return (*FORBIDDEN, *self.forbidden) if self.stage.number < OPEN else ()

    @property
    def writes(self) -> bool:
        """True if the probe needs to write to a temporary folder."""
        return not {"tempfile", "checkpoint"}.isdisjoint(self.probe.__code__.co_names)

    @property
    def watched(self) -> tuple[str, ...]:
        """The forbidden names that are also detected at run time, by the PyTorch operators that the code uses."""
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
    """Turn the decorated probe into a part. `Part` and `checking.exercise.exercise` explain the arguments.

    Raises:
        ValueError: If the probe has no docstring, which is needed in reports.
    """

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
    """Return the parts of a stage in the order in which its file defines them; the tuple is empty without a check."""
    name = f"companion_school.build.checks.{STAGES[number].module}"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return ()
    return tuple(value for value in vars(module).values() if isinstance(value, Part))


def points_of(stage: Stage) -> int:
    """Return the total points of a stage's parts."""
    return sum(part.points for part in parts(stage.number))


def references(stage: Stage) -> dict[str, str]:
    """Return the reference files of a stage and of the stages that it needs, by module name."""
    return {STAGES[number].module: reference(number) for number in (*stage.needs, stage.number)}


@cache
def patched(number: int, patch: Patch) -> str:
    """Return the reference of a stage with a patch applied.

    Raises:
        ValueError: If a piece does not occur exactly once, or no definition of the reference is replaced.
    """
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
    """Remove `from __future__ import annotations`, so that the text can be appended to the source of another module."""
    return source.replace("from __future__ import annotations\n", "")


def _dedented(definition: str) -> str:
    return textwrap.dedent(definition).strip() + "\n"


def _with_definitions(source: str, definitions: str) -> str:
    """Replace definitions in place, and insert imports and new definitions before the first replaced one."""
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
