"""Families of published models, the code that reads their folders, and presets, which are named releases."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from companion.config.model import ModelConfig
from companion.files.published.config_fields import Policy, of_a_family

if TYPE_CHECKING:  # configurations and presets work without torch
    import torch
    from torch import Tensor

    from companion.files.published.checkpoint_folder import Fields
    from companion.files.published.state_dict import StateDictMapper
    from companion.transformer import Transformer


def _same(name: str) -> str:
    return name


def _nothing(config: ModelConfig) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True)
class Family:
    """Published models that share a `model_type`, and the conversion between their folders and our models.

    The attributes from `architecture` on, except `pieces`, are needed only to write such a folder.

    Attributes:
        kind: The `model_type`.
        own: The policies for the fields of config.json that are specific to this family.
        config: Builds our configuration from the fields and from the tensors, which are keyed by the names that `ours`
            returns.
        place: Moves every tensor between the published names and ours.
        rename: Removes the parts of a tensor's name that differ between releases of the same layout.
        writes: Whether these models generate text.
        architecture: The class in `transformers` that reads such a folder.
        spelled: Adds the parts that `rename` removes to a tensor's name.
        says: Takes one of our configurations, and returns the fields that do not follow from the notes in the table.
        ends: Returns the tensors, on the device "meta", from which `config` infers which parts a model has.
        pieces: Parts of names and their replacements, applied in this order before `rename` and undone after `spelled`.
        unread: Whether embedding tables have rows that no token reads, which are written as zeros. `export_model`
            prefers any other family that has all parts of a model.
    """

    kind: str
    own: Mapping[str, Policy]
    config: Callable[[Fields, Mapping[str, Tensor]], ModelConfig]
    place: Callable[[StateDictMapper, ModelConfig], None]
    rename: Callable[[str], str] = _same
    writes: bool = True
    architecture: str = ""
    spelled: Callable[[str], str] = _same
    says: Callable[[ModelConfig], Mapping[str, Any]] = _nothing
    ends: Callable[[ModelConfig], Mapping[str, Tensor]] = _nothing
    pieces: Mapping[str, str] = field(default_factory=dict)
    unread: bool = False

    def ours(self, name: str) -> str:
        """Return the name that `place` uses for a published tensor."""
        for theirs, known in self.pieces.items():
            name = name.replace(theirs, known)
        return self.rename(name)

    def theirs(self, name: str) -> str:
        """Return the published name of a tensor that `place` knows as `name`; this is the inverse of `ours`."""
        name = self.spelled(name)
        for theirs, known in reversed([*self.pieces.items()]):
            name = name.replace(known, theirs)
        return name

    @property
    def table(self) -> dict[str, Policy]:
        """The policies for all fields of config.json."""
        return of_a_family(self.own)

    def read(
        self,
        folder: str | Path,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        headers: bool = False,
    ) -> Transformer:
        """Load the model in a folder of this kind, in evaluation mode.

        Args:
            folder: The published folder.
            dtype: The dtype of the weights (default: as stored).
            device: The device of the model (default: the CPU).
            headers: Whether to read only the configuration and the shapes of the tensors. The model is then on the
                device "meta".

        Raises:
            ValueError: If a field cannot be honored or a tensor does not belong to the model, and in the same cases as
                `load_model`.
        """
        from companion.ground.atomic import read_together

        return read_together(Path(folder), lambda: self._read(Path(folder), dtype, device, headers))

    def _read(
        self, folder: Path, dtype: torch.dtype | None, device: torch.device | str | None, headers: bool
    ) -> Transformer:
        from companion.files.models import assemble, check_dtype_of
        from companion.files.published.checkpoint_folder import Fields, check_unquantized, load_published, other_heads
        from companion.files.published.state_dict import StateDictMapper

        fields = Fields(folder, self.kind, self.table)
        fields.check()  # before gigabytes are read
        given: dict[str, Tensor] = {}
        called: dict[str, str] = {}
        found = load_published(folder, device, dtype=dtype, headers=headers)
        check_unquantized(folder, found)
        heads = other_heads(found)
        for name in heads:
            del found[name]
        for name in list(found):
            if (new := self.ours(name)) in given:
                raise ValueError(f"{folder}: {new} occurs under two names; expected only one")
            tensor = found.pop(name)
            check_dtype_of(new, tensor, folder, dtype)
            called[new] = name
            given[new] = tensor if dtype is None or not tensor.is_floating_point() else tensor.to(dtype)
        config = fields.finish(lambda: self.config(fields, given))
        there = {name: tensor.to("meta") for name, tensor in given.items()}
        mapper = StateDictMapper(given, folder)
        try:
            self.place(mapper, config)
            model = assemble(config, mapper.finish(), folder, dtype)
        except ValueError as error:
            from companion.files.published.mismatch import explained

            if heads and any(f"missing {name}" in str(error) for name in ("lm_head.weight", "unembedding.weight")):
                raise ValueError(
                    f"{folder}: {heads[0]} is the head of a classifier instead of lm_head.weight; expected a "
                    "model that continues texts"
                ) from None
            raise explained(str(error), self, fields, config, there, mapper, called) from None
        if heads and not headers:
            warnings.warn(f"{folder}: {heads_left_out(heads)}", stacklevel=5)
        model.published_kind = self.kind
        return model


def heads_left_out(names: list[str]) -> str:
    """Return the warning that the head of a classifier is not read."""
    return f"the head of a classifier is ignored ({', '.join(names)}); the layers below it are loaded"


@dataclass(frozen=True)
class Preset:
    """A published model, as its paper or its released configuration describes it.

    Attributes:
        year: The year of publication.
        parameters: The published number of parameters, which a test compares with ours.
        config: Our configuration of the model.
        taught: Whether the course teaches it.
    """

    year: int
    parameters: int
    config: ModelConfig
    taught: bool = False
