"""The runtime checker for the companion's shape annotations; as in mypy, an int is accepted for a float.

If a call fits its annotations depends only on the types of its arguments and results, on the shapes of tensors, and on
strings that are identifiers. So only one of several calls that agree in these is checked. Training makes the same few
calls thousands of times, and checking each of them took two fifths of the time of the layers' tests. Compiled code is
not checked; the same code is checked where it runs uncompiled.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Hashable, Iterable
from functools import cache, partial, wraps
from types import CodeType, FunctionType, GeneratorType
from typing import Any

import jaxtyping
import torch
from beartype import BeartypeConf, beartype
from jaxtyping import config
from torch import Tensor, nn

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
every_call = jaxtyping.jaxtyped
"""The library's own decorator, which checks every call."""

_right: dict[CodeType, dict[Hashable, set[Hashable]]] = {}
"""Kinds of calls, and of each the kinds of its results, by what a function runs: one that is defined within another is
defined anew each time, as in each block of a model, and to make its checks takes longer than the block."""
_telling: set[type] = {bool, int, float, type(None)}
"""Types of whose values annotations ask no more than the type."""


def _like_objects_once(checked: Any, plain: Any) -> Any:
    """Let a class check only one of several objects that are created alike, and none in compiled code."""
    if not inspect.isclass(checked) or plain is None or vars(checked)["__init__"] is plain:
        return checked
    with_checks = checked.__init__
    right: set[Hashable] = set()

    @wraps(with_checks)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if torch.compiler.is_compiling() or config.jaxtyping_disable:
            return plain(self, *args, **kwargs)
        given = kind_of((args, *kwargs, *kwargs.values()) if kwargs else args)
        if given in right:
            return plain(self, *args, **kwargs)
        with_checks(self, *args, **kwargs)
        right.update({given} - {None})

    checked.__init__ = init
    return checked


def like_calls_once(function: Any = None, *, typechecker: Any) -> Any:
    """Replace the library's decorator; check only one of several calls, or objects, that are alike."""
    if function is None:
        return partial(like_calls_once, typechecker=typechecker)
    if not inspect.isfunction(function):
        plain = vars(function).get("__init__")
        return _like_objects_once(every_call(function, typechecker=typechecker), plain)
    right = _right.setdefault(function.__code__, {})
    here = threading.local()

    def call(*args: Any, **kwargs: Any) -> Any:
        # A stored result means that the function was called already, and only its result is to be checked
        results = getattr(here, "results", None)
        return results.pop() if results else function(*args, **kwargs)

    @cache
    def checked() -> Callable[..., Any]:
        """Built at the first call, because most functions of a package are called in few processes."""
        there = FunctionType(call.__code__, function.__globals__, function.__name__, None, call.__closure__)
        return every_call(wraps(function)(there), typechecker=typechecker)

    @wraps(function)
    def once(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or config.jaxtyping_disable:
            return function(*args, **kwargs)
        given = kind_of((args, *kwargs, *kwargs.values()) if kwargs else args)
        if given not in right:
            result = checked()(*args, **kwargs)
            if given is not None:
                right[given] = {kind_of(result)} - {None}
            return result
        result = function(*args, **kwargs)
        if (kind := kind_of(result)) not in right[given]:
            here.results = [result]
            try:
                checked()(*args, **kwargs)
            finally:
                here.results = None
            right[given] |= {kind} - {None}
        return result

    return once


def kind_of(value: Any) -> Hashable:
    """Return everything that an annotation can depend on; `None` if the value's type does not determine that."""
    kind = type(value)
    if kind in _telling:
        return kind
    if kind is Tensor or kind is nn.Parameter:
        return kind, value.dtype, value.shape
    if kind is tuple:
        inside = tuple([kind_of(one) for one in value])
        return None if None in inside else inside
    if kind in (list, set, frozenset):  # of any length
        numbers = frozenset(map(type, value))
        kinds = numbers if numbers <= {int, float, bool} else frozenset(map(kind_of, value))
        return None if None in kinds else (kind, kinds)
    if isinstance(value, type) or (kind is str and value.isidentifier()):
        return value  # an annotation may require one of several words
    if kind in (str, torch.Size, GeneratorType):
        return kind
    if issubclass(kind, Iterable) and not issubclass(kind, nn.Module) and not kind.__module__.startswith("companion."):
        return None
    _telling.add(kind)
    return kind
