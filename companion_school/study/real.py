"""Measure something on a real model in a lesson, or use the recorded result if the model is not on this machine.

    @on_real_model("smollm2", "02/divisors")
    def perplexities(model, tokenizer):
        ...
        return {"divided by the square root": 27.4, ...}

    found = perplexities()

If the model is on this machine, the function runs, and its result must agree with the record. Otherwise, the call
returns the record and prints how to get the model. Nothing is downloaded. `python -m authoring.records.real 02`
measures and records the results of a lesson's cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from companion.data.published_tokenizers import PublishedTokenizer, load_tokenizer
from companion.families.pretrained import load_pretrained
from companion.files.published.fetching import at_hand
from companion.ground.fields import shown
from companion_school import records

TOLERANCE = 0.02
"""Maximum relative difference between a measured number and its record. Differences between processors are far
smaller."""
NAMES = {"smollm2": "SmolLM2-135M-Instruct", "minilm": "all-MiniLM-L6-v2"}
"""The models that lessons measure, by their names in `companion get`."""
PAGE = """\
The lighthouse at the end of the harbour was built in 1847, after three ships had been lost on the rocks in a single \
winter. For almost a century a keeper lived there with his family. Every evening he climbed the 112 steps, trimmed the \
wick and lit the lamp, and every morning he put it out again. In the logbook, which is now kept in the town museum, he \
wrote down the weather, the ships that passed, and little else. On 3 February 1911 the entry reads: "Wind north-west, \
heavy sea. The boat did not come. We have flour for six days." The boat came on the fifth day.

When electricity reached the island, the lamp was replaced by a bulb that needed no keeper. The family moved to the \
mainland, and the house stood empty until a group of volunteers repaired the roof in the summer of 1989. Today \
visitors can climb the stairs, look at the old lens, and read copies of the logbook. Most of them are surprised by how \
small the kitchen is, and by how far one can see.
"""
"""A page of English that was written for this course, so that no model has trained on it."""

recording: dict[str, Any] | None = None
"""Results that are being recorded. If this is None, as it is for readers, results are compared with the record."""


Load = Callable[[Path], Any]
"""Function that reads a model from its folder (default: the library's)."""


@cache
def real_model(name: str, load: Load | None = None) -> tuple[Any, PublishedTokenizer] | None:
    """Load a published model in evaluation mode, only once per process.

    Args:
        name: "smollm2" or "minilm".
        load: Function that reads the folder, such as the `load` of a reader's own transformer (default: the library's).

    Returns:
        The model and its tokenizer, or None if the model is not on this machine. The library loads it in float32.

    Raises:
        ValueError: The name is not "smollm2" or "minilm".
    """
    if name not in NAMES:
        raise ValueError(f"name: expected one of {', '.join(NAMES)}, got {shown(name)}")
    if (found := at_hand(name)) is None:
        return None
    model = load_pretrained(found.folder, dtype=torch.float32) if load is None else load(found.folder)
    return model.eval(), load_tokenizer(found.folder)


def on_real_model(
    name: str, key: str, load: Load | None = None, dtype: torch.dtype | None = None
) -> Callable[[Callable[[Any, PublishedTokenizer], Any]], Callable[[], Any]]:
    """Turn a function of a model and its tokenizer into a function without arguments that works even without the model.

    Args:
        name: "smollm2" or "minilm".
        key: Name of the record, which begins with the lesson, as in "02/divisors", or the stage, as in
            "build/10/capital".
        load: Function that reads the model's folder, such as the one that a reader of *Your own transformer* wrote
            (default: the library's).
        dtype: Precision of the measurement (default: as loaded). Use float64 where rounding errors in float32 would
            grow so large that different processors disagree.

    Returns:
        A decorator. The decorated function must return numbers, strings, or lists and dictionaries of them. Values
        under keys that begin with "≈" are times, which differ between machines and are not compared.

    Raises:
        ValueError: There is no such model or record, or the result differs from the record.
    """

    def decorate(measure: Callable[[Any, PublishedTokenizer], Any]) -> Callable[[], Any]:
        @wraps(measure)
        def measured() -> Any:
            known = records.read("real")
            if recording is None and key not in known:
                raise ValueError(
                    f"key: no record named {shown(key)}; python -m authoring.records.real LESSON creates it"
                )
            if (opened := real_model(name, load)) is None:
                print(f"{NAMES[name]} is not on this machine, so these are recorded results. In a terminal, "
                      f"run `companion get {name}` to download it.")  # fmt: skip
                return known[key]
            with torch.no_grad(), in_precision(opened[0], dtype):
                found = plain(measure(*opened))
            if recording is not None:
                recording[key] = found
            elif (where := difference(found, known[key])) is not None:
                raise ValueError(f"{key}: {where}")
            return found

        return measured

    return decorate


@contextmanager
def in_precision(model: Any, dtype: torch.dtype | None) -> Iterator[None]:
    """Convert the model to a wider dtype, and always convert it back, because all cells share the model."""
    if dtype is None:
        yield
        return
    before = next(model.parameters()).dtype
    try:
        model.to(dtype)
        yield
    finally:
        model.to(before)


def plain(value: Any) -> Any:
    """Convert a result to JSON types: floats become floats with six digits, and tensors and tuples become lists."""
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def difference(found: Any, known: Any, where: str = "the result") -> str | None:
    """Describe where a measured result differs from its record by more than rounding errors, or return None."""
    if isinstance(found, dict) and isinstance(known, dict) and [*found] == [*known]:
        pairs = [(f"{where}[{key!r}]", found[key], known[key]) for key in found if not key.startswith("≈")]
    elif isinstance(found, list) and isinstance(known, list) and len(found) == len(known):
        pairs = [(f"{where}[{at}]", *both) for at, both in enumerate(zip(found, known, strict=True))]
    else:
        numbers = all(isinstance(one, float | int) and not isinstance(one, bool) for one in (found, known))
        same = math.isclose(found, known, rel_tol=TOLERANCE, abs_tol=1e-3) if numbers else found == known
        return None if same else f"{where} is {found!r}, and the record says {known!r}"
    return next((told for at, one, other in pairs if (told := difference(one, other, at)) is not None), None)
