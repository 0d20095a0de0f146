"""AdamW (Loshchilov and Hutter 2019), which weights it decays, and its state by parameter name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from companion.layers.positions import Learned

MOMENTS = ("exp_avg", "exp_avg_sq")


def decayed(model: nn.Module) -> set[str]:
    """Names of the parameters that weight decay applies to: matrices that multiply a stream, experts' included.

    Not decayed: gains and biases, whose size is not a measure of complexity, and tables that are looked up (token and
    position embeddings, a tied head with them): AdamW decays at every update, and a row whose token did not occur has
    no gradient to hold it.
    """
    tables = {id(module.weight) for module in model.modules() if isinstance(module, (nn.Embedding, Learned))}
    matrices = {name: p for name, p in model.named_parameters() if p.ndim >= 2 and not name.endswith("_bias")}
    return {name for name, p in matrices.items() if id(p) not in tables}


class _AdamW(torch.optim.AdamW):
    """PyTorch's, without what hides its methods from the compiler: to do so, each of them loads the compiler, which
    takes longer than a short run and which most runs never use. None of them is ever compiled here."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


def adamw(
    model: nn.Module, *, weight_decay: float, betas: tuple[float, float] = (0.9, 0.95), fused: bool = False
) -> torch.optim.AdamW:
    """AdamW over all parameters of `model`, in groups by decay; the learning rate is set before each update.

    Tensors of different types, as a sharded model may have them, are in different groups: a fused step takes one type.
    """
    names = decayed(model)
    groups: dict[tuple[bool, type], list[Tensor]] = {}
    for name, p in model.named_parameters():
        groups.setdefault((name in names, type(p)), []).append(p)
    decays = {True: weight_decay, False: 0.0}
    return _AdamW(
        [{"params": members, "weight_decay": decays[decay]} for (decay, _), members in groups.items()],
        lr=0.0,
        betas=betas,
        fused=fused,
    )


def optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Both moments and the count of every parameter, as `exp_avg.<name>`, `exp_avg_sq.<name>`, `step.<name>`."""
    tensors = {}
    for name, p in model.named_parameters():
        kept = optimizer.state.get(p, {})
        if not kept and optimizer.state and p.requires_grad:  # no loss has used it yet
            kept = {key: torch.zeros_like(p) for key in MOMENTS} | {"step": torch.zeros(())}
        for key, value in kept.items():
            tensors[f"{key}.{name}"] = torch.as_tensor(value).detach()
    return tensors


def load_optimizer_state(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, Tensor],
    part: Callable[[Tensor, Tensor, str], Tensor],
) -> None:
    """Put back what `optimizer_state` gave. Raises `ValueError`, with nothing changed, unless it fits this model.

    part: as `Parallel.part`, what this process keeps of a tensor.
    """
    state = optimizer.state_dict()
    named = dict(model.named_parameters())
    order = {id(p): i for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    for name, p in named.items():
        entry = {key: tensors[f"{key}.{name}"] for key in (*MOMENTS, "step") if f"{key}.{name}" in tensors}
        if not entry and not p.requires_grad:  # frozen: it has no moments
            continue
        if len(entry) != 3:
            raise ValueError(f"optimizer state: expected both moments and the count of {name}, got {sorted(entry)}")
        entry |= {key: part(p, entry[key], f"{key}.{name}") for key in MOMENTS}
        state["state"][order[id(p)]] = entry
    if others := sorted(key for key in tensors if key.partition(".")[2] not in named):
        raise ValueError(
            f"optimizer state: expected moments of this model's parameters, got {others[0]}: another model's"
        )
    if tensors and len(tensors) % 3:
        raise ValueError(f"optimizer state: expected three tensors for each parameter, got {len(tensors)} in all")
    optimizer.load_state_dict(state)
