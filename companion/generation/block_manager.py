"""Who has which block of a paged cache: a free list, users of each block, and beginnings that are found again
(lesson 18).

Blocks are numbers from 1 on. A block that is full may be known by what it holds: its tokens, and all those before it.
Whoever begins a text with the same tokens finds it, and it is stored once, however many use it (Kwon et al. 2023,
section 4.4; Zheng et al. 2024, "SGLang", section 3). Nobody has to be there for that: a known block whose last user
has left is free, but keeps what it holds until all others have been taken.

What linear layers keep of a text is no sum of its blocks, but one state of fixed size: `Places` says who has which.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

BEGINNING = 0
"""The number of what stands before the first block: nothing."""

Key = tuple[int, tuple[int, ...]]
"""What a block holds: the number of all that stands before it, and its tokens."""


class Blocks:
    """The blocks of a pool, each of `size` tokens.

    A key is compared as it is, and not by its hash alone: no text ever gets another's block.
    """

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, count + 1))  # the next to be taken first
        self._users = [0] * (count + 1)
        self._known: dict[Key, tuple[int, int]] = {}  # the block, and the number of what ends with it
        self._keys: dict[int, Key] = {}
        self._numbers = BEGINNING

    @property
    def free(self) -> int:
        """How many nobody uses."""
        return len(self._free)

    @property
    def used(self) -> int:
        """How many somebody uses, each counted once."""
        return self.count - len(self._free)

    def take(self, count: int) -> list[int]:
        """So many free blocks, of which there must be as many; what they were known by is forgotten."""
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self._users[block] = 1
            self._forget(block)
        return taken

    def leave(self, blocks: Sequence[int]) -> None:
        """One user less of each, of a text's blocks in their order: its last is the first to be taken by another."""
        for block in reversed(blocks):
            self._users[block] -= 1
            if not self._users[block]:
                self._free[block] = None
                if block not in self._keys:
                    self._free.move_to_end(block, last=False)

    def shared(self, block: int) -> bool:
        """Whether more than one uses it."""
        return self._users[block] > 1

    def find(self, ids: Sequence[int]) -> tuple[list[int], list[int]]:
        """The blocks that hold the beginning of a text, as far as there are any, and of each the number of what ends
        with it. They get a user more."""
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
        """Let a full block be found by what it holds: `ids` after all that has the number `before`. Gives back the
        block to be used from now on, another where these tokens are there already, and the number of what ends with
        it."""
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
        """No block is found any more; whoever uses one keeps it."""
        self._known.clear()
        self._keys.clear()

    def _forget(self, block: int) -> None:
        key = self._keys.pop(block, None)
        if key is not None:
            del self._known[key]


class Places:
    """The places of a pool's states: one for each of `texts` texts, and as many for states at the ends of blocks, from
    which others go on that have begun alike."""

    def __init__(self, texts: int) -> None:
        self.count = 2 * texts
        self._free = list(range(texts))
        self._spare = list(range(texts, self.count))
        self._kept: OrderedDict[int, int] = OrderedDict()  # by the number of a beginning; the one used last is last

    def take(self) -> int:
        """A place that no text has, of which there must be one."""
        return self._free.pop()

    def leave(self, place: int) -> None:
        """A text has gone."""
        self._free.append(place)

    def known(self, number: int) -> bool:
        """Whether the state after the beginning with that number is kept."""
        return number in self._kept

    def keep(self, number: int) -> int:
        """A place for the state after the beginning with that number; where none is left, that which nobody has used
        for longest is given up."""
        place = self._spare.pop() if self._spare else self._kept.popitem(last=False)[1]
        self._kept[number] = place
        return place

    def find(self, numbers: Sequence[int]) -> tuple[int, int | None]:
        """Of beginnings that each continue the one before: how many there are up to the last whose state is kept, and
        its place; 0 and `None` where none is."""
        for count in range(len(numbers), 0, -1):
            if numbers[count - 1] in self._kept:
                self._kept.move_to_end(numbers[count - 1])
                return count, self._kept[numbers[count - 1]]
        return 0, None
