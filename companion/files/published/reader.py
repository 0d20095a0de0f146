"""What a reader of a published layout is, and how a folder goes through it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from companion.config.model import ModelConfig
from companion.files.models import assemble, check_dtype_of
from companion.files.published.folder import Fields, load_published
from companion.files.published.places import Places
from companion.transformer import Transformer


def _same(name: str) -> str:
    return name


@dataclass(frozen=True)
class Reader:
    """A layout: how its fields become a configuration, and its tensors ours.

    config:  given the fields, and the tensors by the names that `rename` gives them.
    place:   moves every tensor.
    rename:  takes off what the releases of one layout name differently.
    """

    config: Callable[[Fields, Mapping[str, Tensor]], ModelConfig]
    place: Callable[[Places, ModelConfig], None]
    rename: Callable[[str], str] = _same

    def read(
        self,
        folder: str | Path,
        kind: str,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        headers: bool = False,
    ) -> Transformer:
        """The model in a folder whose `model_type` is `kind`, in evaluation mode.

        headers:  only the configuration and the shapes of the tensors are read; the model is on the device "meta".

        Raises `ValueError` for a field it cannot honour, a tensor without a place, and what `load_model` raises.
        """
        folder = Path(folder)
        fields = Fields(folder, kind)
        fields.check()  # before gigabytes are read
        given: dict[str, Tensor] = {}
        found = load_published(folder, device, dtype=dtype, headers=headers)
        for name in list(found):
            if (new := self.rename(name)) in given:
                raise ValueError(f"{folder}: {new} stands there under two names: expected it once")
            tensor = found.pop(name)
            check_dtype_of(new, tensor, folder, dtype)
            given[new] = tensor if dtype is None or not tensor.is_floating_point() else tensor.to(dtype)
        config = fields.finish(lambda: self.config(fields, given))
        places = Places(given, folder)
        self.place(places, config)
        return assemble(config, places.finish(), folder, dtype)
