"""`--calibrate`: the levels of int4, chosen by a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jsonargparse import Namespace

if TYPE_CHECKING:
    from companion.generation.calibration import Calibrated
    from companion.transformer import Transformer


def check_calibrate(flags: Namespace) -> None:
    """Raises `ValueError` for `--calibrate` where nothing is rounded to levels that a text could choose."""
    if flags.calibrate and flags.weights != "int4":
        got = "none" if flags.weights is None else flags.weights
        raise ValueError(f"--calibrate {flags.calibrate[0]}: expected --weights int4 beside it, got {got}")


def calibrated(model: Transformer, paths: Sequence[str], encode: Callable[[str], list[int]]) -> Calibrated:
    """Choose the levels of a model that continues texts by the text at these paths.

    Raises `ValueError` for paths without a text, a model that translates, and as `calibrate` does.
    """
    import torch

    from companion.data.corpora import read_corpus
    from companion.generation.calibration import calibrate, windows_of

    if model.config.stack != "decoder":
        raise ValueError(f"--calibrate {paths[0]}: expected a model that continues texts, got one that translates")
    documents = read_corpus(list(paths)).documents
    ids = torch.tensor([token for document in documents for token in encode(document.text)])
    return calibrate(model, windows_of(ids, model.config.context).to(model.embedding.weight.device))
