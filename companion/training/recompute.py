"""Activations computed twice instead of kept (Chen et al. 2016, "Training deep nets with sublinear memory cost").

Of each block only what enters it is kept for the backward pass, which runs the block once more: a third of the time on
top, for a model several times as deep or a batch several times as large. The gradients are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.checkpoint import checkpoint

from companion.layers.block import Block


def recompute(model: nn.Module) -> None:
    """From now on every block of `model` runs again in the backward pass, with the dropout it had."""
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
    """What to run in now, and again: a mode of now, which draws for several processes, is not there any more then."""
    mode = _get_current_dispatch_mode()
    return nullcontext(), nullcontext() if mode is None else mode
