"""Decoding steps, compiled ahead of time and saved to disk, so that later processes load them without tracing.

A program is an AOTInductor package, which contains a library of machine code. All of its arguments are tensors: the
weights, the tensors of the cache and the inputs of a step. Therefore one program works for every checkpoint of the same
shape, texts of any length and caches of any size. The name of a program encodes everything that the program depends on
(see `_name`). If there is no program with the required name yet, one is compiled. Steps that PyTorch cannot export, and
those on devices other than a CPU, are compiled by `torch.compile` as usual.

The folder must belong to the user, because anyone who can write to it can run programs as that user.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from companion.ground.user_files import forget, kept_file
from companion.layers.cache import CrossCache, KVCache
from companion.transformer import Memory, Transformer

if TYPE_CHECKING:
    from torch.export import ExportedProgram

TRACED = ("config", "generation", "ground", "layers", "quantization")
"""Subpackages whose source code a program may depend on, besides `transformer.py`."""
KEPT_BYTES = 2**30
KEPT_DAYS = 90.0

Program = Callable[[list[Tensor]], list[Tensor]]
"""A function that takes the list of `program_inputs`, writes to the tensors of the cache, and returns logits (batch,
vocab)."""

_kept: Path | None = None
"""Folder set by `keep_programs`."""


def keep_programs() -> Path | None:
    """Store compiled programs in the folder `compiled` of `companion.ground.user_files`.

    The next process finds the programs there and does not have to wait for tracing and compilation. PyTorch's own cache
    is a temporary folder, which does not survive a restart of the machine, and it stores only the compiler's output, so
    every process has to trace again.

    If `TORCHINDUCTOR_CACHE_DIR` is set, that folder is used instead.

    Returns: The folder, or `None` if it is not writable, in which case nothing changes.
    """
    global _kept
    named = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    folder = Path(named) if named else kept_file("compiled")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    if not os.access(folder, os.W_OK):
        return None
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    _kept = None
    with suppress(OSError):
        steps = folder / "steps"
        steps.mkdir(mode=0o700, exist_ok=True)
        _kept = steps if _own(steps) else None
    return folder


def _own(folder: Path) -> bool:
    """Return whether, according to the operating system, only this user can write to the folder.

    Anyone else who can write to it could run programs as this user.
    """
    told = folder.stat()
    return not hasattr(os, "getuid") or (told.st_uid == os.getuid() and not told.st_mode & 0o022)


def programs_of(model: Transformer) -> Programs | None:
    """Return the programs of a model, or `None` unless `keep_programs` has been called."""
    return None if _kept is None else Programs(_kept, model)


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the model's parameters and buffers, keyed by name; a shared tensor appears only under its first name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def program_inputs(
    weights: Mapping[str, Tensor], tokens: Int[Tensor, "batch"], cache: KVCache, memory: Memory | None
) -> list[Tensor]:
    """Return the inputs of a program, in order."""
    # A program takes only tensors, so a number is passed as a size.
    reach = tokens.new_empty(cache.filled + 1)
    given = [*weights.values(), tokens, reach, cache.lengths, *cache.keys, *cache.values]
    if cache.local is not None and cache.local.gone is not None:
        given.append(cache.local.gone)
    if cache.states is not None:
        given += [*cache.states.tensors, cache.states.gone]
    if memory is not None:
        for layer in memory.layers:
            given += (layer.keys, layer.values)
        if memory.attention_mask is not None:
            given.append(memory.attention_mask)
    return given


def situation(cache: KVCache, memory: Memory | None) -> tuple[object, ...]:
    """Return everything that determines the operations of a step with a `rounded` cache, apart from the inputs."""
    local, near = cache.local, None
    if local is not None:
        visible = min(cache.slots, -(-(cache.filled + 1) // cache.bucket) * cache.bucket)
        columns = cache.keys[local.layers.index(True)].shape[2]
        near = local.gone is None, cache.filled < local.width, visible < columns
    source = None if memory is None else (memory.attention_mask is None, memory.layers[0].keys.shape[2] == 1)
    return cache.batch, cache.bucket, near, source


class _Step(nn.Module):
    """A model's decode step as a function of the list of `program_inputs`."""

    def __init__(self, model: Transformer, names: list[str], cache: KVCache, memory: Memory | None) -> None:
        super().__init__()
        self.of = (model, names, cache, memory)  # in a tuple, so that it does not become a submodule

    def forward(self, given: list[Tensor]) -> Float[Tensor, "batch vocab"]:
        """Return the logits after one more token per row."""
        model, names, cache, memory = self.of
        rest = iter(given)
        weights = dict(zip(names, rest, strict=False))
        tokens, reach, lengths = islice(rest, 3)
        keys, values = (tuple(islice(rest, len(stores))) for stores in (cache.keys, cache.values))
        local = cache.local
        if local is not None:
            gone = None if local.gone is None else next(rest)
            columns = keys[local.layers.index(True)].shape[2] - 1
            # there is always more room than this step reads; the amount does not matter
            local = replace(local, columns=columns, gone=gone, slots=reach.shape[0] + cache.bucket)
        states = cache.states
        if states is not None:
            stores = list(islice(rest, len(states.tensors)))
            states = replace(states.with_tensors(stores, next(rest)), slots=reach.shape[0] + cache.bucket)
        now: dict[str, Any] = {"keys": keys, "values": values, "local": local, "states": states}
        cache = replace(cache, lengths=lengths, filled=reach.shape[0] - 1, **now)
        if memory is not None:
            layers = tuple(CrossCache(next(rest), next(rest)) for _ in memory.layers)
            memory = Memory(layers, None if memory.attention_mask is None else next(rest), ())
        asked = {"source": memory, "cache": cache}
        return torch.func.functional_call(model, weights, (tokens[:, None],), asked).logits[:, -1]


class Programs:
    """The decoding steps of a model, computed by the programs in a folder if they exist or can be compiled.

    The programs read the model's current tensors, whose elements may change in place.
    """

    def __init__(self, folder: Path, model: Transformer) -> None:
        self.folder, self.model, self.weights = folder, model, named_tensors(model)
        self.found: dict[tuple[object, ...], Program | None] = {}

    def logits(
        self, tokens: Int[Tensor, "batch"], cache: KVCache, memory: Memory | None
    ) -> Float[Tensor, "batch vocab"] | None:
        """Return the logits after one more token per row, or `None` if no program can compute this step.

        The cache must be `rounded`; its tensors are written to.
        """
        seen = situation(cache, memory)
        if seen not in self.found:
            self.found[seen] = self._find(tokens, cache, memory)
        program = self.found[seen]
        if program is None:
            return None
        try:
            return program(program_inputs(self.weights, tokens, cache, memory))[0]
        except RuntimeError:  # a program for other sizes raises before it writes anything
            self.found[seen] = None
            return None

    def _find(self, tokens: Tensor, cache: KVCache, memory: Memory | None) -> Program | None:
        """Load the program for this step (and all similar steps), or compile it."""
        given = program_inputs(self.weights, tokens, cache, memory)
        free = _free(len(self.weights), given, cache, memory)
        if not _usual(self.model) or not all(x.device.type == "cpu" and _is_dense(x) for x in given):
            return None
        name = _name(self.model, list(self.weights), given, free, situation(cache, memory))
        file = self.folder / name / "step.pt2"
        program = _read(file)
        if program is None:
            with suppress(Exception):  # whatever the error is, the step can still be compiled in the usual way
                _make(file, _Step(self.model, list(self.weights), cache, memory), given, free)
                program = _read(file)
        return program


def _usual(model: Transformer) -> bool:
    """Return whether `_name` determines the model's code, that is, whether the model has no hooks and no parts from
    other packages."""
    return all(
        type(module).__module__.startswith(("companion.", "torch.nn."))
        and not module._forward_hooks
        and not module._forward_pre_hooks
        for module in model.modules()
    )


def _is_dense(x: Tensor) -> bool:
    return x.permute(_order(x)).is_contiguous()


def _free(count: int, given: list[Tensor], cache: KVCache, memory: Memory | None) -> list[int | None]:
    """Return, for each input, the axis that may have any size, or `None`."""
    source = memory is not None and memory.layers[0].keys.shape[2] > 1  # a source of one token needs another program
    free: list[int | None] = [None] * count + [None, 0, None] + [2] * len((*cache.keys, *cache.values))
    free += [None] * (cache.local is not None and cache.local.gone is not None)
    free += [None] * (0 if cache.states is None else len(cache.states.tensors) + 1)
    if memory is not None:
        free += [2 if source else None] * (2 * len(memory.layers))
        free += [1 if source else None] * (memory.attention_mask is not None)
    assert len(free) == len(given)
    return free


def _name(
    model: Transformer, names: list[str], given: list[Tensor], free: list[int | None], seen: tuple[object, ...]
) -> str:
    """Return a hash of everything that a program depends on."""
    kinds = [(name, type(module).__qualname__) for name, module in model.named_modules()]
    sizes = [
        (x.dtype, x.shape, x.stride()) if axis is None else (x.dtype, x.shape[:axis], x.shape[axis + 1 :], _order(x))
        for x, axis in zip(given, free, strict=True)
    ]
    threads = torch.get_num_threads()  # the number is compiled into the program
    about = (_here(), threads, torch.get_default_dtype(), model.config, kinds, names, sizes, seen)
    return hashlib.sha256(repr(about).encode()).hexdigest()[:32]


def _order(x: Tensor) -> list[int]:
    """Return the axes in memory order, starting with the slowest."""
    return sorted(range(x.ndim), key=x.stride, reverse=True)


@lru_cache
def _here() -> tuple[object, ...]:
    """Return the version of PyTorch, the processor, and a hash of the source code that is compiled."""
    package = Path(__file__).parents[1]
    files = [package / "transformer.py", *(file for name in TRACED for file in sorted((package / name).rglob("*.py")))]
    text = hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)).hexdigest()
    told = getattr(torch.cpu, "get_capabilities", torch.backends.cpu.get_cpu_capability)()
    can = sorted(told.items()) if isinstance(told, Mapping) else told
    return torch.__version__, torch.version.git_version, platform.system(), platform.machine(), can, text


def _read(file: Path) -> Program | None:
    """Load the program in a file, or return `None` if the file is missing or damaged.

    The file is a zip archive without pickles, and PyTorch's loader does not verify its checksums.
    """
    try:
        os.utime(file.parent)  # mark the folder as used, so that it is not deleted
        with ZipFile(file) as archive:
            if archive.testzip() is not None:
                return None
        # the public function does the same, but loads the compiler first
        return torch._C._aoti.AOTIModelPackageLoader(str(file), "model", False, 1, -1).run
    except Exception:  # whatever the error is, the program is compiled again
        return None


def _traced(step: nn.Module, given: list[Tensor], free: list[int | None]) -> ExportedProgram:
    """Export the step as one graph.

    Raises PyTorch's error for a step that cannot be exported, such as a loop over chosen experts, and `ValueError` for
    a step that contains tensors other than its inputs.
    """
    from torch.export import Dim, export

    with torch.inference_mode(False), torch.no_grad():
        # Tensors created in inference mode cannot be traced outside it. Only their metadata is read, so empty ones will
        # do.
        likes = [torch.empty_like(x) if x.is_inference() else x for x in given]
        sizes = [None if axis is None else {axis: Dim.DYNAMIC} for axis in free]
        traced = export(
            step, (likes,), dynamic_shapes=(sizes,), strict=False, prefer_deferred_runtime_asserts_over_guards=True
        )
    if traced.constants or traced.state_dict:
        raise ValueError(
            "a cached step contained values specific to one model, although it is shared by all models of this shape"
        )
    return traced


def _make(file: Path, step: nn.Module, given: list[Tensor], free: list[int | None]) -> None:
    """Compile and write the program. Several processes can safely do this at the same time.

    Raises PyTorch's error for a step that cannot be compiled into one program.
    """
    folder = file.parent
    with warnings.catch_warnings(), tempfile.TemporaryDirectory(dir=folder.parent) as made:
        warnings.simplefilter("ignore")
        traced = _traced(step, given, free)
        from torch._inductor import aoti_compile_and_package

        # Precompiling PyTorch's headers takes more time than it saves over six programs.
        alone = {"aot_inductor.precompile_headers": False}
        aoti_compile_and_package(traced, package_path=f"{made}/{file.name}", inductor_configs=alone)
        folder.mkdir(exist_ok=True)
        os.replace(f"{made}/{file.name}", file)
    forget(folder.parent, keep=folder, most=KEPT_BYTES, days=KEPT_DAYS)
