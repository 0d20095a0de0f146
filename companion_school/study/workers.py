"""Processes that run functions from a lesson together and communicate through PyTorch's `gloo` backend (lesson 26).

    workers = Workers(4)
    sums = workers.run(ring_all_reduce, columns)   # one result per process, in the order of their ranks
    workers.sent                                   # bytes that each process sent during this run

The processes know nothing about the notebook in which a function was defined. Therefore, all functions, classes and
data that the function uses from the notebook are sent with it, as code objects, JSON and tensors (safetensors). Nothing
is pickled. The processes are children of this process, use the same interpreter, and end when it ends.
"""

from __future__ import annotations

import atexit
import base64
import builtins
import dis
import importlib
import marshal
import os
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist
from torch import Tensor

from companion_school.checking.codec import pack, unpack

PATIENCE = timedelta(seconds=120)
"""Time that a process waits for another process before it fails."""


class Workers:
    """Processes on this machine that run a function together. Each process has a rank, as with `torchrun`.

    The processes start immediately and load PyTorch in the background. The first `run` waits for them.

    Args:
        count: Number of processes.

    Attributes:
        sent: Number of bytes that each process sent with `dist.send` and `dist.isend` during the last run.
        messages: Number of calls of these two functions in each process during the last run.

    Raises:
        ValueError: `count` is not an integer from 1 to 16.
    """

    def __init__(self, count: int) -> None:
        if not isinstance(count, int) or not 1 <= count <= 16:
            raise ValueError(f"count={count!r}: expected a whole number from 1 to 16")
        self.count = count
        self.sent: list[int] = []
        self.messages: list[int] = []
        self._running: list[subprocess.Popen[bytes]] = []
        self._folder = tempfile.TemporaryDirectory(prefix="workers-", ignore_cleanup_errors=True)
        self._runs = 0
        self._start()
        atexit.register(self.close)

    def _start(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        for rank in range(self.count):
            command = [sys.executable, "-m", "companion_school.study.workers", str(rank)]
            with (Path(self._folder.name) / f"{rank}.err").open("wb") as errors:
                self._running.append(
                    subprocess.Popen(
                        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment
                    )
                )

    def close(self) -> None:
        """End the processes. A later `run` starts them again."""
        for process in self._running:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        self._running = []

    def run(self, function: Callable[..., Any], *arguments: Any, processes: int | None = None) -> list[Any]:
        """Call `function(*arguments)` in each process, and return the results in order of rank.

        Args:
            function: A function defined at the top level of the notebook, without a closure.
            arguments: Numbers, strings, tensors, and lists and dictionaries of these, which are the same for every
                process.
            processes: Number of processes that take part; `None` means all.

        Raises:
            ValueError: The number of processes is out of range, or something that the function uses cannot be sent.
            RuntimeError: The function failed in a process; the message contains its traceback.
        """
        world = self.count if processes is None else processes
        if not isinstance(world, int) or not 1 <= world <= self.count:
            raise ValueError(f"processes={processes!r}: expected a whole number from 1 to {self.count}")
        message = _packed({
            "function": function.__name__,
            "definitions": list(_definitions(function)),
            "arguments": list(arguments),
            "world": world,
            "meeting": self._meeting(),
        })  # fmt: skip
        if not self._running:
            self._start()
        try:
            replies = self._replies(message, world)
        except BaseException:
            self.close()
            raise
        self.sent = [reply["sent"] for reply in replies]
        self.messages = [reply["messages"] for reply in replies]
        return [reply["result"] for reply in replies]

    def _meeting(self) -> str:
        self._runs += 1
        return str(Path(self._folder.name) / f"meeting-{self._runs}")

    def _replies(self, message: bytes, world: int) -> list[dict[str, Any]]:
        replies: list[Any] = [None] * world
        done = threading.Semaphore(0)

        def ask(rank: int) -> None:
            process = self._running[rank]
            try:
                assert process.stdin is not None and process.stdout is not None
                _write(process.stdin, message)
                replies[rank] = _read(process.stdout)
            except (OSError, EOFError) as error:
                log = (Path(self._folder.name) / f"{rank}.err").read_text(errors="replace")
                replies[rank] = {"error": f"{error}\n{log[-2000:]}"}
            done.release()

        for rank in range(world):
            threading.Thread(target=ask, args=(rank,), daemon=True).start()
        for _ in range(world):
            done.acquire()
            for rank, reply in enumerate(replies):
                if reply is not None and "error" in reply:
                    raise RuntimeError(f"process {rank} of {world}: {reply['error']}")
        return replies


# Names that a function looks up in its module


def _looked_up(code: types.CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _looked_up(constant)


def _functions(definition: Any) -> dict[str, types.FunctionType]:
    """Return the functions in a definition: the function itself, or the methods of a class."""
    if isinstance(definition, types.FunctionType):
        return {definition.__name__: definition}
    made = {name: getattr(one, "__func__", one) for name, one in vars(definition).items()}
    return {name: one for name, one in made.items() if isinstance(one, types.FunctionType)}


def _definitions(function: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """Describe `function` and everything in its module that it uses, directly or indirectly."""
    if not isinstance(function, types.FunctionType) or function.__closure__:
        raise ValueError(f"function={function!r}: expected a function defined at the top level of the notebook")
    module, seen, waiting = function.__globals__, {function.__name__}, [(function.__name__, function)]
    while waiting:
        name, definition = waiting.pop()
        here = isinstance(definition, types.FunctionType) and definition.__globals__ is module
        here_class = isinstance(definition, type) and definition.__module__ == module.get("__name__")
        if not (here or here_class):
            yield _elsewhere(name, definition)
            continue
        yield _described(name, definition)
        for one in _functions(definition).values():
            for other in _looked_up(one.__code__):
                if other not in seen and other in module and not hasattr(builtins, other):
                    seen.add(other)
                    waiting.append((other, module[other]))
        if isinstance(definition, type):
            waiting += [(base.__name__, base) for base in definition.__bases__ if base.__name__ not in seen]


def _described(name: str, definition: Any) -> dict[str, Any]:
    if isinstance(definition, types.FunctionType):
        return {"name": name, "kind": "function", **_code(definition)}
    attributes = {}
    for key, one in vars(definition).items():
        if isinstance(one, staticmethod | classmethod):
            attributes[key] = {"wrapped": type(one).__name__, **_code(one.__func__)}
        elif isinstance(one, types.FunctionType):
            attributes[key] = {"wrapped": None, **_code(one)}
        elif not key.startswith("_"):
            raise ValueError(f"{name}.{key}: expected only methods in a class that is sent to processes")
    bases = [{"module": base.__module__, "of": base.__qualname__} for base in definition.__bases__]
    return {"name": name, "kind": "class", "bases": bases, "attributes": attributes}


def _code(function: Any) -> dict[str, Any]:
    if function.__code__.co_freevars:
        raise ValueError(f"{function.__name__}: expected a function without closure variables")
    code = base64.b64encode(marshal.dumps(function.__code__)).decode()
    return {"code": code, "defaults": list(function.__defaults__ or ()), "keywords": function.__kwdefaults__ or {}}


def _elsewhere(name: str, value: Any) -> dict[str, Any]:
    """Describe a name that refers to data or to an object that can be imported."""
    if isinstance(value, types.ModuleType):
        return {"name": name, "kind": "import", "module": value.__name__, "of": ""}
    module, of = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if module in sys.modules and of and getattr(sys.modules[module], of, None) is value:
        return {"name": name, "kind": "import", "module": module, "of": of}
    if isinstance(value, Tensor | int | float | str | list | tuple | dict | None):
        return {"name": name, "kind": "data", "value": value}
    raise ValueError(
        f"{name}: expected a function, a class, a module, a tensor, a number, text, or a list or dictionary of them, "
        f"got {type(value).__name__}, which cannot be sent to a process"
    )


def _made(described: Mapping[str, Any], names: dict[str, Any]) -> types.FunctionType:
    code = marshal.loads(base64.b64decode(described["code"]))
    function = types.FunctionType(code, names, argdefs=tuple(described["defaults"]))
    function.__kwdefaults__ = described["keywords"] or None
    return function


def _define(described: Mapping[str, Any], names: dict[str, Any]) -> None:
    name, kind = described["name"], described["kind"]
    if kind == "function":
        names[name] = _made(described, names)
    elif kind == "data":
        names[name] = described["value"]
    elif kind == "import":
        module = importlib.import_module(described["module"])
        names[name] = getattr(module, described["of"]) if described["of"] else module
    else:
        wrappers: dict[Any, Callable[..., Any]] = {
            None: lambda made: made, "staticmethod": staticmethod, "classmethod": classmethod
        }  # fmt: skip
        body = {key: wrappers[one["wrapped"]](_made(one, names)) for key, one in described["attributes"].items()}
        bases = tuple(getattr(importlib.import_module(base["module"]), base["of"]) for base in described["bases"])
        names[name] = types.new_class(name, bases, exec_body=lambda space: space.update(body))


# Messages: packed values, each preceded by its length in bytes


def _packed(value: Any) -> bytes:
    message = pack(value)
    return len(message).to_bytes(8, "big") + message


def _write(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(message)
    pipe.flush()


def _read(pipe: IO[bytes]) -> Any:
    return unpack(_exactly(pipe, int.from_bytes(_exactly(pipe, 8), "big")))


def _exactly(pipe: IO[bytes], count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = pipe.read(count - len(parts))
        if not part:
            raise EOFError("the process has ended")
        parts += part
    return bytes(parts)


# What a process does


class _Counted:
    """Wrap `dist.send` and `dist.isend` to count their calls and bytes."""

    def __init__(self) -> None:
        self.sent = self.messages = 0
        for name in ("send", "isend"):
            setattr(dist, name, self._counting(getattr(dist, name)))

    def _counting(self, send: Callable[..., Any]) -> Callable[..., Any]:
        def counted(tensor: Tensor, *arguments: Any, **more: Any) -> Any:
            self.sent += tensor.nbytes
            self.messages += 1
            return send(tensor, *arguments, **more)

        return counted


def _answer(asked: Mapping[str, Any], rank: int, counter: _Counted) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__main__", "__builtins__": builtins}
    for described in asked["definitions"]:
        _define(described, names)
    store = dist.FileStore(asked["meeting"], asked["world"])
    dist.init_process_group("gloo", store=store, rank=rank, world_size=asked["world"], timeout=PATIENCE)
    dist.barrier()  # wait until all processes have arrived
    counter.sent = counter.messages = 0
    result = names[asked["function"]](*asked["arguments"])
    made = {"result": result, "sent": counter.sent, "messages": counter.messages}
    dist.barrier()  # no process may leave while another one is still waiting for it
    return made


def main(rank: int) -> None:
    """Answer requests from the pipe until it closes."""
    torch.set_num_threads(1)
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # printed text must not be mixed with messages
    counter = _Counted()
    import companion.transformer  # noqa: F401  loaded while the notebook goes on

    while True:
        try:
            asked = _read(sys.stdin.buffer)
        except EOFError:
            return
        try:
            reply = _packed(_answer(asked, rank, counter))
        except Exception:
            reply = _packed({"error": traceback.format_exc()})
        _write(pipe, reply)  # reply before the others notice that this process has left
        if dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
