"""Show progress while a person waits.

A progress bar appears on standard error if that is a terminal and a command has requested the bar. Long operations
report their progress here, with `counted` or `counting` if they have parts to count, and otherwise with `waiting`.
Nothing is shown until a command has entered `bars`, so that importing the package causes no unexpected output.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from itertools import chain, islice
from threading import Event, Thread
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")
DELAY = 1.0
"""Seconds before a wait is shown, because short operations need no bar."""
EVERY = 0.5
"""Seconds between two updates if there is nothing to count."""
_asked: ContextVar[bool] = ContextVar("asked", default=False)


@contextmanager
def bars() -> Iterator[None]:
    """Show progress in the `with` block if standard error is a terminal."""
    before = _asked.set(True)
    try:
        yield
    finally:
        _asked.reset(before)


def counted(things: Iterable[T], *, unit: str, total: int | None = None, what: str = "") -> Iterable[T]:
    """Iterate over the items with a progress bar; `total` is the number of items if they have no length."""
    return _bar(things, unit=unit, total=total, desc=what) if _seen() else things


@contextmanager
def counting(total: int | None, *, unit: str, what: str = "", scale: bool = False) -> Iterator[Callable[[int], Any]]:
    """Yield a function to call with the number of parts that were just finished.

    Args:
        total: Number of parts, or `None` if it is unknown.
        unit: The name of a part.
        what: The title of the bar.
        scale: Whether to show large counts in k and M.
    """
    if not _seen():
        yield lambda parts: None
        return
    with _bar(total=total, unit=unit, desc=what, unit_scale=scale) as bar:
        yield bar.update


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show the name of an operation without parts to count, and how long it has taken so far."""
    if not _seen():
        yield
        return
    bar = _bar(total=0, desc=what, bar_format="{desc}: {elapsed}", miniters=0)
    with bar, meanwhile(lambda: bar.update(0), first=DELAY):
        yield


@contextmanager
def meanwhile(report: Callable[[], Any], *, first: float = EVERY) -> Iterator[None]:
    """Call a function repeatedly in another thread while the block runs.

    Args:
        report: The function, which must not raise.
        first: Seconds before the first call. Further calls follow every `EVERY` seconds.
    """
    over = Event()

    def repeat() -> None:
        pause = first
        while not over.wait(pause):
            report()
            pause = EVERY

    thread = Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def started(things: Iterable[T], what: str) -> Iterator[T]:
    """Show `waiting` until the first item arrives, and then return an iterator over all items."""
    rest = iter(things)
    with waiting(what):
        first = [*islice(rest, 1)]
    return chain(first, rest)


@contextmanager
def loading(package: str) -> Iterator[None]:
    """Use `waiting` to show that this package is being imported, if its first import happens in the `with` block.

    Importing PyTorch takes two seconds on an idle machine and 15 seconds on a busy one. Commands import PyTorch late
    and in different places, so the import itself shows the message.
    """
    shown = _ShownImport(package)
    sys.meta_path.insert(0, shown)
    try:
        yield
    finally:
        sys.meta_path.remove(shown)


class _ShownImport(MetaPathFinder):
    """A finder that locates one package through the other finders, and wraps its import in `waiting`."""

    def __init__(self, package: str):
        self.package, self.asks = package, False

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != self.package or self.asks:
            return None
        self.asks = True
        try:
            spec = find_spec(fullname)
        finally:
            self.asks = False
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def shown(module: ModuleType) -> None:
            with waiting(f"loading {fullname}"):
                load(module)

        spec.loader.exec_module = shown  # type: ignore[method-assign]
        return spec


def _seen() -> bool:
    return _asked.get() and sys.stderr is not None and sys.stderr.isatty()


def _bar(*things: Any, **options: Any) -> Any:
    from tqdm.auto import tqdm

    return tqdm(*things, **{"delay": DELAY, "leave": False, "dynamic_ncols": True, **options})
