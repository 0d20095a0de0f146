"""Activation checkpointing (Chen et al. 2016, "Training deep nets with sublinear memory cost").

Only the input of each block is stored for the backward pass, which then runs the block a second time. Training takes a
third longer, but the model can be several times as deep, or the batch several times as large. The gradients are the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.overrides import _get_current_function_mode
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.checkpoint import checkpoint

from companion.layers.block import Block


def checkpoint_blocks(model: nn.Module) -> None:
    """Make every block of `model` run a second time in the backward pass, with the same dropout."""
    for module in model.modules():
        if isinstance(module, Block):
            module.forward = _twice(module.forward)  # type: ignore[method-assign]


def _twice(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        if torch.compiler.is_compiling():
            return checkpoint(forward, *args, use_reentrant=False, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, context_fn=_contexts, **kwargs)

    return run


def _contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Return the contexts for the first run and for the repetition.

    Some modes that are active now, such as those that draw random numbers for several processes or choose kernels, are
    no longer active in the backward pass. Therefore the repetition enters them again.
    """
    modes = (_get_current_dispatch_mode(), _get_current_function_mode())
    return nullcontext(), _within([mode for mode in modes if mode is not None])


@contextmanager
def _within(modes: Sequence[AbstractContextManager[Any]]) -> Iterator[None]:
    with ExitStack() as stack:
        for mode in modes:
            stack.enter_context(mode)
        yield
