"""Cache of local layers, whose tokens see a window of the most recent tokens (lesson 12).

If the window is much shorter than the maximum length of the text, a local layer's tensors work like ring buffers. The
tensors have columns for the window and `BACK` tokens on either side of it. When the columns are full, the last ones
move to the front of new tensors. A token sees only what is in its window, so this does not change any result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from companion.config.model import ModelConfig
from companion.ground.replaced import replaced
from companion.layers.masks import materialize, window

BACK = 64
"""Number of tokens that a rolling layer stores in addition to its window, so that this many tokens can be removed from
the end of a text. This is also the number of columns that are free after a move, so that moves are rare."""


def columns(width: int, slots: int) -> int:
    """Return the number of columns of a local layer with a window of `width` tokens, in a cache of `slots` tokens."""
    return min(slots, width - 1 + 2 * BACK)


@dataclass(frozen=True)
class Local:
    """State of the local layers of a `KVCache`.

    Attributes:
        width: Width of the window, in tokens.
        layers: Which of the layers that store keys and values are local.
        slots: Capacity of each row, in tokens.
        columns: Number of columns in use: an upper bound, exact if the cache is uniform.
        gone: Number of tokens of each row that these layers have dropped, (batch,); `None` means that they have a
            column for every slot.
    """

    width: int
    layers: tuple[bool, ...]
    slots: int
    columns: int
    gone: Int[Tensor, "batch"] | None

    @classmethod
    def of(cls, config: ModelConfig, slots: int) -> Local | None:
        """Make the state for an empty cache with a column for every slot; `None` if no layer is local."""
        seen = config.attention.window
        layers = tuple(map(config.local, config.attending))
        if seen is None or not any(layers):
            return None
        return cls(seen.width, layers, slots, 0, None)

    @property
    def room(self) -> list[int]:
        """Number of columns of each layer in a new cache."""
        held = columns(self.width, self.slots)
        return [held if here else self.slots for here in self.layers]

    def used(self, filled: int) -> list[int]:
        """Return the number of columns that each layer uses when the global layers use `filled` columns."""
        return [self.columns if here else filled for here in self.layers]

    def rolled(
        self, stores: Sequence[Tensor], lengths: Int[Tensor, "batch"], tokens: int, *, uniform: bool
    ) -> tuple[tuple[Tensor, ...], Local]:
        """Make room for `tokens` more tokens in the local layers.

        `stores` are the keys of all layers, followed by their values if there are any. Returns the same stores if there
        is room, otherwise new ones whose first columns are the last columns of the old ones.
        """
        here = self.layers * (len(stores) // len(self.layers))
        if self.gone is None or self.columns + tokens <= stores[here.index(True)].shape[2]:
            return tuple(stores), self
        held = min(self.columns, self.width - 1 + BACK)
        shift = (lengths - self.gone - held).clamp(min=0)
        column = shift[:, None] + torch.arange(held, device=shift.device)

        def moved(store: Tensor) -> Tensor:
            room = max(columns(self.width, self.slots), held + tokens)
            new = store.new_zeros(*store.shape[:2], room, store.shape[3])
            if uniform:
                new[:, :, :held] = store[:, :, self.columns - held : self.columns]
            else:
                new[:, :, :held] = store.take_along_dim(column[:, None, :, None], dim=2)
            return new

        new = tuple(moved(store) if local else store for store, local in zip(stores, here, strict=True))
        return new, replaced(self, columns=held, gone=self.gone + shift)

    def share(
        self, slots: Int[Tensor, "batch token"], visible: int, room: int, *, uniform: bool, bucket: int
    ) -> dict[str, Any]:
        """Return the fields of a local layer's `LayerCache` that differ from those of a global layer.

        Args:
            slots: Slots of the new tokens, (batch, token).
            visible: Number of slots that a global layer's mask covers.
            room: Number of columns of a local layer.
            uniform: As in `KVCache`.
            bucket: As in `KVCache`.
        """
        batch, tokens = slots.shape
        end = self.columns + tokens
        if uniform and (bucket == 1 or tokens > 1):  # buckets are only for single steps
            first = max(0, end - tokens - self.width + 1)  # no query sees further back
            return {"filled": self.columns, "mask": None, "first": first, "end": end, "gone": self.gone}
        if bucket > 1:  # read a whole bucket, but never more columns than there are slots
            end = min(room, visible)
        places = slots if self.gone is None else slots - self.gone[:, None]
        mask = materialize(window(self.width), batch, places, end)
        return {
            "filled": self.columns if uniform else None,
            "mask": mask,
            "first": 0,
            "end": end,
            "gone": self.gone,
        }

    def rewound(self, wanted: Int[Tensor, "batch"], lengths: Int[Tensor, "batch"]) -> Local:
        """Return the state after rows of these lengths have been shortened to the wanted lengths.

        Raises:
            ValueError: If a row no longer contains the tokens that its last token saw.
        """
        if self.gone is None:
            return replaced(self, columns=int(wanted.max()))
        gone = self.gone.masked_fill(wanted == 0, 0)
        if bool((gone > (wanted - self.width + 1).clamp(min=0)).any()):
            raise ValueError(
                f"lengths={wanted.tolist()}: expected each length to be 0 or close to the current one, "
                f"{lengths.tolist()}; local layers store only the last tokens, a window of {self.width} and {BACK} more"
            )
        return replaced(self, columns=int((wanted - gone).max()), gone=gone)

    def select(self, rows: Int[Tensor, "row"]) -> Local:
        """Return the state of the given rows."""
        return replaced(self, gone=None if self.gone is None else self.gone[rows])
