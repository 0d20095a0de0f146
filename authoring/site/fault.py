"""What keeps the site from being built: places and reasons, all that can be found at once."""

from __future__ import annotations

from collections.abc import Iterable


class Broken(Exception):
    """The site cannot be built; each fault names its place and what is wrong there."""

    def __init__(self, faults: Iterable[str]):
        self.faults = sorted(set(faults))
        super().__init__("\n".join(self.faults))


class Faults:
    """Faults as they are found, to be told together."""

    def __init__(self) -> None:
        self._found: list[str] = []

    def add(self, place: str, what: str) -> None:
        self._found.append(f"{place}: {what}")

    def stop(self) -> None:
        """Raises `Broken` if there is any."""
        if self._found:
            raise Broken(self._found)
