"""Comparisons for lesson 09, with three seeds and two budgets. Each function prints and returns its results."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor

from authoring.comparisons.cells import names_of
from authoring.comparisons.translators import Reads, learning
from companion.layers.stack import Memory
from companion.transformer import Transformer

STARTS, BUDGETS = (0, 1, 2), (200, 400)
CELLS = ("setup", "one-pass", "task", "both-lanes")
MOMENTS = (80, 90, 100, 120)
"""Updates at which scheduled sampling is judged."""


def curve() -> dict[tuple[int, int], dict[int, tuple[float, float, float]]]:
    """Measure the training loss, the share of right tokens (teacher forcing) and of right names (free running).

    Returns:
        The three values after each update, by total number of updates and seed.
    """
    lesson, found = SimpleNamespace(**names_of("09", *CELLS)), {}
    held = lesson.held
    filler = held.targets == lesson.IGNORE
    for updates in BUDGETS:
        for start in STARTS:
            torch.manual_seed(start)
            model = lesson.Transformer(lesson.config)
            found[updates, start] = {}
            for update, loss in learning(model, lesson.words, start, updates):
                if update in (60, 80, 100, 120, updates):
                    lanes = lesson.forced(model, held), lesson.free(model, held)
                    right = [(says == held.targets) | filler for says in lanes]
                    tokens = right[0][~filler].double().mean().item()
                    names = right[1].all(dim=1).double().mean().item()
                    found[updates, start][update] = loss, tokens, names
                    print(f"{updates} updates, start {start}, update {update}: loss {loss:.3f}, tokens "
                          f"{tokens:.3f}, to the power 10 {tokens**10:.3f}, names {names:.3f}", flush=True)  # fmt: skip
    return found


def sampling() -> dict[tuple[int, int, bool, int], tuple[float, float, int, float]]:
    """Measure how scheduled sampling with two passes changes the number of mistakes per wrong name.

    The probability that the decoder reads the model's own token rises from 0 at update 30 to 0.5 at update 70, as in
    the deeper notebook.

    Returns:
        A dictionary. A key consists of the planned number of updates, the seed, a flag for sampling, and the update. A
        value consists of a mean over the names answered wrongly, its standard error, the number of wrong names, and the
        share of right names. The mean is that of the number of edits in free running minus the number of wrong slots
        under teacher forcing.
    """
    lesson, found = SimpleNamespace(**names_of("09", *CELLS, "edits", "sets-up-after")), {}
    held = lesson.held
    filler = held.targets == lesson.IGNORE
    for updates in BUDGETS:
        for start in STARTS:
            for sampled in (False, True):
                torch.manual_seed(start)
                model = lesson.Transformer(lesson.config)
                reads = _own_tokens(model, start, lesson.BOS, lesson.PAD) if sampled else None
                for update, _ in learning(model, lesson.words, start, updates, reads):
                    if update in MOMENTS:
                        lanes = lesson.forced(model, held), lesson.free(model, held)
                        wrong = (~((lanes[0] == held.targets) | filler).all(dim=1)).nonzero()[:, 0].tolist()
                        mended = [
                            lesson.edits(lesson.until_end(lanes[1][b]), lesson.until_end(held.targets[b]))
                            for b in wrong
                        ]
                        slots = ((lanes[0] != held.targets) & ~filler).sum(dim=1)[wrong]
                        gap = torch.tensor(mended).double() - slots
                        mean, error = gap.mean().item(), (gap.std() / len(gap) ** 0.5).item()
                        right = 1 - len(wrong) / len(filler)
                        found[updates, start, sampled, update] = mean, error, len(wrong), right
                        way = "sampled" if sampled else "forced"
                        print(f"{updates} updates, start {start}, {way}, update {update}: {mean:.2f} +- {error:.2f} of "
                              f"{len(wrong)}, names right {right:.3f}", flush=True)  # fmt: skip
                    if update == MOMENTS[-1]:
                        break
    return found


def _own_tokens(model: Transformer, start: int, bos: int, pad: int) -> Reads:
    """Return inputs for scheduled sampling: the model's own predictions replace a growing share of the tokens."""
    random = torch.Generator().manual_seed(start)

    def reads(update: int, inputs: Tensor, memory: Memory) -> Tensor:
        with torch.no_grad():
            says = model(inputs, source=memory).logits.argmax(dim=-1)
        own = F.pad(says, (1, 0), value=bos)[:, :-1]
        take = torch.rand(inputs.shape, generator=random) < min(0.5, max(0.0, (update - 30) / 80))
        return torch.where(take & (inputs != bos) & (inputs != pad), own, inputs)

    return reads
