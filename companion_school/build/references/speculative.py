"""Stage 15, speculative.py: several tokens a pass, and the same text as before (lesson 18).

A draft guesses what comes next, and your model reads all guesses in one pass. What it accepts, and what it puts in the
place of what it rejects, has exactly the probabilities that it has in `generate`.
"""

import torch
import torch.nn.functional as F
from generation import Cache, probabilities
from torch import Tensor


def rows(logits: Tensor, temperature: float = 1.0, **choice) -> Tensor:
    """What each position's token is drawn from, (position, vocab) -> the same: your `probabilities`, row by row. At
    temperature 0 the likeliest token has all of it."""
    if temperature == 0:
        return F.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
    return torch.stack([probabilities(row, temperature, **choice) for row in logits])


def correction(p: Tensor, q: Tensor) -> Tensor:
    """What a token is drawn from after a guess was rejected: max(0, p - q), divided by its sum; (vocab)."""
    rest = (p - q).clamp(min=0)
    return rest / rest.sum()


def judge(p: Tensor, q: Tensor, guesses: list[int], generator: torch.Generator) -> list[int]:
    """The guesses that are accepted, in order up to the first that is not, and one more token.

    p:  the model's probabilities at every guess and behind the last, (guess + 1, vocab).
    q:  the draft's, from which it drew its guesses, (guess, vocab).

    A guess is accepted with probability min(1, p / q). In the place of the first that is rejected comes one from the
    `correction`; behind the last one, if all are accepted, one from p.
    """
    for at, guess in enumerate(guesses):
        if torch.rand((), generator=generator) * q[at, guess] >= p[at, guess]:
            return [*guesses[:at], int(torch.multinomial(correction(p[at], q[at]), 1, generator=generator))]
    return [*guesses, int(torch.multinomial(p[-1], 1, generator=generator))]


def shorten(cache: Cache, tokens: int):
    """Let a cache hold its first `tokens` tokens only, as if it had never seen the others."""
    cache.keys, cache.values = cache.keys[:, :, :tokens], cache.values[:, :, :tokens]


def lookup(ids: list[int], ahead: int, vocab: int) -> tuple[list[int], Tensor]:
    """A draft without a model: the last two ids stood side by side before, so guess what followed them then.

    Returns at most `ahead` guesses, those behind the last such place, and their probabilities, (guess, vocab), each
    guess with all of its row. Without such a place there is no guess.
    """
    places = [at for at in range(2, len(ids)) if ids[at - 2 : at] == ids[-2:]]
    guesses = ids[places[-1] : places[-1] + ahead] if places else []
    return guesses, F.one_hot(torch.tensor(guesses, dtype=torch.long), vocab).float()


@torch.no_grad()
def speculate(
    model, draft, ids: list[int], new: int, ahead=4, stop: int | None = None, seed=0, temperature=1.0, **choice
):
    """Yields at most `new` ids after `ids`, and ends before `stop`, as `generate` does, but each pass of the model may
    give several. `draft(ids, n)` gives at most n guesses and their probabilities, as `lookup` does."""
    generator, device = torch.Generator().manual_seed(seed), model.embedding.weight.device
    text, caches = list(ids), [Cache() for _ in model.decoder.blocks]
    while new > 0:
        guesses, q = draft(text, min(ahead, new - 1))
        unread = [*text[len(caches[0]) :], *guesses]
        logits = model(torch.tensor([unread], device=device), caches)[0, -len(guesses) - 1 :].cpu()
        tokens = judge(rows(logits, temperature, **choice), q, guesses, generator)
        text, new = [*text, *tokens], new - len(tokens)
        for cache in caches:
            shorten(cache, len(text) - 1)  # the last token has not been read
        for token in tokens:
            if token == stop:
                return
            yield token
