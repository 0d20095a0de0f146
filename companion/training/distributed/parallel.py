"""`Parallel`, the interface between training and its processes (here, a single one), and errors for failed processes.

All parallelism is implemented in this folder; the rest of the package only uses `Parallel`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from companion.layers.block import Block
from companion.training.losses import Batch, Scored

Made = TypeVar("Made")


class PeerDied(RuntimeError):
    """Raised when another process of this run has ended and this process therefore cannot continue.

    Attributes:
        speaks: whether this process noticed first and should therefore report the failure.
    """

    def __init__(self, speaks: bool) -> None:
        super().__init__("another process of this run is gone, and the others cannot continue without it")
        self.speaks = speaks


class PeerFailed(RuntimeError):
    """Raised when another process of this run has failed and reports why.

    This process only has to exit with the same `code`.
    """

    def __init__(self, code: int) -> None:
        super().__init__("another process of this run failed")
        self.code = code


def compile_blocks(model: nn.Module) -> None:
    """Compile each block of a model in place.

    Blocks of the same kind share one graph, so compiling many layers takes no longer than compiling one.
    """
    for module in model.modules():
        if isinstance(module, Block):
            module.compile()


class Parallel:
    """The processes of a run, as seen by one of them. This class represents a run in a single process.

    A *collective* is an operation that all processes have to call, in the same order; it waits for the last of them.

    Attributes:
        rank, world: this process's number, and the number of processes.
        device: the device to compute on (`None` means the model's device).
    """

    rank = 0
    world = 1
    device: torch.device | None = None
    keeps_whole = True
    """True if each process has the whole model."""

    @property
    def main(self) -> bool:
        """True in the one process that writes files, prints and measures."""
        return self.rank == 0

    def __str__(self) -> str:
        return "1 process"

    # Agreement between processes: all of these methods are collectives

    def agree(self, flag: bool) -> bool:
        """Return True in every process if `flag` is true in any process."""
        return flag

    def broadcast(self, value: Any) -> Any:
        """Return the main process's `value` in all processes; the values passed by the others are ignored.

        The value must be JSON-serializable.
        """
        return value

    def on_main(self, make: Callable[[], Made]) -> Made:
        """Call `make()` in the main process, and return its result in all processes.

        The result must be JSON-serializable or `None`.

        An exception is raised in the main process, and the others raise `PeerFailed`, so that no process waits for a
        failed one.
        """
        return make()

    def together(self, make: Callable[[], Made]) -> Made:
        """Call `make()`, which must not contain a collective, in each process, and return that process's result.

        If any process raises `ValueError` or `OSError`, the main process raises the same error with the number of that
        process, and the others raise `PeerFailed`.
        """
        return make()

    # For the trainer

    def total(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return each tensor summed over the processes (a collective)."""
        return list(tensors)

    def bounds(self, rows: int) -> tuple[int, int]:
        """Return the start and the end of this process's share of a micro-batch with `rows` rows.

        Raises:
            ValueError: if there are fewer rows than processes.
        """
        return 0, rows

    def share(self, batch: Batch) -> Batch:
        """Return this process's rows of a micro-batch."""
        start, stop = self.bounds(len(batch[-1]))
        return tuple(tensor[start:stop] for tensor in batch)

    def prepare(self, model: nn.Module, loss: Callable[..., Scored], compile: bool) -> Callable[..., Scored]:
        """Distribute `model` over the processes in place.

        Returns:
            `loss(model, *batch)` as a function of the batch.
        """
        if compile:
            compile_blocks(model)
        return lambda *batch: loss(model, *batch)

    def drawing(self, seed: int, rows: int) -> AbstractContextManager[Any]:
        """Within the `with` block, make random numbers depend on `seed` and on this process's share of `rows` rows."""
        torch.manual_seed(seed)
        return nullcontext()

    def collecting(self, last: bool) -> AbstractContextManager[Any]:
        """Accumulate gradients within the `with` block; after the `last` block, sum the gradient over all processes."""
        return nullcontext()

    def clip(self, model: nn.Module, largest: float) -> Tensor:
        """Scale the gradient to a norm of at most `largest`, and return its norm before scaling (a collective)."""
        return torch.nn.utils.clip_grad_norm_(model.parameters(), largest)

    def whole(self, parameter: Tensor, tensor: Tensor) -> Tensor:
        """Gather the whole `tensor`, which is `parameter` or has the same layout (a collective)."""
        return tensor

    def part(self, parameter: Tensor, tensor: Tensor, name: str) -> Tensor:
        """Return this process's part of the whole `tensor`, in the layout of `parameter`.

        Raises:
            ValueError: if the whole parameter does not have the same shape as `tensor`. The message contains `name`.
        """
        if tensor.shape != parameter.shape:
            raise ValueError(f"{name}: expected a tensor of shape {tuple(parameter.shape)}, got {tuple(tensor.shape)}")
        return tensor


def exit_code(error: BaseException) -> int:
    """Return the exit code of a command that fails with `error`: 2 for bad input, otherwise 1."""
    return 2 if isinstance(error, ValueError) else 1
