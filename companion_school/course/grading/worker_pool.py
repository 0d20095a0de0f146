"""Grade submissions in parallel, each in a sandboxed worker process."""

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
    """Apply `make` to each item, running up to `jobs` calls in parallel.

    Args:
        many: The items.
        make: Function called with an item and the worker of the current thread.
        jobs: Number of threads.
        limits: Time and memory limits for each answer.
        wall: Isolation of answers from the rest of the system (`sandbox.wall.choose`).
        done: Called with each result as soon as it is ready.

    Returns:
        The results, in the order of `many`.

    Raises:
        ValueError: If the system has no fork.
        OSError: If the process that runs answers does not start.
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
