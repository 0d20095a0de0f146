"""Decode steps without kernel launches from Python: recorded once as a CUDA graph, then replayed (lesson 10)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from companion.generation.prefill_decode import BUCKET, decode, evaluating, prefill
from companion.layers.cache import KVCache
from companion.transformer import Memory, Transformer

Step = Callable[[Transformer, Tensor, KVCache, Memory | None], tuple[Tensor, KVCache]]


class RecordedDecode:
    """Greedy decode steps for the rows of one cache, which is written in place.

    A step reads its tokens and the lengths of the rows from tensors at fixed addresses and writes the next ones to the
    same tensors, so it can be replayed as it was recorded. Shapes change only with the number of slots that attention
    sees. There is one graph for each bucket of slots (`cache.bucket`), recorded when it is first needed.

    Args:
        model: The model that decodes.
        tokens: The last token of each row, of shape (batch,).
        cache: The cache after prefill.
        step: `decode` or a compiled version of it.
    """

    def __init__(self, model: Transformer, tokens: Int[Tensor, "batch"], cache: KVCache, step: Step = decode) -> None:
        self.model, self.step = model, step
        self.tokens, self.lengths = tokens.clone(), cache.lengths.clone()
        self.cache, self.filled = cache, cache.filled
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def start(self, tokens: Int[Tensor, "batch"], cache: KVCache) -> None:
        """Start another text with the existing graphs by copying in its `cache`, which must have the same shapes."""
        kept, new = (*self.cache.keys, *self.cache.values), (*cache.keys, *cache.values)
        for here, there in zip(kept, new, strict=True):
            if here is not there:
                here.copy_(there)
        self._restore(tokens, cache.lengths)
        self.filled = cache.filled

    def advance(self) -> Int[Tensor, "batch"]:
        """Return the most probable next token of each row, (batch,), in a tensor that the next step overwrites."""
        bucket = self.cache.bucket
        last = -(-(self.filled + 1) // bucket) * bucket - 1
        if last not in self._graphs:
            self._graphs[last] = self._record(last)
        self._graphs[last].replay()
        self.filled += 1
        return self.tokens

    def _once(self, last: int) -> None:
        # `filled` is only an upper bound on the lengths, so the last slot of the bucket is a valid value.
        seen = replace(self.cache, lengths=self.lengths, filled=last, uniform=False)
        logits, _ = self.step(self.model, self.tokens, seen, None)
        self.tokens.copy_(logits.argmax(-1))
        self.lengths.add_(1)

    def _record(self, last: int) -> torch.cuda.CUDAGraph:
        tokens, lengths = self.tokens.clone(), self.lengths.clone()
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self._graphs.values())).pool() if self._graphs else None
        with torch.inference_mode():
            beside = torch.cuda.Stream()
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                for _ in range(3):  # warm up: allocation, compilation and autotuning must happen before recording
                    self._restore(tokens, lengths)
                    self._once(last)
            torch.cuda.current_stream().wait_stream(beside)
            self._restore(tokens, lengths)
            with torch.cuda.graph(graph, pool=pool):
                self._once(last)
            # recording runs no kernels, but it does not guarantee that the inputs are unchanged
            self._restore(tokens, lengths)
        return graph

    def _restore(self, tokens: Tensor, lengths: Tensor) -> None:
        self.tokens.copy_(tokens)
        self.lengths.copy_(lengths)


class RecordedWriter:
    """Greedy generation with recorded steps.

    A call takes a prompt of shape (1, token) and the number of new tokens, and returns the new tokens. All steps of a
    text see all slots, so one graph serves them all. The graph is cached for the next text with the same number of
    slots.
    """

    def __init__(self, model: Transformer, step: Step) -> None:
        self.model, self.step = model, step
        self._recorded: dict[tuple[int, torch.dtype], RecordedDecode] = {}

    def __call__(self, prompt: Int[Tensor, "1 token"], new: int) -> list[int]:
        slots = -(-(prompt.shape[1] + new) // BUCKET) * BUCKET
        with torch.inference_mode(), evaluating(list(self.model.modules())):
            logits, cache, _ = prefill(self.model, prompt.tolist(), None, slots, bucket=slots)
            first = logits.argmax(-1)
            key = slots, logits.dtype
            if key not in self._recorded:
                self._recorded[key] = RecordedDecode(self.model, first, cache, self.step)
            recorded = self._recorded[key]
            recorded.start(first, cache)
            return torch.cat([first.clone()] + [recorded.advance().clone() for _ in range(new - 1)]).tolist()
