"""Decode steps without kernel launches from Python: a step is recorded as a CUDA graph and replayed (lesson 10)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from companion.generation.prefill_decode import BUCKET, evaluating, prefill
from companion.layers.cache import KVCache
from companion.transformer import Memory, Transformer

Step = Callable[[Transformer, Tensor, KVCache, Memory | None], tuple[Tensor, KVCache]]


class RecordedStep:
    """A greedy decode step for the rows of a cache, which it updates in place.

    The step reads the tokens and the lengths of the rows from tensors at fixed addresses, and writes the new tokens and
    lengths to the same tensors. Attention always covers all slots of the cache, so the same recorded graph can be
    replayed for every decoding step.

    Args:
        model: The model that decodes.
        step: `companion.generation.prefill_decode.decode` or a compiled version of it.
        tokens: The last token of each row, of shape (batch,).
        cache: The cache after prefill; its bucket is the number of its slots.
    """

    def __init__(self, model: Transformer, step: Step, tokens: Int[Tensor, "batch"], cache: KVCache) -> None:
        self.model, self.step, self.tokens = model, step, tokens.clone()
        # `filled` is only an upper bound on the lengths, so the index of the last slot is valid for every step.
        self.cache = replace(cache, lengths=cache.lengths.clone(), filled=cache.bucket - 1, uniform=False)
        self.graph = self._record(tokens, cache)

    def start(self, tokens: Int[Tensor, "batch"], cache: KVCache) -> None:
        """Start a text by copying its last tokens and its cache to the fixed addresses. Their shapes must match."""
        here = (*self.cache.keys, *self.cache.values, self.cache.lengths, self.tokens)
        for old, new in zip(here, (*cache.keys, *cache.values, cache.lengths, tokens), strict=True):
            if old is not new:
                old.copy_(new)

    def advance(self) -> Int[Tensor, "batch"]:
        """Return the most probable next token of each row, (batch,), in a tensor that the next step overwrites."""
        self.graph.replay()
        return self.tokens

    def once(self) -> None:
        """Run one step without the graph."""
        logits, _ = self.step(self.model, self.tokens, self.cache, None)
        self.tokens.copy_(logits.argmax(-1))
        self.cache.lengths.add_(1)

    def _record(self, tokens: Tensor, cache: KVCache) -> torch.cuda.CUDAGraph:
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(3):  # allocation, compilation and autotuning must happen before recording
                self.start(tokens, cache)
                self.once()
        torch.cuda.current_stream().wait_stream(beside)
        self.start(tokens, cache)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.once()
        return graph


class RecordedWriter:
    """Greedy generation with a recorded step, which is reused for the next text that needs the same number of slots.

    A call takes a prompt of shape (1, token) and the number of new tokens, and returns the new tokens.
    """

    def __init__(self, model: Transformer, step: Step) -> None:
        self.model, self.step = model, step
        self._recorded: dict[tuple[int, torch.dtype], RecordedStep] = {}

    def __call__(self, prompt: Int[Tensor, "1 token"], new: int) -> list[int]:
        slots = -(-(prompt.shape[1] + new) // BUCKET) * BUCKET
        with torch.inference_mode(), evaluating(list(self.model.modules())):
            logits, cache, _ = prefill(self.model, prompt.tolist(), None, slots, bucket=slots)
            first, key = logits.argmax(-1), (slots, logits.dtype)
            if key not in self._recorded:
                self._recorded[key] = RecordedStep(self.model, self.step, first, cache)
            recorded = self._recorded[key]
            recorded.start(first, cache)
            return torch.cat([first, *(recorded.advance().clone() for _ in range(new - 1))]).tolist()
