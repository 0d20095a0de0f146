"""The race for learners who have not written race.py yet. It trains with stages 1 to 6 until the time is up."""

import time
from dataclasses import dataclass

import torch
from model import Config, Transformer
from tokenizer import Merge, encode, learn
from torch import nn
from training import loss_of, train, windows


@dataclass
class Runner:
    """The result of a race, as in race.py."""

    model: nn.Module
    merges: list[Merge]
    context: int


def race(text: str, seconds: float) -> Runner:
    """Train the decoder from stage 5 on tokens from stage 1 with the loop from stage 6, on a GPU if there is one."""
    start = time.monotonic()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    merges = learn(text, 1024)
    ids = torch.tensor(encode(text, merges), device=device)
    context = min(128, len(ids) - 1)

    def trained(updates: int) -> nn.Module:
        model = Transformer(Config(256 + len(merges), d_model=128, layers=4, heads=4, kv_heads=2, d_ff=344)).to(device)

        def loss_at(n: int) -> torch.Tensor:
            inputs, targets = windows(ids, context, 16, torch.Generator().manual_seed(n))
            return loss_of(model(inputs), targets)

        for _ in train(model, loss_at, updates, peak=3e-3, warmup=100):
            if time.monotonic() - start >= seconds:
                break
        return model

    begun = time.monotonic()
    trained(5)  # a discarded run that shows how many updates fit into the time
    each = (time.monotonic() - begun) / 5
    left = seconds - (time.monotonic() - start)
    return Runner(trained(max(1, int(0.95 * left / each))).eval().cpu(), merges, context)
