"""The runtime checker behind the companion's shape annotations, as mypy reads them: an int will do for a float.

Whether a call fits its annotations follows from the types of what is given and returned, from the shapes of tensors,
and from the words among the arguments. So of calls that are alike in these one is checked: a training makes the same
few a thousand times, and to check each was two fifths of the time of the tests of layers. What is being compiled is
checked where it runs as it is written.
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
    """The class with its checks, of which objects that are made alike need one, and none where a call is compiled: no
    compiler follows them."""
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
    """The library's decorator, but of calls that are alike one is checked, and of objects that are made alike."""
    if function is None:
        return partial(like_calls_once, typechecker=typechecker)
    if not inspect.isfunction(function):
        plain = vars(function).get("__init__")
        return _like_objects_once(every_call(function, typechecker=typechecker), plain)
    right = _right.setdefault(function.__code__, {})
    here = threading.local()

    def call(*args: Any, **kwargs: Any) -> Any:
        results = getattr(here, "results", None)  # one is there to be looked at, and the function was called before
        return results.pop() if results else function(*args, **kwargs)

    @cache
    def checked() -> Callable[..., Any]:
        """Made at the first call: most functions of a package are called in few processes."""
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
    """All that an annotation can say of a value; `None` where its type says too little for that."""
    kind = type(value)
    if kind in _telling:
        return kind
    if kind is Tensor or kind is nn.Parameter:
        return kind, value.dtype, value.shape
    if kind is tuple:
        inside = tuple([kind_of(one) for one in value])
        return None if None in inside else inside
    if kind in (list, set, frozenset):  # of whatever length
        numbers = frozenset(map(type, value))
        kinds = numbers if numbers <= {int, float, bool} else frozenset(map(kind_of, value))
        return None if None in kinds else (kind, kinds)
    if isinstance(value, type) or (kind is str and value.isidentifier()):
        return value  # an annotation may ask for one of some words
    if kind in (str, torch.Size, GeneratorType):
        return kind
    if issubclass(kind, Iterable) and not issubclass(kind, nn.Module) and not kind.__module__.startswith("companion."):
        return None
    _telling.add(kind)
    return kind
