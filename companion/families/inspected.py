"""Inspect a model's folder, and report how each field is used and which fields would be rejected."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from companion.config.model import ModelConfig
from companion.families.pretrained import family_in, family_of, load_pretrained
from companion.files.gguf.container import opened
from companion.files.gguf.folder import origin
from companion.files.models import CONFIG, plain_dtype, read_config
from companion.files.published.checkpoint_folder import Became, Fields, load_published, other_heads, weight_files
from companion.files.published.family import Family
from companion.files.published.generation_config import Writing, became_writing, left_out, read_writing, said_of_writing
from companion.ground.fields import shown


@dataclass
class Inspection:
    """The contents of a model's folder.

    Attributes:
        family: The family of the model, or `None` for a model in companion's own layout.
        fields: The fields of config.json and how each is used.
        usual: The fields that config.json leaves out, with their default values.
        config: The configuration of the model, or `None` if it could not be built.
        tensors: The number of tensors of each dtype.
        files: The number of weight files.
        left_out: The tensors of a task head, such as a classifier's, which are not read.
        source: The name of the file that contains the generation settings.
        rules: The fields of that file and how each one is used.
        unsaid: The fields that this file leaves out, with the values that the released code uses for them.
        writing: The generation settings, or `None` if the model does not generate text or the settings are rejected.
        refused: The reasons why the folder cannot be read, one sentence each.
    """

    family: Family | None
    fields: list[Became] = field(default_factory=list)
    usual: dict[str, Any] = field(default_factory=dict)
    config: ModelConfig | None = None
    tensors: Counter[str] = field(default_factory=Counter)
    files: int = 0
    left_out: list[str] = field(default_factory=list)
    source: str = ""
    rules: list[Became] = field(default_factory=list)
    unsaid: dict[str, Any] = field(default_factory=dict)
    writing: Writing | None = None
    refused: list[str] = field(default_factory=list)


def inspect(folder: str | Path) -> Inspection:
    """Inspect the folder of a model.

    The fields are checked first, then the shapes of the tensors. If both are valid, the model is loaded, which also
    checks its weights.

    Raises:
        ValueError: If the folder is missing, or its config.json is unreadable or has an unknown `model_type`.
    """
    folder = Path(folder)
    family = family_of(folder)
    if family is None:
        found = Inspection(family, [Became(name, value, "used") for name, value in read_config(folder).items()])
    else:
        said = Fields(folder, family.kind, family.table)
        found = Inspection(family, said.became(), said.usual())
    found.refused += [end.refused for end in found.fields if end.refused is not None]
    _look_at_tensors(folder, found)
    if family is not None and family.writes:
        _look_at_writing(folder, found)
    return found


def read_card(card: Mapping[str, Any], named: str | Path = CONFIG) -> Inspection:
    """Inspect the fields of a published config.json without any tensors.

    Args:
        card: The fields.
        named: The name that messages use for the file.

    Returns:
        An inspection that says how each field is used and, if no field is rejected, includes the model's configuration.

    Raises:
        ValueError: If the `model_type` is unknown, or the fields come from a different kind of file.
    """
    family = family_in(card, Path(named))
    if family is None:
        found = Inspection(family, [Became(name, value, "used") for name, value in card.items()])
        try:
            found.config = ModelConfig.from_json(json.dumps(card))
        except ValueError as error:
            found.refused.append(f"{named}: {error}")
        return found
    said = Fields(Path(named).parent, family.kind, family.table, card)
    said.path = Path(named)
    found = Inspection(family, said.became(), said.usual())
    found.refused += [end.refused for end in found.fields if end.refused is not None]
    if not found.refused:
        try:
            found.config = said.finish(lambda: family.config(said, {}))
        except ValueError as error:
            found.refused.append(str(error))
    return found


def _look_at_tensors(folder: Path, found: Inspection) -> None:
    try:
        headers: dict[str, Tensor] = load_published(folder, None, headers=True)
        gguf = origin(folder)
        found.tensors = Counter(
            opened(gguf).types.values() if gguf else (plain_dtype(tensor.dtype) for tensor in headers.values())
        )
        found.left_out = other_heads(headers) if found.family is not None else []
        found.files = len(weight_files(folder)) if found.family is not None else 1
        if found.refused:
            return
        if found.family is not None:
            found.config = found.family.read(folder, headers=True).config
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the report contains what the warnings say
            found.config = load_pretrained(folder).config
    except ValueError as error:
        found.refused.append(str(error))


def _look_at_writing(folder: Path, found: Inspection) -> None:
    try:
        path, _ = said_of_writing(folder)
        found.source = path.name
        found.rules, found.unsaid = became_writing(folder), left_out(folder)
        wrong = [end.refused for end in found.rules if end.refused is not None]
        if not wrong:
            found.writing = read_writing(folder, None if found.config is None else found.config.vocab)
            translates = found.config is not None and found.config.stack == "encoder_decoder"
            if translates and found.writing.special.start is None:
                wrong.append(f"{folder / CONFIG}: decoder_start_token_id, which begins every translation, is missing")
        found.refused += wrong
    except ValueError as error:
        found.refused.append(str(error))


def settings_of(config: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Return the fields of a configuration that differ from their defaults, as pairs of a name and a value.

    The names of fields in a group begin with the name of the group, as in `attention.heads`.
    """
    rows: list[tuple[str, str]] = []
    for one in fields(config):
        value = getattr(config, one.name)
        if is_dataclass(value):
            rows += settings_of(value, f"{prefix}{one.name}.")
        elif value != one.default:
            rows.append((f"{prefix}{one.name}", shown(value)))
    return rows
