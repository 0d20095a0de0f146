"""Faults that prevent the site from being built. They are collected with locations and reported together."""

from __future__ import annotations

from collections.abc import Iterable


class Broken(Exception):
    """Raised if the site cannot be built. The message lists each fault with its location."""

    def __init__(self, faults: Iterable[str]):
        self.faults = sorted(set(faults))
        super().__init__("\n".join(self.faults))


class Faults:
    """A collection of faults to report together."""

    def __init__(self) -> None:
        self._found: list[str] = []

    def add(self, place: str, what: str) -> None:
        self._found.append(f"{place}: {what}")

    def stop(self) -> None:
        """Raise `Broken` if there are any faults."""
        if self._found:
            raise Broken(self._found)
