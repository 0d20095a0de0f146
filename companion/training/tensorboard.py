"""The log of a run for TensorBoard, which draws it while it grows: `tensorboard --logdir runs`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from companion.ground.atomic import writing

if TYPE_CHECKING:
    from companion.training.run_folder import RunFolder


def require_tensorboard() -> None:
    """Raise `ValueError`, saying how to install it, unless TensorBoard is here."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"--tensorboard: expected TensorBoard, which is not installed ({error}); install it with "
            "`pip install tensorboard`, or train without: log.jsonl has the same numbers"
        ) from None


class Board:
    """What a run logs, as TensorBoard's scalars: `train/...` for updates, `held_out/...` for evaluations."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    @classmethod
    @contextmanager
    def of(cls, folder: RunFolder | None, done: int) -> Iterator[Board]:
        """A board in the `tensorboard` folder of a run; without a `folder` one that shows nothing.

        A run that has none yet gets what is in its log; of one that goes on after update `done`, TensorBoard forgets
        what came later. Raises `ValueError` unless TensorBoard is installed.
        """
        if folder is None:
            yield cls(None)
            return
        require_tensorboard()
        from torch.utils.tensorboard import SummaryWriter

        home = folder.path / "tensorboard"
        new = not any(home.glob("events.*"))
        with writing(home, 0):
            board = cls(SummaryWriter(str(home), purge_step=None if new else done + 1))
        try:
            for entry in folder.entries() if new else ():
                board.add(entry)
            yield board
        finally:
            with writing(home, 0):
                board._writer.close()

    def add(self, entry: Mapping[str, Any]) -> None:
        """A line of the log."""
        if self._writer is None:
            return
        kind = "train" if "loss" in entry else "held_out"
        for name, value in entry.items():
            if name != "update":
                self._writer.add_scalar(f"{kind}/{name}", value, entry["update"])
