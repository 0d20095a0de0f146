"""Queries, keys and values of unequal sizes, and the size of the largest tensor, for tests of attention."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def heads(query=5, key=7, kv_head=2, dtype=torch.float64, grad=False):
    """Return q, k and v in which all sizes differ: batch 3, head 4, d_head 6, d_v 8."""
    g = torch.Generator().manual_seed(query * 100 + key)
    shapes = [(3, 4, query, 6), (3, kv_head, key, 6), (3, kv_head, key, 8)]
    return [torch.randn(s, generator=g, dtype=dtype).requires_grad_(grad) for s in shapes]


def some_mask(query, key):
    """Return a mask that is True for visible keys; one row of one example has none."""
    mask = torch.rand(3, 1, query, key, generator=torch.Generator().manual_seed(1)) > 0.4
    mask[1, :, query // 2] = False
    return mask


def assert_same(ours, theirs, inputs, atol=1e-12):
    """Check that outputs and gradients agree."""
    torch.testing.assert_close(ours, theirs, atol=atol, rtol=0)
    upstream = torch.randn(ours.shape, dtype=ours.dtype, generator=torch.Generator().manual_seed(3))
    for a, b in zip(
        torch.autograd.grad((ours * upstream).sum(), inputs),
        torch.autograd.grad((theirs * upstream).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=atol, rtol=0)


class Largest(TorchDispatchMode):
    """Record the number of elements of the largest tensor that an operation returns."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for made in out if isinstance(out, tuple) else (out,):
            if isinstance(made, torch.Tensor):
                self.numbers = max(self.numbers, made.numel())
        return out
