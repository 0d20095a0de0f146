"""Comparisons for lesson 01: initial scales of the embedding table, vocabulary sizes, and tables from several seeds."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from authoring.comparisons.cells import names_of, row


def sizes() -> dict[tuple[str, int], list[float]]:
    """Measure the loss before training by standard deviation and width, with three seeds."""
    found = {}
    for width in (64, 256, 1024):
        for name, sigma in (("1/sqrt(d)", width**-0.5), ("1", 1.0), ("0.02", 0.02)):
            losses = []
            for start in range(3):
                draw = torch.Generator().manual_seed(start)
                state = F.normalize(torch.randn(400, width, generator=draw), dim=1) * width**0.5
                logits = state @ (sigma * torch.randn(4000, width, generator=draw)).T
                losses.append(F.cross_entropy(logits, torch.randint(4000, (400,), generator=draw)).item())
            print(row(f"deviation {name}", f"width {width}", "loss", losses), flush=True)
            found[name, width] = losses
    return found


def beginnings() -> dict[tuple[str, int, float], list[float]]:
    """Measure the small model's loss after 20, 200 and 600 updates, by initial table, learning rate, width and seed."""
    lesson = names_of("01", "setup", "data")
    torch.set_default_dtype(torch.float32)
    found = {}
    for width in (32, 128):
        root = width**0.5
        settings = (("1/sqrt(d), times", 1 / root, root), ("1/sqrt(d)", 1 / root, 1.0), ("0.02", 0.02, 1.0),
                    ("0.02, times", 0.02, root), ("1", 1.0, 1.0), ("1, times", 1.0, root))  # fmt: skip
        for name, sigma, factor in settings:
            for rate in (0.005, 0.02, 0.08):
                curves = [_losses(lesson["follows"].float(), sigma, factor, width, rate, start) for start in range(3)]
                for updates in (20, 200, 600):
                    losses = [curve[updates] for curve in curves]
                    print(row(f"{name}, rate {rate}", f"width {width}, {updates}", "loss", losses), flush=True)
                    found[name, updates, rate] = losses
    return found


def _losses(follows: Tensor, sigma: float, factor: float, width: int, rate: float, start: int) -> list[float]:
    """Train like the lesson's `learn`, but with a different learning rate, and return the loss before each update."""
    draw = torch.Generator().manual_seed(start)
    table = (sigma * torch.randn(512, width, generator=draw)).requires_grad_()
    matrix = (torch.randn(width, width, generator=draw) / width**0.5).requires_grad_()
    adam, losses = torch.optim.Adam([table, matrix], lr=rate), []
    for _ in range(601):
        loss = -(follows * torch.log_softmax(factor * table @ matrix @ table.T, dim=1)).sum() / follows.sum()
        losses.append(loss.item())
        adam.zero_grad()
        loss.backward()
        adam.step()
    return losses


def alike() -> dict[int, list[float]]:
    """Compare the tables from four seeds: the correlation of their cosines, and the nearest neighbors they share."""
    lesson = names_of("01", "setup", "data", "learn")
    often = lesson["follows"].sum(dim=1) >= 50
    above = torch.ones(int(often.sum()), int(often.sum())).triu(1) > 0
    found = {}
    for updates in (200, 600):
        maps = []
        for start in range(4):
            table = F.normalize(lesson["learn"](32**-0.5, 32**0.5, updates=updates, start=start)[0][often], dim=1)
            maps.append((table @ table.T).fill_diagonal_(0.0))
        pairs = [(one, other) for at, one in enumerate(maps) for other in maps[:at]]
        found[updates] = [torch.corrcoef(torch.stack([a[above], b[above]]))[0, 1].item() for a, b in pairs]
        same = [(a.argmax(dim=1) == b.argmax(dim=1)).double().mean().item() for a, b in pairs]
        print(row("four starts", f"{updates} updates", "correlation of cosines", found[updates]), flush=True)
        print(row("four starts", f"{updates} updates", "same nearest neighbour", same), flush=True)
    return found


def text_and_vocabulary() -> dict[tuple[int, int], list[float]]:
    """Measure the bits per byte of the unigram model by vocabulary size, on three excerpts of each length."""
    lesson = names_of("01", "setup", "vocabulary")
    text = "".join(lesson["seen"])
    found = {}
    for size in (257, 1024, 2048, 3072, 4096, 5000, 5800):  # the whole text yields no more than 5,906 tokens
        for much in (2_000, 20_000, len(text)):
            starts = (0,) if much == len(text) else (0, 100_000, 200_000)
            each = [lesson["surprise"]([text[start : start + much]], size)[1] for start in starts]
            print(row(f"{much:,} characters", f"{size} tokens", "bits per byte", each), flush=True)
            found[much, size] = each
    return found


def pairs_and_vocabulary() -> dict[tuple[int, int], list[float]]:
    """Measure the bits per byte of a bigram model by vocabulary size, on excerpts and on the whole text.

    The probability of a token, given the previous token, is smoothed with the token's own probability, which counts as
    much as 30 occurrences of the previous token.
    """
    lesson = names_of("01", "setup", "vocabulary")
    text, found = "".join(lesson["seen"]), {}
    for size in (512, 1024, 2048, 3072):
        tokenizer = lesson["trained"](size)
        kept = [torch.tensor(tokenizer.encode(each)) for each in lesson["kept"]]
        for much in (20_000, len(text)):
            each = []
            for start in (0,) if much == len(text) else (0, 100_000, 200_000):
                read = torch.tensor(tokenizer.encode(text[start : start + much]))
                share = read.bincount(minlength=size) + 1.0
                share = share / share.sum()
                pairs = torch.zeros(size, size)
                pairs.index_put_((read[:-1], read[1:]), torch.ones(len(read) - 1), accumulate=True)
                bits = 0.0
                for one in kept:
                    a, b = one[:-1], one[1:]
                    chance = (pairs[a, b] + 30 * share[b]) / (pairs[a].sum(dim=1) + 30)
                    bits -= chance.log2().sum().item() + share[one[0]].log2().item()
                each.append(bits / lesson["B"])
            print(row(f"{much:,} characters", f"{size} tokens", "bits per byte", each), flush=True)
            found[much, size] = each
    return found
