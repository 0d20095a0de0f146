"""`Processes`, the implementation of `Parallel` for several processes, which divide the rows and add the gradients.

A micro-batch contains the same rows as with one process. Each process computes all ids from the number of the
micro-batch, which costs almost nothing, and takes its own rows. Each gradient is a sum over tokens divided by the total
number of tokens, so the gradients of all processes can simply be added. Therefore the losses and weights of a run do
not depend on the number of processes, up to the order of floating-point additions: `torchrun --nproc-per-node N -m
companion train` resumes where `companion train` stopped, and vice versa.

    data parallel     the default: each process has the whole model; gradients are summed (PyTorch's DDP)
    sharded           each process has a shard of each weight, gradient and moment, and gathers the rest of a block's
                      weights while it computes with them (PyTorch's FSDP2; ZeRO stage 3, Rajbhandari et al. 2020)
    expert parallel   groups of N processes divide the experts of each layer: tokens are sent to their experts and the
                      outputs are sent back (all-to-all; Lepikhin et al. 2021, section 3); all other weights are
                      data parallel, or sharded

On a CPU, random numbers are the same as with one process, because each process draws them for the whole micro-batch and
uses those for its own rows. On a GPU, each process draws its own random numbers, so their values depend on the number
of processes, but their distribution does not. Compiled code draws its own numbers on any device.

Nothing is pickled: processes exchange tensors, or JSON as bytes.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Int, Shaped
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from companion.layers.block import Block
from companion.layers.moe import NAMES, MoE
from companion.training.distributed.expert_parallel import AllToAllDispatch, GatheredDispatch, keep_the_compiler_out
from companion.training.distributed.parallel import Made, Parallel, PeerFailed, compile_blocks, exit_code
from companion.training.losses import Scored


class Processes(Parallel):
    """Several processes, one per device, which divide the work as described at the top of this module.

    Use `launch.start_processes`.

    Args:
        device: this process's device.
        shard: whether to use FSDP instead of DDP.
        experts: number of processes that divide the experts of a layer among themselves (default: each process has all
            experts).

    Raises:
        ValueError: if the number of processes is not a multiple of `experts`.
    """

    def __init__(self, device: torch.device, *, shard: bool = False, experts: int | None = None) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.device: torch.device = device
        self.shard, self.experts = shard, experts
        self.keeps_whole = not shard and experts is None
        self.rows = 0
        self._ddp: Any = None
        self._slices: set[int] = set()  # ids of the parameters that hold only some of a layer's experts
        self._sharded_kind: tuple[type[Any], ...] = ()
        if experts is not None:
            if experts < 2 or self.world % experts:
                raise ValueError(
                    f"--expert-parallel {experts}: expected 2 or more, a divisor of the {self.world} processes"
                )
            sides = (self.world // experts, experts)
            mesh = init_device_mesh(device.type, sides, mesh_dim_names=("replica", "expert"))
            self.peers, self._replicas = mesh.get_group("expert"), mesh.get_group("replica")

    def __str__(self) -> str:
        kind = "sharded" if self.shard else "data parallel"
        spread = "" if self.experts is None else f", experts over {self.experts}"
        return f"{self.world} process{'es' if self.world > 1 else ''}, {kind}{spread}"

    # Agreement between processes

    def agree(self, flag: bool) -> bool:
        return bool(self.total([torch.tensor(float(flag))])[0])

    def broadcast(self, value: Any) -> Any:
        return self._tell(value, 0)

    def _tell(self, value: Any, source: int) -> Any:
        text = json.dumps(value).encode() if self.rank == source else b""
        told = torch.zeros(int(self.total([torch.tensor(len(text))])[0]), dtype=torch.uint8, device=self.device)
        if text:
            told.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        dist.broadcast(told, source)
        return json.loads(told.cpu().numpy().tobytes())

    def on_main(self, make: Callable[[], Made]) -> Made:
        if not self.main:
            told = self.broadcast(None)
            if "code" in told:
                raise PeerFailed(told["code"])
            return told["value"]
        try:
            value = make()
        except Exception as error:
            self.broadcast({"code": exit_code(error)})
            raise
        return self.broadcast({"value": value})["value"]

    def together(self, make: Callable[[], Made]) -> Made:
        failure, codes = None, torch.zeros(self.world)
        try:
            made = make()
        except (ValueError, OSError) as error:
            failure = error
            codes[self.rank] = exit_code(error)
        (codes,) = self.total([codes])
        if not codes.any():
            return made
        first = int(codes.nonzero()[0])
        what = self._tell(str(failure), first)
        if not self.main:
            raise PeerFailed(int(codes[first]))
        if failure is not None:
            raise failure
        raise (ValueError if codes[first] == 2 else OSError)(f"process {first} of {self.world}: {what}")

    # For the trainer

    def total(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        if not tensors:
            return []
        packed = torch.cat([tensor.detach().flatten().to(self.device, torch.float64) for tensor in tensors])
        dist.all_reduce(packed)
        sums = packed.split([tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape).to(tensor.dtype) for part, tensor in zip(sums, tensors, strict=True)]

    def bounds(self, rows: int) -> tuple[int, int]:
        if rows < self.world:
            raise ValueError(f"--batch {rows}: expected at least {self.world}, one example per process")
        return self.rank * rows // self.world, (self.rank + 1) * rows // self.world

    def prepare(self, model: nn.Module, loss: Callable[..., Scored], compile: bool) -> Callable[..., Scored]:
        for moe in [module for module in model.modules() if isinstance(module, MoE)]:
            self._spread(moe)
        if self.experts is not None and not self._slices:
            raise ValueError(f"--expert-parallel {self.experts}: expected a model with experts, got one without")
        self._draws_whole = self.device.type == "cpu" and not compile
        if compile:
            compile_blocks(model)  # separate blocks send gradients while the next block runs
        blocks = [module for module in model.modules() if isinstance(module, Block)]
        objective = _Objective(model, loss)
        if self.shard:
            return self._sharded(self.device, objective, blocks)
        others = [name for name, p in objective.named_parameters() if id(p) in self._slices]
        others += [name for name, _ in objective.named_buffers()]  # all processes change these in the same way
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(objective.to(self.device), others)
        self._ddp = DistributedDataParallel(objective, gradient_as_bucket_view=True)
        self._ddp.register_comm_hook(None, lambda state, bucket: _sum(bucket.buffer()))
        return self._ddp

    def _sharded(self, device: torch.device, objective: nn.Module, blocks: Sequence[Block]) -> nn.Module:
        from torch.distributed.fsdp import fully_shard  # takes a second to import
        from torch.distributed.tensor import DTensor

        self._sharded_kind = (DTensor,)
        # Attention never writes to the views of its keys and values.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view", category=UserWarning)
        mesh = init_device_mesh(device.type, (self.world,))
        slices = {p for p in objective.parameters() if id(p) in self._slices}
        # A source's keys and values are computed before the block that attends to them runs, so they are sharded
        # separately.
        early = [part for block in blocks if block.cross is not None for part in (block.cross.key, block.cross.value)]
        for module in (*early, *blocks, objective):
            part = fully_shard(module, mesh=mesh, ignored_params=slices)
            part.set_gradient_divide_factor(1.0)  # gradients are sums, not means
            part.set_force_sum_reduction_for_comms(True)
        return objective.to(device)

    def _spread(self, moe: MoE) -> None:
        keep_the_compiler_out()
        number = moe.config.experts
        if self.experts is None:
            if moe.config.capacity is not None:
                moe.dispatch = GatheredDispatch(self.rows_of_all, self.own_rows)
        elif number % self.experts:
            raise ValueError(f"--expert-parallel {self.experts}: expected a divisor of the {number} experts of a layer")
        else:
            moe.dispatch = AllToAllDispatch(self.rows_of_all, self.own_rows, self.peers)
            for name in (*NAMES, *(f"{name}_bias" for name in NAMES)):
                if (whole := getattr(moe, name)) is not None:
                    mine = nn.Parameter(self._slice(whole.detach()).to(self.device))
                    self._slices.add(id(mine))
                    setattr(moe, name, mine)

    def _slice(self, whole: Tensor) -> Tensor:
        return whole.chunk(self.experts or 1)[self.rank % (self.experts or 1)].clone()

    def drawing(self, seed: int, rows: int) -> AbstractContextManager[Any]:
        self.rows = rows
        if not self._draws_whole:
            torch.manual_seed((seed + self.rank) % 2**64)
            return nullcontext()
        torch.manual_seed(seed)
        return _WholeDraws(*self.bounds(rows), rows)

    @contextmanager
    def collecting(self, last: bool) -> Iterator[None]:
        # FSDP reduces gradients after every backward pass; otherwise each process would have to hold the whole gradient
        # until the last pass.
        with nullcontext() if last or self._ddp is None else self._ddp.no_sync():
            yield

    def clip(self, model: nn.Module, largest: float) -> Tensor:
        shards, slices, copies = [], [], []
        for p in model.parameters():
            if p.grad is None:
                continue
            if id(p) in self._slices:
                dist.all_reduce(p.grad, group=self._replicas)
                slices.append(p.grad)
            elif isinstance(p.grad, self._sharded_kind):
                shards.append(p.grad.to_local())
            else:
                copies.append(p.grad)
        squares = [torch.nn.utils.get_total_norm(part).double().square().to(self.device) for part in (shards, slices)]
        if self.experts is not None:
            squares[1] = squares[1] * self.experts / self.world  # every group of processes has one copy of each slice
        apart = sum(self.total(squares)) if shards or slices else 0.0
        norm = (torch.nn.utils.get_total_norm(copies).double().to(self.device).square() + apart).sqrt().float()
        torch._foreach_mul_([*shards, *slices, *copies], (largest / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def whole(self, parameter: Tensor, tensor: Tensor) -> Tensor:
        if isinstance(tensor, self._sharded_kind):
            return tensor.full_tensor()
        if id(parameter) not in self._slices or tensor.ndim == 0:
            return tensor
        gathered = [torch.empty_like(tensor) for _ in range(self.experts or 1)]
        dist.all_gather(gathered, tensor.contiguous(), group=self.peers)
        return torch.cat(gathered)

    def part(self, parameter: Tensor, tensor: Tensor, name: str) -> Tensor:
        if id(parameter) in self._slices:
            tensor = self._slice(tensor)
        super().part(parameter, tensor, name)
        if isinstance(parameter, self._sharded_kind):
            from torch.distributed.tensor import distribute_tensor

            here = tensor.to(self.device)
            return distribute_tensor(here, parameter.device_mesh, parameter.placements, src_data_rank=None)
        return tensor

    def rows_of_all(self, rows: Int[Tensor, "batch *axes"]) -> Int[Tensor, "whole_batch *axes"]:
        """Gather the rows of the current micro-batch from all processes, given this process's rows (a collective)."""
        start, stop = self.bounds(self.rows)
        whole = rows.new_zeros((self.rows, *rows.shape[1:]))
        whole[start:stop] = rows
        dist.all_reduce(whole)
        return whole

    def own_rows(self, whole: Shaped[Tensor, "whole_batch *axes"]) -> Shaped[Tensor, "batch *axes"]:
        """Return this process's rows, given all rows of the current micro-batch."""
        start, stop = self.bounds(self.rows)
        return whole[start:stop]


class _Objective(nn.Module):
    """A module that wraps the model and computes the loss.

    DDP and FSDP then see a single forward pass, no matter which parts of the model it calls.
    """

    def __init__(self, model: nn.Module, loss: Callable[..., Scored]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *batch: Tensor) -> Scored:
        return self.loss(self.model, *batch)


def _sum(gradients: Tensor) -> torch.futures.Future[Tensor]:
    """Sum gradients over the processes; DDP by itself would average them."""
    work = dist.all_reduce(gradients, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


class _WholeDraws(TorchDispatchMode):
    """Draw random tensors for the whole micro-batch, and return only the rows of this process.

    All random tensors that a model draws are covered: dropout, including that inside PyTorch's attention, and a
    router's noise.
    """

    def __init__(self, start: int, stop: int, rows: int) -> None:
        super().__init__()
        self.start, self.stop, self.rows = start, stop, rows

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.ops.aten.bernoulli_.float, torch.ops.aten.randn_like.default):
            here, *more = args
            if here.ndim and len(here) == self.stop - self.start:
                whole = func(here.new_empty((self.rows, *here.shape[1:])), *more, **kwargs)[self.start : self.stop]
                return here.copy_(whole) if func is torch.ops.aten.bernoulli_.float else whole
        return func(*args, **kwargs)
