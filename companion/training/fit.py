"""A run from where it stands to its end: progress, log, evaluations, checkpoints, and stopping by hand."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from tqdm.auto import tqdm

from companion.training.folder import RunFolder
from companion.training.loop import Trainer
from companion.training.task import Measured

MOST_LOGGED = 2000
"""Updates that a log keeps, evenly spaced: more cannot be told apart in a figure."""


def fit(
    trainer: Trainer,
    measure: Callable[[], Measured],
    *,
    folder: RunFolder | None = None,
    evaluate_every: int,
    save_seconds: float = 30.0,
    after_evaluation: Callable[[int, Measured], None] | None = None,
    progress: bool | None = None,
) -> bool:
    """Train until the last update. True when it was reached; False when Ctrl-C (or SIGTERM) stopped the run before.

    The first Ctrl-C lets the update in progress finish and saves; a second one stops at once, and the last checkpoint
    remains. With a `folder`, the run begins at its last checkpoint, and one is saved after each evaluation, every
    `save_seconds` (0: after every update; otherwise less often when saving takes long), and at the end.

    measure:           how good the model is now; its `scores` go into the log.
    after_evaluation:  called with the number of updates and the result; printing must go through `tqdm.write`.
    progress:          show a bar; `None`: if standard error is a terminal.

    Raises `Diverged` when the loss is not a number any more; the checkpoint before that remains.
    """
    config = trainer.config
    if folder is not None:
        folder.restore(trainer)
    log_every = max(1, config.updates // MOST_LOGGED)
    smoothed: float | None = None
    saved_at, pause = time.monotonic(), save_seconds
    bar = tqdm(
        total=config.updates,
        initial=trainer.done,
        disable=None if progress is None else not progress,
        dynamic_ncols=True,
        bar_format="{n_fmt}/{total_fmt} updates |{bar}| {desc}{remaining} left",
    )
    speed = _Speed()
    with bar, _stopping() as stop:
        while trainer.done < config.updates and not stop.is_set():
            update = trainer.update()
            smoothed = update.loss if smoothed is None else 0.95 * smoothed + 0.05 * update.loss
            speed.count(update.tokens)
            # The description, because tqdm puts a comma of its own before a postfix.
            bar.set_description_str(f"loss {smoothed:.3f}, {speed.per_second:,.0f} tokens/s, ", refresh=False)
            bar.update()
            if folder is not None and (update.number % log_every == 0 or update.number == config.updates):
                folder.log(
                    {
                        "update": update.number,
                        "loss": update.loss,
                        "tokens": update.tokens,
                        "gradient_norm": update.gradient_norm,
                        "learning_rate": update.learning_rate,
                        **({} if update.dropped is None else {"dropped": update.dropped}),
                        **({} if update.effective_experts is None else {"effective_experts": update.effective_experts}),
                    }
                )
            due = update.number % evaluate_every == 0 or update.number == config.updates
            if due:
                evaluation = measure()
                if folder is not None:
                    folder.log({"update": update.number, **evaluation.scores})
                if after_evaluation is not None:
                    after_evaluation(update.number, evaluation)
            now = time.monotonic()
            if folder is not None and (due or stop.is_set() or now - saved_at >= pause):
                folder.save(trainer)
                saved_at = time.monotonic()
                pause = max(save_seconds, 20 * (saved_at - now)) if save_seconds else 0.0
            if due:
                speed.restart()  # the time of an evaluation is not the model's speed in training
        if folder is not None and stop.is_set():
            folder.save(trainer)
    return trainer.done >= config.updates


def seconds_per_update(trainer: Trainer, seconds: float = 3.0) -> float:
    """How long an update takes on this machine, from about `seconds` of them. The trainer is used up: make another."""
    for _ in range(2):  # the first ones allocate memory, and compile
        trainer.update()
    began, count = time.monotonic(), 0
    while count < 3 or time.monotonic() - began < seconds:
        if trainer.done == trainer.config.updates:
            trainer.done = 0
        trainer.update()
        count += 1
    return (time.monotonic() - began) / count


class _Speed:
    """Tokens per second over the last few seconds."""

    def __init__(self) -> None:
        self.per_second = 0.0
        self.restart()

    def restart(self) -> None:
        self._began, self._tokens = time.monotonic(), 0

    def count(self, tokens: int) -> None:
        self._tokens += tokens
        elapsed = time.monotonic() - self._began
        if elapsed > 0:
            self.per_second = self._tokens / elapsed
        if elapsed > 5:
            self._began, self._tokens = self._began + elapsed / 2, self._tokens // 2


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C or SIGTERM sets; the second Ctrl-C interrupts as usual.

    Outside the main thread, where Python delivers no signals, the event is simply never set.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
