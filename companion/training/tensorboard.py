"""Write a run's log for TensorBoard, which shows it during training: `tensorboard --logdir runs`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from companion.ground.atomic import writing

if TYPE_CHECKING:
    from companion.training.run_folder import RunFolder


def require_tensorboard() -> None:
    """Raise `ValueError` with installation instructions if TensorBoard is not installed."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"--tensorboard: expected TensorBoard, which is not installed ({error}); install it with "
            "`pip install tensorboard`, or train without: log.jsonl contains the same values"
        ) from None


class Board:
    """A run's log, written as TensorBoard scalars: `train/...` for updates and `held_out/...` for evaluations."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    @classmethod
    @contextmanager
    def of(cls, folder: RunFolder | None, done: int) -> Iterator[Board]:
        """Open a board in the `tensorboard` folder of a run. Without a `folder`, it writes nothing.

        A new board begins with the entries that are already in the run's log. When a run resumes after update `done`,
        TensorBoard drops later entries. Raises `ValueError` if TensorBoard is not installed.
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
        """Write one entry of the log to TensorBoard's files."""
        if self._writer is None:
            return
        kind = "train" if "loss" in entry else "held_out"
        for name, value in entry.items():
            if name != "update":
                self._writer.add_scalar(f"{kind}/{name}", value, entry["update"])
