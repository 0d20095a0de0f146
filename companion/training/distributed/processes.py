"""One run on several processes. All that is parallel is here: the rest of the package knows `Parallel`, and no more.

A micro-batch is what it is for one process. Each process computes its ids from its number, which costs next to nothing,
and takes the rows that are its own; the gradients, which are sums over tokens divided by the tokens of all, add up. So
the losses, and the weights, of a run do not depend on how many processes it has, up to the order in which floating
point adds: `torchrun --nproc-per-node N -m companion train` goes on where `companion train` stopped, and back.

    data parallel     the default: everybody holds the model; gradients are added (PyTorch's DDP)
    sharded           everybody keeps a piece of each weight, gradient and moment, and borrows the rest of a block's
                      weights while it computes with them (PyTorch's FSDP2; ZeRO stage 3, Rajbhandari et al. 2020)
    expert parallel   groups of N processes share out the experts of each layer: a token travels to its experts and
                      their answers travel back (all-to-all; Lepikhin et al. 2021, section 3); all other weights are
                      data parallel, or sharded

Random numbers on a CPU are those that one process would draw: everybody draws them for the whole micro-batch and keeps
its own rows. On a GPU everybody draws its own: the same distribution, but another number of processes draws others.
Compiled code draws its own everywhere.

Nothing is pickled: what processes tell each other is tensors, or JSON as bytes.
"""

from __future__ import annotations

import atexit
import json
import os
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from companion.layers.block import Block
from companion.layers.moe import Experts, Local, MoE, Reordered, RoutingStats, by_expert
from companion.training.losses import Scored

Made = TypeVar("Made")
Batch = tuple[Tensor, ...]


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

    def barrier(self) -> None:
        """Wait until all are here."""

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


class Processes(Parallel):
    """Several processes, one for each device; the module's text says how they share the work. `start_processes` makes
    it.

    shard:    FSDP instead of DDP.
    experts:  over how many processes the experts of a layer are spread; `None`: everybody has them all.

    Raises `ValueError` when the processes do not divide by `experts`.
    """

    def __init__(self, device: torch.device, *, shard: bool = False, experts: int | None = None) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.device: torch.device = device
        self.shard, self.experts = shard, experts
        self.keeps_whole = not shard and experts is None
        self.rows = 0
        self._ddp: Any = None
        self._slices: set[int] = set()  # ids of the parameters that are some of the experts of a layer
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

    # What is agreed on

    def agree(self, flag: bool) -> bool:
        return bool(self.total([torch.tensor(float(flag))])[0])

    def barrier(self) -> None:
        self.agree(False)

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
                raise Elsewhere(told["code"])
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
            raise Elsewhere(int(codes[first]))
        if failure is not None:
            raise failure
        raise (ValueError if codes[first] == 2 else OSError)(f"process {first} of {self.world}: {what}")

    # What the trainer needs

    def total(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        if not tensors:
            return []
        packed = torch.cat([tensor.detach().flatten().to(self.device, torch.float64) for tensor in tensors])
        dist.all_reduce(packed)
        sums = packed.split([tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape).to(tensor.dtype) for part, tensor in zip(sums, tensors, strict=True)]

    def bounds(self, rows: int) -> tuple[int, int]:
        if rows < self.world:
            raise ValueError(f"--batch {rows}: expected at least {self.world}, an example for each process")
        return self.rank * rows // self.world, (self.rank + 1) * rows // self.world

    def prepare(self, model: nn.Module, loss: Callable[..., Scored], compile: bool) -> Callable[..., Scored]:
        for moe in [module for module in model.modules() if isinstance(module, MoE)]:
            self._spread(moe)
        if self.experts is not None and not self._slices:
            raise ValueError(f"--expert-parallel {self.experts}: expected a model with experts, got one without")
        self._draws_whole = self.device.type == "cpu" and not compile
        blocks = [module for module in model.modules() if isinstance(module, Block)]
        if compile:
            for block in blocks:  # one by one, so that gradients of a block travel while the next are computed
                block.compile()
        objective = _Objective(model, loss)
        if self.shard:
            return self._sharded(self.device, objective, blocks)
        others = [name for name, p in objective.named_parameters() if id(p) in self._slices]
        others += [name for name, _ in objective.named_buffers()]  # everybody changes them in the same way
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(objective.to(self.device), others)
        self._ddp = DistributedDataParallel(objective, gradient_as_bucket_view=True)
        self._ddp.register_comm_hook(None, lambda state, bucket: _sum(bucket.buffer()))
        return self._ddp

    def _sharded(self, device: torch.device, objective: nn.Module, blocks: Sequence[Block]) -> nn.Module:
        from torch.distributed.fsdp import fully_shard  # a second to import
        from torch.distributed.tensor import DTensor

        self._sharded_kind = (DTensor,)
        # The views that attention makes of its keys and values are never written to.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view", category=UserWarning)
        mesh = init_device_mesh(device.type, (self.world,))
        slices = {p for p in objective.parameters() if id(p) in self._slices}
        # A source's keys and values are computed before the block that looks at them runs: pieces of their own.
        early = [part for block in blocks if block.cross is not None for part in (block.cross.key, block.cross.value)]
        for module in (*early, *blocks, objective):
            part = fully_shard(module, mesh=mesh, ignored_params=slices)
            part.set_gradient_divide_factor(1.0)  # gradients add up, they are no mean
            part.set_force_sum_reduction_for_comms(True)
        return objective.to(device)

    def _spread(self, moe: MoE) -> None:
        """Let a mixture of experts know of the tokens, and the experts, of other processes."""
        _keep_the_compiler_out()
        number = moe.config.experts
        if self.experts is None:
            if moe.config.capacity is not None:
                moe.dispatch = Spread(self)
        elif number % self.experts:
            raise ValueError(f"--expert-parallel {self.experts}: expected a divisor of the {number} experts of a layer")
        else:
            moe.dispatch = Exchanged(self)
            for name in ("gate", "inner", "outer"):
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
        # FSDP adds gradients up after every backward pass: until then somebody would have to hold all of them.
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
            squares[1] = squares[1] * self.experts / self.world  # each slice is there once in every group
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
        """The rows of the micro-batch at work of all processes, from everybody's own. A collective."""
        start, stop = self.bounds(self.rows)
        whole = rows.new_zeros((self.rows, *rows.shape[1:]))
        whole[start:stop] = rows
        dist.all_reduce(whole)
        return whole


class _Objective(nn.Module):
    """The loss as a module around the model: DDP and FSDP see one forward pass, whatever it calls of the model."""

    def __init__(self, model: nn.Module, loss: Callable[..., Scored]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *batch: Tensor) -> Scored:
        return self.loss(self.model, *batch)


def _sum(gradients: Tensor) -> torch.futures.Future[Tensor]:
    """Gradients added up over the processes, where DDP would take their mean."""
    work = dist.all_reduce(gradients, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


class _WholeDraws(TorchDispatchMode):
    """Random tensors with a row for each row that is here are drawn for the whole micro-batch, and cut.

    These are all that a model draws: dropout, also that inside of PyTorch's attention, and a router's noise. The cost
    is a draw of the whole instead of a part.
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


class Spread(Local):
    """Tokens are spread over processes, and every process has all experts: places are given out over all tokens."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes

    def within_capacity(self, routing: RoutingStats, capacity: float) -> Bool[Tensor, "*batch top_k"]:
        all_of, real = self.processes.rows_of_all, routing.real
        start, stop = self.processes.bounds(self.processes.rows)
        everywhere = routing._replace(
            experts=all_of(routing.experts), real=None if real is None else all_of(real.long()).bool()
        )
        return super().within_capacity(everywhere, capacity)[start:stop]


class Exchanged(Spread):
    """Each process of a group has a part of the experts: tokens travel to them, and answers back."""

    def answers(
        self,
        moe: MoE,
        tokens: Float[Tensor, "row d_model"],
        chosen: Int[Tensor, "row top_k"],
        kept: Bool[Tensor, "*batch top_k"] | None,
        experts: Experts,
    ) -> Float[Tensor, "row top_k d_model"]:
        group, number = self.processes.peers, moe.config.experts
        expert, order, inverse = by_expert(chosen, kept, number)
        rows = Reordered.apply(tokens, order, inverse, chosen.shape[1])
        visits = expert.new_zeros(number + 1).scatter_add(0, expert, torch.ones_like(expert))
        outgoing = visits[:-1].view(group.size(), -1)  # (process, expert): how many visits each pays each from here
        incoming = torch.empty_like(outgoing)
        dist.all_to_all_single(incoming, outgoing.contiguous(), group=group)
        sent, received = outgoing.sum(1).tolist(), incoming.sum(1).tolist()
        arrived = _Exchange.apply(rows[: sum(sent)], sent, received, group)
        experts_here = torch.arange(incoming.shape[1], device=expert.device).repeat(group.size())
        expert_of_row = experts_here.repeat_interleave(incoming.flatten(), output_size=sum(received))
        answers = super().answers(moe, arrived, expert_of_row[:, None], None, experts)[:, 0]
        back = _Exchange.apply(answers, received, sent, group)
        back = torch.cat([back, back.new_zeros(len(rows) - len(back), back.shape[1])])
        return Reordered.apply(back, inverse, order, 1).view(*chosen.shape, -1)


@cache
def _keep_the_compiler_out() -> None:
    """What talks to other processes is not compiled. As a decorator, `torch.compiler.disable` would load the compiler,
    for two seconds, in whatever imports this file: a process that trains alone, a model that only writes."""
    for kind, name in ((Spread, "within_capacity"), (Exchanged, "answers")):
        setattr(kind, name, torch.compiler.disable(getattr(kind, name)))


class _Exchange(torch.autograd.Function):
    """`sent[p]` rows to each process p of a group, in order; `received[p]` from each. Gradients go the other way."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.back = received, sent, group
        return _exchanged(rows, sent, received, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchanged(grad, *ctx.back), None, None, None


def _exchanged(rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    arrived = rows.new_empty((sum(received), *rows.shape[1:]))
    dist.all_to_all_single(arrived, rows.contiguous(), received, sent, group=group)
    return arrived


# Starting and ending

TIMEOUT = timedelta(hours=1)
"""How long a process waits for the others: longer than any evaluation or checkpoint, which the main process makes while
the others wait. One that ended is noticed at once; one that hangs, after this time."""
_SIGNS = ("connection reset", "connection closed", "broken pipe", "timed out", "remote process", "ncclremoteerror")


def launched() -> bool:
    """Whether `torchrun`, or another launcher that says as much as it does, started this process."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


def command(arguments: Sequence[str], processes: int | None = None) -> str:
    """The command line of this run, or of one with so many `processes` on this machine."""
    if processes is None:
        if not launched():
            return "companion " + shlex.join(arguments)
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    return f"torchrun --nproc-per-node {processes} -m companion {shlex.join(arguments)}"


@contextmanager
def only_main_speaks() -> Iterator[None]:
    """In a process other than the main one, nothing goes to standard output, and what the main one says too (bad input,
    Ctrl-C) ends with `Elsewhere`."""
    if not launched() or os.environ["RANK"] == "0":
        yield
        return
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        try:
            yield
        except ValueError as error:
            raise Elsewhere(exit_code(error)) from error
        except KeyboardInterrupt as error:
            raise Elsewhere(130) from error


@contextmanager
def start_processes(
    device: torch.device, *, shard: bool = False, expert_parallel: int | None = None, arguments: Sequence[str] = ()
) -> Iterator[Parallel]:
    """This process's view of its run, whether it is alone or one of several that `torchrun` started.

    device:     the kind of device: of several processes each takes a GPU of its own, or the CPU.
    arguments:  of the command, for a message that shows it.

    Raises `ValueError` for flags that do not fit the processes, and for fewer GPUs than processes; and `Lost` in place
    of the error that a collective in this block ends with when another process is gone.
    """
    if not launched():
        if shard or expert_parallel is not None:
            asked = "--shard" if shard else f"--expert-parallel {expert_parallel}"
            raise ValueError(
                f"{asked}: expected several processes, got one; start them with\n"
                f"  {command(arguments, expert_parallel or 2)}"
            )
        yield Parallel()
        return
    device = _own_device(device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store, rank, world = next(dist.rendezvous("env://", timeout=TIMEOUT))
    lost = False
    try:
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=dist.PrefixStore("companion", store),
            rank=rank,
            world_size=world,
            timeout=TIMEOUT,
            device_id=device if device.type == "cuda" else None,
        )
        yield Processes(device, shard=shard, experts=expert_parallel)
    except RuntimeError as error:
        lost = is_lost(error)
        if not lost:
            raise
        # What waits for a process that is gone would keep this one from ending.
        atexit.register(_leave, 1)
        raise Lost(_is_first(store)) from error
    finally:
        if not lost and dist.is_initialized():
            dist.destroy_process_group()
        # Threads of gloo hand back the tensors of the last collective; one that does while Python ends aborts it.
        time.sleep(0.1)


def _own_device(device: torch.device) -> torch.device:
    """This process's device, of the kind asked for."""
    if device.type == "cpu":
        return device
    if device.type != "cuda" or device.index is not None:
        raise ValueError(
            f"--device {device}: expected cpu, cuda or auto with several processes, of which each has its own GPU"
        )
    number, here = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    found = torch.cuda.device_count()
    if found < here:
        raise ValueError(
            f"--device {device}: expected a GPU for each of the {here} processes on this machine, found {found}; "
            f"start {found} with --nproc-per-node {found}, or take --device cpu"
        )
    return torch.device("cuda", number)


def exit_code(error: BaseException) -> int:
    """What a command that fails with `error` ends with: 2 for bad input, else 1."""
    return 2 if isinstance(error, ValueError) else 1


def is_lost(error: BaseException) -> bool:
    """Whether `error` is how a collective ends when another process is gone, or has not answered for `TIMEOUT`."""
    return isinstance(error, dist.DistNetworkError) or any(sign in str(error).lower() for sign in _SIGNS)


def _is_first(store: dist.Store) -> bool:
    """Whether this process is the first to ask. True as well where nobody is left to answer."""
    try:
        return store.add("companion/lost", 1) == 1
    except RuntimeError:
        return True


def _leave(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
