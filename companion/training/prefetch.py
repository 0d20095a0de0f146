"""Prepare batches ahead of time in another thread, in memory that a GPU can copy from asynchronously."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from companion.training.losses import Batch


class Ahead:
    """Wrap `batches` and build the next `count` of them in the background.

    The batches do not depend on the order of requests, because each batch depends only on its number.

    Args:
        batches: batch number -> tensors.
        count: number of batches to prepare.
        pin: whether to put the batches in page-locked memory, so that copies to a GPU do not block.
    """

    def __init__(self, batches: Callable[[int], Batch], count: int, *, pin: bool) -> None:
        self._batches, self._count, self._pin = batches, count, pin
        self._pool = ThreadPoolExecutor(1, "batches")
        self._made: dict[int, Future[Batch]] = {}

    def __call__(self, number: int) -> Batch:
        """Return batch `number`. Exceptions raised by `batches` are raised here."""
        wanted = range(number, number + 1 + self._count)
        self._made = {i: self._made.get(i) or self._pool.submit(self._make, i) for i in wanted}
        return self._made[number].result()

    def _make(self, number: int) -> Batch:
        batch = tuple(self._batches(number))
        return tuple(t.pin_memory() if self._pin and t.device.type == "cpu" else t for t in batch)
