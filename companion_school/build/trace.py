"""Record a run: each operation's result and source line, and the arguments and results of functions and modules.

The recorded code needs no changes. Operations are intercepted with `TorchFunctionMode`, function calls with a Python
profiler, and modules with forward hooks. Values are copied immediately, so later in-place writes do not change the
record.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from companion.ground.time_limit import OutOfTime, at_most

MOST_OPERATIONS = 60_000
SECONDS = 10.0


@dataclass(frozen=True)
class Place:
    """A line of a recorded file, with its function: for example, line 23 of `attention.py`, in `attend`."""

    file: str
    function: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


Stack = tuple[Place, ...]
"""A call stack, from the outermost recorded function to the innermost."""


@dataclass(frozen=True)
class Value:
    """A value at one moment during a run.

    Attributes:
        content: A copy of the tensor, or the object itself if it is not a tensor.
        object: The `id` of the tensor, or 0.
        made: Number of the operation that computed the value, if that operation was recorded.
        used: If the value was passed as an argument, the caller's stack at that call.
        makers: If the value was assembled from several tensors, the numbers of the operations that computed them.
    """

    content: Any
    object: int = 0
    made: int | None = None
    used: Stack = ()
    makers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Operation:
    """One call of a PyTorch function.

    Attributes:
        number: Index in `Log.operations`.
        kind: Name of the function, such as "softmax".
        inputs: All tensor arguments.
        value: A copy of the result.
        stack: Call stack of the call.
        at: Time of the call, as a number of recorded events.
    """

    number: int
    kind: str
    inputs: tuple[Value, ...]
    value: Tensor
    stack: Stack
    at: int


@dataclass
class Call:
    """One call of a function or a module.

    Attributes:
        function: Qualified name of the function, or "" for a module.
        path: Name of the module in the model, or None for a function.
        given: The arguments, without `self`.
        stack: Call stack of the caller.
        start: Time when the call began, counted in recorded events.
        line: First line of the function.
        file: File of the function.
        gave: The result, if the call returned.
        end: Time when the call returned.
        left: Line from which the function returned.
    """

    function: str
    path: str | None
    given: tuple[Value, ...]
    stack: Stack
    start: int
    line: int = 0
    file: str = ""
    gave: Value | None = None
    end: int = sys.maxsize
    left: int = 0

    def part(self, index: int) -> Value | None:
        """Return one element of the result if the result is a tuple, otherwise None."""
        parts = self.gave.content if self.gave else None
        return parts[index] if isinstance(parts, tuple) and index < len(parts) else None

    def argument(self, index: int) -> Value | None:
        return self.given[index] if index < len(self.given) else None


@dataclass
class Log:
    """The record of one run.

    Attributes:
        operations: The operations, in order.
        calls: The calls of functions and modules, in order.
        marks: Values that the scene recorded under a name.
        error: The exception that ended the run, or None.
        error_at: Call stack of the exception.
    """

    operations: list[Operation] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    marks: dict[str, Value] = field(default_factory=dict)
    error: BaseException | None = None
    error_at: Stack = ()

    def module(self, path: str, within: Call | None = None, turn: int = 0) -> Call | None:
        """Return call `turn` (counted from 0) of the module with this name, inside another call if given, or None."""
        return _nth((call for call in self.calls if call.path == path), within, turn)

    def function(self, name: str, within: Call | None = None, turn: int = 0) -> Call | None:
        return _nth((call for call in self.calls if call.function == name), within, turn)

    def functions(self, name: str, within: Call | None = None) -> list[Call]:
        return [call for call in self.calls if call.function == name and _inside(call.start, within)]

    def made_in(self, within: Call | None) -> list[Operation]:
        return [operation for operation in self.operations if _inside(operation.at, within)]


def _inside(moment: int, call: Call | None) -> bool:
    return call is None or call.start <= moment <= call.end


def _nth(calls: Iterator[Call], within: Call | None, turn: int) -> Call | None:
    found = [call for call in calls if _inside(call.start, within)]
    return found[turn] if turn < len(found) else None


class Recorder(TorchFunctionMode):
    """Context manager that records a run in `log`.

    Args:
        files: Display name of each recorded file, by its path. Only functions and lines in these files are recorded.
        seconds: CPU time after which `OutOfTime` is raised.
    """

    def __init__(self, files: Mapping[str, str], seconds: float = SECONDS) -> None:
        super().__init__()
        self.log = Log()
        self._files = dict(files)
        self._until = time.process_time() + seconds
        self._now, self._busy = 0, False
        self._makers: dict[int, int] = {}
        self._alive: list[Any] = []
        self._names: dict[int, str] = {}
        self._open: list[tuple[FrameType, Call]] = []
        self._modules: list[tuple[nn.Module, Call]] = []
        self._watchers: dict[tuple[str, str], Callable[[], None]] = {}

    def watch(self, model: nn.Module, name: str = "") -> None:
        """Record the calls of a model's modules under the modules' names, prefixed with `name` if it is given."""
        for path, module in model.named_modules():
            self._names[id(module)] = ".".join(filter(None, (name, path)))
            self._alive.append(module)

    def mark(self, name: str, value: Any, made: Sequence[Tensor] = ()) -> None:
        """Record a value under a name.

        Args:
            name: Key in `Log.marks`.
            value: The value.
            made: Tensors from which the value was computed, the most recent of which determines the recorded origin.
        """
        with self.unseen():
            makers = [maker for tensor in made if (maker := self._makers.get(id(tensor))) is not None]
            kept = self._value(value)
            self.log.marks[name] = (
                replace(kept, made=max(makers, default=kept.made), makers=tuple(makers)) if made else kept
            )

    def backward(self, name: str, value: Tensor) -> None:
        """Record gradients, computed by the most recent call to `backward`, under a name."""
        steps = [step.number for step in self.log.operations if step.kind == "backward"]
        self.log.marks[name] = Value(_copy(value), 0, steps[-1] if steps else None)

    def forget(self, model: nn.Module) -> None:
        """Forget which operations computed a model's weights, because the weights have since been set from outside."""
        for weight in model.parameters():
            self._makers.pop(id(weight), None)

    def when(self, function: str, moment: str, do: Callable[[], None]) -> None:
        """Call `do` each time a recorded function is called (if `moment` is "call") or returns (if it is "return")."""
        self._watchers[function, moment] = do

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Context manager that pauses recording."""
        before, self._busy = self._busy, True
        try:
            yield
        finally:
            self._busy = before

    def __enter__(self) -> Recorder:
        super().__enter__()
        self._hooks = (register_module_forward_pre_hook(self._begins), register_module_forward_hook(self._ends))
        self._before = sys.getprofile()
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *error: Any) -> None:
        sys.setprofile(self._before)
        for hook in self._hooks:
            hook.remove()
        super().__exit__(*error)

    # Operations

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        keywords = keywords or {}
        if self._busy:
            return function(*arguments, **keywords)
        if time.process_time() > self._until or len(self.log.operations) > MOST_OPERATIONS:
            raise OutOfTime
        self._busy = True
        try:
            inputs = tuple(self._value(tensor) for tensor in _tensors((arguments, keywords)))
            made = function(*arguments, **keywords)
            kind = _kind(function)
            changed = arguments[0] if kind in ("setitem", "backward") else made
            several = not isinstance(changed, Tensor)
            for index, tensor in enumerate(_tensors(changed)):
                self._made(f"{kind}[{index}]" if several else kind, inputs, tensor)
            return made
        finally:
            self._busy = False

    def _made(self, kind: str, inputs: tuple[Value, ...], tensor: Tensor) -> None:
        number = len(self.log.operations)
        self.log.operations.append(Operation(number, kind, inputs, _copy(tensor), self._stack(), self._tick()))
        self._makers[id(tensor)] = number
        self._alive.append(tensor)

    def _value(self, value: Any) -> Value:
        if isinstance(value, Tensor):
            self._alive.append(value)
            return Value(_copy(value), id(value), self._makers.get(id(value)))
        if isinstance(value, (tuple, list)) and any(isinstance(part, Tensor) for part in value):
            return Value(tuple(self._value(part) for part in value))
        return Value(value)

    # Calls

    def _profile(self, frame: FrameType, event: str, value: Any) -> None:
        if event not in ("call", "return") or self._busy:
            return
        code = frame.f_code
        if code.co_filename not in self._files or code.co_qualname == "<module>":
            return
        if time.process_time() > self._until:
            raise OutOfTime
        self._busy = True
        try:
            if event == "call":
                self._called(frame)
            elif self._open and self._open[-1][0] is frame:
                call = self._open.pop()[1]
                call.gave, call.end, call.left = self._value(value), self._tick(), frame.f_lineno
            if watcher := self._watchers.get((code.co_qualname, event)):
                watcher()
        finally:
            self._busy = False

    def _called(self, frame: FrameType) -> None:
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        given = [self._value(frame.f_locals[name]) for name in names if name in frame.f_locals and name != "self"]
        call = Call(code.co_qualname, None, tuple(given), self._stack(frame.f_back), self._tick(), code.co_firstlineno)
        call.file = self._files.get(code.co_filename, "")
        self._open.append((frame, call))
        self.log.calls.append(call)

    def _begins(self, module: nn.Module, given: tuple[Any, ...]) -> None:
        path = self._names.get(id(module))
        if path is None or self._busy:
            return
        with self.unseen():
            call = Call("", path, tuple(map(self._value, given)), self._stack(), self._tick())
            self._modules.append((module, call))
            self.log.calls.append(call)

    def _ends(self, module: nn.Module, given: tuple[Any, ...], gave: Any) -> None:
        if self._busy:
            return
        while self._modules:  # after an exception, modules called inside this one may still be on the stack
            opened, call = self._modules.pop()
            if opened is module:
                with self.unseen():
                    call.gave, call.end = self._value(gave), self._tick()
                return

    def _stack(self, frame: FrameType | None = None) -> Stack:
        places = []
        frame = frame or sys._getframe(1)
        while frame is not None:
            if name := self._files.get(frame.f_code.co_filename):
                places.append(Place(name, frame.f_code.co_qualname, frame.f_lineno))
            frame = frame.f_back
        return tuple(reversed(places))

    def _tick(self) -> int:
        self._now += 1
        return self._now

    def failed(self, error: BaseException) -> None:
        """Record the exception that ended the run, with its call stack."""
        places, trace = [], error.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            if name := self._files.get(code.co_filename):
                places.append(Place(name, code.co_qualname, trace.tb_lineno))
            trace = trace.tb_next
        self.log.error, self.log.error_at = error, tuple(places)


def recorded(
    play: Callable[[Any, Recorder], None],
    world: Any,
    files: Mapping[str, str],
    seconds: float = SECONDS,
) -> Log:
    """Run `play` in float64, with gradients and a fixed seed, and return the record.

    An exception or a timeout ends the run and is recorded in `Log.error`.

    Args:
        play: Runs the code of a world.
        world: Passed to `play`.
        files: Display name of each recorded file, by its path.
        seconds: Time limit.
    """
    recorder = Recorder(files, seconds)
    kind = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        torch.set_default_dtype(torch.float64)
        try:
            with at_most(seconds), recorder:
                play(world, recorder)
        except (Exception, SystemExit, OutOfTime) as error:
            recorder.failed(error)
        finally:
            torch.set_default_dtype(kind)
    return recorder.log


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _tensors(part)


_SAME = {"true_divide": "div", "truediv": "div", "divide": "div", "multiply": "mul", "subtract": "sub", "iadd": "add",
         "isub": "sub", "imul": "mul", "itruediv": "div", "radd": "add", "rmul": "mul", "permute": "transpose",
         "T": "transpose", "mT": "transpose", "t": "transpose", "swapaxes": "transpose", "bmm": "matmul",
         "concat": "cat", "concatenate": "cat", "view": "reshape"}  # fmt: skip


def _kind(function: Any) -> str:
    """Return an operation's name: `softmax` for both the function and the method, `add` for both `+` and `+=`."""
    name = getattr(function, "__name__", "")
    if name == "__get__":
        name = getattr(getattr(function, "__self__", None), "__name__", name)
    name = name.strip("_")
    return _SAME.get(name, name)
