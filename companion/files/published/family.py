"""What a family of published models is, how a folder goes through it, and a release by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from companion.config.model import ModelConfig
from companion.files.published.config_fields import Policy, of_a_family

if TYPE_CHECKING:  # configurations and presets are there without torch
    import torch
    from torch import Tensor

    from companion.files.published.checkpoint_folder import Fields
    from companion.files.published.state_dict import Places
    from companion.transformer import Transformer


def _same(name: str) -> str:
    return name


def _nothing(config: ModelConfig) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True)
class Family:
    """Published models that say the same `model_type`: how their fields become a configuration, and their tensors ours.

    kind:    the `model_type`.
    own:     what becomes of the fields of config.json; those of every release come with them.
    config:  given the fields, and the tensors by the names that `rename` gives them.
    place:   moves every tensor.
    rename:  takes off what the releases of one layout name differently.
    pieces:  of names, and what each becomes, one after the other, before `rename` and after `spelled`.
    writes:  whether these models write text.

    What writing such a folder needs beside all that:

    architecture:  the class of `transformers` that reads it.
    spelled:       gives a tensor's name back what `rename` takes off.
    says:          of a configuration, fields that the notes of the table do not say.
    ends:          and those tensors, on the device "meta", by which `config` knows what is there.
    unread:        whether its tables have rows that no token reads, which are written as zeros. `export_model` prefers
                   other families that have all parts of a model.
    """

    kind: str
    own: Mapping[str, Policy]
    config: Callable[[Fields, Mapping[str, Tensor]], ModelConfig]
    place: Callable[[Places, ModelConfig], None]
    rename: Callable[[str], str] = _same
    writes: bool = True
    architecture: str = ""
    spelled: Callable[[str], str] = _same
    says: Callable[[ModelConfig], Mapping[str, Any]] = _nothing
    ends: Callable[[ModelConfig], Mapping[str, Tensor]] = _nothing
    pieces: Mapping[str, str] = field(default_factory=dict)
    unread: bool = False

    def ours(self, name: str) -> str:
        """A published tensor's name as `place` knows it."""
        for theirs, known in self.pieces.items():
            name = name.replace(theirs, known)
        return self.rename(name)

    def theirs(self, name: str) -> str:
        """`ours`, the other way."""
        name = self.spelled(name)
        for theirs, known in reversed([*self.pieces.items()]):
            name = name.replace(known, theirs)
        return name

    @property
    def table(self) -> dict[str, Policy]:
        """What becomes of every field of config.json."""
        return of_a_family(self.own)

    def read(
        self,
        folder: str | Path,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        headers: bool = False,
    ) -> Transformer:
        """The model in a folder of this kind, in evaluation mode.

        headers:  only the configuration and the shapes of the tensors are read; the model is on the device "meta".

        Raises `ValueError` for a field it cannot honour, a tensor without a place, and what `load_model` raises.
        """
        from companion.ground.atomic import read_together

        return read_together(Path(folder), lambda: self._read(Path(folder), dtype, device, headers))

    def _read(
        self, folder: Path, dtype: torch.dtype | None, device: torch.device | str | None, headers: bool
    ) -> Transformer:
        from companion.files.models import assemble, check_dtype_of
        from companion.files.published.checkpoint_folder import Fields, check_unquantized, load_published, other_heads
        from companion.files.published.state_dict import Places

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
                raise ValueError(f"{folder}: {new} stands there under two names: expected it once")
            tensor = found.pop(name)
            check_dtype_of(new, tensor, folder, dtype)
            called[new] = name
            given[new] = tensor if dtype is None or not tensor.is_floating_point() else tensor.to(dtype)
        config = fields.finish(lambda: self.config(fields, given))
        there = {name: tensor.to("meta") for name, tensor in given.items()}
        places = Places(given, folder)
        try:
            self.place(places, config)
            model = assemble(config, places.finish(), folder, dtype)
        except ValueError as error:
            from companion.files.published.misfit import explained

            if heads and any(f"missing {name}" in str(error) for name in ("lm_head.weight", "unembedding.weight")):
                raise ValueError(
                    f"{folder}: {heads[0]} is the head of a classifier, in the place of lm_head.weight: expected a "
                    "model that goes on with texts; nothing in this one scores tokens"
                ) from None
            raise explained(str(error), self, fields, config, there, places, called) from None
        if heads and not headers:
            warnings.warn(f"{folder}: {heads_left_out(heads)}", stacklevel=5)
        model.published_kind = self.kind
        return model


def heads_left_out(names: list[str]) -> str:
    """What is said of the head of a folder that is not read."""
    return f"the head of a classifier is left out ({', '.join(names)}); what is below it is read"


@dataclass(frozen=True)
class Preset:
    """A published system by name, as its paper or its released configuration says it.

    year:        in which it was published.
    parameters:  how many it has, as published; a test counts them.
    taught:      whether the course is about it.
    """

    year: int
    parameters: int
    config: ModelConfig
    taught: bool = False
