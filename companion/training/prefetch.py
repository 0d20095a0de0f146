"""Batches made ahead of time, by another thread, in memory that a GPU copies from by itself."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from companion.training.losses import Batch


class Ahead:
    """`batches`, of which the `count` after the one asked for are being made meanwhile. The same batches in whatever
    order they are asked for: each is a function of its number alone.

    pin:  keep them in page-locked memory, from which a copy to a GPU does not hold up who asks for it.
    """

    def __init__(self, batches: Callable[[int], Batch], count: int, *, pin: bool) -> None:
        self._batches, self._count, self._pin = batches, count, pin
        self._pool = ThreadPoolExecutor(1, "batches")
        self._made: dict[int, Future[Batch]] = {}

    def __call__(self, number: int) -> Batch:
        """Batch `number`. What `batches` raises is raised here."""
        wanted = range(number, number + 1 + self._count)
        self._made = {i: self._made.get(i) or self._pool.submit(self._make, i) for i in wanted}
        return self._made[number].result()

    def _make(self, number: int) -> Batch:
        batch = tuple(self._batches(number))
        return tuple(t.pin_memory() if self._pin and t.device.type == "cpu" else t for t in batch)
