"""`--calibrate` and `--levels`: calibrate int4 values on a text, and store them in a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import Namespace

from companion.ground.atomic import must_be_writable

if TYPE_CHECKING:
    from companion.transformer import Transformer


def check_calibrate(flags: Namespace) -> None:
    """Raise `ValueError` for `--calibrate` or `--levels` without int4 weights, and for an unusable `--levels` file.

    With `--calibrate`, the levels file must be writable; without it, the file must exist.
    """
    for name, given in (("calibrate", flags.calibrate[:1]), ("levels", [flags.levels] if flags.levels else [])):
        if given and flags.weights != "int4":
            got = "none" if flags.weights is None else flags.weights
            raise ValueError(f"--{name} {given[0]} needs --weights int4, got {got}")
    if flags.levels and flags.calibrate:
        must_be_writable(Path(flags.levels).absolute().parent, "--levels", flags.levels)
    elif flags.levels and not Path(flags.levels).is_file():
        raise ValueError(
            f"--levels {flags.levels}: expected an existing file with levels, or --calibrate to create one"
        )


def calibrated(model: Transformer, flags: Namespace, encode: Callable[[str], list[int]]) -> str | None:
    """Calibrate a model's int4 values or load them from a file, depending on the flags.

    Args:
        model: The model, which is changed in place.
        flags: `--calibrate` names the calibration text, and `--levels` names the file.
        encode: Function from text to token ids.

    Returns:
        A one-line description of the result, or `None` if neither flag is given.

    Raises:
        ValueError: If the paths contain no text, if the model is a translation model, or if `calibrate` or
            `load_levels` raises a `ValueError`.
    """
    if not flags.calibrate and not flags.levels:
        return None
    import torch

    from companion.data.corpora import read_corpus
    from companion.files.int4 import load_levels, save_levels
    from companion.quantization.calibration import calibrate, windows_of

    if not flags.calibrate:
        return f"{load_levels(flags.levels, model)} matrices, with the levels from {flags.levels}"
    if model.config.stack != "decoder":
        raise ValueError(
            f"--calibrate {flags.calibrate[0]}: expected a model that continues texts, got one that translates"
        )
    documents = read_corpus(flags.calibrate).documents
    ids = torch.tensor([token for document in documents for token in encode(document.text)])
    windows = windows_of(ids, model.config.context).to(model.embedding.weight.device)
    found = calibrate(model, windows)
    if flags.levels:
        save_levels(flags.levels, model)
    return str(found)
