"""Hand-ins graded side by side, each in a worker process behind a wall."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from companion_school.course.grading.sandbox.parent import Limits, Worker
from companion_school.course.grading.sandbox.wall import Wall

One = TypeVar("One")
Made = TypeVar("Made")


def side_by_side(
    many: Sequence[One],
    make: Callable[[Worker, One], Made],
    *,
    jobs: int,
    limits: Limits,
    wall: Wall,
    done: Callable[[Made], None],
) -> list[Made]:
    """What `make` makes of each, in their order; `jobs` of them at once, each with a worker of its own.

    wall:  what stands between answers and everything else (`sandbox.wall.choose`).
    done:  gets each as it is made.

    Raises `ValueError` for a system without fork; `OSError` if the process for answers does not start.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(many)):
        waiting.put(number)
    found: dict[int, Made] = {}
    stop = threading.Event()

    def work() -> None:
        with Worker(limits, wall) as worker:
            while not stop.is_set():
                try:
                    number = waiting.get_nowait()
                except queue.Empty:
                    return
                found[number] = make(worker, many[number])
                done(found[number])

    with ThreadPoolExecutor(min(jobs, len(many)) or 1) as pool:
        try:
            for future in [pool.submit(work) for _ in range(min(jobs, len(many)))]:
                future.result()
        finally:
            stop.set()
    return [found[number] for number in range(len(many))]
