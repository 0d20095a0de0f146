"""Starting and ending: the processes that `torchrun` started, and how one ends when another is gone."""

from __future__ import annotations

import atexit
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from datetime import timedelta

import torch
import torch.distributed as dist

from companion.training.distributed.parallel import Elsewhere, Lost, Parallel, exit_code
from companion.training.distributed.processes import Processes

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
