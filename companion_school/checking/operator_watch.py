"""Find the forbidden operators that an answer uses, both while it runs and in its source text.

During a call, PyTorch's profiler records every operator at dispatch, however the answer reaches it: through functions
under any name, methods, scripted and compiled code, ATen's fused kernels, or the steps of autograd's engine. A method
called `softmax` that a student wrote is accepted, because it runs other operators.

A few forbidden names are parts of PyTorch that are written in Python and run the same operators as a right answer
(`_LIBRARY`). Calls to these parts are detected when Python enters them, whatever name the answer uses for them.

The watch runs in the same process as the answer, which can tamper with it, so it only warns readers who use a forbidden
operator by mistake. Marks depend on the source text (`forbidden_uses`), which the grader examines in another process.
"""

from __future__ import annotations

import ast
import re
import sys
import threading
from collections.abc import Collection, Mapping
from functools import lru_cache
from inspect import CO_OPTIMIZED  # A flag that code objects of functions have and those of modules and classes lack
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch._C import _profiler
from torch._C._autograd import ProfilerEvent, _disable_profiler_legacy, _enable_profiler_legacy
from torch.overrides import TorchFunctionMode

_LIBRARY = frozenset({
    "clip_grad_norm_", "clip_grad_norm", "clip_grads_with_norm_", "get_total_norm", "optim", "AdamW", "adamw",
    "MultiheadAttention", "TransformerEncoderLayer", "TransformerEncoder",
})  # fmt: skip
"""Modules, classes and functions of PyTorch that are written in Python."""

UNWATCHED = frozenset({"decode", "codecs"})
"""Names from Python's standard library that are not watched for."""

_TORCH = str(Path(torch.__file__).parent)

_AUTOGRAD = frozenset({
    "autograd", "backward", "grad", "vjp", "jvp", "jacrev", "jacobian", "func", "functorch", "requires_grad",
    "requires_grad_",
})  # fmt: skip
_ENGINE = ("autograd::engine::", "aten::_make_dual", "aten::_fw_primal")
_SHORT = {"scaled_dot_product_attention": "scaled_dot_product", "optim": "optimizer"}
_MODULE = "the module "
_MARK = "aten::empty"  # the first operator that every watch sees


class Watch:
    """Reusable context manager that records forbidden operators executed inside it.

    Args:
        forbidden: Names to detect.

    Attributes:
        seen: The forbidden operators and names detected so far; the list is complete only after the context has ended.
        measures: Whether to measure memory too.
        peak: If `measures` is true, the peak number of bytes that PyTorch allocated in the most recent context.
    """

    def __init__(self, forbidden: Collection[str]) -> None:
        watched = [name for name in forbidden if name not in UNWATCHED]
        self.seen: list[str] = []
        self._no_autograd = bool(_AUTOGRAD & {*watched})
        self._wanted = frozenset("".join(_words(_SHORT.get(name, name))) for name in watched if name not in _AUTOGRAD)
        self._names = _Names(watched, self.seen)
        self._library = frozenset(name.strip("_") for name in _LIBRARY & {*watched})
        self._has_names = bool(watched)
        self.measures = False
        self.peak = 0

    @property
    def _is_blind(self) -> bool:
        return not self._has_names and not self.measures

    def __enter__(self) -> Watch:
        if not self._is_blind:
            kind, experimental = _profiler.ProfilerState.CPU, _profiler._ExperimentalConfig()
            config = _profiler.ProfilerConfig(kind, False, self.measures, False, False, False, experimental)
            _enable_profiler_legacy(config)
            torch.empty(0)
            self._names.__enter__()
            self._before = threading.getprofile(), sys.getprofile()
            threading.setprofile(self._begins)
            self._hook = self._enters  # stored, because each access to the method creates a new object
            if self._library:
                sys.setprofile(self._hook)
        return self

    def __exit__(self, *error: Any) -> None:
        if self._is_blind:
            return
        threading.setprofile(self._before[0])
        if self._library:
            if sys.getprofile() is not self._hook:
                self.seen.append("something that stops the recording of Python calls")
            sys.setprofile(self._before[1])
        self._names.__exit__(*error)
        try:
            threads = _disable_profiler_legacy()
        except RuntimeError:
            threads = []
        begun = (event.name() for events in threads for event in events if event.kind() == "push")
        if next(begun, None) != _MARK:
            self.seen.append("something that stops PyTorch's recording of operators")
        # There are thousands of events, so read only their names. The end of an operator has no name.
        names = dict.fromkeys(name for events in threads for name in map(ProfilerEvent.name, events))
        self.seen += [_short(name) for name in names if self._is_forbidden(name)]
        self.peak = _peak(threads) if self.measures else 0

    def _begins(self, *event: Any) -> None:
        """Start watching for names in a new thread of the answer, in which PyTorch does not record operators."""
        sys.setprofile(self._hook if self._library else None)
        self._names.another().__enter__()

    def _enters(self, frame: Any, event: str, _: Any) -> None:
        """Profile hook that records when Python enters a forbidden function of PyTorch."""
        code = frame.f_code
        if event == "call" and code.co_flags & CO_OPTIMIZED and code.co_filename.startswith(_TORCH):
            self.seen += sorted(_parts(code.co_filename, code.co_qualname) & self._library)

    def _is_forbidden(self, event: str) -> bool:
        if self._no_autograd and (event.startswith(_ENGINE) or "backward" in _said(event)):
            return True
        return not self._wanted.isdisjoint(_said(event))


class _Names(TorchFunctionMode):
    """Detect calls to overridable PyTorch functions by name."""

    def __init__(self, watched: Collection[str], seen: list[str]) -> None:
        super().__init__()
        self._watched, self._seen = {*watched} - _AUTOGRAD, seen

    def another(self) -> _Names:
        """Return a copy for another thread that adds to the same list."""
        return _Names(self._watched, self._seen)

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        name = str(getattr(function, "__name__", ""))
        if _bare(name) in self._watched:
            self._seen.append(name.split(".")[0])
        return function(*arguments, **(keywords or {}))


@lru_cache(maxsize=4096)
def _bare(name: str) -> str:
    """Return the bare name of a function: "softmax" for `_softmax.default`."""
    return name.split(".")[0].strip("_")


@lru_cache(maxsize=4096)
def _parts(file: str, function: str) -> frozenset[str]:
    """Return the names of a PyTorch function, its class, its module, and the folders that contain the module."""
    names = *function.split("."), *Path(file[len(_TORCH) :]).with_suffix("").parts
    return frozenset(name.strip("_") for name in names)


def _peak(threads: Any) -> int:
    """Return the peak number of allocated bytes per thread, summed over all threads."""
    sizes = ([event.cpu_memory_usage() for event in events if event.kind() == "memory_alloc"] for events in threads)
    return sum(max(accumulate(of_thread), default=0) for of_thread in sizes)


def _short(event: str) -> str:
    return "autograd" if event.startswith(_ENGINE) else event.removeprefix("aten::")


# Look it up now, because an answer runs in the same process and could replace the functions of `re`
_at_capitals = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])").sub
_parts_of_words = re.compile(r"[a-z0-9]+").findall


def _words(name: str) -> list[str]:
    """Split a name into lower-case words: `_safe_softmax` into safe and softmax, `RMSNorm` into rms and norm."""
    return _parts_of_words(_at_capitals("_", name).lower())


@lru_cache(maxsize=4096)
def _said(event: str) -> frozenset[str]:
    """Return all words in an operator's name, and all concatenations of consecutive words."""
    words = _words(event.partition("::")[2] or event.partition("#")[0])
    ends = range(1, len(words) + 1)
    return frozenset("".join(words[start:end]) for end in ends for start in range(end))


# Source text

_COURSE = frozenset({"companion", "companion_school"})
_TRANSFORMERS = frozenset({
    "TransformerEncoder", "TransformerEncoderLayer", "TransformerDecoder", "TransformerDecoderLayer",
})  # fmt: skip
_SAME: dict[str, frozenset[str]] = {
    "softmax": frozenset({
        "softmin", "Categorical", "OneHotCategorical", "cross_entropy", "CrossEntropyLoss", "MultiheadAttention",
        "multi_head_attention_forward", "scaled_dot_product_attention", "Softmax2d", *_TRANSFORMERS,
    }),
    "scaled_dot_product_attention": frozenset({"MultiheadAttention", "multi_head_attention_forward", *_TRANSFORMERS}),
    "backward": _AUTOGRAD - {"grad", "requires_grad", "requires_grad_"},
}  # fmt: skip
"""For each forbidden name, other names with the same effect."""

_VEILS = frozenset({
    "__import__", "import_module", "getattr", "globals", "locals", "vars", "builtins", "ctypes", "gc", "importlib",
    "inspect", "marshal", "pickle", "runpy", "pkgutil", "attrgetter", "methodcaller", "fx", "jit", "ops", "overrides",
    "library", "settrace", "setprofile", "f_back", "f_locals", "f_globals", "tb_frame", "gi_frame", "cr_frame",
    "ag_frame", "__dict__", "__builtins__", "__globals__", "__getattr__", "__getattribute__", "__subclasses__",
    "__code__", "__traceback__", "__loader__", "__spec__", "Formatter", "get_type_hints", "ForwardRef", "wraps",
    "update_wrapper", "FunctionType", "LambdaType", "CodeType", "torch.load", "numpy.load", "singledispatch",
    "singledispatchmethod", "sys.modules",
})  # fmt: skip
"""Names through which code can reach the check itself or look up names that are not in its text."""
_BUILT_IN = frozenset({"eval", "exec", "compile", "help", "breakpoint"})
"""Further such names, unless they are methods (`model.eval`, `re.compile`)."""
_HIDING = _VEILS | _BUILT_IN | {"*", "modules"}
_DUNDERS = frozenset({
    "__init__", "__new__", "__call__", "__class__", "__name__", "__qualname__", "__doc__", "__post_init__",
    "__version__", "__len__", "__iter__", "__next__", "__getitem__", "__setitem__", "__contains__", "__enter__",
    "__exit__", "__add__", "__sub__", "__mul__", "__truediv__", "__floordiv__", "__mod__", "__pow__", "__matmul__",
    "__neg__", "__abs__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__and__", "__or__", "__xor__",
    "__invert__", "__hash__", "__bool__", "__repr__", "__str__", "__slots__", "__all__",
})  # fmt: skip
"""Names with double underscores that are harmless, because nothing else can be reached through them."""
_MODULES = frozenset({
    "IPython.display", "__future__", "abc", "atexit", "bisect", "cmath", "collections", "collections.abc",
    "contextlib", "copy", "dataclasses", "decimal", "einops", "enum", "fractions", "functools", "heapq",
    "huggingface_hub", "itertools", "json", "math", "matplotlib", "matplotlib.pyplot", "numbers", "numpy",
    "numpy.linalg", "operator", "os", "os.path", "pathlib", "random", "re", "safetensors", "safetensors.torch",
    "statistics", "string", "sys", "textwrap", "time", "tokenizers", "tokenizers.pre_tokenizers", "tqdm",
    "tqdm.auto", "tqdm.notebook", "typing", "typing_extensions", "unicodedata", "warnings", "torch", "torch.amp",
    "torch.autograd", "torch.autograd.functional", "torch.cuda", "torch.fft", "torch.func", "torch.linalg",
    "torch.nn", "torch.nn.functional", "torch.nn.init", "torch.nn.parameter", "torch.nn.utils", "torch.optim",
    "torch.optim.lr_scheduler", "torch.random", "torch.special", "torch.utils", "torch.utils.checkpoint",
    "torch.utils.data",
})  # fmt: skip
"""The modules that an answer may use if any name is forbidden. All other modules offer too many ways to look a name up:
`pydoc.locate("torch.soft" + "max")`, `timeit`, tables of operators in PyTorch's private parts."""
_ONLY = {
    "sys": frozenset({
        "argv", "exit", "stdout", "stderr", "stdin", "maxsize", "float_info", "int_info", "byteorder", "version",
        "version_info", "platform", "getsizeof", "getrecursionlimit", "setrecursionlimit", "intern",
    }),
    "dataclasses": frozenset({"dataclass", "field", "replace", "asdict", "is_dataclass", "KW_ONLY", "InitVar"}),
}  # fmt: skip
"""The only parts of these modules that such an answer may use: `sys.meta_path` runs files of PyTorch again, and
`dataclasses.fields` reads attributes whose names were computed."""
_PATTERNS = frozenset({
    "bool", "bytearray", "bytes", "dict", "float", "frozenset", "int", "list", "set", "str", "tuple",
})  # fmt: skip
"""The classes whose patterns in `match` may have positional parts. Such patterns of other classes read computed
names."""


def forbidden_uses(source: str, forbidden: Collection[str], beside: Collection[str] = ()) -> list[str]:
    """Find the forbidden names that code uses, and `companion` if it uses the course's packages.

    A name counts as used if it is an attribute (`x.softmax`), is imported (under any alias), is read but not defined in
    the code, is an attribute in a `match` pattern, or is the string in `getattr(torch, "softmax")`. A name also counts
    as used if it is part of another name (`log_softmax`) that the code does not define. Other names for the same
    operators count too (`_SAME`). If any name is forbidden, so are all ways to hide a name: `getattr` with a computed
    name, `exec`, frames, `import *`, private parts of a module, and modules that are not in `_MODULES`.

    Args:
        source: Python source code.
        forbidden: The forbidden names.
        beside: Names of the modules that were handed in with this code.

    Returns:
        The names that were found, sorted.

    Raises:
        SyntaxError: The source is not valid Python.
    """
    tree = ast.parse(source)
    wanted = {*forbidden}.union(*(_SAME.get(name, ()) for name in forbidden))
    nodes = [*ast.walk(tree)]
    own, defined, given = _own_names(nodes)
    said: set[str] = set()
    plain: set[str] = set()
    private: set[str] = set()
    hidden: set[str] = set()
    spelled: set[int] = set()  # calls of getattr with a literal name
    for node in nodes:
        match node:
            case ast.Call(func=ast.Name(id="getattr") as called, args=[_, ast.Constant(value=str(name)), *_]):
                spelled.add(id(called))
                said.add(name)
                private |= {name} - given
            case ast.Name(id=name) if name not in own and id(node) not in spelled:
                said.add(name)
                plain |= {name} & _BUILT_IN
            case ast.Attribute(attr=name):
                said.add(name)
                private |= {name} - given
            case ast.MatchClass(cls=known, patterns=unnamed, kwd_attrs=names):
                said |= {*names}
                private |= {*names} - given
                if unnamed and not (isinstance(known, ast.Name) and known.id in _PATTERNS - own):
                    hidden.add("a class pattern without the names of attributes")
            case ast.Call(func=ast.Name(id="type"), args=[_, _, *_]):
                hidden.add("type with three arguments")
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                module = getattr(node, "module", None) or ""
                said |= {part for part in (*module.split("."), *(p for one in names for p in one.name.split(".")))}
                private |= {one.name for one in names if not isinstance(node, ast.Import)}
    found = {"companion"} if said & _COURSE else set()
    found |= {name for name in said for other in wanted if _is_same(name, other, name not in given)}
    if forbidden:
        found |= plain | (said & (_VEILS | {"*"}))
        found |= {name for name in private if name.startswith("_") and name not in _DUNDERS}
        found |= {name for name in said | given if name.startswith("__") and name.endswith("__")} - _DUNDERS - defined
        found |= hidden | _hidden_modules(nodes, {*beside} | _COURSE)
    return sorted(found)


def _own_names(nodes: Collection[ast.AST]) -> tuple[set[str], set[str], set[str]]:
    """Return the names that code assigns, those of its functions and classes, and all assigned names and attributes."""
    defined = {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    own = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)} | defined
    own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    given = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    return own, defined, given | own


def _hidden_modules(nodes: Collection[ast.AST], beside: Collection[str]) -> set[str]:
    """Find uses of modules that can hide a name: modules outside `_MODULES`, and PyTorch or `sys` used as a value."""
    # Full names of modules, by their names in the code; these two need no import
    known = {"torch": "torch", "math": "math"}
    used: list[str] = []
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            used += [one.name for one in node.names]
            known |= {one.asname or one.name.partition(".")[0]: _bound_module(one) for one in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            used.append(node.module or "")
            inner = {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
            used += [path for path in inner.values() if _module_at(path) is not None]
            known |= inner
            found |= {path for path in inner.values() if not _is_known_part(path)}
    inside: set[int] = set()  # parts of a longer dotted name, or of an assignment of a module to a name
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            inside |= {*map(id, node.args[:1])}
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            path = _path(node.value, known)
            if path and _module_at(path) is not None:
                known[node.targets[0].id] = path
                inside |= {*map(id, ast.walk(node.value))}
                used.append(path)
    for node in nodes:
        if not isinstance(node, (ast.Attribute, ast.Name)) or id(node) in inside or not (path := _path(node, known)):
            continue  # `ast.walk` visits a whole dotted name before its parts
        inside |= {id(part) for part in ast.walk(node) if part is not node}
        parts = path.split(".")
        used += [other for end in range(1, len(parts)) if _module_at(other := ".".join(parts[: end + 1])) is not None]
        if isinstance(node.ctx, ast.Load) and parts[0] in ("torch", "sys") and _module_at(path) is not None:
            found.add(f"the module {path} as a value")
        if not _is_known_part(path):
            found.add(path)
    wrong = {path for path in used if path not in _MODULES and path.partition(".")[0] not in beside}
    return found | {f"{_MODULE}{path}" for path in wrong if path}


def _is_known_part(path: str) -> bool:
    """Return False for a part of a module that can look up names or contains attention."""
    module, _, rest = path.partition(".")
    if path in ("torch.load", "numpy.load", "torch.nn.Transformer"):
        return False
    return not rest or module not in _ONLY or rest.partition(".")[0] in _ONLY[module]


def _bound_module(alias: ast.alias) -> str:
    return alias.name if alias.asname else alias.name.partition(".")[0]


def _path(node: ast.AST, known: Mapping[str, str]) -> str:
    """Return the dotted name that an expression such as `nn.functional.relu` consists of, or "" if it is not a name."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([known[node.id], *reversed(names)]) if isinstance(node, ast.Name) and node.id in known else ""


@lru_cache(maxsize=4096)
def _module_at(path: str) -> ModuleType | None:
    """Return the module with this full name if it can be reached from modules that an answer may use, or None."""
    root, *names = path.split(".")
    if path in _MODULES or root not in _MODULES:
        return sys.modules.get(path)
    here: Any = sys.modules.get(root)
    for name in names:
        if not isinstance(here, ModuleType):
            return None
        here = sys.modules.get(f"{here.__name__}.{name}") or getattr(here, name, None)
    return here if isinstance(here, ModuleType) else None


@lru_cache(maxsize=16384)
def _is_same(name: str, forbidden: str, in_part: bool) -> bool:
    """Return True if a name is the forbidden name or, with `in_part`, contains it as whole words."""
    if name.strip("_") == forbidden.strip("_"):
        return True
    if not in_part or forbidden in _AUTOGRAD or forbidden in UNWATCHED:
        return False
    wanted = "".join(_words(forbidden))
    return wanted in (_said(f"::{name}") if len(wanted) > 4 else _words(name))


def forbidden_fault(used: Collection[str], *, seen: bool = False) -> str:
    """Return the message for an answer that uses forbidden names.

    Args:
        used: The names.
        seen: True if the names were called while the answer ran; they may then be missing from its text.
    """
    names = [name for name in used if name not in _HIDING and not name.startswith("_") and " " not in name]
    if names or not used:
        how = " (perhaps inside another function that it calls)" if seen else ""
        return f"it uses {', '.join(names)}{how}, which the exercise asks you to do without"
    modules = [name.removeprefix(_MODULE) for name in used if name.startswith(_MODULE) and name.count(" ") == 2]
    if len(modules) == len(used):
        return (
            f"it imports {', '.join(modules)}; where operators are forbidden, an answer may only import the public "
            "parts of PyTorch, numpy and everyday modules of Python"
        )
    return (
        f"it uses {', '.join(used)}; where an exercise forbids operators, every name has to appear in the text of the "
        "answer, so nothing that looks a name up in another way is accepted"
    )
