"""Decode steps as programs on disk: compiled ahead of time once, and read by the next process without tracing anything.

A program (AOTInductor's, with a library of machine code in it) is a function of tensors alone: the weights, the stores
of the cache and what a step is given. So it serves every checkpoint of a shape, texts of any length and all buckets.
What it is made for stands in its name, see `_name`; where there is none, it is made. Steps that PyTorch cannot write
so, and those on other devices than a CPU, are compiled by `torch.compile` as they are without this file.

The folder has to be the reader's own: who can write to it can run programs as the reader.
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

TRACED = ("config", "generation", "ground", "layers")
"""The floors whose text a program may come from, beside `transformer.py`."""
KEPT_BYTES = 2**30
KEPT_DAYS = 90.0

Program = Callable[[list[Tensor]], list[Tensor]]
"""What `program_inputs` lists in, logits (batch, vocab) out; the stores of the cache are written."""

_kept: Path | None = None
"""Where `keep_programs` has said that programs are kept."""


def keep_programs() -> Path | None:
    """Let compiled programs be kept in the folder `compiled` of `companion.ground.user_files`, where the next process
    finds them: what it then waits for is neither the tracing of the step nor the compiler. PyTorch's own place is a
    temporary folder, which does not outlive the machine's next start, and keeps no more than what the compiler made.

    Where `TORCHINDUCTOR_CACHE_DIR` names another place, that is taken. Returns the folder, or `None` where it cannot be
    written to: then nothing changes.
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
    """Whether nobody else can write to the folder, as far as the system says: who can, could run programs as we."""
    told = folder.stat()
    return not hasattr(os, "getuid") or (told.st_uid == os.getuid() and not told.st_mode & 0o022)


def programs_of(model: Transformer) -> Programs | None:
    """The programs of a model; `None` unless `keep_programs` has been called."""
    return None if _kept is None else Programs(_kept, model)


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor of the model by its name, one that is shared by its first."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def program_inputs(
    weights: Mapping[str, Tensor], tokens: Int[Tensor, "batch"], cache: KVCache, memory: Memory | None
) -> list[Tensor]:
    """What a program reads, in its order."""
    # Programs see numbers as sizes only.
    reach = tokens.new_empty(cache.filled + 1)
    given = [*weights.values(), tokens, reach, cache.lengths, *cache.keys, *cache.values]
    if cache.local is not None and cache.local.gone is not None:
        given.append(cache.local.gone)
    if cache.states is not None:
        given += [*cache.states.tensors, cache.states.gone]
    if memory is not None:
        for layer in memory.layers:
            given += (layer.keys, layer.values)
        if memory.real is not None:
            given.append(memory.real)
    return given


def situation(cache: KVCache, memory: Memory | None) -> tuple[object, ...]:
    """What else decides about the operations of a step of one model, for a cache that is `rounded`."""
    local, near = cache.local, None
    if local is not None:
        visible = min(cache.slots, -(-(cache.filled + 1) // cache.bucket) * cache.bucket)
        columns = cache.keys[local.layers.index(True)].shape[2]
        near = local.gone is None, cache.filled < local.width, visible < columns
    source = None if memory is None else (memory.real is None, memory.layers[0].keys.shape[2] == 1)
    return cache.batch, cache.bucket, near, source


class _Step(nn.Module):
    """The step of a model as a function of what `program_inputs` lists."""

    def __init__(self, model: Transformer, names: list[str], cache: KVCache, memory: Memory | None) -> None:
        super().__init__()
        self.of = (model, names, cache, memory)  # in a tuple it is no part whose weights would be taken as they are

    def forward(self, given: list[Tensor]) -> Float[Tensor, "batch vocab"]:
        """The logits after one more token per row."""
        model, names, cache, memory = self.of
        rest = iter(given)
        weights = dict(zip(names, rest, strict=False))
        tokens, reach, lengths = islice(rest, 3)
        keys, values = (tuple(islice(rest, len(stores))) for stores in (cache.keys, cache.values))
        local = cache.local
        if local is not None:
            gone = None if local.gone is None else next(rest)
            columns = keys[local.layers.index(True)].shape[2] - 1
            # More room than this step reads, as there always is: how much is no matter.
            local = replace(local, columns=columns, gone=gone, slots=reach.shape[0] + cache.bucket)
        states = cache.states
        if states is not None:
            stores = list(islice(rest, len(states.tensors)))
            states = replace(states.with_tensors(stores, next(rest)), slots=reach.shape[0] + cache.bucket)
        now: dict[str, Any] = {"keys": keys, "values": values, "local": local, "states": states}
        cache = replace(cache, lengths=lengths, filled=reach.shape[0] - 1, **now)
        if memory is not None:
            layers = tuple(CrossCache(next(rest), next(rest)) for _ in memory.layers)
            memory = Memory(layers, None if memory.real is None else next(rest), ())
        asked = {"source": memory, "cache": cache}
        return torch.func.functional_call(model, weights, (tokens[:, None],), asked).logits[:, -1]


class Programs:
    """The decode steps of one model by programs of a folder, as far as there are or can be any.

    Its weights are those that it has now; they may change in place.
    """

    def __init__(self, folder: Path, model: Transformer) -> None:
        self.folder, self.model, self.weights = folder, model, named_tensors(model)
        self.found: dict[tuple[object, ...], Program | None] = {}

    def logits(
        self, tokens: Int[Tensor, "batch"], cache: KVCache, memory: Memory | None
    ) -> Float[Tensor, "batch vocab"] | None:
        """After one more token per row, for a cache that is `rounded`, whose stores are written. `None`: no program
        can do this step."""
        seen = situation(cache, memory)
        if seen not in self.found:
            self.found[seen] = self._find(tokens, cache, memory)
        program = self.found[seen]
        if program is None:
            return None
        try:
            return program(program_inputs(self.weights, tokens, cache, memory))[0]
        except RuntimeError:  # it was made for other sizes, and says so before it writes anything
            self.found[seen] = None
            return None

    def _find(self, tokens: Tensor, cache: KVCache, memory: Memory | None) -> Program | None:
        """The program of this step and all like it: read, or else made."""
        given = program_inputs(self.weights, tokens, cache, memory)
        free = _free(len(self.weights), given, cache, memory)
        if not _usual(self.model) or not all(x.device.type == "cpu" and _is_dense(x) for x in given):
            return None
        name = _name(self.model, list(self.weights), given, free, situation(cache, memory))
        file = self.folder / name / "step.pt2"
        program = _read(file)
        if program is None:
            with suppress(Exception):  # whatever PyTorch's reason is, the step can be compiled in the usual way
                _make(file, _Step(self.model, list(self.weights), cache, memory), given, free)
                program = _read(file)
        return program


def _usual(model: Transformer) -> bool:
    """Whether the model's text is what `_name` knows: nothing is hooked to it, and no part is another package's."""
    return all(
        type(module).__module__.startswith(("companion.", "torch.nn."))
        and not module._forward_hooks
        and not module._forward_pre_hooks
        for module in model.modules()
    )


def _is_dense(x: Tensor) -> bool:
    return x.permute(_order(x)).is_contiguous()


def _free(count: int, given: list[Tensor], cache: KVCache, memory: Memory | None) -> list[int | None]:
    """Which axis of each input may have any size."""
    source = memory is not None and memory.layers[0].keys.shape[2] > 1  # of a single one it is another program
    free: list[int | None] = [None] * count + [None, 0, None] + [2] * len((*cache.keys, *cache.values))
    free += [None] * (cache.local is not None and cache.local.gone is not None)
    free += [None] * (0 if cache.states is None else len(cache.states.tensors) + 1)
    if memory is not None:
        free += [2 if source else None] * (2 * len(memory.layers))
        free += [1 if source else None] * (memory.real is not None)
    assert len(free) == len(given)
    return free


def _name(
    model: Transformer, names: list[str], given: list[Tensor], free: list[int | None], seen: tuple[object, ...]
) -> str:
    """Everything that a program is made for, in a word."""
    kinds = [(name, type(module).__qualname__) for name, module in model.named_modules()]
    sizes = [
        (x.dtype, x.shape, x.stride()) if axis is None else (x.dtype, x.shape[:axis], x.shape[axis + 1 :], _order(x))
        for x, axis in zip(given, free, strict=True)
    ]
    threads = torch.get_num_threads()  # it is written into the program
    about = (_here(), threads, torch.get_default_dtype(), model.config, kinds, names, sizes, seen)
    return hashlib.sha256(repr(about).encode()).hexdigest()[:32]


def _order(x: Tensor) -> list[int]:
    """The axes as they lie in memory, the slowest first."""
    return sorted(range(x.ndim), key=x.stride, reverse=True)


@lru_cache
def _here() -> tuple[object, ...]:
    """PyTorch, the processor, and the text of what is compiled."""
    package = Path(__file__).parents[1]
    files = [package / "transformer.py", *(file for name in TRACED for file in sorted((package / name).rglob("*.py")))]
    text = hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)).hexdigest()
    told = getattr(torch.cpu, "get_capabilities", torch.backends.cpu.get_cpu_capability)()
    can = sorted(told.items()) if isinstance(told, Mapping) else told
    return torch.__version__, torch.version.git_version, platform.system(), platform.machine(), can, text


def _read(file: Path) -> Program | None:
    """The program in a file; `None` where there is none, or none that is whole. It is a zip archive without a pickle;
    PyTorch's reader of it does not compare the checksums."""
    try:
        os.utime(file.parent)  # used, so that it is not forgotten
        with ZipFile(file) as archive:
            if archive.testzip() is not None:
                return None
        # `torch._inductor.aoti_load_package` makes the same of it, but loads the compiler before.
        return torch._C._aoti.AOTIModelPackageLoader(str(file), "model", False, 1, -1).run
    except Exception:  # whatever the reason is, it is made anew
        return None


def _traced(step: nn.Module, given: list[Tensor], free: list[int | None]) -> ExportedProgram:
    """The step as one graph. Raises what PyTorch raises for what is none, such as a loop over chosen experts, and
    `ValueError` for a step with tensors in it that are not among those given."""
    from torch.export import Dim, export

    with torch.inference_mode(False), torch.no_grad():
        # What was made in inference mode cannot be traced outside it; nothing is read of it but what it is.
        likes = [torch.empty_like(x) if x.is_inference() else x for x in given]
        sizes = [None if axis is None else {axis: Dim.DYNAMIC} for axis in free]
        traced = export(
            step, (likes,), dynamic_shapes=(sizes,), strict=False, prefer_deferred_runtime_asserts_over_guards=True
        )
    if traced.constants or traced.state_dict:
        raise ValueError("a kept step held numbers of one model; expected none, because it serves all of a shape")
    return traced


def _make(file: Path, step: nn.Module, given: list[Tensor], free: list[int | None]) -> None:
    """Write the program; another process that does the same at the same time does no harm.

    Raises what PyTorch raises for a step that it cannot write as one program.
    """
    folder = file.parent
    with warnings.catch_warnings(), tempfile.TemporaryDirectory(dir=folder.parent) as made:
        warnings.simplefilter("ignore")
        traced = _traced(step, given, free)
        from torch._inductor import aoti_compile_and_package

        # To compile PyTorch's headers beforehand takes as long as six programs take longer without.
        alone = {"aot_inductor.precompile_headers": False}
        aoti_compile_and_package(traced, package_path=f"{made}/{file.name}", inductor_configs=alone)
        folder.mkdir(exist_ok=True)
        os.replace(f"{made}/{file.name}", file)
    forget(folder.parent, keep=folder, most=KEPT_BYTES, days=KEPT_DAYS)
