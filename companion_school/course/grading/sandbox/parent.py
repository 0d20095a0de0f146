"""Run an answer in another process, and accept nothing but values from it.

A `Worker` owns a process that has loaded torch (`child.py`) and forks a new process for each part of an exercise.
Messages are packed (`codec.py`). A reply that is too long, malformed or out of range ends the part, which counts as a
crash.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from companion_school.checking import codec
from companion_school.checking.call import Outcome, Result
from companion_school.checking.exercise import Case
from companion_school.course.grading import answers
from companion_school.course.grading.answers import Answer, Unreadable
from companion_school.course.grading.sandbox import child, wall

MOST_TEXT, MOST_PARTS, MOST_DEPTH, MOST_WHOLE = 500, 100_000, 20, 2**63
MOST_BYTES = 16 * 2**20
"""Maximum total size of a part's results, which are all in memory at the same time."""

T = TypeVar("T")
_START_SECONDS = 120.0
_MOST_READY = 2000
_ROOM = 4 * 2**20
"""Maximum total size in bytes of the files written by a program that may write files."""


def _ids() -> Iterator[int]:
    """Yield user ids for students' processes, with a new id for each process. Each grader starts at a different id."""
    with contextlib.suppress(OSError):
        users = wall.spare_users(Path("/proc/self/uid_map").read_text())
        begin = os.getpid() * 2**15 % len(users)
        return itertools.cycle(itertools.chain(users[begin:], users[:begin]))
    return itertools.count(1_900_000_000)


_users = _ids()


@dataclass(frozen=True)
class Limits:
    """Limits for a part of an exercise, whose cases run together in a separate process.

    Attributes:
        seconds: Time limit in seconds, from 0.1 to 3600.
        memory_gib: Memory limit in GiB, from 0.05 to 1024.

    Raises:
        ValueError: A limit is out of range.
    """

    seconds: float = 10.0
    memory_gib: float = 2.0

    def __post_init__(self) -> None:
        if not 0.1 <= self.seconds <= 3600:
            raise ValueError(f"--time {self.seconds:g}: expected 0.1 to 3600 seconds")
        if not 0.05 <= self.memory_gib <= 1024:
            raise ValueError(f"--memory {self.memory_gib:g}: expected 0.05 to 1024 GiB")


def busy() -> float:
    """Return the factor (from 1 to 4) by which time limits are extended while other processes use this machine.

    Limits are in wall-clock seconds so that they also stop an answer that sleeps, but a correct answer takes longer if
    there are more runnable processes than processors.
    """
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return min(4.0, max(1.0, load / (os.cpu_count() or 1)))


@dataclass(frozen=True)
class Program:
    """A program to run.

    Attributes:
        source: Source code of the program.
        name: Name of the function to call.
        forbidden: Operators that the program must not call.
        writes: True if the program may write files, which are deleted when its process ends.
    """

    source: str
    name: str
    forbidden: tuple[str, ...] = ()
    writes: bool = False


@dataclass(frozen=True)
class Found:
    """The result of searching a student's files for a function name.

    Attributes:
        defined: True if a cell defines this name, or starts to define it but cannot be parsed.
        answer: The program, or the reason why there is none.
        used: The forbidden names that occur in the program, or None if it cannot be parsed as a whole.
    """

    defined: bool
    answer: Answer
    used: tuple[str, ...] | None = ()


@dataclass(frozen=True)
class Surveyed:
    """The information that the grader needs about a Python file.

    Attributes:
        fault: The reason why the file is not valid Python, or an empty string.
        imports: The modules that the file imports.
        used: For each list of forbidden names, the names that the file uses.
    """

    fault: str
    imports: tuple[str, ...]
    used: tuple[tuple[str, ...], ...]


@dataclass
class Run:
    """The result of running a program: its outcomes by case index and, if it stopped early, the reason and the case."""

    outcomes: dict[int, list[Outcome]] = field(default_factory=dict)
    stopped: Outcome | None = None
    at: int | None = None


class Worker:
    """Context manager for a process that runs answers. `behind` is the sandbox to use (default: the best one available
    on this system)."""

    def __init__(self, limits: Limits, behind: wall.Wall | None = None) -> None:
        if not hasattr(os, "fork") or not hasattr(socket, "send_fds"):
            raise ValueError(
                f"companion grade: expected Linux or macOS, got {sys.platform}; run it in WSL or in a Linux container"
            )
        self.limits = limits
        self.wall = behind or wall.choose()
        self.seconds, self.received = 0.0, 0
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="companion-grade-")
        os.chmod(self._folder.name, 0o555)  # the folder is empty and must stay empty

    def __enter__(self) -> Worker:
        self._start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()
        os.chmod(self._folder.name, 0o755)
        self._folder.cleanup()

    def read(
        self, files: Sequence[tuple[str, bytes]], asked: Mapping[str, Sequence[str]]
    ) -> tuple[bool, dict[str, Found]]:
        """Find the answers in a student's files, in a separate process. The flag is True if there is no code.

        Args:
            files: The name and contents of each file.
            asked: For each requested function, the names that the answer must not use.

        Raises:
            Unreadable: A file is not a notebook, or reading needs more time or memory than the limits allow.
        """
        found = self._read(files, {"asked": {k: list(v) for k, v in asked.items()}})
        there = {}
        for name, told in found["answers"].items():
            broken = None if told["broken"] is None else _plain(told["broken"])
            answer = Answer(told["program"], broken, tuple(_plain(note) for note in told["notes"]))
            used = None if told["used"] is None else tuple(_plain(word) for word in told["used"])
            there[name] = Found(told["defined"], answer, used)
        return found["empty"], there

    def read_texts(
        self, files: Sequence[tuple[str, bytes]], lines: Sequence[str], *, runs: bool = False
    ) -> tuple[dict[str, str], dict[str, list[tuple[str, str]]]]:
        """Return a student's text below each of these lines and, if `runs` is true, the outputs and pictures beside it.

        The files are read in a separate process. Raises the same exceptions as `read`.
        """
        found = self._read(files, {"written": list(lines), "runs": runs})
        shown = {
            line: [(kind, _readable(what)) for kind, what in beside if kind == "text" or _is_picture(kind, what)]
            for line, beside in found["runs"].items()
        }
        return {line: _readable(found["texts"][line]) for line in lines}, shown

    def _read(self, files: Sequence[tuple[str, bytes]], order: Mapping[str, Any]) -> dict[str, Any]:
        header = json.dumps({"files": [name for name, _ in files], **order})
        end = time.monotonic() + self.limits.seconds * busy()

        def converse(ours: socket.socket) -> bytes:
            channel = _Timed(ours, end)
            child.send(channel, header.encode())
            for _, data in files:
                child.send(channel, data)
            return child.receive(channel)

        try:
            found = json.loads(self._in_a_fork(converse, reads=True))
        except TimeoutError:
            raise Unreadable(f"reading it takes more than {self.limits.seconds:g} seconds (--time)") from None
        except (OSError, EOFError, ValueError):
            memory = f"{self.limits.memory_gib:g} GiB (--memory)"
            raise Unreadable(f"it cannot be read within {memory}, or it contains too much code") from None
        if "unreadable" in found:
            raise Unreadable(_plain(found["unreadable"]))
        return found

    def survey(
        self, files: Mapping[str, bytes], bans: Sequence[Sequence[str]], known: Sequence[str] = ()
    ) -> dict[str, Surveyed]:
        """Return each Python file's syntax error, imports and forbidden names, keyed by file name.

        Args:
            files: The name and contents of each file.
            bans: Lists of forbidden names.
            known: Modules that the files may import, besides each other.

        Raises:
            Unreadable: The files need more time or memory than the limits allow.
        """
        found = self._read([*files.items()], {"bans": [[*names] for names in bans], "known": [*known]})["files"]
        made = {}
        for name in files:
            fault, imports, used = (found[name][key] for key in ("fault", "imports", "used"))
            words = tuple(tuple(_plain(word) for word in each) for each in used)
            made[name] = Surveyed(_plain(fault), tuple(_plain(word) for word in imports), words)
        return made

    def run(self, program: Program, cases: Sequence[Case], order: Sequence[int]) -> Run:
        """Run a program in a separate process, and call its function on the cases in the given order."""
        run = Run()

        def converse(call: Callable[[Case, bool], Outcome]) -> Run:
            left = MOST_BYTES
            for at, index in enumerate(order):
                run.at = index
                outcome = call(cases[index], index in order[:at])
                left -= self.received
                if left < 0:
                    outcome = Outcome(result=Result.CRASHED, error=("Malformed", "its results fill the memory"))
                if outcome.result not in (None, Result.MISSING):
                    run.stopped = outcome
                    return run
                run.outcomes.setdefault(index, []).append(outcome)
            return run

        try:
            return self.talk(program, converse)
        except _Undefined as undefined:
            run.stopped, run.at = undefined.outcome, None
        except (OSError, EOFError):
            run.stopped = Outcome(result=Result.CRASHED)
        return run

    def talk(self, program: Program, use: Callable[[Callable[..., Outcome]], T]) -> T:
        """Run a program in a separate process, and pass `use` a function that calls the program on a case.

        Every call returns an outcome, however it ends. Afterwards, `self.seconds` and `self.received` hold the duration
        of the call and the number of bytes received.

        Args:
            program: The program to run.
            use: Function that receives a callable. The callable takes a case, and `again` for the second call on the
                same case.

        Raises:
            ValueError: The names in the program cannot be defined.
        """
        room = _ROOM * program.writes
        return self._in_a_fork(lambda channel: self._converse(channel, program, use), writes=room)

    def _in_a_fork(self, converse: Callable[[socket.socket], T], *, reads: bool = False, writes: int = 0) -> T:
        """Exchange messages with a separate process, always end that process, and return the result."""
        ours, theirs = socket.socketpair()
        part = None
        try:
            with ours, theirs:
                try:
                    part = self._fork(theirs, reads, writes)
                except (OSError, EOFError, ValueError):  # not the student's fault, because no answer has started yet
                    self._replace()
                    part = self._fork(theirs, reads, writes)
                theirs.close()
                return converse(ours)
        finally:
            self._end(part)

    def _converse(self, channel: socket.socket, program: Program, use: Callable[[Callable[..., Outcome]], T]) -> T:
        end = time.monotonic() + self.limits.seconds * busy()

        def ask(message: bytes, case: Case | None) -> Outcome:
            begun, self.received = time.monotonic(), 0
            try:
                child.send(_Timed(channel, end), message)
                data = child.receive(_Timed(channel, end))
                self.received, self.seconds = len(data), time.monotonic() - begun
                outcome = believable(codec.unpack_outcome(data), case)
                if outcome.error and (outcome.error[0] == "MemoryError" or "allocate memory" in outcome.error[1]):
                    limit = f"it wanted more memory than the {self.limits.memory_gib:g} GiB that an answer may take"
                    outcome = replace(outcome, error=(outcome.error[0], limit))
                return outcome
            except TimeoutError:
                return Outcome(result=Result.TIMEOUT)
            except (OSError, EOFError):
                return Outcome(result=Result.CRASHED)
            except Exception:  # untrusted bytes can make the parsers raise any exception
                return Outcome(result=Result.CRASHED, error=("Malformed", "it sent something that is not a result"))

        def call(case: Case, again: bool = False) -> Outcome:
            return ask(_packed(case) + bytes([again]), case)

        told = {"source": program.source, "name": program.name, "forbidden": program.forbidden}
        defined = ask(codec.pack(told), None)
        if defined.result not in (None, Result.MISSING) or defined.error:
            raise _Undefined(defined)
        return use(call)

    # The process

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        program = [Path(child.__file__), Path(wall.__file__), Path(answers.__file__), Path(codec.__file__).parent]
        folder = "/tmp" if self.wall.name == "bubblewrap" else self._folder.name
        with theirs:
            self._process = subprocess.Popen(
                self.wall.command(program, [str(theirs.fileno()), self.wall.name, folder]),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
                | {"OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES"},
            )
        self._control = ours
        ours.settimeout(_START_SECONDS)
        try:
            self._hear()
        except (OSError, EOFError, ValueError):
            self._said.seek(0)
            said = self._said.read().decode("utf-8", "replace").strip().splitlines()
            self._stop()
            raise OSError(
                f"the process that runs submitted code did not start: {said[-1] if said else 'no message'}"
            ) from None

    def _stop(self) -> None:
        if self._process is None:
            return
        self._control.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._said.close()
        self._process = None

    def _fork(self, channel: socket.socket, reads: bool, writes: int) -> int:
        order = {
            "reads": reads,
            "writes": writes,
            "cpu": 2 * int(self.limits.seconds * busy())
            + 2,  # higher than the wall-clock limit, because programs may use several processors
            "memory": int(self.limits.memory_gib * 2**30),
            "user": next(_users),
        }
        socket.send_fds(self._control, [json.dumps(order).encode()], [channel.fileno()])
        return int(self._hear()["child"])

    def _end(self, part: int | None) -> None:
        """Stop all processes that a part left running. Replace a worker that a student may have tampered with."""
        try:
            if part is None:
                raise EOFError
            self._control.sendall(json.dumps({"end": part}).encode())
            self._hear()
        except (OSError, EOFError, ValueError):
            self._replace()

    def _replace(self) -> None:
        assert self._process is not None
        with contextlib.suppress(OSError):
            self._process.kill()
        self._stop()
        self._start()

    def _hear(self) -> Any:
        line = bytearray()
        while not line.endswith(b"\n"):
            piece = self._control.recv(4096)
            if not piece:
                raise EOFError("the worker process has ended")
            line += piece
        return json.loads(line)


_ready: dict[int, tuple[Case, bytes]] = {}


def _packed(case: Case) -> bytes:
    """Return the message that requests a call on a case. It is packed only once for all students and both calls."""
    known = _ready.get(id(case))
    if known is None or known[0] is not case:
        if len(_ready) >= _MOST_READY:
            _ready.clear()
        facts = {"gradients": case.gradients, "layout": case.layout, "room": case.room}
        known = _ready[id(case)] = case, codec.pack({"arguments": case.arguments, **facts})
    return known[1]


class _Undefined(ValueError):
    """Raised if a program fails before its function is called. `outcome` gives the reason."""

    def __init__(self, outcome: Outcome) -> None:
        kind, text = outcome.error or ("", "it exited its process" if outcome.result else "")
        super().__init__(f"{kind}: {text}" if kind else text)
        self.outcome = outcome


class _Timed:
    """A socket with a single deadline for all calls, because a student's process may send its data very slowly."""

    def __init__(self, channel: socket.socket, end: float) -> None:
        self._channel, self._end = channel, end

    def _wait(self) -> socket.socket:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._channel.settimeout(left)
        return self._channel

    def recv(self, most: int) -> bytes:
        return self._wait().recv(most)

    def sendall(self, data: bytes) -> None:
        self._wait().sendall(data)


def believable(outcome: Outcome, case: Case | None) -> Outcome:
    """Return an outcome if a process that runs a student's code may report it; otherwise raise `ValueError`.

    Such a process may report the result of a call, an answer that is not written yet, or a use of something forbidden.
    It cannot know whether an answer is right.
    """
    if outcome.result not in (None, Result.MISSING, Result.REFUSED):
        raise ValueError("a student's process cannot report this result")
    error = None if outcome.error is None else (_plain(outcome.error[0])[:80], _plain(outcome.error[1]))
    if case is None:
        return Outcome(error=error, result=outcome.result)
    if not all(0 <= index < len(case.arguments) for index in (*outcome.changed, *outcome.shared)):
        raise ValueError("there is no such argument")
    gradients = outcome.gradients if case.gradients else None
    if gradients is not None:
        tensors = (value for value in case.arguments if isinstance(value, torch.Tensor))
        floating = [tensor for tensor in tensors if tensor.is_floating_point()]
        known = all(gradient is None or isinstance(gradient, torch.Tensor) for gradient in gradients)
        if len(gradients) != len(floating) or not known:
            raise ValueError("these are not the tensors whose gradients were requested")
    _check_size([outcome.value, gradients])
    changed, shared = (tuple(sorted(set(places))) for places in (outcome.changed, outcome.shared))
    spoiled, peak = outcome.spoiled, outcome.peak
    return Outcome(outcome.value, error, gradients, changed, outcome.result, spoiled, shared, peak)


def _plain(text: str) -> str:
    """Return a student's text shortened to one line, without terminal control characters."""
    short = text[: MOST_TEXT + 1]
    shown = "".join(letter if letter.isprintable() else " " for letter in short)
    return shown if len(short) <= MOST_TEXT else shown[:-1] + " ..."


def _readable(text: str) -> str:
    """Return a student's multi-line text without terminal control characters."""
    return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in str(text))


def _is_picture(kind: str, content: str) -> bool:
    """Return True if this is an image media type with base64 data, which is safe to embed in a page."""
    return kind in answers.PICTURES and re.fullmatch(r"[A-Za-z0-9+/=\s]*", content) is not None


def _check_size(value: Any) -> None:
    left, waiting = MOST_PARTS, [(value, 0)]
    while waiting:
        item, depth = waiting.pop()
        left -= 1
        if left < 0 or depth > MOST_DEPTH:
            raise ValueError("a result has too many parts")
        if isinstance(item, dict):
            waiting += [(part, depth + 1) for pair in item.items() for part in pair]
        elif isinstance(item, (list, tuple)):
            waiting += [(part, depth + 1) for part in item]
        elif isinstance(item, torch.Tensor) and math.prod(size or 1 for size in item.shape) > child.LARGEST:
            raise ValueError("a result has an empty axis, and its other axes are too large")  # uses no memory
        elif isinstance(item, int) and abs(item) > MOST_WHOLE:
            raise ValueError("a result contains a number that is too large")
