"""The process that runs students' code behind a wall. It never imports companion and never decides marks.

`wall.Wall.command` starts it as python -I child.py WALL ANSWERS ENGINE SOCKET NAME FOLDER. It loads torch once. From
the folder ENGINE it loads the modules that call an answer and pack its result (`companion_school/checking`). It forks
for each request on its socket. A request contains the limits and the channel to use. The new process drops its
privileges (`wall.py`), defines the student's program, and answers the cases on the channel, one at a time. The first
message on the channel contains the program. All replies are packed with `codec.py`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import linecache
import math
import os
import resource
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

LENGTH = struct.Struct("<q")
LARGEST = 2**20
"""Maximum size of a message from a student's process in bytes; results of exercises are far smaller."""
NOTEBOOK = "your notebook"
"""Name of the file that contains an answer, as shown in error messages."""


def _load(name: str, file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _engine(folder: Path) -> dict[str, Any]:
    """Return the engine's modules by name. Answers cannot import the package that contains these modules."""
    _load("engine", folder / "__init__.py")
    modules = {
        name: importlib.import_module(f"engine.{name}") for name in ("exercise", "call", "codec", "operator_watch")
    }
    for name in [name for name in sys.modules if name.split(".")[0] == "engine"]:
        del sys.modules[name]
    return modules


@runtime_checkable
class Channel(Protocol):
    """A socket, or a wrapper that limits a socket."""

    def recv(self, most: int, /) -> bytes: ...

    def sendall(self, data: bytes, /) -> None: ...


def receive(channel: Channel, most: int = LARGEST) -> bytes:
    """Receive one message. Raises `EOFError` if the socket is closed, and `ValueError` if the message is too long."""
    (length,) = LENGTH.unpack(_exactly(channel, LENGTH.size))
    if not 0 <= length <= most:
        raise ValueError(f"expected a message of at most {most} bytes, got {length}")
    return _exactly(channel, length)


def send(channel: Channel, data: bytes) -> None:
    """Send one message: its length as eight bytes, then its contents."""
    channel.sendall(LENGTH.pack(len(data)) + data)


def _exactly(channel: Channel, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = channel.recv(min(length - len(data), 1 << 20))
        if not piece:
            raise EOFError("the other process has ended")
        data += piece
    return bytes(data)


def main() -> None:
    """Load everything that answers need, report readiness, and fork for each request until the socket closes."""
    wall_file, answers_file, engine_folder, descriptor, name, folder = sys.argv[1:]
    control = socket.socket(fileno=int(descriptor))
    os.chdir(folder)  # this folder is empty and not writable
    makedirs = _pretend_a_place(folder)
    sys.argv[:] = [""]
    import numpy
    import torch
    from safetensors.torch import load  # noqa: F401

    torch.set_num_threads(1)
    torch.compile = _as_it_is
    wall = _load("wall", Path(wall_file)).WALLS[name]
    reading = _load("answers", Path(answers_file))
    engine = _engine(Path(engine_folder))
    homes = {Path(module.__file__).resolve().parents[1] for module in (numpy, torch) if module.__file__}
    library = [sys.prefix, sys.base_prefix]
    sys.path[:] = [path for path in sys.path if Path(path).resolve() in homes or _is_under(path, library)]
    sys.meta_path[:] = [finder for finder in sys.meta_path if "__editable__" not in getattr(finder, "__module__", "")]
    sys.dont_write_bytecode = True
    square = torch.ones(64, 64, requires_grad=True)  # initialize the lazy parts of PyTorch before the fork
    (square @ square).softmax(0).exp().sum().backward()
    engine["codec"].unpack(engine["codec"].pack(square))
    with engine["operator_watch"].Watch(["softmax"]):
        square + square
    samples = [("sample.ipynb", b'{"cells": []}'), ("sample.py", b"def sample(): pass")]
    reading.read_answers(samples, {"sample": []}, engine["operator_watch"].forbidden_uses)
    mapped = _address_space()
    for module in ("wall", "answers"):
        del sys.modules[module]
    tools = _Tools(engine, wall, reading, makedirs)
    gc.collect()
    gc.freeze()
    _tell(control, {"ready": True})
    children: dict[int, int] = {}
    while True:
        try:
            text, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 1)
        except OSError:
            break
        if not text:
            break
        order = json.loads(text)
        if "end" in order:
            _tell(control, {"status": _end(order["end"], children, wall)})
            continue
        order["memory"] += mapped
        child = wall.fork()
        if child == 0:
            control.close()
            with contextlib.suppress(BaseException):
                _serve_part(descriptors[0], order, tools)
            os._exit(0)
        children[child] = order["user"]
        os.close(descriptors[0])
        _tell(control, {"child": child})
    for child in [*children]:
        _end(child, children, wall)


def _as_it_is(model: Any = None, **_: Any) -> Any:
    """Replacement for `torch.compile` that does not compile, because compiling would exceed the time limit."""
    return (lambda function: function) if model is None else model


def _pretend_a_place(folder: str) -> Callable[..., None]:
    """Make PyTorch believe that the folder for its files exists, and return the real `os.makedirs`.

    Some parts of PyTorch create such a folder when they are imported. Most answers that import these parts never use
    the folder, and the sandbox does not allow writing.
    """
    tempfile.tempdir = folder
    make = os.makedirs

    def makedirs(name: Any, mode: int = 0o777, exist_ok: bool = False) -> None:
        if not str(name).startswith(folder):
            make(name, mode, exist_ok)

    os.makedirs = makedirs
    return make


def _tell(control: socket.socket, message: dict[str, Any]) -> None:
    control.sendall(json.dumps(message).encode() + b"\n")


def _end(child: int, children: dict[int, int], wall: Any) -> int:
    """Stop a child and all its processes, and wait for the child. Its process id cannot be reused before that."""
    for stop in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            stop(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    wall.sweep(children.pop(child))
    return status


def _address_space() -> int:
    """Return the number of bytes already mapped, which is added to all memory limits, or 0 if it is unknown."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def _is_under(path: str, folders: list[str]) -> bool:
    return any(Path(path).resolve().is_relative_to(Path(folder).resolve()) for folder in folders)


# In the fork


@dataclass(frozen=True)
class _Tools:
    engine: dict[str, Any]
    wall: Any
    reading: Any
    makedirs: Callable[..., None]


def _serve_part(descriptor: int, order: dict[str, Any], tools: _Tools) -> None:
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)  # discard whatever it prints
    os.closerange(3, descriptor)
    os.closerange(descriptor + 1, 4096)
    channel = socket.socket(fileno=descriptor)
    os.environ.clear()
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")  # if memory runs out, the system should kill this process rather than the grader
    folder = tools.wall.give_up(order["user"], order["writes"])
    _limit(order["cpu"], order["memory"], order["writes"])
    if order["writes"]:
        tempfile.tempdir, os.makedirs = folder, tools.makedirs
    if order["reads"]:
        _read(channel, tools)
        return
    program = tools.engine["codec"].unpack(receive(channel))
    _serve(channel, program, tools.engine, tools.engine["operator_watch"].Watch(program["forbidden"]))


def _limit(cpu_seconds: int, memory: int, writes: int) -> None:
    """Set the resource limits: `memory` in mapped bytes, and `writes` in bytes per file.

    Limits that the system does not support, such as memory on macOS, are omitted.
    """
    wanted = {
        "RLIMIT_CPU": (cpu_seconds, cpu_seconds + 1),
        "RLIMIT_AS": (memory, memory),
        "RLIMIT_FSIZE": (writes, writes),
        "RLIMIT_NOFILE": (64, 64),
        "RLIMIT_NPROC": (0, 0),  # this also forbids threads; root is exempt, but code behind a wall never runs as root
        "RLIMIT_CORE": (0, 0),
        "RLIMIT_MSGQUEUE": (0, 0),
    }
    for name, pair in wanted.items():
        if hasattr(resource, name):
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(getattr(resource, name), pair)


def _read(channel: socket.socket, tools: _Tools) -> None:
    """Find the answers in a student's files. The files are untrusted, and reading them may never end."""
    order = json.loads(receive(channel))
    files = [(name, receive(channel, tools.reading.LARGEST)) for name in order["files"]]
    found: dict[str, Any] = {}
    if "bans" in order:
        uses = tools.engine["operator_watch"].forbidden_uses
        found["files"] = tools.reading.survey(files, order["bans"], order["known"], uses)
    elif "written" in order:
        try:
            found["texts"] = tools.reading.read_texts(files, order["written"])
            found["runs"] = tools.reading.read_runs(files, order["written"]) if order["runs"] else {}
        except tools.reading.Unreadable as error:
            found["unreadable"] = str(error)
    else:
        found = tools.reading.read_answers(files, order["asked"], tools.engine["operator_watch"].forbidden_uses)
    send(channel, json.dumps(found).encode())


def _serve(channel: socket.socket, program: dict[str, Any], engine: dict[str, Any], watch: Any) -> None:
    codec, outcome, results = engine["codec"], engine["call"].Outcome, engine["call"].Result
    case, in_this_process = engine["exercise"].Case, engine["call"].in_this_process

    def attempt(action: Any) -> Any:
        try:
            return action()
        except BaseException as error:  # SystemExit and KeyboardInterrupt, too
            return outcome(error=_named(error))

    def reply(found: Any) -> None:
        if watch.seen:
            found = outcome(error=("Refused", engine["operator_watch"].forbidden_fault(watch.seen[:1], seen=True)))
        if found.error and found.error[0] == "Refused":
            found = outcome(error=found.error, result=results.REFUSED)
        try:
            data = codec.pack_outcome(found)
        except Exception as error:
            data = codec.pack_outcome(outcome(error=("TypeError", f"the result cannot be packed: {error}"[:300])))
        if len(data) > LARGEST:
            data = codec.pack_outcome(outcome(error=("ValueError", f"the result takes {len(data)} bytes")))
        send(channel, data)

    def define() -> Any:
        code = compile(program["source"], NOTEBOOK, "exec")
        lines = program["source"].splitlines(keepends=True)
        # allows tracebacks and `inspect` to find the source
        linecache.cache[NOTEBOOK] = (len(program["source"]), None, lines, NOTEBOOK)
        with watch:
            exec(code, names)
        if not callable(names.get(program["name"])):
            raise TypeError(f"{program['name']} is a {type(names.get(program['name'])).__name__}; expected a function")
        return outcome()

    names: dict[str, Any] = {"__name__": "answer", "torch": sys.modules["torch"], "math": math}
    found = attempt(define)
    reply(found)
    if found.error:
        return
    call = in_this_process(names[program["name"]], watch=watch)
    while True:
        try:
            message = receive(channel)
        except EOFError:
            return
        asked, again = codec.unpack(message[:-1]), bool(message[-1])
        facts = {name: asked[name] for name in ("gradients", "layout", "room")}
        given = case("", tuple(asked["arguments"]), **facts)
        reply(attempt(lambda given=given, again=again: call(given, again)))


def _named(error: BaseException) -> tuple[str, str]:
    """Return the type and message of an exception, even if the exception's own methods fail."""
    try:
        return type(error).__name__, str(error)[:1000]
    except BaseException:
        return type(error).__name__, "(its message cannot be read)"


if __name__ == "__main__":
    main()
