"""Check the arguments of public functions against their annotations, once for each call from outside.

`checked` reads the annotations (jaxtyping's axes and dtypes, choices, numbers, classes). Errors say in one sentence
which argument is wrong, what was passed, and what was expected: "k has batch=1: expected 2, as in q". Conditions that
annotations cannot express, such as one axis dividing another, are checked by functions passed to `checked`. Nested
calls are not checked again, so a model checks its arguments only once, no matter how many layers use them. Checks in
every layer would make a decode step of a small model with 30 layers a fifth slower.

jaxtyping and beartype could check the same annotations at each call. Those libraries take five times as long as this
module, and their messages are a dozen lines long. The tests run these libraries on everything, including results.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import wraps
from inspect import unwrap
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from torch import Tensor
from torch.compiler import is_compiling

from companion.ground.arguments import described
from companion.ground.fields import is_number

P = ParamSpec("P")
R = TypeVar("R")

_NUMBERS = ("no", "one", "two", "three", "four", "five")
_MOST_KINDS = 4096
"""Maximum number of kinds of calls that a function remembers as checked before it forgets all of them."""


_PLAIN = frozenset((bool, int, float, str))
_NO_SIZES: Mapping[str, int] = {}


class _Here(threading.local):
    """Thread-local flag that is set while a thread is inside a `checked` function."""

    def __init__(self) -> None:  # a compiler could not follow an attribute of the class
        self.inside = False


_here = _Here()


def checked(
    *,
    sizes: Callable[[Any], Mapping[str, int]] | None = None,
    fits: Callable[[dict[str, Any]], None] | None = None,
    hints: Mapping[str, str] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a decorator that checks a function's arguments, except when another `checked` function calls it.

    Args:
        sizes: For a method, returns the sizes of axes that are fixed by its object.
        fits: Raises `ValueError` for arguments that match their annotations but not each other. It may use only the
            dtypes and shapes of tensors, because it runs only once for all calls in which these are the same.
        hints: For each parameter, advice to add to an error message about it.

    Raises:
        ValueError: Raised by the decorated function if an argument is wrong. The message names the argument, its value
            and what was expected.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        code = unwrap(function).__code__
        names = code.co_varnames[: code.co_argcount]
        looks = _Looks(get_type_hints(function), sizes, fits, hints or {})

        @wraps(function)
        def door(*args: P.args, **kwargs: P.kwargs) -> R:
            if _here.inside or len(args) > len(names):  # Python's own error for too many arguments is clearer
                return function(*args, **kwargs)
            given = dict(zip(names, args, strict=False))
            given.update(kwargs)
            looks.at(given)
            _here.inside = True
            try:
                return function(**given)  # type: ignore[call-arg]
            finally:
                _here.inside = False

        return door

    return decorate


class _Looks:
    """Checks of one function's arguments, which run only once for equivalent calls."""

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
        """Raise `ValueError` unless the arguments match their annotations and each other."""
        known = _NO_SIZES if self.sizes is None else self.sizes(given["self"])
        if is_compiling():  # sizes may be symbols
            self._at(given, known)
            return
        alike = (*given, *known.values(), *map(_kind, given.values()))
        if alike not in self.alike:
            self._at(given, known)
            if len(self.alike) >= _MOST_KINDS:
                self.alike.clear()
            self.alike.add(alike)

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
    """Return all properties of a value that its checks depend on."""
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if isinstance(value, Tensor):
        return value.dtype, value.shape
    return (kind, *map(_kind, value)) if isinstance(value, tuple) else kind  # type: ignore[return-value]


@dataclass(frozen=True)
class _Array:
    """A tensor annotation: its dtypes (`None` means any) and the names of its axes."""

    dtypes: tuple[str, ...] | None
    axes: tuple[str, ...]

    def holds(self, tensor: Tensor) -> bool:
        """Return whether the tensor's dtype is allowed."""
        return self.dtypes is None or str(tensor.dtype).removeprefix("torch.") in self.dtypes


@dataclass
class Expected:
    """The alternatives that one parameter's annotation allows."""

    arrays: tuple[_Array, ...] = ()
    choices: tuple[str, ...] = ()
    kinds: tuple[type, ...] = ()
    numbers: tuple[type, ...] = ()
    callables: bool = False

    @classmethod
    def of(cls, hint: Any) -> Expected:
        """Parse an annotation. Unsupported kinds of annotations, such as lists, are not checked."""
        made = cls()
        for one in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
            if hasattr(one, "dim_str"):
                dtypes = one.dtypes if isinstance(one.dtypes, tuple) else None
                made.arrays += (_Array(dtypes, tuple(one.dim_str.split())),)
            elif get_origin(one) is Literal:
                made.choices += get_args(one)
            elif get_origin(one) is Callable:
                made.callables = True
            elif one in (int, float, bool):
                made.numbers += (one,)
            else:
                made.kinds += (one if isinstance(one, type) else object,)
        return made

    def look(self, name: str, value: Any, sizes: dict[str, tuple[int, str]]) -> None:
        """Check that a value matches one alternative, and record the sizes of its axes and where they were found.

        Raises:
            ValueError: If the value matches no alternative.
        """
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
        """Describe the alternatives for a message."""
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
    floats, whole, truth = ("a floating tensor", "a tensor of whole numbers", "a tensor of True and False")
    if dtypes is None:
        return "a tensor"
    said = [floats] * ("float32" in dtypes) + [whole] * ("int64" in dtypes) + [truth] * ("bool" in dtypes)
    return said[0] if len(said) == 1 else "a tensor"


def _axes(axes: tuple[str, ...], ones: str = " or 1 in any axis") -> str:
    """Format axes as in docstrings, as in (batch, token); `ones` is appended if some axes broadcast."""
    names = ["..." if _is_some(axis) else axis.lstrip("#") for axis in axes]
    return f"({', '.join(names)}{',' * (len(names) == 1)}){ones if any(axis[:1] == '#' for axis in axes) else ''}"


def _look_at_axes(name: str, tensor: Tensor, axes: tuple[str, ...], sizes: dict[str, tuple[int, str]]) -> None:
    """Raise `ValueError` unless the tensor has these axes, and each named axis has the same size as in other
    arguments."""
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
    ones = ", or 1 in any axis" if any(axis.startswith("#") for axis in axes) else ""
    if ones or any(axis.isdecimal() for axis, *_ in wrong):
        raise ValueError(f"{name} has shape {shape}: expected {_axes(axes, '')}, {tuple(whole)}{ones}")
    got = ", ".join(f"{axis}={size}" for axis, size, _, _ in wrong)
    expected = ", ".join(f"{axis}={wanted}" if len(wrong) > 1 else str(wanted) for axis, _, wanted, _ in wrong)
    raise ValueError(f"{name} has {got}: expected {expected}, {' and '.join(dict.fromkeys(w[3] for w in wrong))}")


def _is_some(axis: str) -> bool:
    """Return whether an axis name, such as `*batch`, can match zero or more axes."""
    return axis.startswith(("*", "..."))


def _paired(axes: tuple[str, ...], shape: tuple[int, ...]) -> list[tuple[str, int]] | None:
    some = [i for i, axis in enumerate(axes) if _is_some(axis)]
    if not some:
        return list(zip(axes, shape, strict=True)) if len(axes) == len(shape) else None
    front, back = axes[: some[0]], axes[some[0] + 1 :]
    if len(shape) < len(front) + len(back):
        return None
    return [*zip(front, shape, strict=False), *zip(back, shape[len(shape) - len(back) :], strict=True)]


def _wanted(axis: str, sizes: dict[str, tuple[int, str]]) -> tuple[int | None, str]:
    """Return the size of the named axis and where the size was found, or `None` if it is not known yet."""
    if axis.isdecimal():
        return int(axis), ""
    bare, _, more = axis.partition("+")  # avoid a regular expression, because PyTorch before 2.13 cannot compile one
    known = sizes.get(bare)
    if known is None:
        return None, ""
    return known[0] + int(more or 0), known[1]
