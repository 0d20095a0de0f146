"""Blocks of a paged cache: a free list, reference counts, and prefix caching (lesson 18).

Blocks are numbered from 1. A full block can be registered under its contents: its tokens, and all the tokens before
them. A text that begins with the same tokens reuses the block, so that it is stored only once, no matter how many texts
use it (Kwon et al. 2023, section 4.4; Zheng et al. 2024, "SGLang", section 3). The texts need not overlap in time. A
registered block whose last user has left is free, but keeps its contents until all other free blocks have been used.

Linear layers have one recurrent state of fixed size per text, which cannot be split into blocks; `StateSlots` manages
these states.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

BEGINNING = 0
"""Number of the empty prefix, which comes before the first block."""

Key = tuple[int, tuple[int, ...]]
"""Contents of a block: the number of the prefix before it, and its tokens."""


class Blocks:
    """The blocks of a pool, each with room for `size` tokens.

    The contents of blocks are compared in full, not only by hash, so no text ever gets a block with different contents.
    """

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, count + 1))  # in order of reuse
        self._users = [0] * (count + 1)
        self._known: dict[Key, tuple[int, int]] = {}  # the block, and the number of the prefix ending with it
        self._keys: dict[int, Key] = {}
        self._numbers = BEGINNING

    @property
    def free(self) -> int:
        """Number of blocks that no text uses."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Number of blocks that at least one text uses."""
        return self.count - len(self._free)

    def take(self, count: int) -> list[int]:
        """Take `count` free blocks and forget their contents. There must be enough free blocks."""
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self._users[block] = 1
            self._forget(block)
        return taken

    def leave(self, blocks: Sequence[int]) -> None:
        """Remove one user from each block of a text, and free the blocks that have no other user.

        Blocks with registered contents are reused only after all blocks that are free already. Other blocks are reused
        before them.

        Args:
            blocks: the blocks in the order of the text. Of those with registered contents, the last one is reused
                first, so that the beginning of the text can be found longest.
        """
        for block in reversed(blocks):
            self._users[block] -= 1
            if not self._users[block]:
                self._free[block] = None
                if block not in self._keys:
                    self._free.move_to_end(block, last=False)

    def shared(self, block: int) -> bool:
        """Return whether a block has more than one user."""
        return self._users[block] > 1

    def find(self, ids: Sequence[int]) -> tuple[list[int], list[int]]:
        """Find the stored blocks of the longest prefix of a text, and add a user to each.

        Returns:
            The blocks, and for each block the number that identifies the prefix ending with it.
        """
        found: list[int] = []
        numbers: list[int] = []
        for start in range(0, len(ids) - self.size + 1, self.size):
            before = numbers[-1] if numbers else BEGINNING
            known = self._known.get((before, tuple(ids[start : start + self.size])))
            if known is None:
                break
            block, number = known
            self._free.pop(block, None)
            self._users[block] += 1
            found.append(block)
            numbers.append(number)
        return found, numbers

    def known(self, block: int, before: int, ids: Sequence[int]) -> tuple[int, int]:
        """Register a full block under its contents: the tokens `ids` after the prefix with number `before`.

        Returns:
            The block to use from now on (a different one if these contents are already stored), and the number that
            identifies the prefix ending with it.
        """
        key = (before, tuple(ids))
        if key in self._known:
            other, number = self._known[key]
            if other != block:
                self._free.pop(other, None)
                self._users[other] += 1
                self.leave([block])
            return other, number
        self._numbers += 1
        self._forget(block)
        self._known[key], self._keys[block] = (block, self._numbers), key
        return block, self._numbers

    def forget(self) -> None:
        """Forget all contents, so that no block can be found again; texts keep the blocks they are using."""
        self._known.clear()
        self._keys.clear()

    def _forget(self, block: int) -> None:
        key = self._keys.pop(block, None)
        if key is not None:
            del self._known[key]


class StateSlots:
    """Slots for the recurrent states of a pool.

    There is one slot for each of `texts` texts, and just as many slots for states stored at the end of a block, from
    which other texts with the same prefix can continue.
    """

    def __init__(self, texts: int) -> None:
        self.count = 2 * texts
        self._free = list(range(texts))
        self._spare = list(range(texts, self.count))
        self._kept: OrderedDict[int, int] = OrderedDict()  # by prefix number, least recently used first

    def take(self) -> int:
        """Take a slot that no text uses. At least one slot must be free."""
        return self._free.pop()

    def leave(self, place: int) -> None:
        """Give back the slot of a text that has left."""
        self._free.append(place)

    def known(self, number: int) -> bool:
        """Return whether the state after the prefix with this number is stored."""
        return number in self._kept

    def keep(self, number: int) -> int:
        """Return a slot in which to store the state after the prefix with this number.

        If no slot is left, the least recently used state is evicted.
        """
        place = self._spare.pop() if self._spare else self._kept.popitem(last=False)[1]
        self._kept[number] = place
        return place

    def find(self, numbers: Sequence[int]) -> tuple[int, int | None]:
        """Find the longest of several nested prefixes whose state is stored.

        Args:
            numbers: numbers that identify the prefixes; each prefix extends the previous one.

        Returns:
            How many prefixes there are up to and including the one found, and the slot of its state; 0 and `None` if no
            state is stored.
        """
        for count in range(len(numbers), 0, -1):
            if numbers[count - 1] in self._kept:
                self._kept.move_to_end(numbers[count - 1])
                return count, self._kept[numbers[count - 1]]
        return 0, None
