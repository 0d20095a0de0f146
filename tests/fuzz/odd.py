"""Values that do not belong where they stand, and files with something wrong in them."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

from hypothesis import strategies as st

NUMBERS: list[Any] = [0, -1, 1, 2, 3, 7, 0.0, -0.0, 0.5, 2.0, 1e-45, 1e-300, 1e300]
NUMBERS += [10**12, 10**30, 10**400, -(10**30), math.inf, -math.inf, math.nan]
OTHERS: list[Any] = [
    None,
    True,
    False,
    "",
    "no",
    "0",
    "1e3",
    "x" * 300,
    "\0",
    "\udce9",
    "ü",
    [],
    [1],
    {},
    {"a": 1},
    [[]],
]
odd = st.one_of(st.sampled_from(NUMBERS), st.sampled_from(OTHERS), st.integers(-5, 40), st.text(max_size=6))
"""Mostly what no field wants, sometimes what one does."""


@st.composite
def changed(draw: st.DrawFn, good: dict[str, Any], *, most: int = 2) -> tuple[dict[str, Any], list[str]]:
    """The fields of a good object, some of them, or of an inner one, odd, missing or not known; and their names."""
    value = json.loads(json.dumps(good))
    names: list[str] = []
    for _ in range(draw(st.integers(0, most))):
        place, path = value, []
        while True:
            name = draw(st.sampled_from([*sorted(place), "colour"])) if place else "colour"
            path.append(name)
            inner = place.get(name)
            if not isinstance(inner, dict) or not inner or draw(st.booleans()):
                break
            place = inner
        names += path
        if draw(st.integers(0, 5)) == 0 and name in place:
            del place[name]
        else:
            place[name] = copy.deepcopy(draw(odd))  # a value that is drawn twice is not to hold itself
    return value, names


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """A file that was cut, lengthened, or has other bytes in some places; now and then it is as it was."""
    data = bytearray(good)
    match draw(st.sampled_from(["flip", "flip", "cut", "insert", "append", "repeat", "text", "same"])):
        case "flip":
            for _ in range(draw(st.integers(1, 4))):
                at = draw(st.integers(0, max(0, len(data) - 1)))
                data[at : at + 1] = bytes([draw(st.integers(0, 255))])
        case "cut":
            del data[draw(st.integers(0, len(data))) :]
        case "insert":
            at = draw(st.integers(0, len(data)))
            data[at:at] = draw(st.binary(min_size=1, max_size=8))
        case "append":
            data += draw(st.binary(min_size=1, max_size=8))
        case "repeat":
            start = draw(st.integers(0, len(data)))
            data += data[start : start + draw(st.integers(1, 40))]
        case "text":
            data = bytearray(
                draw(st.sampled_from([b"", b"{}", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b"9" * 5000]))
            )
    return bytes(data)


def text(value: Any) -> bytes:
    """JSON as it may be in a file: with NaN and Infinity, too."""
    return json.dumps(value).encode("utf-8", "surrogatepass")
