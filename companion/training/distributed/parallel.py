"""What a run knows of the processes that train it: `Parallel`, which is a run in a single one, and how several fail.

All that is parallel is in this folder: the rest of the package knows `Parallel`, and no more.
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


class Lost(RuntimeError):
    """Another process of this run is gone, and this one cannot go on without it.

    speaks:  whether this is the process that noticed first, and so the one to say it.
    """

    def __init__(self, speaks: bool) -> None:
        super().__init__("another process of this run is gone, and the others cannot go on without it")
        self.speaks = speaks


class Elsewhere(RuntimeError):
    """Another process of this run failed, and says why; this one only has to end, with the same exit `code`."""

    def __init__(self, code: int) -> None:
        super().__init__("another process of this run failed")
        self.code = code


def compile_blocks(model: nn.Module) -> None:
    """Compile each block of a model, in place."""
    for module in model.modules():
        if isinstance(module, Block):
            module.compile()


class Parallel:
    """The processes of a run, as one of them sees them. This class is a run in a single process: there is nobody else.

    rank, world:  this process's number, and how many there are.
    device:       where it computes; `None`: where the model is.

    A *collective* has to be called by all processes, in the same order; it waits for the last of them.
    """

    rank = 0
    world = 1
    device: torch.device | None = None
    keeps_whole = True
    """Whether each process holds all of the model."""

    @property
    def main(self) -> bool:
        """Whether this is the one process that writes files, prints and measures."""
        return self.rank == 0

    def __str__(self) -> str:
        return "1 process"

    # What is agreed on: each is a collective

    def agree(self, flag: bool) -> bool:
        """True in every process if `flag` is true in any."""
        return flag

    def broadcast(self, value: Any) -> Any:
        """The main process's `value`, which JSON can write; what the others pass does not matter."""
        return value

    def on_main(self, make: Callable[[], Made]) -> Made:
        """What `make()` gives in the main process, in all: something that JSON can write, or `None`.

        What it raises is raised there; the others raise `Elsewhere`. So nobody waits for a process that has failed.
        """
        return make()

    def together(self, make: Callable[[], Made]) -> Made:
        """What `make()` gives, in each process its own; it must not contain a collective.

        If it raises `ValueError` or `OSError` in any, it does in the main process too, which says where it comes from,
        and the others raise `Elsewhere`.
        """
        return make()

    # What the trainer needs

    def total(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Each tensor summed over the processes. A collective."""
        return list(tensors)

    def bounds(self, rows: int) -> tuple[int, int]:
        """From which of a micro-batch's `rows` rows to which, the last excluded, are this process's.

        Raises `ValueError` when there are fewer rows than processes.
        """
        return 0, rows

    def share(self, batch: Batch) -> Batch:
        """The rows of a micro-batch that are this process's."""
        start, stop = self.bounds(len(batch[-1]))
        return tuple(tensor[start:stop] for tensor in batch)

    def prepare(self, model: nn.Module, loss: Callable[..., Scored], compile: bool) -> Callable[..., Scored]:
        """`loss(model, *batch)` as a function of the batch, with `model` distributed over the processes, in place."""
        if compile and getattr(model, "later", None) is not None:
            compile_blocks(model)  # the loss asks for the model's features, and not for its logits alone
            compile = False
        forward = torch.compile(model) if compile else model
        return lambda *batch: loss(forward, *batch)

    def drawing(self, seed: int, rows: int) -> AbstractContextManager[Any]:
        """Random numbers in this block depend on `seed`, and are those of this process's share of `rows` rows."""
        torch.manual_seed(seed)
        return nullcontext()

    def collecting(self, last: bool) -> AbstractContextManager[Any]:
        """A backward pass in this block adds to the gradient; after the `last` one it is that of all processes."""
        return nullcontext()

    def clip(self, model: nn.Module, largest: float) -> Tensor:
        """Scale the gradient to a norm of at most `largest`; the norm before. A collective."""
        return torch.nn.utils.clip_grad_norm_(model.parameters(), largest)

    def whole(self, parameter: Tensor, tensor: Tensor) -> Tensor:
        """All of `tensor`, which is `parameter`, or made for it and laid out as it is. A collective."""
        return tensor

    def part(self, parameter: Tensor, tensor: Tensor, name: str) -> Tensor:
        """What is to be kept here of the whole `tensor`, laid out as `parameter` is.

        Raises `ValueError`, naming `name`, unless the whole parameter has the shape of `tensor`.
        """
        if tensor.shape != parameter.shape:
            raise ValueError(f"{name}: expected a tensor of shape {tuple(parameter.shape)}, got {tuple(tensor.shape)}")
        return tensor


def exit_code(error: BaseException) -> int:
    """What a command that fails with `error` ends with: 2 for bad input, else 1."""
    return 2 if isinstance(error, ValueError) else 1
