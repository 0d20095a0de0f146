"""The training of lesson 09's translator, for comparisons."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from companion.data.number_words import PAD, NumberWords, PairBatches
from companion.transformer import Transformer


def learning(model: Transformer, words: NumberWords, start: int, updates: int) -> Iterator[tuple[int, float]]:
    """Train a translator of number names, and yield the number and the loss of each update.

    The learning rate rises to 0.003 during the first 50 updates, and then falls linearly until update `updates`.

    Args:
        model: A new model.
        words: The languages and their vocabulary.
        start: Seed for the batches.
        updates: The planned number of updates.
    """
    batches = PairBatches(words, batch=48, seed=start)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.1, fused=True)
    for update in range(1, updates + 1):
        source, inputs, targets = batches(update)
        memory = model.encode(source, attention_mask=source != PAD)
        loss = F.cross_entropy(model(inputs, source=memory).logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = 0.003 * min(update / 50, (updates + 1 - update) / (updates - 50))
        optimizer.step()
        yield update, loss.item()
