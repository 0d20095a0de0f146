"""What must come out the same on every machine, and what may not: small calculations, under two seconds in all.

Bits are equal only where the same operation runs on the same memory. A processor's kernels choose their order of adding
by sizes, by threads, and by where a tensor lies in memory, and each order rounds in its own way.
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
"""What float32 results of this size may differ by when the order of adding changes; wrong ones differ by far more."""
UPDATES = 12
MODEL = ModelConfig(
    vocab=23, d_model=24, layers=2, context=16, attention=AttentionConfig(4, 2), feed_forward=FeedForwardConfig(40)
)
"""What a small training trains."""
UNIFORM = [0.49625658988952637, 0.7682217955589294, 0.08847743272781372, 0.13203048706054688]
NORMAL = [-1.1258398294448853, -1.152360200881958, -0.2505785822868347, -0.4338788092136383]
"""The first four of sixteen numbers that PyTorch draws on a CPU with seed 0."""
LAST_LOSS = 1.3772529363632202
"""The loss in the last update of the small training, in nats a token, on a Xeon with AVX-512."""


class Finding(NamedTuple):
    """What a comparison found.

    claim:  what is compared, in plain words.
    found:  how it came out, in a few words.
    same:   whether it came out as every machine's should; of what may differ, whether it does not here.
    """

    claim: str
    found: str
    same: bool


# What must hold


def drawn_numbers() -> Finding:
    """A seed's uniform numbers, bit for bit, and its normal ones but for rounding: initial weights depend on them."""
    uniform = torch.rand(16, generator=torch.Generator().manual_seed(0))[:4]
    normal = torch.randn(16, generator=torch.Generator().manual_seed(0))[:4]
    off = _difference(normal, torch.tensor(NORMAL))
    same = uniform.tolist() == UNIFORM and off <= ROUNDING
    return Finding("a seed draws the numbers it draws everywhere", _bound(off), same)


def attention() -> Finding:
    """PyTorch's fused attention is the formula."""
    q, k, v = torch.randn(3, 2, 4, 9, 8, generator=torch.Generator().manual_seed(1))
    weights = attention_weights(q, k, causal=True)
    off = _difference(attend(q, k, v, causal=True), weights @ v)
    return Finding("PyTorch's fused attention is the formula", _bound(off), off <= ROUNDING)


def cached_decoding() -> Finding:
    """Token by token with a cache, the logits of one pass over all."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(2)
        model = Transformer(MODEL).eval()
        tokens = torch.randint(1, MODEL.vocab, (2, 13))
        whole = model(tokens).logits
        cache, steps = KVCache.create(MODEL, batch=2, slots=13), []
        for token in tokens.split(1, dim=1):
            out = model(token, cache=cache)
            assert out.cache is not None  # one went in
            cache = out.cache
            steps.append(out.logits)
    off = _difference(torch.cat(steps, 1), whole)
    return Finding("decoding with a cache gives the whole pass's logits", _bound(off), off <= ROUNDING)


def trained_twice() -> Finding:
    """From one seed, in one process and with the same threads, a training has one outcome, bit for bit."""
    (first, weights), (second, again) = train(), train()
    same = first == second and all(torch.equal(weights[name], again[name]) for name in weights)
    return Finding(f"{UPDATES} updates from a seed, twice: the same weights", _bits(same), same)


def written_and_read() -> Finding:
    """Weights in a file are the weights."""
    tensors = {"weight": torch.randn(61, 20, generator=torch.Generator().manual_seed(3))}
    with tempfile.TemporaryDirectory() as folder:
        save_tensors(Path(folder, "weights.safetensors"), tensors)
        same = torch.equal(load_tensors(Path(folder, "weights.safetensors"))["weight"], tensors["weight"])
    return Finding("weights in a file are the weights", _bits(same), same)


# What may differ


def other_address() -> Finding:
    """The same product with the matrix eight bytes further on: a matrix read from a file lies anywhere."""
    trials, other, most = 400, 0, 0.0
    for seed in range(trials):
        x, weight = (matrix.double() for matrix in _matrices(seed, 7, 20, 61))
        moved = torch.empty(weight.numel() + 1, dtype=weight.dtype)[1:].view_as(weight).copy_(weight)
        off = _difference(F.linear(x, weight), F.linear(x, moved))
        other, most = other + (off > 0), max(most, off)
    return Finding(
        "a product, the matrix at another address",
        f"{other} of {trials}, {most:.0e}" if other else _bits(True),
        other == 0,
    )


def other_rows() -> Finding:
    """A row's product alone and among others: a text alone and in a batch."""
    x, weight = _matrices(5, 33, 64, 48)
    alone = torch.cat([F.linear(row, weight) for row in x.split(1)])
    return _may_differ("a row's product alone and among 33 rows", alone, F.linear(x, weight))


def other_threads() -> Finding:
    """Sums of many numbers, and long products, by one thread and by two."""
    x, weight = _matrices(6, 33, 4096, 5)

    def computed() -> Tensor:
        return torch.cat([torch.stack([x.sum() / x.numel() ** 0.5]), F.linear(x, weight).flatten()])

    with threads(1):
        alone = computed()
    with threads(2):
        return _may_differ("sums and products by one thread and by two", alone, computed())


def other_machine() -> Finding:
    """The loss after a small training, here and where the course was written."""
    loss, _ = train()
    off = abs(loss - LAST_LOSS)
    claim = f"the loss after {UPDATES} updates here and on a Xeon"
    return Finding(claim, _bits(True) if off == 0 else f"by {off:.0e}", off == 0)


def other_device() -> Finding:
    """A product of the CPU and one of the GPU."""
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
    """The comparisons of `MAY_DIFFER`, and the GPU's where there is one."""
    return [*MAY_DIFFER, *([other_device] if torch.cuda.is_available() else [])]


def train() -> tuple[float, dict[str, Tensor]]:
    """A small model's loss in its last update, and its weights: `UPDATES` updates from seed 0, in float32."""
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
    """Within the block, PyTorch calculates with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _matrices(seed: int, rows: int, width: int, columns: int) -> tuple[Tensor, Tensor]:
    """x and a weight whose product's entries are around 1."""
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
