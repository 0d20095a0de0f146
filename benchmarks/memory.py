"""Memory: what autograd stores for the backward pass, the training state, and the cache per token.

Bytes are counted rather than timed, so one run is enough. The first row holds the formulas of `companion.costs`, the
least that this model needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.compare import Setting
from benchmarks.peers import PEERS, Missing, build, drawn
from benchmarks.sizes import Size
from companion.costs import account
from companion.ground.display import table
from companion.training.precision import autocast

HEAD = ("", "backward pass", "weights, gradients, AdamW", "a token's cache")


@dataclass(frozen=True)
class Kept:
    """Memory of one contender, in bytes.

    Attributes:
        name: The contender's name.
        backward: Stored by autograd between the forward and the backward pass of a training step, without the weights.
        training: Weights, gradients and the two moments of AdamW.
        token: Keys and values of each token in the cache; 0 if it was not measured.
    """

    name: str
    backward: int
    training: int
    token: int


def compare(size: Size, setting: Setting, beside: Sequence[str] = PEERS) -> list[Kept]:
    """Count the bytes by formula, for our model and for the peers that are installed."""
    config = size.config
    ours = drawn(config).to(setting.device)
    tokens = torch.randint(config.vocab, (size.batch, config.context + 1), device=setting.device)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    total = account.parameters(config).total
    least = account.cache_bytes(config, 1, dtype=setting.dtype)
    found = [Kept("by formula", 0, 16 * total, least)]
    for name, module, logits in _contenders(ours, beside):
        module.to(setting.device).train()

        def loss(logits: Callable[[Tensor], Tensor] = logits) -> Tensor:
            with autocast(setting.device, setting.precision):
                return F.cross_entropy(logits(inputs).float().flatten(0, 1), targets.flatten())

        found.append(Kept(name, kept_for_backward(loss, module), _trained(module), least if name == "ours" else 0))
    return found


def _contenders(ours: nn.Module, beside: Sequence[str]) -> Iterator[tuple[str, nn.Module, Callable[[Tensor], Tensor]]]:
    yield "ours", ours, lambda tokens: ours(tokens).logits
    for name in beside:
        try:
            peer = build(name, ours.cpu())  # type: ignore[arg-type]
        except (Missing, ImportError, ValueError):
            continue
        yield name, peer.model, peer.logits


def kept_for_backward(loss: Callable[[], Tensor], module: nn.Module) -> int:
    """Return the bytes that autograd stores for the backward pass, counting each storage once and no parameters."""
    own = {p.untyped_storage().data_ptr() for p in module.parameters()}
    found: dict[int, int] = {}
    alive = []  # keep storages alive: the address of a freed one could be reused and counted as the same storage

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
            alive.append(storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss()
    return sum(found.values())


def _trained(module: nn.Module) -> int:
    """Return the bytes of the weights, their gradients and the two moments after an update."""
    return sum(4 * p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)


def report(found: Sequence[Kept], size: Size) -> str:
    """Format the table."""
    from benchmarks.report import si

    rows = [(one.name, *(f"{si(n)}B" if n else "-" for n in (one.backward, one.training, one.token))) for one in found]
    title = f"memory of a training step of {size.batch} x {size.config.context:,} tokens, and of decoding; {size.name}"
    return "\n".join([title, table(rows, HEAD, indent=0)])
