"""SmolLM2 in this library, transformers and llama.cpp: the same weights, in each format, with one thread and with two.

llama.cpp runs in a process of its own, in this Python or in the one that LLAMA_CPP_PYTHON names, if that has the
package `llama-cpp-python`. llama.cpp reads files in its own weight types, which this module writes from our weights.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.compare import OURS, Comparison, Setting, ceiling, cost_of_pass
from benchmarks.peers import load_in_transformers
from companion.costs import account
from companion.data.published_tokenizers import load_tokenizer
from companion.families.export import export_gguf
from companion.families.pretrained import load_pretrained, pretrained_folder
from companion.generation.prefill_decode import decode, prefill
from companion.ground.display import count
from companion.ground.installed import installed
from companion.quantization.weights import Weights, prepared, products_of, step_bytes
from companion.transformer import Transformer
from companion_school.study.real import PAGE

NAME = "smollm2"
FORMS: tuple[Weights, ...] = ("fp32", "fp16", "int8", "int4")
"""Formats to measure in addition to fp32, in which the weights are loaded."""
TYPES = ("F32", "F16", "Q8_0", "Q4_1")
"""Types of llama.cpp's files. With Q4_1, the embedding table is in Q8_0."""
WORKER = Path(__file__).with_name("llama_worker.py")
SLOTS = 1024


@dataclass(frozen=True)
class Contender:
    """SmolLM2 in one library and one format.

    Attributes:
        write: Function that decodes the new ids, after `read` has processed the prompt.
        bytes: Number of bytes of weights that a decode step reads.
        read: Function that reads the prompt; `None` for our formats, which read prompts with the original weights.
        nats: Function that returns the mean loss of the prompt's tokens; `None` for another library in fp32.
        products: Function that returns the seconds that the matrix products of one decode step take; only for our
            formats.
    """

    write: Callable[[], list[int]]
    bytes: int
    read: Callable[[], Any] | None = None
    nats: Callable[[], float] | None = None
    products: Callable[[], float] | None = None


def compare(
    setting: Setting, *, prompt: int = 128, new: int = 16, threads: tuple[int, ...] = (1, 2)
) -> Iterator[Comparison]:
    """Compare prefill and decoding of SmolLM2 for each number of threads.

    The remarks below the first decoding table give the loss of each format on the prompt, in nats per token.

    Raises:
        ValueError: If the model is not installed; the message says how to get it.
    """
    folder = pretrained_folder(NAME)
    ours = load_pretrained(folder).eval()
    ids = load_tokenizer(folder).encode(PAGE)[:prompt]
    python = sys.executable if importlib.util.find_spec("llama_cpp") else os.environ.get("LLAMA_CPP_PYTHON")
    before = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as made:
        files = {} if python is None else written(ours, folder, Path(made), python)
        try:
            for number in threads:
                torch.set_num_threads(number)
                yield from compare_threads(ours, folder, ids, new, setting, python, files)
        finally:
            torch.set_num_threads(before)


def written(ours: Transformer, folder: Path, made: Path, python: str) -> dict[str, Path]:
    """Write the weights to a GGUF file for each of the `TYPES` that llama.cpp can write."""
    files = {kind: made / f"{kind}.gguf" for kind in TYPES}
    export_gguf(files["F32"], ours, type="F32", tokenizer=(folder / "tokenizer.json").read_text(encoding="utf-8"))
    for kind in TYPES[1:]:
        command = [python, str(WORKER), str(files["F32"]), str(files[kind]), kind]
        if subprocess.run(command, capture_output=True).returncode:
            del files[kind]
    return files


def compare_threads(
    ours: Transformer, folder: Path, ids: list[int], new: int, setting: Setting,
    python: str | None, files: dict[str, Path],
) -> Iterator[Comparison]:  # fmt: skip
    """Compare prefill and decoding with the current number of threads.

    Args:
        ours: The model.
        folder: Its folder, which transformers loads.
        ids: The prompt.
        new: Number of new tokens.
        setting: Settings of the measurement.
        python: Path of a Python that has llama.cpp, or `None`.
        files: The model's files for llama.cpp, by type.
    """
    threads, (chip, _) = torch.get_num_threads(), ceiling(torch.float32, torch.device("cpu"))
    size = f"SmolLM2, {count(threads, 'thread')}"
    flops, _ = cost_of_pass(ours.config, len(ids), cached=0)
    _, moved = cost_of_pass(ours.config, 1, cached=len(ids))
    reading = Comparison("prefill", f"prefill, {len(ids)} tokens", size, len(ids), flops / chip.flops)
    writing = Comparison(
        "decode", f"decoding, {new} tokens after {len(ids)}", size, new, new * moved / chip.bandwidth, "memory"
    )
    with torch.inference_mode(), ExitStack() as stack:
        contenders, first = _ours(ours, ids, new)
        expected = contenders[OURS].write()

        def difference(contender: Contender, exactly: bool) -> str | None:
            if contender.read is not None:
                contender.read()
            same = contender.write() == expected or not exactly
            return None if same else "it generates different tokens from ours"

        if installed("transformers"):
            theirs = _transformers(folder, ids, first, new, contenders[OURS].bytes)
            if writing.admits("transformers", difference, theirs, True):
                contenders["transformers"] = theirs
        else:
            writing.omit("transformers", "missing", "not installed (pip install transformers)")
        if python is None:
            where = "pip install llama-cpp-python, or name a Python that has it with LLAMA_CPP_PYTHON"
            writing.omit("llama.cpp", "missing", f"not installed: {where}")
        for kind, file in files.items():
            llama, size_of_file = _llama(python or "", file, stack), file.stat().st_size
            read, nats = partial(llama, "read", ids), partial(llama, "nats", ids)
            theirs = Contender(partial(llama, "write", first, new), size_of_file, read, nats)
            if writing.admits(name := f"llama.cpp, {kind}", difference, theirs, kind == "F32"):
                contenders[name] = theirs
        if threads == 1:
            losses = {name: one.nats() for name, one in contenders.items() if one.nats is not None}
            told = ", ".join(f"{name} {nats:.4f}" for name, nats in losses.items())
            writing.remarks.append(f"nats per token of the prompt: {told}")
        # Reading comes first because it leaves the prompt in every cache, from which decoding continues.
        yield reading.time({name: one.read for name, one in contenders.items() if one.read is not None}, setting)
        writing.time({name: one.write for name, one in contenders.items()}, setting)
        shortest = {name: new * one.bytes / chip.bandwidth for name, one in contenders.items()}
        writing.rows = [replace(row, share=shortest[row.name] / row.seconds.median) for row in writing.rows]
        writing.remarks.append("shares are computed from the bytes that each format reads")
        alone = ", ".join(f"{name} {1e3 * one.products():.1f}" for name, one in contenders.items() if one.products)
        writing.remarks.append(f"milliseconds that the matrix products of one step take alone: {alone}")
        yield writing


def _llama(python: str, file: Path, stack: ExitStack) -> Callable[..., Any]:
    """Start llama.cpp in a process that ends when the stack closes, and return a function that calls its methods.

    The function raises `RuntimeError` if the process has ended.
    """
    command = [python, str(WORKER), str(file), str(torch.get_num_threads())]
    pipe, ignored = subprocess.PIPE, subprocess.DEVNULL
    process = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=ignored, text=True))
    stack.callback(process.kill)

    def ask(name: str, *arguments: Any) -> Any:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps([name, *arguments]) + "\n")
        process.stdin.flush()
        if not (line := process.stdout.readline()):
            raise RuntimeError(f"llama.cpp exited with code {process.wait()}")
        return json.loads(line)

    return ask


def _ours(ours: Transformer, ids: list[int], new: int) -> tuple[dict[str, Contender], int]:
    """Return our contenders and the first new id, which is the most probable id after the prompt."""
    logits, cache, _ = prefill(ours, [ids], None, SLOTS)
    first = logits.argmax(-1)

    def write(model: Transformer) -> list[int]:
        tokens, grown, found = first, cache, []
        for _ in range(new):
            logits, grown = decode(model, tokens, grown, None)
            tokens = logits.argmax(-1)
            found.append(int(tokens))
        return found

    def nats(model: Transformer) -> float:
        return float(F.cross_entropy(model(torch.tensor([ids])).logits[0, :-1], torch.tensor(ids[1:])))

    read = partial(prefill, ours, [ids], None, SLOTS)
    found = {
        OURS: Contender(partial(write, ours), 4 * account.parameters(ours.config).total, read, partial(nats, ours))
    }
    for form in FORMS:
        model = prepared(ours, form)
        found[f"ours, {form}"] = Contender(
            partial(write, model), step_bytes(model), None, partial(nats, model), partial(products_alone, model)
        )
    return found, int(first)


def products_alone(model: Transformer, runs: int = 5) -> float:
    """Return the seconds that the matrix products of one decode step take, in the fastest of several runs.

    The rest of a step's time goes to small operations: norms, rotations, attention over the cache, and Python.
    """
    rows = {product: torch.ones(1, 1, width) for product, width in products_of(model).items()}

    def seconds() -> float:
        start = time.perf_counter()
        for product, row in rows.items():
            product(row)
        return time.perf_counter() - start

    return min(seconds() for _ in range(runs))


def _transformers(folder: Path, ids: list[int], first: int, new: int, bytes: int) -> Contender:
    """Return transformers' model from the same folder, after it has read the prompt."""
    model = load_in_transformers(folder)

    def read() -> Any:
        return model(torch.tensor([ids]), use_cache=True, logits_to_keep=1).past_key_values

    cache = read()

    def write() -> list[int]:
        tokens: Tensor = torch.tensor([[first]])
        found: list[int] = []
        for _ in range(new):
            tokens = model(tokens, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
            found.append(int(tokens))
        cache.crop(-new)
        return found

    return Contender(write, bytes, read)
