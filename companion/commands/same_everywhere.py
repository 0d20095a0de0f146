"""Small calculations that must agree on every machine, and others that may differ; all of them take under two seconds.

Two results are sure to be equal bit for bit only if the same operation runs on the same memory. A processor's kernels
add numbers in an order that depends on a tensor's sizes, its address in memory and the number of threads. Sums in a
different order are rounded differently.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from companion.config.model import AttentionConfig, FeedForwardConfig, ModelConfig
from companion.files.models import load_tensors, save_tensors
from companion.layers.attention import attend, attention_weights
from companion.layers.cache import KVCache
from companion.transformer import Transformer

ROUNDING = 1e-5
"""Largest difference that the order of a sum can make between float32 results of about 1; real errors are far
larger."""
UPDATES = 12
MODEL = ModelConfig(
    vocab=23, d_model=24, layers=2, context=16, attention=AttentionConfig(4, 2), feed_forward=FeedForwardConfig(40)
)
"""The model of the small training runs."""
UNIFORM = [0.49625658988952637, 0.7682217955589294, 0.08847743272781372, 0.13203048706054688]
NORMAL = [-1.1258398294448853, -1.152360200881958, -0.2505785822868347, -0.4338788092136383]
"""The first four of sixteen normally distributed numbers that PyTorch draws on a CPU with seed 0; `UNIFORM` holds four
uniform numbers."""
LAST_LOSS = 1.3772529363632202
"""Loss of the last update of the small training, in nats per token, on a Xeon with AVX-512."""


class Finding(NamedTuple):
    """The result of a comparison.

    Attributes:
        claim: A description of the comparison.
        found: The outcome, in a few words.
        same: True if both sides agree (bit for bit, if the comparison is one that may differ).
    """

    claim: str
    found: str
    same: bool


# Comparisons that must hold


def drawn_numbers() -> Finding:
    """Compare uniform random numbers drawn from a seed bit for bit, and normally distributed ones up to rounding.

    Initial weights depend on these numbers.
    """
    uniform = torch.rand(16, generator=torch.Generator().manual_seed(0))[:4]
    normal = torch.randn(16, generator=torch.Generator().manual_seed(0))[:4]
    off = _difference(normal, torch.tensor(NORMAL))
    same = uniform.tolist() == UNIFORM and off <= ROUNDING
    return Finding("a seed gives the same random numbers as elsewhere", _bound(off), same)


def attention() -> Finding:
    """Compare PyTorch's fused attention with the formula."""
    q, k, v = torch.randn(3, 2, 4, 9, 8, generator=torch.Generator().manual_seed(1))
    weights = attention_weights(q, k, causal=True)
    off = _difference(attend(q, k, v, causal=True), weights @ v)
    return Finding("PyTorch's fused attention agrees with the formula", _bound(off), off <= ROUNDING)


def cached_decoding() -> Finding:
    """Compare the logits of cached decoding, one token at a time, with those of one pass over all tokens."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(2)
        model = Transformer(MODEL).eval()
        tokens = torch.randint(1, MODEL.vocab, (2, 13))
        whole = model(tokens).logits
        cache, steps = KVCache.create(MODEL, batch=2, slots=13), []
        for token in tokens.split(1, dim=1):
            out = model(token, cache=cache)
            assert out.cache is not None  # a cache was passed in
            cache = out.cache
            steps.append(out.logits)
    off = _difference(torch.cat(steps, 1), whole)
    return Finding("decoding with a cache gives the logits of a full pass", _bound(off), off <= ROUNDING)


def trained_twice() -> Finding:
    """Train twice from the same seed, in one process with the same threads, and compare the results bit for bit."""
    (first, weights), (second, again) = train(), train()
    same = first == second and all(torch.equal(weights[name], again[name]) for name in weights)
    return Finding(f"{UPDATES} updates from a seed, twice: the same weights", _bits(same), same)


def written_and_read() -> Finding:
    """Write weights to a file, read them back, and compare the two bit for bit."""
    tensors = {"weight": torch.randn(61, 20, generator=torch.Generator().manual_seed(3))}
    with tempfile.TemporaryDirectory() as folder:
        save_tensors(Path(folder, "weights.safetensors"), tensors)
        same = torch.equal(load_tensors(Path(folder, "weights.safetensors"))["weight"], tensors["weight"])
    return Finding("weights survive being written and read", _bits(same), same)


# Comparisons that may differ


def other_address() -> Finding:
    """Compare the products of a matrix with those of a copy whose address is eight bytes higher.

    A matrix that is read from a file may start at any address.
    """
    trials, other, most = 400, 0, 0.0
    for seed in range(trials):
        x, weight = (matrix.double() for matrix in _matrices(seed, 7, 20, 61))
        moved = torch.empty(weight.numel() + 1, dtype=weight.dtype)[1:].view_as(weight).copy_(weight)
        off = _difference(F.linear(x, weight), F.linear(x, moved))
        other, most = other + (off > 0), max(most, off)
    return Finding(
        "a product with the matrix at another address",
        f"{other} of {trials}, {most:.0e}" if other else _bits(True),
        other == 0,
    )


def other_rows() -> Finding:
    """Compare the products of single rows with those of a batch: a text may be processed alone or in a batch."""
    x, weight = _matrices(5, 33, 64, 48)
    alone = torch.cat([F.linear(row, weight) for row in x.split(1)])
    return _may_differ("the product of a row, alone and among 33 rows", alone, F.linear(x, weight))


def other_threads() -> Finding:
    """Compare long sums and long products computed on one thread and on two."""
    x, weight = _matrices(6, 33, 4096, 5)

    def computed() -> Tensor:
        return torch.cat([torch.stack([x.sum() / x.numel() ** 0.5]), F.linear(x, weight).flatten()])

    with threads(1):
        alone = computed()
    with threads(2):
        return _may_differ("sums and products by one thread and by two", alone, computed())


def other_machine() -> Finding:
    """Compare the loss of a small training run with the loss on the machine where the course was written."""
    loss, _ = train()
    off = abs(loss - LAST_LOSS)
    claim = f"the loss after {UPDATES} updates here and on a Xeon"
    return Finding(claim, _bits(True) if off == 0 else f"by {off:.0e}", off == 0)


def other_device() -> Finding:
    """Compare a product computed on the CPU with the same product computed on the GPU."""
    x, weight = _matrices(7, 33, 64, 48)
    there = F.linear(x.cuda(), weight.cuda()).cpu()
    return _may_differ("a product on the CPU and on the GPU", F.linear(x, weight), there)


MUST_HOLD: tuple[Callable[[], Finding], ...] = (
    drawn_numbers,
    attention,
    cached_decoding,
    trained_twice,
    written_and_read,
)
MAY_DIFFER: tuple[Callable[[], Finding], ...] = (other_address, other_rows, other_threads, other_machine)


def may_differ() -> list[Callable[[], Finding]]:
    """Return the comparisons of `MAY_DIFFER` and, if there is a GPU, the comparison with the GPU."""
    return [*MAY_DIFFER, *([other_device] if torch.cuda.is_available() else [])]


def train() -> tuple[float, dict[str, Tensor]]:
    """Train a small model in float32 for `UPDATES` updates from seed 0; return its last loss and its weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Transformer(MODEL)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        tokens = torch.arange(8 * 17).view(8, 17) ** 2 % MODEL.vocab
        for _ in range(UPDATES):
            loss = F.cross_entropy(model(tokens[:, :-1]).logits.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return loss.item(), {name: weight.detach() for name, weight in model.named_parameters()}


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Set the number of PyTorch threads for the duration of the `with` block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _matrices(seed: int, rows: int, width: int, columns: int) -> tuple[Tensor, Tensor]:
    """Return x (rows, width) and a weight (columns, width) whose product has entries of about 1."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(columns, width, generator=generator) / width**0.5
    return torch.randn(rows, width, generator=generator), weight


def _difference(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()


def _may_differ(claim: str, a: Tensor, b: Tensor) -> Finding:
    off = _difference(a, b)
    return Finding(claim, f"by {off:.0e}" if off else _bits(True), off == 0)


def _bound(off: float) -> str:
    return f"within {off:.0e}" if off else _bits(True)


def _bits(same: bool) -> str:
    return "same bits" if same else "other bits"
