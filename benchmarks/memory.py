"""Memory: the bytes stored by autograd, a step's peak, the training state, and the cache per token.

Byte counts do not vary from run to run, so one run is enough. The first row shows the values of the formulas in
`companion.costs`, which are lower bounds for this model.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.compare import Setting, si
from benchmarks.peers import PEERS, built, drawn
from benchmarks.sizes import Size
from companion.costs import account
from companion.ground.display import table
from companion.training.losses import next_token_loss
from companion.training.precision import autocast

HEAD = ("", "backward pass", "peak", "weights, gradients, AdamW", "a token's cache")


@dataclass(frozen=True)
class Kept:
    """Memory of one contender, in bytes.

    Attributes:
        name: The contender's name.
        backward: Bytes that autograd stores between the forward and backward passes of a training step, without
            weights.
        peak: Peak memory of a forward and backward pass, including gradients but not weights.
        training: Size of the weights, the gradients and AdamW's two moments.
        token: Size of the cached keys and values per token; 0 if not measured.
    """

    name: str
    backward: int
    peak: int
    training: int
    token: int


def compare(size: Size, setting: Setting, beside: Collection[str] = PEERS) -> list[Kept]:
    """Compute the bytes from the formulas, and measure them in our model and in every installed peer."""
    config, device = size.config, setting.device
    ours = drawn(config).to(device)
    tokens = torch.randint(config.vocab, (size.batch, config.context + 1), device=device)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    token = account.cache_bytes(config, 1, dtype=setting.dtype)
    found = [Kept("by formula", 0, 0, 16 * account.parameters(config).total, token)]

    def measure(name: str, module: nn.Module, loss_of: Callable[[], Tensor], token: int = 0) -> None:
        def loss() -> Tensor:
            with autocast(device, setting.precision):
                return loss_of()

        module.to(device).train()
        trained = sum(4 * p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)
        found.append(Kept(name, kept_for_backward(loss, module), peak_of_step(loss, module), trained, token))

    measure("ours", ours, lambda: next_token_loss(ours, inputs, targets).nats / targets.numel(), token)
    for name, peer in built(ours, beside):
        measure(name, peer.model, partial(_plain_loss, peer.logits, inputs, targets))
    return found


def _plain_loss(logits: Callable[[Tensor], Tensor], tokens: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits(tokens).float().flatten(0, 1), targets.flatten())


def kept_for_backward(loss: Callable[[], Tensor], module: nn.Module) -> int:
    """Return the number of bytes that autograd stores for the backward pass. Each storage is counted once; parameters
    are not counted."""
    own = {p.untyped_storage().data_ptr() for p in module.parameters()}
    found: dict[int, int] = {}
    alive = []  # keep storages alive, because the address of a freed one could be reused and taken for the same storage

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
            alive.append(storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss()
    return sum(found.values())


class Live(TorchDispatchMode):
    """Count the bytes of all live storages that were created by operators in this block.

    Attributes:
        now, most: The current bytes, and the maximum so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._alive: set[int] = set()

    def ignore(self, tensors: Iterator[Tensor]) -> None:
        """Do not count the storages of these tensors, which must outlive the block."""
        self._alive |= {tensor.untyped_storage()._cdata for tensor in tensors}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and (key := (kept := tensor.untyped_storage())._cdata) not in self._alive:
                self._alive.add(key)
                self.now += kept.nbytes()
                self.most = max(self.most, self.now)
                weakref.finalize(kept, self._gone, key, kept.nbytes())
        return out

    def _gone(self, key: int, bytes: int) -> None:
        self._alive.discard(key)
        self.now -= bytes


def peak_of_step(loss: Callable[[], Tensor], module: nn.Module) -> int:
    """Return the peak bytes of a forward and backward pass, not counting the parameters."""
    module.zero_grad(set_to_none=True)
    with Live() as live:
        live.ignore(module.parameters())
        live.ignore(module.buffers())
        loss().backward()
    module.zero_grad(set_to_none=True)
    return live.most


def report(found: Sequence[Kept], size: Size) -> str:
    """Format the table."""
    rows = [
        (one.name, *(f"{si(n)}B" if n else "-" for n in (one.backward, one.peak, one.training, one.token)))
        for one in found
    ]
    title = f"memory of a training step of {size.batch} x {size.config.context:,} tokens, and of decoding; {size.name}"
    return "\n".join([title, table(rows, HEAD, indent=0)])
