"""What may become of a case: it works, as the same thing written another way does; or it is refused, by a `ValueError`
in one sentence that names what is wrong, with the folder byte for byte as before. Anything else is a fault.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis.strategies import SearchStrategy

WORKS, REFUSED = "works", "refused"


class Fault(AssertionError):
    """What came of a case is neither."""


@dataclass(frozen=True)
class Kind:
    """A kind of case.

    cases:    draws one.
    attempt:  tries it; `WORKS` or `REFUSED`, else raises `Fault`, or whatever the package raised.
    share:    of the cases of `make test`; 0: it is for the long run alone, since it takes long to begin.
    """

    name: str
    cases: SearchStrategy[Any]
    attempt: Callable[[Any], str]
    share: int = 100


def refused(call: Callable[[], Any], names: Iterable[str]) -> Any:
    """What the call gives; or `REFUSED`, if it refuses as promised: in a sentence with one of the `names`."""
    try:
        return call()
    except ValueError as error:
        if type(error) is not ValueError and type(error).__module__.split(".")[0] != "companion":
            raise  # of the standard library: a decoding error, say
        said, wanted = str(error), list(names)
        if not any(name in said for name in wanted):
            raise Fault(f"refused without a name of {wanted}: {said}") from error
        if len(said) > 2000:
            raise Fault(f"refused in {len(said)} characters: {said[:200]}...") from error
        return REFUSED


def is_refused(result: Any) -> bool:
    return isinstance(result, str) and result == REFUSED


def state_of(folder: Path) -> dict[str, str]:
    """Every file and folder, and a digest of what it holds."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
    }
