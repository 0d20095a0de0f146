"""Stage 18, inside.py: what your model predicts halfway, and which of its parts produces a word (lesson 21).

Hooks read and change a model's activations while it runs. They are always removed again, even after an error.
"""

from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def streams(model: nn.Module):
    """Yields a list that each forward pass fills with the residual streams: the one that enters the first block and the
    one after each block, (batch, token, d_model). The next pass replaces them."""
    seen: list[Tensor] = []

    def enters(block, inputs):
        seen[:] = [inputs[0].detach()]

    def leaves(block, inputs, output):
        seen.append(output.detach())

    blocks = model.decoder.blocks
    hooks = [blocks[0].register_forward_pre_hook(enters), *(block.register_forward_hook(leaves) for block in blocks)]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def lens(model: nn.Module, stream: Tensor) -> Tensor:
    """The logit lens: (..., d_model) -> (..., vocab), as if this stream were the final one. A model from stage 10 may
    have its own `head`."""
    head = getattr(model, "head", None)
    return model.decoder.norm(stream) @ (model.embedding if head is None else head).weight.T


def rank_of(logits: Tensor, token: int) -> int:
    """Return the number of tokens that are more probable than this one, (vocab) -> 0, 1, ..."""
    return int((logits > logits[token]).sum())


@contextmanager
def without_head(model: nn.Module, layer: int, head: int):
    """Within this context, this head's result in this layer is set to zero before `output` mixes the heads."""
    attention = model.decoder.blocks[layer].attention

    def silence(output, inputs):
        heads = inputs[0].unflatten(-1, (attention.heads, -1)).clone()
        heads[..., head, :] = 0
        return (heads.flatten(-2),)

    hook = attention.output.register_forward_pre_hook(silence)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def patched(model: nn.Module, layer: int, position: int, vector: Tensor):
    """Within this context, the stream at this position after this block is replaced by `vector`, (d_model)."""

    def patch(block, inputs, output):
        output = output.clone()
        output[:, position] = vector
        return output

    hook = model.decoder.blocks[layer].register_forward_hook(patch)
    try:
        yield
    finally:
        hook.remove()
