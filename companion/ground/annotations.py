"""The door of a public function: what a caller hands in is held against the function's own annotations, once.

`checked` reads the annotations (jaxtyping's axes and dtypes, choices, numbers, classes) and says in one sentence which
argument does not fit, what came, and what was expected: "k has batch=1: expected 2, as in q". What annotations cannot
say, such as that one axis divides another, stands beside them as a function. Nothing is looked at again inside: a model
looks at its arguments once, however many layers see them.

jaxtyping and beartype could look at the same annotations at each call. They take five times as long as what is done
here, and say it in a dozen lines; the tests have them look at everything, results included.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import wraps
from inspect import unwrap
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from torch import Tensor, nn
from torch.compiler import is_compiling

from companion.ground.arguments import described
from companion.ground.fields import is_number

P = ParamSpec("P")
R = TypeVar("R")

_NUMBERS = ("no", "one", "two", "three", "four", "five")
_MOST_KINDS = 4096
"""Kinds of calls that a door remembers; then it begins anew."""


_PLAIN = frozenset((bool, int, float, str))
_NO_SIZES: Mapping[str, int] = {}


class _Here(threading.local):
    """Whether a thread is inside a function that is `checked`."""

    def __init__(self) -> None:  # an attribute of the class, compilers could not follow
        self.inside = False


_here = _Here()


def checked(
    *,
    sizes: Callable[[Any], Mapping[str, int]] | None = None,
    fits: Callable[[dict[str, Any]], None] | None = None,
    settles: Callable[[dict[str, Any]], None] | None = None,
    hints: Mapping[str, str] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function whose arguments are looked at where it is called from outside: not by another one that is `checked`.

    sizes:    of a method: axes whose size its object knows.
    fits:     raises `ValueError` for arguments that fit their annotations and not each other. Of tensors it may ask
              dtype and shape alone, because calls that are alike in these are looked at once.
    settles:  the same for what stands in the arguments; it may put others in their place, such as True and False for
              ones and zeros. Runs for each call from outside.
    hints:    of a parameter: what to add to a sentence about it.

    Raises `ValueError` naming the argument, what came and what was expected.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        code = unwrap(function).__code__
        names = code.co_varnames[: code.co_argcount]
        looks = _Looks(get_type_hints(function), sizes, fits, hints or {})

        @wraps(function)
        def door(*args: P.args, **kwargs: P.kwargs) -> R:
            if _here.inside or len(args) > len(names):  # of too many arguments Python says it best
                return function(*args, **kwargs)
            given = dict(zip(names, args, strict=False))
            given.update(kwargs)
            looks.at(given)
            if settles is not None:
                settles(given)
            _here.inside = True
            try:
                return function(**given)  # type: ignore[call-arg]
            finally:
                _here.inside = False

        return door

    return decorate


class _Looks:
    """How the arguments of one function are looked at: once for calls that are alike."""

    def __init__(
        self,
        kinds: Mapping[str, Any],
        sizes: Callable[[Any], Mapping[str, int]] | None,
        fits: Callable[[dict[str, Any]], None] | None,
        hints: Mapping[str, str],
    ) -> None:
        self.expected = [(name, Expected.of(kind)) for name, kind in kinds.items() if name != "return"]
        self.sizes, self.fits, self.hints = sizes, fits, hints
        self.alike: set[Hashable] = set()

    def at(self, given: dict[str, Any]) -> None:
        """Raises `ValueError` unless the arguments fit their annotations and each other."""
        known = _NO_SIZES if self.sizes is None else self.sizes(given["self"])
        if is_compiling():  # sizes may be symbols
            return self._at(given, known)
        call: list[Hashable] = [*given, *known.values()]
        for value in given.values():
            kind = type(value)
            if kind is Tensor or kind is nn.Parameter:
                call += (value.dtype, value.shape)
            else:
                call.append((kind, value) if kind in _PLAIN else _kind(value))
        if (alike := tuple(call)) in self.alike:
            return None
        self._at(given, known)
        if len(self.alike) >= _MOST_KINDS:
            self.alike.clear()
        self.alike.add(alike)
        return None

    def _at(self, given: dict[str, Any], known: Mapping[str, int]) -> None:
        found = {axis: (size, "as here") for axis, size in known.items()}
        for name, expected in self.expected:
            if name in given:
                try:
                    expected.look(name, given[name], found)
                except ValueError as error:
                    raise ValueError(f"{error}; {self.hints[name]}" if name in self.hints else str(error)) from None
        if self.fits is not None:
            self.fits(given)


def _kind(value: Any) -> Hashable:
    """All of a value that is looked at once for calls that are alike."""
    if isinstance(value, Tensor):
        return value.dtype, value.shape
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    return tuple(map(_kind, value)) if kind is tuple else kind  # type: ignore[return-value]


@dataclass(frozen=True)
class _Array:
    """A tensor of an annotation: its dtypes (`None`: any) and the names of its axes."""

    dtypes: tuple[str, ...] | None
    axes: tuple[str, ...]

    def holds(self, tensor: Tensor) -> bool:
        """Whether it may have the tensor's dtype."""
        return self.dtypes is None or str(tensor.dtype).removeprefix("torch.") in self.dtypes


@dataclass(frozen=True)
class Expected:
    """What one parameter's annotation asks for: any of these alternatives."""

    arrays: tuple[_Array, ...] = ()
    choices: tuple[str, ...] = ()
    kinds: tuple[type, ...] = ()
    numbers: tuple[type, ...] = ()
    callables: bool = False

    @classmethod
    def of(cls, hint: Any) -> Expected:
        """That of an annotation. What it does not know, a list of something for one, it does not look at."""
        arrays: list[_Array] = []
        choices: list[str] = []
        kinds: list[type] = []
        numbers: list[type] = []
        callables = False
        for one in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
            if hasattr(one, "dim_str"):
                arrays.append(_Array(one.dtypes if isinstance(one.dtypes, tuple) else None, tuple(one.dim_str.split())))
            elif get_origin(one) is Literal:
                choices += get_args(one)
            elif get_origin(one) is Callable:
                callables = True
            elif one in (int, float, bool):
                numbers.append(one)
            else:
                kinds.append(one if isinstance(one, type) else object)
        return cls(tuple(arrays), tuple(choices), tuple(kinds), tuple(numbers), callables)

    def look(self, name: str, value: Any, sizes: dict[str, tuple[int, str]]) -> None:
        """Raises `ValueError` unless the value is one of these. Notes the sizes of its axes, and where they are."""
        if isinstance(value, Tensor) and self.arrays:
            array = next((array for array in self.arrays if array.holds(value)), None)
            if array is None:
                raise ValueError(f"{name} is {described(value)}: expected {self.said()}")
            _look_at_axes(name, value, array.axes, sizes)
        elif isinstance(value, self.kinds) or (self.callables and callable(value)):
            return
        elif not (value in self.choices if isinstance(value, str) else any(_is(value, kind) for kind in self.numbers)):
            raise ValueError(f"{name}={described(value)}: expected {self.said()}")

    def said(self) -> str:
        """For a message."""
        said = []
        if self.arrays:
            known = [array.dtypes for array in self.arrays if array.dtypes is not None]
            dtypes = {dtype for some in known for dtype in some} if len(known) == len(self.arrays) else None
            said.append(f"{_tensor(dtypes)}, {_axes(self.arrays[0].axes)}")
        said += map(repr, self.choices)
        words = {bool: ["True", "False"], int: ["a whole number"], float: ["a finite number"]}
        for kind in self.numbers:
            said += words[kind]
        names = [kind.__name__ for kind in self.kinds if kind not in (NoneType, object)]
        said += [f"{'an' if name[0] in 'AEIO' else 'a'} {name}" for name in names]
        said += ["a predicate"] * self.callables + ["None"] * (NoneType in self.kinds)
        return " or ".join(filter(None, (", ".join(said[:-1]), said[-1])))


def _is(value: Any, kind: type) -> bool:
    if kind is float:
        return is_number(value)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _tensor(dtypes: set[str] | None) -> str:
    """A tensor of these dtypes, in words."""
    floats, whole, truth = ("a floating tensor", "a tensor of whole numbers", "a tensor of True and False")
    if dtypes is None:
        return "a tensor"
    said = [floats] * ("float32" in dtypes) + [whole] * ("int64" in dtypes) + [truth] * ("bool" in dtypes)
    return said[0] if len(said) == 1 else "a tensor"


def _axes(axes: tuple[str, ...], ones: str = " or 1 in place of any") -> str:
    """(batch, token), as it stands in docstrings; `ones`: what to say of axes that broadcast."""
    names = ["..." if _is_some(axis) else axis.lstrip("#") for axis in axes]
    return f"({', '.join(names)}{',' * (len(names) == 1)}){ones if any(axis[:1] == '#' for axis in axes) else ''}"


def _look_at_axes(name: str, tensor: Tensor, axes: tuple[str, ...], sizes: dict[str, tuple[int, str]]) -> None:
    """Raises `ValueError` unless the tensor has these axes, and those with a name the size that they have elsewhere."""
    shape = tuple(tensor.shape)
    pairs = _paired(axes, shape)
    if pairs is None:
        hint = f"; {name}[None] is a batch of one" if axes[:1] == ("batch",) and len(shape) == len(axes) - 1 else ""
        count = "at least " if any(_is_some(axis) for axis in axes) else ""
        count += _NUMBERS[sum(not _is_some(axis) for axis in axes)]
        raise ValueError(f"{name} has shape {shape}: expected {count} axes, {_axes(axes)}{hint}")
    wrong, whole = [], []
    for axis, size in pairs:
        bare = axis.lstrip("#")
        wanted, where = _wanted(bare, sizes)
        if wanted is None:
            wanted = size
            if axis.isidentifier() and axis != "_":
                sizes[axis] = size, f"as in {name}"
        elif size != wanted and not (axis.startswith("#") and size == 1):
            wrong.append((bare, size, wanted, where))
        whole.append(wanted)
    if not wrong:
        return
    ones = ", or 1 in place of any" if any(axis.startswith("#") for axis in axes) else ""
    if ones or any(axis.isdecimal() for axis, *_ in wrong):
        raise ValueError(f"{name} has shape {shape}: expected {_axes(axes, '')}, {tuple(whole)}{ones}")
    got = ", ".join(f"{axis}={size}" for axis, size, _, _ in wrong)
    expected = ", ".join(f"{axis}={wanted}" if len(wrong) > 1 else str(wanted) for axis, _, wanted, _ in wrong)
    raise ValueError(f"{name} has {got}: expected {expected}, {' and '.join(dict.fromkeys(w[3] for w in wrong))}")


def _is_some(axis: str) -> bool:
    """Whether a name stands for any number of axes."""
    return axis.startswith(("*", "..."))


def _paired(axes: tuple[str, ...], shape: tuple[int, ...]) -> list[tuple[str, int]] | None:
    """Each named axis with its size; `None` where there are not as many."""
    some = [i for i, axis in enumerate(axes) if _is_some(axis)]
    if not some:
        return list(zip(axes, shape, strict=True)) if len(axes) == len(shape) else None
    front, back = axes[: some[0]], axes[some[0] + 1 :]
    if len(shape) < len(front) + len(back):
        return None
    return [*zip(front, shape, strict=False), *zip(back, shape[len(shape) - len(back) :], strict=True)]


def _wanted(axis: str, sizes: dict[str, tuple[int, str]]) -> tuple[int | None, str]:
    """The size that an axis of that name has, and where; `None` where nobody has said it yet."""
    if axis.isdecimal():
        return int(axis), ""
    bare, _, more = axis.partition(
        "+"
    )  # a compiler reads this too, and knows no regular expressions before PyTorch 2.13
    known = sizes.get(bare)
    if known is None:
        return None, ""
    return known[0] + int(more or 0), known[1]
