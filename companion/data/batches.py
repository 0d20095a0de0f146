"""Windows of token ids for training and evaluation.

A training batch depends only on (seed, step). A run that is killed and resumed at step 300 therefore sees exactly the
batch that it would have seen, without any saved state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from companion.data.corpora import Document
from companion.ground.fields import require_whole, shown
from companion.ground.padding import padded

IGNORE = -100
"""Target of a position that is not scored."""


@runtime_checkable
class Encoder(Protocol):
    """A function from text to ids, such as a `BytePairTokenizer`.

    `BytePairTokenizer` is not imported here, because batches need no tokenizer library.

    Attributes:
        separator: the id that precedes every document.
    """

    separator: int

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        ...


def encode_documents(tokenizer: Encoder, documents: Sequence[Document]) -> list[Int[Tensor, " _token"]]:
    """Encode each document with the separator first, because the model predicts the document's first token from it."""
    return [torch.tensor([tokenizer.separator, *tokenizer.encode(document.text)]) for document in documents]


def require_a_window(documents: Sequence[Int[Tensor, " _token"]], context: int) -> None:
    """Raise `ValueError` unless the documents together fill at least one window of `context` tokens."""
    if (tokens := sum(len(ids) for ids in documents)) < context:
        raise ValueError(
            f"context={context}: expected at most {tokens}, the number of training tokens; "
            "use a shorter context or more text"
        )


class TrainingBatches:
    """Training batches of windows over concatenated documents.

    The documents form a ring, in which each document follows its separator and the first document follows the last. An
    epoch starts at a random position of the ring, cuts it into windows that do not overlap, and shuffles them. In one
    epoch, each token is therefore a target at most once. A remainder shorter than a window is left out; its position
    differs from epoch to epoch.

    Args:
        documents: ids of each document, beginning with its separator.
        context: number of tokens that a window predicts.
        batch: windows per batch.
        seed: seed of the random order.

    Attributes:
        tokens: the ids of all documents, (token,).
        windows: windows per epoch.

    Raises:
        ValueError: if the documents do not fill a single window.
    """

    def __init__(self, documents: Sequence[Int[Tensor, " _token"]], *, context: int, batch: int, seed: int) -> None:
        for name, size in (("context", context), ("batch", batch)):
            require_whole(name, size)
        self.tokens = torch.cat(list(documents))
        self.context, self.batch, self.seed = context, batch, seed
        self.windows = len(self.tokens) // context
        require_a_window(documents, context)
        self._epoch = lru_cache(maxsize=2)(self._shuffled)

    def __call__(self, step: int) -> tuple[Int[Tensor, "batch token"], Int[Tensor, "batch token"]]:
        """Return the inputs and targets of batch number `step`; each target is the token after its input."""
        starts = torch.tensor([self._start(step * self.batch + i) for i in range(self.batch)])
        places = (starts[:, None] + torch.arange(self.context + 1)) % len(self.tokens)
        window = self.tokens[places]
        return window[:, :-1], window[:, 1:]

    def epochs(self, steps: int) -> float:
        """Return how many times `steps` batches pass through the text."""
        return steps * self.batch / self.windows

    def _start(self, number: int) -> int:
        epoch, place = divmod(number, self.windows)
        return int(self._epoch(epoch)[place])

    def _shuffled(self, epoch: int) -> np.ndarray:
        random = np.random.default_rng((self.seed, epoch))
        first = int(random.integers(len(self.tokens)))
        return (first + self.context * random.permutation(self.windows)) % len(self.tokens)


class EvaluationBatches:
    """Evaluation windows, which together score every token of every document exactly once.

    Each document is scored separately, starting with its separator. If the document is longer than the context, the
    window advances by `stride` tokens at a time and only its new tokens are scored, so that every later token is
    predicted from at least `context - stride` tokens before it. A smaller stride gives tokens more context, but
    multiplies the cost by `context / stride`.

    Args:
        documents: ids of each document, with its separator.
        context: maximum number of tokens in a window.
        stride: number of tokens scored in each window of a document after its first window (default: half of the
        context).
        batch: windows per batch. Short windows are padded on the right, where a causal model does not see the padding.

    Raises:
        ValueError: if the stride is not between 1 and the context.
    """

    def __init__(
        self, documents: Sequence[Int[Tensor, " _token"]], *, context: int, stride: int | None = None, batch: int = 32
    ) -> None:
        for name, size in (("context", context), ("batch", batch)):
            require_whole(name, size)
        stride = max(1, context // 2) if stride is None else stride
        if not isinstance(stride, int) or not 1 <= stride <= context:
            raise ValueError(f"stride={shown(stride)}: expected a whole number from 1 to context={context}")
        self.documents, self.context, self.stride, self.batch = list(documents), context, stride, batch
        self._spans = [span for i, ids in enumerate(self.documents) for span in self._cut(i, len(ids) - 1)]
        # Windows of similar length share a batch, so that less padding is needed. Sorting is stable, so the order is
        # fixed.
        self._spans.sort(key=lambda span: span[2] - span[1])

    def __len__(self) -> int:
        """Return the number of batches."""
        return -(-len(self._spans) // self.batch)

    def __iter__(self) -> Iterator[tuple[Int[Tensor, "batch token"], Int[Tensor, "batch token"]]]:
        """Yield inputs and targets; the targets of padding and of tokens that only serve as context are `IGNORE`."""
        for first in range(0, len(self._spans), self.batch):
            spans = self._spans[first : first + self.batch]
            inputs = padded([self.documents[document][start:stop] for document, start, stop, _ in spans])
            following = [self.documents[document][start + 1 : stop + 1] for document, start, stop, _ in spans]
            targets = padded(following, IGNORE)
            for row, (_, start, _, scored_from) in enumerate(spans):
                targets[row, : scored_from - start] = IGNORE
            yield inputs, targets

    def _cut(self, document: int, targets: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (document, first input, end of inputs, first input whose target is scored) for each window."""
        scored = 0
        while scored < targets:
            stop = min(targets, self.context if scored == 0 else scored + self.stride)
            yield document, max(0, stop - self.context), stop, scored
            scored = stop
