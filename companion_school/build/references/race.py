"""Stage 11, race.py: the fewest bits per byte on unseen text after a given number of seconds (lessons 12 and 14).

Everything is allowed (fused kernels, compiled models, other optimizers, batches or models) except training on the text
used for the score. This recipe keeps the model of the earlier stages, and changes how it is computed and trained.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from attention import Attention, merge, split
from model import Config, Transformer
from tokenizer import Merge, encode, learn
from torch import Tensor, nn


@dataclass
class Runner:  # given
    """The result of a race.

    model:    maps token ids, (1, token), to the logits of the next tokens, (1, token, vocab), as in stage 5, on the
    CPU.
    merges:   the merges of the tokenizer, for `encode(text, merges)` from stage 1. An empty list means bytes.
    context:  the number of tokens that the model gets at once when it is measured.
    """

    model: nn.Module
    merges: list[Merge]
    context: int


class _FusedAttention(Attention):
    """Your attention with PyTorch's fused kernel, which stores no table of scores, and with normed queries and keys."""

    def forward(self, x: Tensor, source: Tensor | None = None, mask=None, turn=None, cache=None) -> Tensor:
        q, k = split(self.query(x), self.heads), split(self.key(x), self.kv_heads)
        v = split(self.value(x), self.kv_heads)
        q, k = turn(F.rms_norm(q, q.shape[-1:])), turn(F.rms_norm(k, k.shape[-1:]))
        return self.output(merge(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)))


def _built(config: Config, drop: float) -> Transformer:
    """Your decoder with that attention, and with dropout before each sum, because a short text is read many times."""
    model = Transformer(config)
    for block in model.decoder.blocks:
        attention = _FusedAttention(config.d_model, config.heads, config.kv_heads)
        attention.load_state_dict(block.attention.state_dict())
        block.attention = attention
        for layer in (block.attention.output, block.feed_forward.outer):
            layer.register_forward_hook(lambda layer, _, out: F.dropout(out, drop, layer.training))
    return model


def _orthogonal(x: Tensor, steps: int = 5) -> Tensor:
    """Return a matrix with the singular directions of `x` and singular values near 1, computed by five Newton-Schulz
    steps (Bernstein and Newhouse 2024) without a decomposition."""
    wide = x if x.shape[0] <= x.shape[1] else x.T
    wide = wide / (wide.norm() + 1e-7)
    for _ in range(steps):
        square = wide @ wide.T
        wide = 3.4445 * wide + (-4.7750 * square + 2.0315 * square @ square) @ wide
    return wide if x.shape[0] <= x.shape[1] else wide.T


class _Muon(torch.optim.Optimizer):
    """Orthogonalized momentum (Jordan et al. 2024): an update has about the same size in all singular directions of a
    matrix."""

    def __init__(self, weights, lr: float, momentum: float = 0.95, decay: float = 0.1):
        super().__init__(weights, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self):
        """Update each matrix once. The root mean square of an update is 0.2 times `lr`."""
        for group in self.param_groups:
            for weight in group["params"]:
                mean = self.state[weight].setdefault("mean", torch.zeros_like(weight))
                mean.lerp_(weight.grad, 1 - group["momentum"])
                ahead = weight.grad.lerp(mean, group["momentum"])
                step = _orthogonal(ahead.bfloat16() if weight.is_cuda else ahead).to(weight.dtype)
                weight.mul_(1 - group["lr"] * group["decay"])
                weight.sub_(step, alpha=0.2 * group["lr"] * max(weight.shape) ** 0.5)


def _optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, AdamW for the embedding and the gains."""
    named = list(model.named_parameters())
    blocks = [weight for name, weight in named if weight.ndim == 2 and "embedding" not in name]
    rest = [weight for name, weight in named if weight.ndim < 2 or "embedding" in name]
    return [_Muon(blocks, lr=0.01), torch.optim.AdamW(rest, lr=0.01, betas=(0.9, 0.95), weight_decay=0.0)]


def _batches(ids: Tensor, context: int, batch: int) -> Iterator[Tensor]:
    """Yield windows, (batch, context + 1), forever.

    Each round covers the whole text, starting at a different position.
    """
    while True:
        shift = torch.randint(context, ()).item()
        starts = torch.arange(shift, len(ids) - context - 1, context)
        for some in starts[torch.randperm(len(starts))].split(batch):
            yield ids[some[:, None].to(ids.device) + torch.arange(context + 1, device=ids.device)]


def race(text: str, seconds: float) -> Runner:
    """Train on a text and return after the given number of seconds. Uses a GPU if there is one."""
    start = time.monotonic()
    torch.manual_seed(0)
    gpu = torch.cuda.is_available()
    device = "cuda" if gpu else "cpu"
    merges = learn(text, 1024)
    ids = torch.tensor(encode(text, merges), device=device)
    width, layers, context, batch = (512, 8, 256, 64) if gpu else (128, 4, 128, 16)
    config = Config(256 + len(merges), width, layers, width // 32, width // 64, width * 8 // 3)
    model = _built(config, drop=0.3 if gpu else 0.05).to(device)
    fast = torch.compile(model) if gpu else model
    both = _optimizers(model)
    peaks = [optimizer.param_groups[0]["lr"] for optimizer in both]
    for window in _batches(ids, context, min(batch, max(1, len(ids) // context))):
        done = (time.monotonic() - start) / seconds
        if done >= 1:
            break
        share = min(1.0, done / 0.02, (1 - done) / 0.6)  # a short rise, a plateau until 0.4, and a fall to 0
        with torch.autocast(device, torch.bfloat16, enabled=gpu):
            logits = fast(window[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), window[:, 1:].flatten())
        loss.backward()
        for optimizer, peak in zip(both, peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * share
            optimizer.step()
            optimizer.zero_grad()
        if not math.isfinite(loss.item()):
            raise FloatingPointError("the loss is no longer finite; use lower learning rates")
    return Runner(model.eval().cpu(), merges, context)
