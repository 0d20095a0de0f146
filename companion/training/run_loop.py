"""The training loop, from the last checkpoint to the end of a run: progress, logging, evaluations and checkpoints."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from tqdm.auto import tqdm

from companion.costs.account import train_flops
from companion.generation.prefill_decode import NotFinite
from companion.ground.fields import require_whole
from companion.training.interrupts import stopping_by_hand
from companion.training.run_folder import RunFolder
from companion.training.tasks.task import Measured
from companion.training.tensorboard import Board
from companion.training.trainer import Diverged, Trainer, Update
from companion.transformer import Transformer

MOST_LOGGED = 2000
"""Maximum number of updates in a log, evenly spaced; more could not be told apart in a figure."""


def fit(
    trainer: Trainer,
    measure: Callable[[Transformer], Measured],
    *,
    folder: RunFolder | None = None,
    evaluate_every: int,
    save_seconds: float = 30.0,
    keep: int = 2,
    after_evaluation: Callable[[int, Measured, Transformer], None] | None = None,
    say: Callable[[str], None] | None = None,
    progress: bool | None = None,
    peak: float | None = None,
    tensorboard: bool = False,
) -> bool:
    """Train until the last update.

    After the first Ctrl-C, the current update is finished and saved. A second Ctrl-C stops immediately, and the last
    checkpoint remains. With a `folder`, the run resumes from its last checkpoint, and a checkpoint is saved after each
    evaluation, every `save_seconds`, and at the end.

    With several processes this is a collective: all processes call it, and the main process measures, writes and
    prints.

    Args:
        trainer: the trainer of the run.
        measure: evaluates the trainer's current model; the result's `scores` go into the log.
        folder: folder of the run (default: nothing is saved).
        evaluate_every: number of updates between evaluations.
        save_seconds: seconds between checkpoints (0 means after every update); the interval is longer if saving takes
            long.
        keep: number of recent checkpoints to keep; the best checkpoint is kept in any case.
        after_evaluation: called with the number of updates, the result, and the model; it must print through
            `tqdm.write`.
        say: called with a message when a run is resumed (default: print to standard error).
        progress: whether to show a progress bar (default: only if standard error is a terminal).
        peak: combined peak FLOPs per second of all devices, for reporting which fraction of it the run reaches.
        tensorboard: whether to write the log for TensorBoard too (see `Board`); this requires a `folder`.

    Returns:
        True if the last update was reached, False if Ctrl-C or SIGTERM stopped the run earlier.

    Raises:
        Diverged: if the loss is not finite. The previous checkpoint remains.
        NotWritten: if the disk is full. The previous checkpoint remains.
    """
    require_whole("keep", keep)
    config, parallel, main = trainer.config, trainer.parallel, trainer.parallel.main
    say = say or partial(tqdm.write, file=sys.stderr)
    if folder is not None:
        done = folder.restore(trainer, say)
        if done and main:
            say(f"resuming after update {done:,}")
    log_every = max(1, config.updates // MOST_LOGGED)
    smoothed: float | None = None
    saved_at, pause = time.monotonic(), save_seconds
    unwritten: OSError | None = None
    pace = _Pace(trainer, peak, _seconds_so_far(folder) if main and folder is not None else 0.0)
    bar = tqdm(
        total=config.updates,
        initial=trainer.done,
        # must not be None, because tqdm takes None for False in a notebook
        disable=not main or not (sys.stderr.isatty() if progress is None else progress),
        dynamic_ncols=True,
        bar_format="{n_fmt}/{total_fmt} updates |{bar}| {desc}{remaining} left",
    )
    with bar, stopping_by_hand() as stop, Board.of(folder if tensorboard and main else None, trainer.done) as board:

        def log(entry: dict[str, Any]) -> None:
            if folder is not None:
                folder.log(entry)
            board.add(entry)

        def look(model: Transformer) -> float:
            try:
                measured = measure(model)
                if math.isnan(measured.error):
                    raise NotFinite("the loss on held-out data is not a number")
                log({"update": trainer.done, **measured.scores})
                if after_evaluation is not None:
                    after_evaluation(trainer.done, measured, model)
            except NotFinite as error:
                raise Diverged(f"{error}, after update {trainer.done}") from None
            return measured.error

        def check() -> None:
            if unwritten is not None:
                raise unwritten

        stopping = False
        while trainer.done < config.updates and not stopping:
            update = pace.time(trainer.update)
            smoothed = update.loss if smoothed is None else 0.95 * smoothed + 0.05 * update.loss
            # use the description, because tqdm would put a comma before a postfix
            bar.set_description_str(f"loss {smoothed:.3f}, {pace}{_load(trainer, update)}", refresh=False)
            bar.update()
            if main and (update.number % log_every == 0 or update.number == config.updates):
                try:
                    log(_entry(update) | pace.entry())
                except OSError as refused:  # tell the other processes first, because they are about to wait
                    unwritten = refused
            late = main and folder is not None and time.monotonic() - saved_at >= pause
            if parallel.agree(late or stop.is_set() or unwritten is not None):
                parallel.on_main(check)
                stopping, late = parallel.agree(stop.is_set()), parallel.agree(late)
            error: float | None = None
            if due := update.number % evaluate_every == 0 or update.number == config.updates:
                model = trainer.whole()
                error = parallel.on_main(lambda: look(model))  # noqa: B023  (called at once)
                del model  # with several processes this is a copy as large as the model
            if folder is not None and (due or stopping or late):
                began = time.monotonic()
                folder.save(trainer, keep=keep, error=error)
                saved_at = time.monotonic()
                pause = max(save_seconds, 20 * (saved_at - began)) if save_seconds else 0.0
    return trainer.done >= config.updates


def seconds_per_update(trainer: Trainer, seconds: float = 3.0) -> float:
    """Measure for about `seconds` how long an update takes on this machine. Do not use the trainer afterwards.

    This is a collective; the time of the main process is used.
    """
    for _ in range(2):  # the first updates allocate memory and compile
        trainer.update()
    began, count = time.monotonic(), 0
    while trainer.parallel.agree(trainer.parallel.main and (count < 3 or time.monotonic() - began < seconds)):
        if trainer.done == trainer.config.updates:
            trainer.done = 0
        trainer.update()
        count += 1
    return trainer.parallel.broadcast((time.monotonic() - began) / count)


def _entry(update: Update) -> dict[str, Any]:
    return {
        "update": update.number,
        "loss": update.loss,
        "tokens": update.tokens,
        "gradient_norm": update.gradient_norm,
        "learning_rate": update.learning_rate,
        **update.told,
        **({} if update.dropped is None else {"dropped": update.dropped}),
        **({} if update.effective_experts is None else {"effective_experts": update.effective_experts}),
    }


def _load(trainer: Trainer, update: Update) -> str:
    """Describe the effective number of experts in the layer with the least even load, for the progress bar."""
    moe = trainer.model.config.moe
    if moe is None or update.effective_experts is None:
        return ""
    return f"{update.effective_experts:.1f} of {moe.experts} experts in use, "


def _seconds_so_far(folder: RunFolder) -> float:
    return max((entry.get("seconds", 0.0) for entry in folder.entries()), default=0.0)


class _Pace:
    """Speed of training, in tokens per second over the last few seconds and as a fraction of the peak.

    Evaluations and checkpoints, which happen between updates, are not counted. The fraction is based on the FLOPs that
    the scored tokens of a decoder need (Chowdhery et al. 2022, appendix B) if each of them has the model's full
    context. Padding and recomputed activations are not useful work and are not counted.
    """

    def __init__(self, trainer: Trainer, peak: float | None, seconds: float) -> None:
        config = trainer.model.config
        self.seconds, self.per_second = seconds, 0.0
        self._tokens, self._over = 0, 0.0
        self._share_of_one = 0.0
        if peak is not None and config.stack == "decoder":
            self._share_of_one = train_flops(config, config.context) / config.context / peak

    def time(self, make: Callable[[], Update]) -> Update:
        """Run an update, and count its tokens and the time it takes."""
        began = time.monotonic()
        update = make()
        elapsed = time.monotonic() - began
        self.seconds += elapsed
        self._tokens, self._over = self._tokens + update.tokens, self._over + elapsed
        self.per_second = self._tokens / max(self._over, 1e-9)
        if self._over > 5:
            self._tokens, self._over = self._tokens // 2, self._over / 2
        return update

    @property
    def share(self) -> float | None:
        """Fraction of the peak, or `None` if the peak is unknown."""
        return self.per_second * self._share_of_one or None

    def entry(self) -> dict[str, float]:
        """Return the `MACHINE_FIELDS` for the log."""
        share = {} if self.share is None else {"peak_share": round(self.share, 4)}
        return {"seconds": round(self.seconds, 3), "tokens_per_second": round(self.per_second, 1), **share}

    def __str__(self) -> str:
        share = "" if self.share is None else f"{self.share:.0%} of peak, "
        return f"{self.per_second:,.0f} tokens/s, {share}"
