"""A sign of life where somebody waits: a bar on standard error, if that is a terminal and a command asked for it.

What may take long says so here, `counted` where it has parts to be counted, `waiting` where it has none. Both are
silent until a command has entered `bars`: whoever imports the package sees nothing that was not asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain, islice
from threading import Event, Thread
from typing import Any, TypeVar

T = TypeVar("T")
DELAY = 1.0
"""Seconds that a wait has lasted before it is shown: what is over at once needs no bar."""
EVERY = 0.5
"""Seconds from one sign of life to the next where there is nothing to count."""
_asked: ContextVar[bool] = ContextVar("asked", default=False)


@contextmanager
def bars() -> Iterator[None]:
    """Within it, waits are shown where standard error is a terminal."""
    before = _asked.set(True)
    try:
        yield
    finally:
        _asked.reset(before)


def counted(things: Iterable[T], *, unit: str, total: int | None = None, what: str = "") -> Iterable[T]:
    """The things, one after the other, behind a bar. total: how many, where they cannot say."""
    return _bar(things, unit=unit, total=total, desc=what) if _seen() else things


@contextmanager
def counting(total: int | None, *, unit: str, what: str = "", scale: bool = False) -> Iterator[Callable[[int], Any]]:
    """What to call with the number of parts that are done. scale: the parts are so many that they are said in k and M.
    total: how many there are; `None`: nobody knows."""
    if not _seen():
        yield lambda parts: None
        return
    with _bar(total=total, unit=unit, desc=what, unit_scale=scale) as bar:
        yield bar.update


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """One thing that has no parts to count: its name, and how long it takes by now."""
    if not _seen():
        yield
        return
    over = Event()
    with _bar(total=0, desc=what, bar_format="{desc}: {elapsed}", miniters=0) as bar:

        def show() -> None:
            pause = DELAY
            while not over.wait(pause):
                bar.update(0)
                pause = EVERY

        thread = Thread(target=show, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def started(things: Iterable[T], what: str) -> Iterator[T]:
    """The things, once the first of them is there: until then it is waited for, and nothing else is printed."""
    rest = iter(things)
    with waiting(what):
        first = [*islice(rest, 1)]
    return chain(first, rest)


def _seen() -> bool:
    return _asked.get() and sys.stderr is not None and sys.stderr.isatty()


def _bar(*things: Any, **options: Any) -> Any:
    from tqdm.auto import tqdm

    return tqdm(*things, **{"delay": DELAY, "leave": False, "dynamic_ncols": True, **options})
