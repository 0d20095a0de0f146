"""SmolLM2 here, in transformers and in llama.cpp: the same weights, in each format, with one thread and with two.

llama.cpp runs in a process of its own, in this Python or in the one that LLAMA_CPP_PYTHON names, if that has the
package `llama-cpp-python`. It reads files in its own weight types, which this module writes from our weights.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.compare import OURS, Comparison, Setting, ceiling
from companion.costs import account
from companion.families.export import export_gguf
from companion.families.pretrained import load_pretrained, pretrained_folder
from companion.generation.prefill_decode import decode, evaluating, prefill
from companion.ground.installed import installed
from companion.quantization.weights import Weights, prepared, step_bytes
from companion.transformer import Transformer

NAME = "smollm2"
FORMS: dict[str, Weights] = {"ours, fp32": "fp32", "ours, fp16": "fp16", "ours, int8": "int8", "ours, int4": "int4"}
"""Formats to measure in addition to fp32, in which the weights are loaded."""
TYPES = ("F32", "F16", "Q8_0", "Q4_1")
"""Types of llama.cpp's files. With Q4_1, the embedding table is in Q8_0."""
WORKER = Path(__file__).with_name("llama_worker.py")
SLOTS = 1024


class Llama:
    """llama.cpp in a process of its own, which ends with the `with` block."""

    def __init__(self, python: str, file: Path, threads: int) -> None:
        self.process = subprocess.Popen(
            [python, "-P", str(WORKER), str(file), str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def ask(self, name: str, *arguments: Any) -> Any:
        """Call a method of the worker.

        Raises:
            RuntimeError: If the process has ended.
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([name, *arguments]) + "\n")
        self.process.stdin.flush()
        if not (line := self.process.stdout.readline()):
            raise RuntimeError(f"llama.cpp exited with code {self.process.wait()}")
        return json.loads(line)


def llama_python() -> str | None:
    """Return the Python that has `llama_cpp`: this one, or the one that LLAMA_CPP_PYTHON names, or `None`."""
    return sys.executable if importlib.util.find_spec("llama_cpp") else os.environ.get("LLAMA_CPP_PYTHON")


def compare(
    setting: Setting, *, prompt: int = 128, new: int = 16, threads: tuple[int, ...] = (1, 2)
) -> Iterator[Comparison]:
    """Compare prefill and decoding of SmolLM2 for each number of threads.

    The first comparison's remarks say how many nats per token each format loses on the prompt.

    Raises:
        ValueError: If the model is not installed; the message says how to get it.
    """
    folder = pretrained_folder(NAME)
    ours = load_pretrained(folder).eval()
    from companion.data.published_tokenizers import load_tokenizer
    from companion_school.study.real import PAGE

    ids = load_tokenizer(folder).encode(PAGE)[:prompt]
    before = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as made:
        python = llama_python()
        files = {} if python is None else written(ours, folder, Path(made), python)
        try:
            for number in threads:
                torch.set_num_threads(number)
                yield from _with_threads(ours, folder, ids, new, setting, python, files, number)
        finally:
            torch.set_num_threads(before)


def written(ours: Transformer, folder: Path, made: Path, python: str) -> dict[str, Path]:
    """Write the weights as a GGUF file in each of the `TYPES` that llama.cpp can write."""
    files = {kind: made / f"{kind}.gguf" for kind in TYPES}
    export_gguf(files["F32"], ours, type="F32", tokenizer=(folder / "tokenizer.json").read_text(encoding="utf-8"))
    for kind in TYPES[1:]:
        command = [python, "-P", str(WORKER), str(files["F32"]), str(files[kind]), kind]
        if subprocess.run(command, capture_output=True).returncode:
            del files[kind]
    return files


def _with_threads(
    ours: Transformer, folder: Path, ids: list[int], new: int, setting: Setting,
    python: str | None, files: dict[str, Path], threads: int,
) -> Iterator[Comparison]:  # fmt: skip
    chip, _ = ceiling(torch.float32, torch.device("cpu"))
    config, size = ours.config, f"SmolLM2, {threads} thread{'s' * (threads > 1)}"
    flops = account.forward_flops(config, len(ids), cached=0, logits="last").total
    reading = Comparison("prefill", f"prefill, {len(ids)} tokens", size, len(ids), flops, flops / chip.flops)
    steps = [account.forward_flops(config, 1, cached=len(ids) + i, logits="last").total for i in range(new)]
    least = new * account.forward_bytes(config, 1, cached=len(ids)) / chip.bandwidth
    writing = Comparison("decode", f"decoding, {new} tokens after {len(ids)}", size, new, sum(steps), least, "memory")
    reads: dict[str, Callable[[], Any]] = {}
    writes: dict[str, Callable[[], Any]] = {}
    bytes = {OURS: 4 * account.parameters(config).total}
    with torch.inference_mode(), evaluating(list(ours.modules())), ExitStack() as stack:
        logits, cache, _ = prefill(ours, [ids], None, SLOTS)
        first = int(logits.argmax())
        reads[OURS] = partial(prefill, ours, [ids], None, SLOTS)
        models = {OURS: ours} | {name: prepared(ours, form) for name, form in FORMS.items()}
        for name, model in models.items():
            writes[name] = partial(_write, model, first, cache, new)
            bytes.setdefault(name, step_bytes(model))
        told = {name: _nats(model, ids) for name, model in models.items()} if threads == 1 else {}
        expected = writes[OURS]()

        def same(ids_written: list[int]) -> str | None:
            return None if ids_written == expected else "it generates different tokens from ours"

        if installed("transformers"):
            theirs = _Transformers(folder, ids, first, new)
            if writing.admits("transformers", lambda: same(theirs.write())):
                reads["transformers"], writes["transformers"] = theirs.read, theirs.write
                bytes["transformers"] = bytes[OURS]
        else:
            writing.omit("transformers", "missing", "not installed (pip install transformers)")
        if python is None:
            writing.omit(
                "llama.cpp", "missing", "not installed: pip install llama-cpp-python, or name a Python that has it "
                "with LLAMA_CPP_PYTHON",
            )  # fmt: skip
        for kind, file in files.items():
            name = f"llama.cpp, {kind}"
            llama = stack.enter_context(Llama(python or "", file, threads))

            def check(llama: Llama = llama, exactly: bool = kind == "F32") -> str | None:
                llama.ask("read", ids)
                found = llama.ask("write", first, new)
                return same(found) if exactly else None

            if writing.admits(name, check):
                if threads == 1:
                    told[name] = llama.ask("nats", ids) / (len(ids) - 1)
                    llama.ask("read", ids)
                reads[name] = partial(llama.ask, "read", ids)
                writes[name] = partial(llama.ask, "write", first, new)
                bytes[name] = file.stat().st_size
        yield reading.time(reads, setting)
        if told:
            losses = ", ".join(f"{name} {nats:.4f}" for name, nats in told.items())
            writing.remarks.append(f"nats per token of the prompt: {losses}")
        writing.time(writes, setting)
        shares = {name: new * count / chip.bandwidth for name, count in bytes.items()}
        writing.rows = [replace(row, share=shares[row.name] / row.seconds.median) for row in writing.rows]
        writing.remarks.append("shares are computed from the bytes that each format reads")
        yield writing


def _write(model: Transformer, first: int, cache: Any, new: int) -> list[int]:
    tokens, written = torch.tensor([first]), []
    for _ in range(new):
        logits, cache = decode(model, tokens, cache, None)
        tokens = logits.argmax(-1)
        written.append(int(tokens))
    return written


def _nats(model: Transformer, ids: list[int]) -> float:
    return float(F.cross_entropy(model(torch.tensor([ids])).logits[0, :-1], torch.tensor(ids[1:])))


class _Transformers:
    """transformers' model of the same folder, which has read the prompt."""

    def __init__(self, folder: Path, ids: list[int], first: int, new: int) -> None:
        import transformers

        transformers.logging.set_verbosity_error()
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.ids, self.first, self.new = torch.tensor([ids]), first, new
        self.cache = self.read()

    def read(self) -> Any:
        return self.model(self.ids, use_cache=True, logits_to_keep=1).past_key_values

    def write(self) -> list[int]:
        written: list[int] = []
        tokens: Tensor = torch.tensor([[self.first]])
        for _ in range(self.new):
            out = self.model(tokens, past_key_values=self.cache, use_cache=True)
            tokens = out.logits[:, -1:].argmax(-1)
            written.append(int(tokens))
        self.cache.crop(self.ids.shape[1])
        return written
