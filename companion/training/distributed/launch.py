"""Process launch and exit: join the processes that `torchrun` started, and exit if another process is lost."""

from __future__ import annotations

import atexit
import os
import shlex
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from datetime import timedelta

import torch
import torch.distributed as dist

from companion.ground.fields import shown
from companion.training.distributed.data_parallel import Processes
from companion.training.distributed.parallel import Parallel, PeerDied, PeerFailed, exit_code

TIMEOUT = timedelta(hours=1)
"""How long a process waits for the others. This is longer than any evaluation or checkpoint takes, because the others
wait while the main process makes it. A process that has ended is noticed at once, and one that hangs is noticed after
this time.
"""
PATIENCE = timedelta(minutes=1)
"""How long a process waits for the others when it starts."""
_SIGNS = ("connection reset", "connection closed", "broken pipe", "timed out", "remote process", "ncclremoteerror")


def launched() -> bool:
    """Return whether `torchrun`, or another launcher that sets the same variables, started this process."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


class LaunchError(ValueError):
    """Raised when this process cannot reach the other processes of its run.

    Every process reports this error itself, because it cannot know whether another process does.
    """


def processes_launched() -> int:
    """Return how many processes the launcher started, or 1 without a launcher."""
    return int(os.environ["WORLD_SIZE"]) if launched() else 1


def check_launch() -> None:
    """Check the launcher's variables: this process's number, the number of processes, and the first one's address.

    Raises:
        ValueError: if the variables contradict each other or are not valid numbers.
    """
    if not launched():
        return
    numbers = {}
    usual = {"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}  # a launcher may leave these variables out
    least_of = {"WORLD_SIZE": 1, "RANK": 0, "MASTER_PORT": 1, "LOCAL_WORLD_SIZE": 1, "LOCAL_RANK": 0}
    for name, least in least_of.items():
        value = os.environ.get(name, usual.get(name, ""))
        if not (value.isascii() and value.isdigit()) or not least <= int(value[:9]):
            raise LaunchError(
                f"{name}={shown(value)} in the environment: expected a whole number >= {least}, as torchrun sets it"
            )
        if len(value.lstrip("0")) > 6:
            raise LaunchError(f"{name}={shown(value)} in the environment: expected at most 999999")
        numbers[name] = int(value)
    if numbers["RANK"] >= numbers["WORLD_SIZE"]:
        raise LaunchError(
            f"RANK={numbers['RANK']} in the environment: expected a rank below WORLD_SIZE={numbers['WORLD_SIZE']}"
        )
    address, port = os.environ["MASTER_ADDR"], numbers["MASTER_PORT"]
    if port > 65535:
        raise LaunchError(f"MASTER_PORT={port} in the environment: expected at most 65535")
    try:
        socket.getaddrinfo(address, port)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise LaunchError(
            f"MASTER_ADDR={shown(address)} in the environment: expected the address of the first process, found no "
            f"machine with this name ({why})"
        ) from None
    if numbers["RANK"] > 0 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        _reach(address, port)


def _reach(address: str, port: int) -> None:
    """Wait until something listens at the first process's address. PyTorch would also wait, but it prints warnings."""
    end, why = time.monotonic() + PATIENCE.total_seconds(), "it does not answer"
    while time.monotonic() < end:
        try:
            socket.create_connection((address, port), timeout=max(0.1, end - time.monotonic())).close()
            return
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            time.sleep(0.2)
    raise LaunchError(
        f"MASTER_ADDR={shown(address)}, MASTER_PORT={port} in the environment: could not reach the first process "
        f"within {PATIENCE.total_seconds():.0f} seconds ({why})"
    )


def command(arguments: Sequence[str], processes: int | None = None) -> str:
    """Return the command line of this run, or of the same run with `processes` processes on this machine."""
    if processes is None:
        if not launched():
            return "companion " + shlex.join(arguments)
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    return f"torchrun --nproc-per-node {processes} -m companion {shlex.join(arguments)}"


@contextmanager
def only_main_speaks() -> Iterator[None]:
    """Silence every process except the main one.

    Standard output is discarded, and errors that the main process also reports (bad input, Ctrl-C) become `PeerFailed`.
    """
    if not launched() or os.environ["RANK"].strip("0") == "":
        yield
        return
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        try:
            yield
        except LaunchError:
            raise
        except ValueError as error:
            raise PeerFailed(exit_code(error)) from error
        except KeyboardInterrupt as error:
            raise PeerFailed(130) from error


@contextmanager
def start_processes(
    device: torch.device, *, shard: bool = False, expert_parallel: int | None = None, arguments: Sequence[str] = ()
) -> Iterator[Parallel]:
    """Yield this process's view of its run; the process may be one of several that `torchrun` started.

    Args:
        device: the type of device; if there are several processes, each uses its own GPU, or the CPU.
        shard: whether to use FSDP instead of DDP.
        expert_parallel: number of processes that share the experts of a layer.
        arguments: arguments of the command, for error messages.

    Raises:
        ValueError: if flags do not match the number of processes, or if there are fewer GPUs than processes.
        PeerDied: if another process is lost. This error replaces the one that a collective in the `with` block raises.
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
    store, rank, world = _meet()
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
        # Threads that wait for the lost process would keep this process from exiting.
        atexit.register(_leave, 1)
        raise PeerDied(_is_first(store)) from error
    finally:
        if not lost and dist.is_initialized():
            dist.destroy_process_group()
        # Threads of gloo release the tensors of the last collective; if one does so while Python exits, it aborts the
        # process.
        time.sleep(0.1)


def _meet() -> tuple[dist.Store, int, int]:
    """Wait for all processes, and return their shared store, this process's number and the number of processes."""
    world = os.environ["WORLD_SIZE"]
    try:
        store, rank, size = next(dist.rendezvous("env://", timeout=PATIENCE))
        store.set_timeout(PATIENCE)
        store.set(f"companion/{rank}", "here")
        store.wait([f"companion/{other}" for other in range(size)])
    except (RuntimeError, OSError) as error:
        why = " ".join(str(error).split())[:200]
        raise LaunchError(
            f"WORLD_SIZE={world} in the environment: expected this many processes within "
            f"{PATIENCE.total_seconds():.0f} seconds; some are missing ({why})"
        ) from None
    store.set_timeout(TIMEOUT)
    return store, rank, size


def _own_device(device: torch.device) -> torch.device:
    if device.type == "cpu":
        return device
    if device.type != "cuda" or device.index is not None:
        raise ValueError(f"--device {device}: expected cpu, cuda or auto with several processes, each with its own GPU")
    number, here = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    found = torch.cuda.device_count()
    if found < here:
        raise ValueError(
            f"--device {device}: expected a GPU for each of the {here} processes on this machine, found {found}; "
            f"start {found} with --nproc-per-node {found}, or use --device cpu"
        )
    return torch.device("cuda", number)


def is_lost(error: BaseException) -> bool:
    """Return whether `error` says that a collective failed because another process is lost or did not answer for
    `TIMEOUT`."""
    return isinstance(error, dist.DistNetworkError) or any(sign in str(error).lower() for sign in _SIGNS)


def _is_first(store: dist.Store) -> bool:
    """Return whether this process is the first to notice that a process is lost, or is the only one left."""
    try:
        return store.add("companion/lost", 1) == 1
    except RuntimeError:
        return True


def _leave(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
