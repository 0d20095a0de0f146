"""AdamW (Loshchilov and Hutter 2019), Muon (Jordan et al. 2024), weight decay, and named optimizer states."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from companion.layers.gated_delta_net import ShortConvolution
from companion.layers.positions import Learned, RelativeBias

MOMENTS = ("exp_avg", "exp_avg_sq")
MOMENTUM = "momentum_buffer"
"""Key of Muon's state for a matrix."""


def decayed(model: nn.Module) -> set[str]:
    """Return the names of the parameters that have weight decay.

    Weight decay applies to the matrices that multiply a stream, including the matrices of experts.

    Gains and biases do not decay, because their size is not a measure of complexity. Neither do lookup tables (token
    and position embeddings, a head tied to them, relative positions): AdamW decays at every update, and a row whose
    token did not occur has no gradient to counteract the decay.
    """
    tables = {
        id(module.weight) for module in model.modules() if isinstance(module, (nn.Embedding, Learned, RelativeBias))
    }
    matrices = {name: p for name, p in model.named_parameters() if p.ndim >= 2 and not name.endswith("_bias")}
    return {name for name, p in matrices.items() if id(p) not in tables}


def hidden_matrices(model: nn.Module) -> set[str]:
    """Return the names of the matrices that map a stream or hidden vector to another such vector.

    The hidden matrices are those of attention, feed-forward networks, routers and experts (whose matrices are stacked
    in tensors with three axes). Embeddings and heads are not among them, because one of their axes is the vocabulary.
    Neither are filters over a few tokens: each row of a `ShortConvolution` belongs to one channel, so it does not
    connect all inputs to all outputs.
    """
    filters = {id(module.weight) for module in model.modules() if isinstance(module, ShortConvolution)}
    inside = {name for name in decayed(model) if name.startswith(("encoder.", "decoder."))}
    return {name for name, p in model.named_parameters() if name in inside and id(p) not in filters}


def _unhidden(kind: type[torch.optim.Optimizer]) -> dict[str, Any]:
    """Return the methods of a PyTorch optimizer, without the wrappers that hide them from the compiler.

    These wrappers load the compiler, which takes longer than a short run and is never used in most runs. These methods
    are never compiled here.
    """
    names = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
    plain = {name: inspect.unwrap(getattr(torch.optim.Optimizer, name)) for name in names}
    return plain | {"step": torch.no_grad()(inspect.unwrap(kind.step))}


_AdamW: type[torch.optim.AdamW] = type("_AdamW", (torch.optim.AdamW,), _unhidden(torch.optim.AdamW))
_Muon: type[torch.optim.Muon] = type("_Muon", (torch.optim.Muon,), _unhidden(torch.optim.Muon))


def adamw(
    model: nn.Module,
    *,
    weight_decay: float,
    betas: tuple[float, float] = (0.9, 0.95),
    fused: bool = False,
    lr_scales: Mapping[str, float] | None = None,
    without: Collection[str] = (),
) -> torch.optim.AdamW:
    """Make an AdamW optimizer for `model`, with parameters grouped by decay. Set the learning rate before each update.

    A sharded model may have tensors of different types. Tensors of different types are in separate groups, because a
    fused step accepts only one type.

    Args:
        model: the model whose parameters are optimized.
        weight_decay: decay of the parameters named by `decayed`.
        betas: decay of the two moving averages.
        fused: whether to use the fused implementation.
        lr_scales: learning-rate multipliers by parameter name, stored in the group as `"lr_scale"`. The decay of these
            parameters is divided by the multiplier, so that an update shrinks them by the same factor as all others.
        without: names of parameters to leave out because they belong to another optimizer.
    """
    names, lr_scales = decayed(model), lr_scales or {}
    groups: dict[tuple[bool, type, float], list[Tensor]] = {}
    for name, p in model.named_parameters():
        if name not in without:
            groups.setdefault((name in names, type(p), lr_scales.get(name, 1.0)), []).append(p)
    decays = {True: weight_decay, False: 0.0}
    return _AdamW(
        [
            {"params": members, "weight_decay": decays[decay] / lr_scale, "lr_scale": lr_scale}
            for (decay, _, lr_scale), members in groups.items()
        ],
        lr=0.0,
        betas=betas,
        fused=fused,
    )


class MuonWithAdamW:
    """Combine PyTorch's Muon (for the hidden matrices of a model) and AdamW (for everything else) in one optimizer.

    Muon (Jordan et al. 2024) stores a momentum of each matrix's gradients, M <- 0.95 M + 0.05 G. The direction of the
    step is 0.05 G + 0.95 M with all its singular values moved close to 1. Moving them takes five iterations of X <- a X
    + (b X X^T + c (X X^T)^2) X, which start from the matrix divided by its norm and use the coefficients (a, b, c) =
    (3.4445, -4.7750, 2.0315). The step is steepest descent if the size of a step is measured by its largest singular
    value (Bernstein and Newhouse 2024). Steps are multiplied by 0.2 sqrt(max(rows, columns)). Their elements are then
    about as large as those of AdamW's steps, so both can share one learning rate and one decay (Liu et al. 2025,
    Moonlight, section 2.2).

    Matrices are used as the layers store them: queries, keys and values are three matrices, and the `up` and `down`
    projections of latents are one matrix each. Each expert has its own matrices, which are the slices of a stack
    (expert, d_in, d_out). Matrices with a single row or column are vectors, so AdamW updates them.

    Args:
        model, weight_decay, betas, fused, lr_scales: as in `adamw`.

    Raises:
        ValueError: if the model is sharded (FSDP), because singular values depend on the whole matrix, or if the model
            has no hidden matrices.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        weight_decay: float,
        betas: tuple[float, float] = (0.9, 0.95),
        fused: bool = False,
        lr_scales: Mapping[str, float] | None = None,
    ) -> None:
        names, lr_scales = hidden_matrices(model), lr_scales or {}
        self.pieces: dict[Tensor, list[Tensor]] = {}
        """For each parameter that Muon updates, its matrices: the parameter itself, or views of its slices."""
        groups: dict[float, list[Tensor]] = {}
        mine = set()
        for name, p in model.named_parameters():
            if name not in names or min(p.shape[-2:]) == 1:
                continue
            if type(p) is not nn.Parameter:
                raise ValueError(
                    f"optimizer='muon': {name} is sharded across processes (FSDP); expected whole matrices, "
                    "as with one process or DDP"
                )
            mine.add(name)
            stack = p.detach()
            self.pieces[p] = [p] if p.ndim == 2 else [part.requires_grad_() for part in stack.unbind()]
            groups.setdefault(lr_scales.get(name, 1.0), []).extend(self.pieces[p])
        if not mine:
            raise ValueError("optimizer='muon': expected a model with hidden matrices")
        self.muon = _Muon(
            [
                {"params": parts, "weight_decay": weight_decay / lr_scale, "lr_scale": lr_scale}
                for lr_scale, parts in groups.items()
            ],
            lr=0.0,
            momentum=0.95,
            adjust_lr_fn="match_rms_adamw",
        )
        self.adamw = adamw(
            model, weight_decay=weight_decay, betas=betas, fused=fused, lr_scales=lr_scales, without=mine
        )
        self.defaults = self.adamw.defaults

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameter groups of both optimizers."""
        return [*self.muon.param_groups, *self.adamw.param_groups]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset all gradients, as in any optimizer."""
        for p, parts in self.pieces.items():
            for part in {p, *parts}:
                part.grad = None
        self.adamw.zero_grad(set_to_none=set_to_none)

    def step(self) -> None:
        """Update all parameters using their gradients."""
        for p, parts in self.pieces.items():
            if parts[0] is not p:
                for part, gradient in zip(parts, [None] * len(parts) if p.grad is None else p.grad, strict=True):
                    part.grad = gradient
        self.muon.step()
        self.adamw.step()

    @property
    def state(self) -> dict[Tensor, dict[str, Any]]:
        """State of each parameter, as in `torch.optim.Optimizer.state`."""
        found = dict(self.adamw.state)
        for p, parts in self.pieces.items():
            kept = [self.muon.state[part][MOMENTUM] for part in parts if MOMENTUM in self.muon.state.get(part, {})]
            if kept:
                found[p] = {MOMENTUM: kept[0] if parts[0] is p else torch.stack(kept)}
        return found

    def put(self, entries: Mapping[Tensor, Mapping[str, Tensor]]) -> None:
        """Load the state of parameters."""
        mine: dict[Tensor, Mapping[str, Tensor]] = {}
        for p, parts in self.pieces.items():
            if p in entries:
                kept = entries[p][MOMENTUM]
                mine |= {
                    part: {MOMENTUM: one} for part, one in zip(parts, [kept] if parts[0] is p else kept, strict=True)
                }
        _put(self.muon, mine)
        _put(self.adamw, {p: entry for p, entry in entries.items() if p not in self.pieces})


AnyOptimizer = torch.optim.Optimizer | MuonWithAdamW


def _kept_of(optimizer: AnyOptimizer, p: Tensor) -> tuple[str, ...]:
    """Return the keys of the state that an optimizer stores for a parameter."""
    return (MOMENTUM,) if isinstance(optimizer, MuonWithAdamW) and p in optimizer.pieces else (*MOMENTS, "step")


def optimizer_state(model: nn.Module, optimizer: AnyOptimizer) -> dict[str, Tensor]:
    """Return the state of all parameters, keyed by name.

    The keys are `exp_avg.<name>`, `exp_avg_sq.<name>` and `step.<name>` for AdamW, and `momentum_buffer.<name>` for
    Muon.
    """
    tensors = {}
    state = optimizer.state
    for name, p in model.named_parameters():
        kept = state.get(p, {})
        if not kept and state and p.requires_grad:  # the loss has not used p so far
            kept = {key: torch.zeros(()) if key == "step" else torch.zeros_like(p) for key in _kept_of(optimizer, p)}
        for key, value in kept.items():
            tensors[f"{key}.{name}"] = torch.as_tensor(value).detach()
    return tensors


def load_optimizer_state(
    model: nn.Module,
    optimizer: AnyOptimizer,
    tensors: Mapping[str, Tensor],
    part: Callable[[Tensor, Tensor, str], Tensor],
) -> None:
    """Load the result of `optimizer_state`.

    Args:
        model: the model that the optimizer trains.
        optimizer: the optimizer whose state is loaded.
        tensors: the state, keyed by name.
        part: returns this process's part of a tensor, like `Parallel.part`.

    Raises:
        ValueError: if the state does not match this model and this optimizer. In this case nothing is changed.
    """
    named = dict(model.named_parameters())
    entries: dict[Tensor, dict[str, Tensor]] = {}
    count = 0
    for name, p in named.items():
        wanted = _kept_of(optimizer, p)
        entry = {key: tensors[f"{key}.{name}"] for key in (*MOMENTS, "step", MOMENTUM) if f"{key}.{name}" in tensors}
        if not entry and not p.requires_grad:  # a frozen parameter has no state
            continue
        if tuple(entry) != wanted:
            expected = "the momentum" if wanted == (MOMENTUM,) else "both moments and the count"
            raise ValueError(f"optimizer state: expected {expected} of {name}, got {sorted(entry)}")
        entries[p] = {key: value if key == "step" else part(p, value, f"{key}.{name}") for key, value in entry.items()}
        count += len(entry)
    if others := sorted(key for key in tensors if key.partition(".")[2] not in named):
        raise ValueError(
            f"optimizer state: expected moments of this model's parameters, got {others[0]}, which belongs to another "
            "model"
        )
    if len(tensors) != count:
        raise ValueError(f"optimizer state: expected {count} tensors, got {len(tensors)}")
    if isinstance(optimizer, MuonWithAdamW):
        optimizer.put(entries)
    else:
        _put(optimizer, entries)


def _put(optimizer: torch.optim.Optimizer, entries: Mapping[Tensor, Mapping[str, Tensor]]) -> None:
    state = optimizer.state_dict()
    order = {id(p): i for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    state["state"] |= {order[id(p)]: dict(entry) for p, entry in entries.items()}
    optimizer.load_state_dict(state)
