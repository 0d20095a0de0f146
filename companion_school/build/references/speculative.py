"""Stage 15, speculative.py: several tokens per pass, with the same distribution as before (lesson 18).

A draft guesses the next tokens, and your model reads all guesses in one pass. The tokens that it accepts, and those
that replace rejected guesses, have exactly the same distribution as in `generate`.
"""

import torch
import torch.nn.functional as F
from generation import Cache, probabilities
from torch import Tensor


def rows(logits: Tensor, temperature: float = 1.0, **choice) -> Tensor:
    """Return the distributions from which the tokens are drawn, your `probabilities` of each row of logits; both are
    (position, vocab). At temperature 0, the most probable token has probability 1."""
    if temperature == 0:
        return F.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
    return torch.stack([probabilities(row, temperature, **choice) for row in logits])


def correction(p: Tensor, q: Tensor) -> Tensor:
    """Return the distribution of the token that replaces a rejected guess, (vocab): max(0, p - q), divided by its
    sum."""
    rest = (p - q).clamp(min=0)
    return rest / rest.sum()


def judge(p: Tensor, q: Tensor, guesses: list[int], generator: torch.Generator) -> list[int]:
    """Return the accepted guesses, up to the first rejected one, and one more token.

    p:  the model's probabilities at every guess and after the last one, (guess + 1, vocab).
    q:  the probabilities that the draft drew its guesses from, (guess, vocab).

    A guess is accepted with probability min(1, p / q). The first rejected guess is replaced by a token drawn from the
    `correction`; if all are accepted, one more token is drawn from the last row of p.
    """
    for at, guess in enumerate(guesses):
        if torch.rand((), generator=generator) * q[at, guess] >= p[at, guess]:
            return [*guesses[:at], int(torch.multinomial(correction(p[at], q[at]), 1, generator=generator))]
    return [*guesses, int(torch.multinomial(p[-1], 1, generator=generator))]


def shorten(cache: Cache, tokens: int):
    """Shorten a cache to its first `tokens` tokens, as if it had never stored the others."""
    cache.keys, cache.values = cache.keys[:, :, :tokens], cache.values[:, :, :tokens]


def lookup(ids: list[int], ahead: int, vocab: int) -> tuple[list[int], Tensor]:
    """A draft without a model: if the last two ids occurred together before, guess the tokens that followed them then.

    Returns at most `ahead` guesses, the tokens after the last such occurrence, and their probabilities, (guess, vocab),
    with probability 1 for each guess. If there is no such occurrence, there are no guesses.
    """
    places = [at for at in range(2, len(ids)) if ids[at - 2 : at] == ids[-2:]]
    guesses = ids[places[-1] : places[-1] + ahead] if places else []
    return guesses, F.one_hot(torch.tensor(guesses, dtype=torch.long), vocab).float()


@torch.no_grad()
def speculate(
    model, draft, ids: list[int], new: int, ahead=4, stop: int | None = None, seed=0, temperature=1.0, **choice
):
    """Yields at most `new` ids after `ids`, and ends before `stop`, as `generate` does, but each pass of the model can
    produce several ids. `draft(ids, n)` returns at most n guesses and their probabilities, as `lookup` does."""
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
