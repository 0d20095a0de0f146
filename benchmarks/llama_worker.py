"""llama.cpp in a process of its own, through `llama-cpp-python`: it reads, generates and scores tokens on request.

    python llama_worker.py FILE.gguf THREADS         answers lines of JSON with lines of JSON
    python llama_worker.py FILE.gguf OUT.gguf TYPE   writes the file in another type

Any Python (3.11 or newer) with `llama_cpp` can run this file, because it does not import this project.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

import llama_cpp as llama
import numpy as np


class Worker:
    """A model and its context, whose memory contains the prompt that was read last."""

    def __init__(self, file: str, threads: int) -> None:
        llama.llama_backend_init()
        model = llama.llama_model_load_from_file(file.encode(), llama.llama_model_default_params())
        given = llama.llama_context_default_params()
        given.n_ctx, given.n_batch, given.n_ubatch = 1024, 512, 512
        given.n_threads = given.n_threads_batch = threads
        self.context: Any = llama.llama_init_from_model(model, given)
        self.memory = llama.llama_get_memory(self.context)
        self.vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
        self.held = 0

    def read(self, ids: list[int]) -> int:
        """Read a prompt into an empty memory, and return the most probable next id."""
        llama.llama_memory_clear(self.memory, True)
        self.held = len(ids)
        return self._next(ids)

    def write(self, first: int, new: int) -> list[int]:
        """Decode greedily: return `new` ids that follow the prompt and the id `first`, and remove them from memory."""
        written, token = [], first
        for _ in range(new):
            written.append(token := self._next([token]))
        llama.llama_memory_seq_rm(self.memory, 0, self.held, -1)
        return written

    def nats(self, ids: list[int]) -> float:
        """Return the mean of -ln p over all ids after the first."""
        llama.llama_memory_clear(self.memory, True)
        batch = llama.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, True
            batch.seq_id[i][0] = 0
        self._decode(batch)
        scores = np.stack([self._logits(i) for i in range(len(ids) - 1)])
        llama.llama_batch_free(batch)
        return float((np.logaddexp.reduce(scores, axis=-1) - scores[range(len(scores)), ids[1:]]).mean())

    def _next(self, ids: list[int]) -> int:
        tokens = (ctypes.c_int32 * len(ids))(*ids)  # must live as long as the batch, which stores only its address
        self._decode(llama.llama_batch_get_one(tokens, len(ids)))
        return int(self._logits(-1).argmax())

    def _decode(self, batch: Any) -> None:
        if code := llama.llama_decode(self.context, batch):
            raise RuntimeError(f"llama_decode returned {code}")

    def _logits(self, place: int) -> Any:
        found = llama.llama_get_logits_ith(self.context, place)
        return np.ctypeslib.as_array(found, shape=(self.vocab,)).astype(float)


def quantize(file: str, out: str, kind: str) -> int:
    """Convert a GGUF file to another type, such as `Q8_0`, and return llama.cpp's exit code."""
    given = llama.llama_model_quantize_default_params()
    given.ftype = getattr(llama, f"LLAMA_FTYPE_MOSTLY_{kind}")
    return int(llama.llama_model_quantize(file.encode(), out.encode(), given))


if __name__ == "__main__":
    if len(sys.argv) > 3:
        sys.exit(quantize(*sys.argv[1:]))
    worker = Worker(sys.argv[1], int(sys.argv[2]))
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(worker, name)(*arguments)), flush=True)
