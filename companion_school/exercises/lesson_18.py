"""Exercises of lesson 18: more than one token a step."""

import torch

from companion_school.checking.derived_cases import LARGE
from companion_school.checking.exercise import Case, exercise

# 18.1


@exercise(
    "18.1",
    "What a draft is worth",
    task="Compute how many times as fast a model writes with a draft",
    points=1,
    difficulty=1,
    minutes=8,
    limits={"rate": (0, 1), "ahead": (1,), "cost": (0,)},
    hints=(
        "Guess i counts only if it and all guesses before it are accepted. How probable is that?",
        "A pass gives 1 + a + a² + ... + a^k tokens, where the 1 is the model's own token.",
        "A pass takes 1 plus k times the cost of a guess. Divide the tokens by this time.",
    ),
)
def speedup(rate, ahead, cost):
    """A draft guesses `ahead` tokens, and each of them is accepted with probability `rate`, independently of the others. A guess takes `cost`
    times as long as a pass of the model. By what factor does the draft increase the model's tokens per second? Return a
    `float`.

    ```python
    >>> speedup(0.5, 2, 0.25)
    1.1666666666666667
    ```

    ★
    - Raise a `ValueError` for a rate outside the range from 0 to 1, for fewer than one guess, or for a cost below 0.
    - A rate of exactly 1 is allowed.
    """
    ### BEGIN SOLUTION
    if not 0 <= rate <= 1 or ahead < 1 or not cost >= 0:
        raise ValueError(
            f"rate={rate}, ahead={ahead}, cost={cost}: expected rate from 0 to 1, ahead >= 1 and cost >= 0"
        )
    tokens = sum(rate**accepted for accepted in range(ahead + 1))
    return tokens / (1 + ahead * cost)
    ### END SOLUTION


@speedup.cases
def _(draw):
    yield Case("one guess, accepted half of the time", (0.5, 1, 0.0))
    yield Case("guesses that take as long as the model", (0.6, 3, 1.0))
    yield Case("no guess is ever accepted", (0.0, 3, 0.2))
    rates = draw.uniform(2).tolist()
    yield Case("other numbers", (0.5 + 0.4 * rates[0], draw.whole(3, 6), 0.1 + 0.3 * rates[1]))
    yield Case("many guesses", (0.9, draw.whole(20, 30), 0.05))
    yield Case("all guesses are accepted", (1.0, 4, 0.25), robust="no draft is always right")
    yield Case("a rate above 1 is rejected", (1.5, 2, 0.1), refuse=True)
    yield Case("a rate below 0 is rejected", (-0.5, 2, 0.1), refuse=True)
    yield Case("zero guesses are rejected", (0.5, 0, 0.1), refuse=True)
    yield Case("a cost below 0 is rejected", (0.5, 2, -0.1), refuse=True)


def _worth(rate, ahead, cost):
    if not 0 <= rate <= 1 or ahead < 1 or not cost >= 0:
        raise ValueError(f"{rate=}, {ahead=}, {cost=}: expected a rate from 0 to 1, ahead >= 1 and cost >= 0")


@speedup.mistake(
    "a pass gives one more token than it accepts: the model's own, at the first rejection or after the last guess"
)
def _(rate, ahead, cost):
    _worth(rate, ahead, cost)
    return sum(rate**i for i in range(1, ahead + 1)) / (1 + ahead * cost)


@speedup.mistake("a guess counts only if all before it were accepted, so the second counts with probability a², not a")
def _(rate, ahead, cost):
    _worth(rate, ahead, cost)
    return (1 + ahead * rate) / (1 + ahead * cost)


@speedup.mistake("the guesses take time as well: divide by the whole cost of a pass")
def _(rate, ahead, cost):
    _worth(rate, ahead, cost)
    return sum(rate**i for i in range(ahead + 1))


@speedup.mistake("you counted the cost of one guess: the draft makes k guesses one after another")
def _(rate, ahead, cost):
    _worth(rate, ahead, cost)
    return sum(rate**i for i in range(ahead + 1)) / (1 + cost)


@speedup.mistake("the sum has k + 1 terms, from 1 to a^k, and yours stops before the last one")
def _(rate, ahead, cost):
    _worth(rate, ahead, cost)
    return sum(rate**i for i in range(ahead)) / (1 + ahead * cost)


@speedup.mistake("at a rate of 1 the closed form is 0 / 0: a pass gives all guesses and one more token, k + 1")
def _(rate, ahead, cost):
    _worth(rate, ahead, cost)
    return (1 - rate ** (ahead + 1)) / (1 - rate) / (1 + ahead * cost)


@speedup.mistake("raise a ValueError for a rate below 0 or above 1, for fewer than one guess and for a cost below 0")
def _(rate, ahead, cost):
    return sum(rate**i for i in range(ahead + 1)) / (1 + ahead * cost)


@speedup.variant
def _(rate, ahead, cost):
    _worth(rate, ahead, cost)
    tokens = ahead + 1 if rate == 1 else (1 - rate ** (ahead + 1)) / (1 - rate)
    return tokens / (1 + ahead * cost)


@speedup.variant
def _(rate, ahead, cost):
    _worth(rate, ahead, cost)
    tokens = 1.0
    for _ in range(ahead):
        tokens = 1 + rate * tokens
    return tokens / (1 + ahead * cost)


# 18.2


@exercise(
    "18.2",
    "Accept and mend",
    task="Decide which guesses stay, and draw the token that follows them",
    points=3,
    difficulty=2,
    minutes=20,
    hints=(
        "Go through the guesses in order. A guess stays if `u[i] * p_hat[i, x] < p[i, x]`. What ends the loop?",
        "After a rejection at position i, draw from `(p[i] - p_hat[i]).clamp(min=0)`. If all guesses stay, draw from `p[-1]`.",
        "To draw with u, take the first token where the `cumsum` of the weights exceeds `u * weights.sum()`.",
    ),
)
def keep_guesses(p, p_hat, guesses, u):
    """A draft has drawn `guesses`, k token ids, from its probabilities `p_hat` (k, vocab). The model's probabilities
    are `p` (k + 1, vocab), and `u` (k + 1) holds random numbers from [0, 1). Accept guess x at position i if `u[i] *
    p_hat[i, x] < p[i, x]`. Return a list of the accepted guesses, up to the first rejection, and one more token. Draw
    this token with `u[-1]` from the distribution that (18.1) prescribes: it is the first token where the running sum of
    the weights exceeds `u[-1]` times their total.

    ```python
    >>> p, p_hat = torch.tensor([[0.8, 0.2], [0.5, 0.5]]), torch.tensor([[0.5, 0.5]])
    >>> keep_guesses(p, p_hat, [1], torch.tensor([0.7, 0.6]))
    [0]
    ```

    ★
    - Raise a `ValueError` if the sizes do not match, if a row of `p` or `p_hat` is not a distribution (an entry is below 0, or the sum differs from 1 by
      more than 0.001), or if a number in `u` is outside [0, 1).
    - If there are no guesses, draw from the model's probabilities.
    """
    ### BEGIN SOLUTION
    fits = p_hat.shape == (len(guesses), p.shape[1]) and len(p) == len(guesses) + 1 and u.shape == (len(p),)
    if not fits or not all(((rows >= 0).all() and (rows.sum(-1) - 1).abs().le(1e-3).all()) for rows in (p, p_hat)):
        raise ValueError(f"p {tuple(p.shape)}, p_hat {tuple(p_hat.shape)}, {len(guesses)} guesses, u {tuple(u.shape)}")
    if not ((u >= 0) & (u < 1)).all() or not all(0 <= token < p.shape[1] for token in guesses):
        raise ValueError("u, guesses: expected numbers in [0, 1) and tokens in the vocabulary")
    kept, chances = [], p[-1]
    for place, token in enumerate(guesses):
        if not u[place] * p_hat[place, token] < p[place, token]:
            chances = (p[place] - p_hat[place]).clamp(min=0)
            break
        kept.append(token)
    running = chances.cumsum(0)
    return [*kept, int((running > u[-1] * running[-1]).int().argmax())]
    ### END SOLUTION


@keep_guesses.cases
def _(draw):
    p = torch.tensor([[0.6, 0.3, 0.1], [0.1, 0.2, 0.7], [0.5, 0.25, 0.25]]).double()
    p_hat = torch.tensor([[0.3, 0.3, 0.4], [0.5, 0.25, 0.25]]).double()
    yield Case(
        "both guesses stay, and one more token follows", (p, p_hat, [0, 2], torch.tensor([0.9, 0.9, 0.3]).double())
    )
    yield Case("the first guess is rejected", (p, p_hat, [2, 2], torch.tensor([0.6, 0.1, 0.6]).double()))
    yield Case("the second guess is rejected", (p, p_hat, [1, 0], torch.tensor([0.5, 0.3, 0.05]).double()))
    yield Case(
        "a token late in the vocabulary replaces a rejected one",
        (p, p_hat, [1, 0], torch.tensor([0.5, 0.3, 0.9]).double()),
    )
    vocab, k = draw.sizes(2, 4, 8)
    for number in range(6):
        many = _drawn(draw, vocab, k)
        yield Case(f"other probabilities, {number + 1} of 6", many)
    one = _drawn(draw, 5, 1)
    yield Case("a single guess", one)
    p1, hat1, _, u1 = _drawn(draw, 5, 2)
    yield Case("no guess", (p1[:1], hat1[:0], [], u1[:1]), robust="every draft in the lesson guesses")
    yield Case("one guess too few is rejected", (p1, hat1, [1], u1), refuse=True)
    yield Case("one model row too few is rejected", (p1[1:], hat1, [1, 2], u1), refuse=True)
    yield Case("too few random numbers are rejected", (p1, hat1, [1, 2], u1[1:]), refuse=True)
    yield Case("a different vocabulary is rejected", (p1, hat1[:, 1:], [1, 2], u1), refuse=True)
    yield Case("rows of the model that are not distributions are rejected", (2 * p1, hat1, [1, 2], u1), refuse=True)
    yield Case("rows of the draft that are not distributions are rejected", (p1, hat1 / 2, [1, 2], u1), refuse=True)
    yield Case("probabilities below 0 are rejected", (p1 - 2 * p1.amin(), hat1, [1, 2], u1), refuse=True)
    yield Case("a random number of 1 is rejected", (p1, hat1, [1, 2], torch.ones_like(u1)), refuse=True)
    yield Case(LARGE, _drawn(draw, draw.whole(33, 50), 5))


def _drawn(draw, vocab, k):
    """Draw a model's probabilities, the probabilities of a similar draft, the draft's guesses, and random numbers."""
    scores = draw.normal(k + 1, vocab)
    p, p_hat = scores.softmax(-1), (scores + draw.normal(k + 1, vocab)).softmax(-1)[:k]
    running, at = p_hat.cumsum(-1), draw.uniform(k, 1)
    guesses = [min(int(n), vocab - 1) for n in (running < at).sum(-1)]
    return p, p_hat, guesses, draw.uniform(k + 1)


def _place(p, p_hat, guesses, u):
    if p_hat.shape != (len(guesses), p.shape[1]) or len(p) != len(guesses) + 1 or u.shape != (len(p),):
        raise ValueError("sizes do not match")
    for rows in (p, p_hat):
        if not (rows >= 0).all() or not ((rows.sum(-1) - 1).abs() <= 1e-3).all():
            raise ValueError("the rows of p and p_hat must be probabilities that add up to 1")
    if not ((u >= 0) & (u < 1)).all() or not all(0 <= token < p.shape[1] for token in guesses):
        raise ValueError("u or a guess is out of range")


def _pick(chances, u):
    running = chances.cumsum(0)
    return int((running > u * running[-1]).int().argmax())


def _judged(p, p_hat, guesses, u, stays, mended):
    for place, token in enumerate(guesses):
        if not stays(p[place], p_hat[place], token, u[place]):
            return [*guesses[:place], _pick(mended(p[place], p_hat[place]), u[-1])]
    return [*guesses, _pick(p[-1], u[-1])]


def _rule(p, p_hat, token, u):
    return bool(u * p_hat[token] < p[token])


@keep_guesses.mistake("after a rejection you draw from the model's probabilities, so accepted tokens count twice")
def _(p, p_hat, guesses, u):
    _place(p, p_hat, guesses, u)
    return _judged(p, p_hat, guesses, u, _rule, lambda p, p_hat: p)


@keep_guesses.mistake("after a rejection you draw from max(0, p_hat - p), but what is missing is p - p_hat")
def _(p, p_hat, guesses, u):
    _place(p, p_hat, guesses, u)
    return _judged(p, p_hat, guesses, u, _rule, lambda p, p_hat: (p_hat - p).clamp(min=0))


@keep_guesses.mistake(
    "after a rejection you draw from |p - p_hat|, but tokens that the draft guesses too often are not missing"
)
def _(p, p_hat, guesses, u):
    _place(p, p_hat, guesses, u)
    return _judged(p, p_hat, guesses, u, _rule, lambda p, p_hat: (p - p_hat).abs())


@keep_guesses.mistake("you accept a guess with probability p: the right probability is p / p_hat, but at most 1")
def _(p, p_hat, guesses, u):
    _place(p, p_hat, guesses, u)
    return _judged(
        p, p_hat, guesses, u, lambda p, p_hat, token, u: bool(u < p[token]), lambda p, p_hat: (p - p_hat).clamp(min=0)
    )


@keep_guesses.mistake(
    "you accept the model's most probable token, which is the greedy rule, but these tokens are sampled"
)
def _(p, p_hat, guesses, u):
    _place(p, p_hat, guesses, u)
    return _judged(
        p,
        p_hat,
        guesses,
        u,
        lambda p, p_hat, token, u: int(p.argmax()) == token,
        lambda p, p_hat: (p - p_hat).clamp(min=0),
    )


@keep_guesses.mistake(
    "the first rejection ends the pass, because later guesses followed a token that is not in the text"
)
def _(p, p_hat, guesses, u):
    _place(p, p_hat, guesses, u)
    kept, chances = [], p[-1]
    for place, token in enumerate(guesses):
        if _rule(p[place], p_hat[place], token, u[place]):
            kept.append(token)
        else:
            chances = (p[place] - p_hat[place]).clamp(min=0)
    return [*kept, _pick(chances, u[-1])]


@keep_guesses.mistake("you left out the token from the model's last row, which follows if all guesses stay")
def _(p, p_hat, guesses, u):
    _place(p, p_hat, guesses, u)
    if not guesses:
        return [_pick(p[-1], u[-1])]
    found = _judged(p, p_hat, guesses, u, _rule, lambda p, p_hat: (p - p_hat).clamp(min=0))
    return found[: len(guesses)]


@keep_guesses.mistake(
    "the weights max(0, p - p_hat) add up to less than 1: divide by their sum, or compare with u times the sum"
)
def _(p, p_hat, guesses, u):
    _place(p, p_hat, guesses, u)
    for place, token in enumerate(guesses):
        if not _rule(p[place], p_hat[place], token, u[place]):
            running = (p[place] - p_hat[place]).clamp(min=0).cumsum(0)
            return [*guesses[:place], int((running > u[-1]).int().argmax())]
    return [*guesses, _pick(p[-1], u[-1])]


@keep_guesses.mistake(
    "sizes that do not match, rows that are not distributions, and numbers outside [0, 1) must be rejected with a ValueError"
)
def _(p, p_hat, guesses, u):
    width = min(p.shape[1], p_hat.shape[1])
    count = min(len(guesses), len(p_hat), len(p) - 1, max(len(u) - 1, 0))
    p, p_hat = p[:, :width], p_hat[:, :width]
    return _judged(p[: count + 1], p_hat[:count], guesses[:count], u, _rule, lambda p, p_hat: (p - p_hat).clamp(min=0))


@keep_guesses.variant
def _(p, p_hat, guesses, u):
    _place(p, p_hat, guesses, u)
    k = len(guesses)
    at = torch.arange(k), torch.tensor(guesses, dtype=torch.long)
    stay = (u[:k] * p_hat[at] < p[:k][at]).int().cumprod(0)
    kept = int(stay.sum())
    left = p[k] if kept == k else torch.relu(p[kept] - p_hat[kept])
    running = left.cumsum(0)
    token = torch.searchsorted(running, u[-1] * running[-1], right=True)
    return [*guesses[:kept], min(int(token), len(left) - 1)]


@keep_guesses.variant
def _(p, p_hat, guesses, u):
    # Treat the position after the last guess as one where the draft has probability 0
    _place(p, p_hat, guesses, u)
    p_hat = torch.cat([p_hat, torch.zeros_like(p[:1])])
    place = 0
    while place < len(guesses) and bool(u[place] * p_hat[place][guesses[place]] < p[place][guesses[place]]):
        place += 1
    left = torch.where(p[place] > p_hat[place], p[place] - p_hat[place], 0.0)
    return [*guesses[:place], _pick(left, u[-1])]


# 18.3


@exercise(
    "18.3",
    "Guess from the text itself",
    task="Find what followed an earlier occurrence of the last tokens",
    points=2,
    difficulty=2,
    minutes=12,
    limits={"longest": (1,), "count": (1,)},
    hints=(
        "Try the last `longest` tokens first, `ids[-n:]`, and then shorter runs.",
        "Go from the end of the text to its beginning. At which position is `ids[end - n : end]` the same run? It must end before the text does.",
        "The first match gives `ids[end : end + count]`.",
    ),
)
def look_up(ids, longest, count):
    """`ids` is a list of tokens. Take its last `n` tokens, for `n` from `longest` down to 1, and look for the same run
    earlier in the text. Stop at the longest run that also occurs earlier, take the latest of its earlier occurrences,
    and return the tokens that follow it: at most `count` tokens, and none beyond the end of the text. Return an empty
    list if even the last token has not occurred before.

    ```python
    >>> look_up([7, 1, 2, 5, 1, 2], 3, 2)
    [5, 1]
    ```

    ★
    - Raise a `ValueError` if `longest` or `count` is below 1.
    - For an empty text, return an empty list.
    """
    ### BEGIN SOLUTION
    if longest < 1 or count < 1:
        raise ValueError(f"longest={longest}, count={count}: expected both to be at least 1")
    for n in range(min(longest, len(ids) - 1), 0, -1):
        for place in range(len(ids) - 1, n - 1, -1):
            if ids[place - n : place] == ids[-n:]:
                return ids[place : place + count]
    return []
    ### END SOLUTION


@look_up.cases
def _(draw):
    yield Case("a run of two occurred before", ([4, 1, 2, 9, 3, 1, 2], 2, 3))
    yield Case("the longest run wins", ([1, 2, 3, 8, 5, 3, 6, 1, 2, 3], 3, 2))
    yield Case("the latest occurrence wins", ([1, 2, 5, 1, 2, 6, 7, 1, 2], 2, 1))
    yield Case("a shorter run if the long one is new", ([5, 2, 8, 4, 3, 2], 3, 2))
    yield Case("no more tokens than the text has", ([3, 4, 3], 2, 5))
    yield Case("nothing occurred before", ([1, 2, 3, 4], 2, 3))
    yield Case("a run that overlaps itself", ([6, 6, 6, 6], 2, 3))
    yield Case("runs as long as the text and longer", ([1, 2, 1, 2], 9, 2))
    for number in range(3):
        ids = draw.wholes(0, 3, draw.whole(20, 30)).tolist()
        yield Case(f"a longer text, {number + 1} of 3", (ids, draw.whole(2, 4), draw.whole(2, 5)))
    yield Case("a text of one token", ([3], 2, 3))
    yield Case("an empty text", ([], 2, 3), robust="every text in the lesson has a token")
    yield Case("runs of length 0 are rejected", ([1, 2, 1], 0, 3), refuse=True)
    yield Case("a count below 1 is rejected", ([1, 2, 1], 2, 0), refuse=True)


def _run(longest, count):
    if longest < 1 or count < 1:
        raise ValueError("expected at least 1")


def _places(ids, n):
    """Return, in order, the positions before the end of the text where the run of the last n tokens also ends."""
    return [place for place in range(n, len(ids)) if ids[place - n : place] == ids[len(ids) - n :]]


@look_up.mistake("if there are several occurrences, take the latest, because nearby text is most like what comes next")
def _(ids, longest, count):
    _run(longest, count)
    for n in range(min(longest, len(ids) - 1), 0, -1):
        for place in _places(ids, n):
            return ids[place : place + count]
    return []


@look_up.mistake("try longer runs first, because a single token has nearly always occurred before")
def _(ids, longest, count):
    _run(longest, count)
    for n in range(1, min(longest, len(ids) - 1) + 1):
        for place in reversed(_places(ids, n)):
            return ids[place : place + count]
    return []


@look_up.mistake("you found the end of the text itself, and nothing follows it")
def _(ids, longest, count):
    _run(longest, count)
    place = len(ids)  # finds the run at the end of the text itself
    return ids[place : place + count]


@look_up.mistake("you return the run as well: return only what followed it")
def _(ids, longest, count):
    _run(longest, count)
    for n in range(min(longest, len(ids) - 1), 0, -1):
        for place in reversed(_places(ids, n)):
            return ids[place - n : place + count]
    return []


@look_up.mistake("you return everything that followed: return at most `count` tokens")
def _(ids, longest, count):
    _run(longest, count)
    for n in range(min(longest, len(ids) - 1), 0, -1):
        for place in reversed(_places(ids, n)):
            return ids[place:]
    return []


@look_up.mistake("if the longest run has not occurred before, try shorter ones")
def _(ids, longest, count):
    _run(longest, count)
    n = min(longest, len(ids) - 1)
    for place in reversed(_places(ids, n)) if n > 0 else ():
        return ids[place : place + count]
    return []


@look_up.mistake(
    "the earlier run may overlap the last one: in 6, 6, 6 the last two tokens also occur one position earlier"
)
def _(ids, longest, count):
    _run(longest, count)
    for n in range(min(longest, len(ids) - 1), 0, -1):
        for place in reversed(_places(ids[: len(ids)], n)):
            if place <= len(ids) - n:
                return ids[place : place + count]
    return []


@look_up.mistake("raise a ValueError if `longest` or `count` is below 1")
def _(ids, longest, count):
    for n in range(min(longest, len(ids) - 1), 0, -1):
        for place in reversed(_places(ids, n)):
            return ids[place : place + max(count, 0)]
    return []


@look_up.variant
def _(ids, longest, count):
    _run(longest, count)
    for n in range(longest, 0, -1):
        places = _places(ids, n) if n < len(ids) else []
        if places:
            return ids[max(places) : max(places) + count]
    return []


@look_up.variant
def _(ids, longest, count):
    # For each position, count how many of the preceding tokens match the end of the text; take the longest match, or
    # the last of them if several are equally long
    _run(longest, count)
    best, found = 0, len(ids)
    for place in range(1, len(ids)):
        n = 0
        while n < min(longest, place) and ids[place - 1 - n] == ids[len(ids) - 1 - n]:
            n += 1
        if n >= max(best, 1):
            best, found = n, place
    return list(ids[found : found + count])


# 18.4


@exercise(
    "18.4",
    "A scheduler",
    task="Fill each seat as soon as it is free, and return when each text is done",
    points=3,
    difficulty=2,
    minutes=20,
    limits={"seats": (1,)},
    hints=(
        "Use a queue of waiting texts, and a list of seated ones with the number of tokens that each still has to write.",
        "At the start of each step, fill the free seats, in order, with texts that have arrived. Then every seated text writes a token, and finished texts leave.",
        "A text that writes its last token in step t is done at t + 1, and its seat is free for step t + 1.",
    ),
)
def done_at(arrivals, lengths, seats):
    """Text i arrives at time `arrivals[i]`, an integer, and has `lengths[i]` tokens to write. Arrivals are in ascending
    order. Each step advances from time t to t + 1. At the beginning of a step, waiting texts that have arrived by time
    t take the free seats in order. Then each seated text writes one token, and it leaves if this token was its last.
    Return a list with the time at which each text is done.

    ```python
    >>> done_at([0, 0, 1], [3, 1, 2], 2)
    [3, 1, 3]
    ```

    ★
    - Raise a `ValueError` for lists of unequal length, descending or negative arrivals, or lengths or seats below 1.
    - If there are no texts, return an empty list.
    """
    ### BEGIN SOLUTION
    if len(arrivals) != len(lengths) or seats < 1 or min(lengths, default=1) < 1:
        raise ValueError(
            f"{len(arrivals)} arrivals, {len(lengths)} lengths, seats={seats}: expected lists of equal length, and every number to be at least 1"
        )
    if list(arrivals) != sorted(arrivals) or min(arrivals, default=0) < 0:
        raise ValueError(f"arrivals={arrivals}: expected non-negative times in ascending order")
    done, waiting, left, time = [0] * len(lengths), list(range(len(lengths))), {}, 0
    while waiting or left:
        while waiting and len(left) < seats and arrivals[waiting[0]] <= time:
            text = waiting.pop(0)
            left[text] = lengths[text]
        time += 1
        for text in list(left):
            left[text] -= 1
            if left[text] == 0:
                done[text] = time
                del left[text]
    return done
    ### END SOLUTION


@done_at.cases
def _(draw):
    yield Case("a seat for each text", ([0, 0], [3, 2], 2))
    yield Case("one seat: one text after the other", ([0, 0, 0], [2, 3, 1], 1))
    yield Case("a seat is filled as soon as it is free", ([0, 0, 0, 0], [5, 1, 2, 3], 2))
    yield Case("for a while there is no text", ([0, 6], [2, 3], 2))
    yield Case("later texts wait behind earlier ones", ([0, 0, 1, 1], [4, 4, 6, 1], 2))
    yield Case("the first text arrives late", ([3, 3], [1, 2], 1))
    for number in range(3):
        count = draw.whole(7, 10)
        arrivals = sorted(draw.wholes(0, 12, count).tolist())
        yield Case(f"many texts, {number + 1} of 3", (arrivals, draw.wholes(1, 9, count).tolist(), draw.whole(2, 4)))
    yield Case("no text", ([], [], 2), robust="every timetable in the lesson has texts")
    yield Case("one length too few is rejected", ([0, 1], [2], 2), refuse=True)
    yield Case("zero seats are rejected", ([0, 1], [2, 2], 0), refuse=True)
    yield Case("a text of 0 tokens is rejected", ([0, 1], [2, 0], 2), refuse=True)
    yield Case("descending arrivals are rejected", ([2, 1], [2, 2], 2), refuse=True)
    yield Case("negative arrivals are rejected", ([-1, 1], [2, 2], 2), refuse=True)
    count = draw.whole(33, 40)
    arrivals = sorted(draw.wholes(0, 50, count).tolist())
    yield Case(LARGE, (arrivals, draw.wholes(1, 9, count).tolist(), draw.whole(3, 6)))


def _timetable(arrivals, lengths, seats):
    if len(arrivals) != len(lengths) or seats < 1 or min(lengths, default=1) < 1:
        raise ValueError("expected lists of equal length, and every number to be at least 1")
    if list(arrivals) != sorted(arrivals) or min(arrivals, default=0) < 0:
        raise ValueError("expected ascending times")


def _seated(arrivals, lengths, seats, order=None, together=False, seated_first=True):
    """Simulate the steps, correctly by default; the options introduce mistakes."""
    done, waiting, left, time = [0] * len(lengths), list(range(len(lengths))), {}, 0
    while waiting or left:
        free = seats - len(left) if not together or not left else 0
        there = [text for text in waiting if arrivals[text] <= time]
        for text in sorted(there, key=order)[:free] if order else there[:free]:
            waiting.remove(text)
            left[text] = lengths[text]
        time += 1
        for text in list(left):
            left[text] -= 1
            if left[text] == 0:
                done[text] = time
                del left[text]
    return done


@done_at.mistake("you wait until all seats are free, which is static batching: fill each seat as soon as it is free")
def _(arrivals, lengths, seats):
    _timetable(arrivals, lengths, seats)
    return _seated(arrivals, lengths, seats, together=True)


@done_at.mistake("texts take seats in the order of their arrival, not the shortest first")
def _(arrivals, lengths, seats):
    _timetable(arrivals, lengths, seats)
    return _seated(arrivals, lengths, seats, order=lambda text: lengths[text])


@done_at.mistake("you seat a text before it arrives")
def _(arrivals, lengths, seats):
    _timetable(arrivals, lengths, seats)
    return _seated([0] * len(lengths), lengths, seats)


@done_at.mistake("a step lasts from t to t + 1, so a text that writes its last token in step t is done at t + 1")
def _(arrivals, lengths, seats):
    _timetable(arrivals, lengths, seats)
    return [time - 1 for time in _seated(arrivals, lengths, seats)]


@done_at.mistake("there are only `seats` seats, so the other texts have to wait")
def _(arrivals, lengths, seats):
    _timetable(arrivals, lengths, seats)
    return [arrival + length for arrival, length in zip(arrivals, lengths, strict=True)]


@done_at.mistake("you return how long each text took: return the time when it is done")
def _(arrivals, lengths, seats):
    _timetable(arrivals, lengths, seats)
    return [time - arrival for time, arrival in zip(_seated(arrivals, lengths, seats), arrivals, strict=True)]


@done_at.mistake(
    "lists of unequal length, descending or negative arrivals, and lengths or seats below 1 must be rejected with a ValueError"
)
def _(arrivals, lengths, seats):
    count = min(len(arrivals), len(lengths))
    return _seated(list(arrivals[:count]), [max(1, x) for x in lengths[:count]], max(1, seats))


@done_at.variant
def _(arrivals, lengths, seats):
    # Store the time at which each seat becomes free; the next text takes the seat with the earliest time
    _timetable(arrivals, lengths, seats)
    free, done = [0] * seats, []
    for arrival, length in zip(arrivals, lengths, strict=True):
        seat = free.index(min(free))
        free[seat] = max(free[seat], arrival) + length
        done.append(free[seat])
    return done


@done_at.variant
def _(arrivals, lengths, seats):
    _timetable(arrivals, lengths, seats)
    return _seated(arrivals, lengths, seats, order=lambda text: text)


# 18.5


@exercise(
    "18.5",
    "Attention through a block table",
    task="Let a query attend to keys and values that are stored in blocks",
    points=3,
    difficulty=2,
    minutes=12,
    right={"gradients": "its answer goes into a model that learns"},
    excused={"edge": "a different number of tokens needs a different table"},
    hints=(
        "`k_pool[table]` gives the text's blocks in its own order: (block, slot, d).",
        "`flatten(0, 1)` turns them into one row per token. The first `length` rows are the text.",
        "Cut off the other rows before you compute scores, because slots after the text may contain anything, and 0 times NaN is NaN.",
    ),
)
def read_blocks(q, k_pool, v_pool, table, length):
    """A cache consists of blocks of keys, `k_pool` (block, slot, d), and of values, `v_pool` (block, slot, d_v). Token
    t of a text is in block `table[t // slots]` of the pool, at slot `t % slots`, where `slots` is the number of slots
    in a block. The text has `length` tokens. Return the output of attention, (d_v), for the query `q` (d) over these
    tokens, with scores divided by $\\sqrt{d}$.

    ```python
    >>> pool = torch.tensor([[[2.0], [9.0]], [[4.0], [6.0]]])
    >>> read_blocks(torch.zeros(1), pool, pool, [1, 0], 3)
    tensor([4.])
    ```

    ★
    - Raise a `ValueError` for a text without tokens, for a text that its table cannot hold, or if the sizes do not
      match.
    - Slots of other texts and slots after the end of the text must not affect the result, even if they contain NaN.
    - The result must stay finite for scores of a million.
    """
    ### BEGIN SOLUTION
    slots = k_pool.shape[1]
    if q.shape != k_pool.shape[2:] or v_pool.shape[:2] != k_pool.shape[:2] or not 1 <= length <= len(table) * slots:
        raise ValueError(
            f"q {tuple(q.shape)}, k_pool {tuple(k_pool.shape)}, v_pool {tuple(v_pool.shape)}, {length} tokens"
        )
    keys, values = (pool[table].flatten(0, 1)[:length] for pool in (k_pool, v_pool))
    return torch.softmax(keys @ q / len(q) ** 0.5, dim=0) @ values
    ### END SOLUTION


@read_blocks.cases
def _(draw):
    k, v = draw.normal(5, 2, 3), draw.normal(5, 2, 4)
    yield Case("blocks in a different order", (draw.normal(3), k, v, [3, 0, 4], 6), gradients=True)
    yield Case("the last block is not full", (draw.normal(3), k, v, [2, 1, 0], 5))
    yield Case("one token", (draw.normal(3), k, v, [4], 1))
    yield Case("a table longer than the text", (draw.normal(3), k, v, [1, 3, 0, 2], 3))
    block, slots, d, d_v = draw.sizes(4, 3, 9)
    k, v = draw.normal(block, slots, d), draw.normal(block, slots, d_v)
    table, q = draw.shuffled(block).tolist()[:-1], draw.normal(d)
    length = slots * (block - 2) + 1
    yield Case("other sizes", (q, k, v, table, length))
    spoilt_k, spoilt_v = k.clone(), v.clone()
    others = [one for one in range(block) if one not in table]
    for pool in (spoilt_k, spoilt_v):
        pool[others] = float("nan")
        pool[table[-1], 1:] = float("nan")
    yield Case(
        "NaN in unused slots", (q, spoilt_k, spoilt_v, table, length), robust="the lesson's pools contain no NaN"
    )
    yield Case("scores of a million", (1e6 * q, k, v, table, length), robust="the lesson has no such scores")
    yield Case("zero tokens are rejected", (q, k, v, table, 0), refuse=True)
    yield Case("a table that is too short is rejected", (q, k, v, table[:1], slots + 1), refuse=True)
    yield Case("a query of a different width is rejected", (q[1:], k, v, table, length), refuse=True)
    yield Case("a smaller pool of values is rejected", (q, k, v[:, 1:], table, length), refuse=True)


def _pools(q, k_pool, v_pool, table, length):
    if q.shape != k_pool.shape[2:] or v_pool.shape[:2] != k_pool.shape[:2]:
        raise ValueError("sizes do not match")
    if not 1 <= length <= len(table) * k_pool.shape[1]:
        raise ValueError("the table cannot hold the text")


def _look(q, keys, values):
    return torch.softmax(keys @ q / len(q) ** 0.5, dim=0) @ values


@read_blocks.mistake("you read the pool in its own order: the table gives the order of the text")
def _(q, k_pool, v_pool, table, length):
    _pools(q, k_pool, v_pool, table, length)
    return _look(q, k_pool.flatten(0, 1)[:length], v_pool.flatten(0, 1)[:length])


@read_blocks.mistake("the last block may not be full: slots after the end do not belong to the text")
def _(q, k_pool, v_pool, table, length):
    _pools(q, k_pool, v_pool, table, length)
    used = table[: -(-length // k_pool.shape[1])]
    return _look(q, k_pool[used].flatten(0, 1), v_pool[used].flatten(0, 1))


@read_blocks.mistake("you read all blocks in the table, but the text may end before the last one")
def _(q, k_pool, v_pool, table, length):
    _pools(q, k_pool, v_pool, table, length)
    return _look(q, k_pool[table].flatten(0, 1), v_pool[table].flatten(0, 1))


@read_blocks.mistake("do not sort the table: the order of its blocks is the order of the tokens")
def _(q, k_pool, v_pool, table, length):
    _pools(q, k_pool, v_pool, table, length)
    table = sorted(table)
    return _look(q, k_pool[table].flatten(0, 1)[:length], v_pool[table].flatten(0, 1)[:length])


@read_blocks.mistake("the scores are not divided by the square root of d")
def _(q, k_pool, v_pool, table, length):
    _pools(q, k_pool, v_pool, table, length)
    keys, values = k_pool[table].flatten(0, 1)[:length], v_pool[table].flatten(0, 1)[:length]
    return torch.softmax(keys @ q, dim=0) @ values


@read_blocks.mistake("you apply softmax block by block, but all tokens of the text share one row of weights")
def _(q, k_pool, v_pool, table, length):
    _pools(q, k_pool, v_pool, table, length)
    slots, found, count = k_pool.shape[1], 0.0, 0
    for at, block in enumerate(table):
        here = min(slots, length - at * slots)
        if here > 0:
            found, count = found + _look(q, k_pool[block][:here], v_pool[block][:here]), count + 1
    return found / count


@read_blocks.mistake("a weight of 0 times NaN is NaN: cut off the slots after the text before you compute scores")
def _(q, k_pool, v_pool, table, length):
    _pools(q, k_pool, v_pool, table, length)
    keys, values = k_pool[table].flatten(0, 1), v_pool[table].flatten(0, 1)
    scores = (keys @ q / len(q) ** 0.5).masked_fill(torch.arange(len(keys)) >= length, float("-inf"))
    return torch.softmax(scores, dim=0) @ values


@read_blocks.mistake(
    "a text without tokens, one that its table cannot hold, and sizes that do not match must be rejected with a ValueError"
)
def _(q, k_pool, v_pool, table, length):
    width, slots = min(len(q), k_pool.shape[2]), min(k_pool.shape[1], v_pool.shape[1])
    keys = k_pool[table][:, :slots, :width].flatten(0, 1)[: max(length, 1)]
    values = v_pool[table][:, :slots].flatten(0, 1)[: max(length, 1)]
    return torch.softmax(keys @ q[:width] / k_pool.shape[2] ** 0.5, dim=0) @ values


@read_blocks.variant
def _(q, k_pool, v_pool, table, length):
    # Process one token at a time
    _pools(q, k_pool, v_pool, table, length)
    slots = k_pool.shape[1]
    keys = torch.stack([k_pool[table[t // slots], t % slots] for t in range(length)])
    values = torch.stack([v_pool[table[t // slots], t % slots] for t in range(length)])
    scores = keys @ q / len(q) ** 0.5
    powers = (scores - scores.max()).exp()
    return powers @ values / powers.sum()


@read_blocks.variant
def _(q, k_pool, v_pool, table, length):
    # Process one block at a time, with the largest score so far and two sums, as in lesson 12
    _pools(q, k_pool, v_pool, table, length)
    slots, top, total, found = k_pool.shape[1], None, 0.0, 0.0
    for at in range(-(-length // slots)):
        here = slice(0, min(slots, length - at * slots))
        scores = k_pool[table[at], here] @ q / len(q) ** 0.5
        new = scores.max() if top is None else torch.maximum(top, scores.max())
        shrink = 1.0 if top is None else (top - new).exp()
        powers = (scores - new).exp()
        total, found, top = total * shrink + powers.sum(), found * shrink + powers @ v_pool[table[at], here], new
    return found / total


# 18.6


@exercise(
    "18.6",
    "Blocks that texts share",
    task="Count the blocks of texts that share their beginnings",
    points=3,
    difficulty=3,
    minutes=15,
    limits={"slots": (1,)},
    hints=(
        "When may a block be shared? The keys and values of a token depend on all tokens before it.",
        "A full block is identified by all tokens of its text up to its end, `tuple(text[:end])`. Put these into a set.",
        "Tokens that remain after a text's full blocks need a block of their own.",
    ),
)
def blocks_for(texts, slots):
    """`texts` is a list of lists of tokens, and a block holds `slots` tokens of a text. Any two texts in the list may share a *full* block if its
    keys and values are the same in both. A block that is not full will still be written to, so it cannot be shared. How many blocks do all texts need
    together? Return an `int`.

    ```python
    >>> blocks_for([[1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [9, 9, 3, 4]], 2)
    6
    ```

    ★
    - Raise a `ValueError` if `slots` is below 1.
    - A text without tokens needs no block.
    """
    ### BEGIN SOLUTION
    if slots < 1:
        raise ValueError(f"slots={slots}: expected at least 1")
    full = {tuple(text[:end]) for text in texts for end in range(slots, len(text) + 1, slots)}
    return len(full) + sum(len(text) % slots > 0 for text in texts)
    ### END SOLUTION


@blocks_for.cases
def _(draw):
    yield Case("one text", ([[1, 2, 3, 4, 5]], 2))
    yield Case("two texts with the same beginning", ([[1, 2, 3, 4, 5], [1, 2, 3, 4, 6]], 2))
    yield Case("the same block after a different beginning", ([[1, 2, 3, 4], [5, 6, 3, 4]], 2))
    yield Case("the same block twice in a text", ([[1, 2, 1, 2, 1, 2]], 2))
    yield Case("the same text twice, with a partly filled block", ([[1, 2, 3], [1, 2, 3]], 2))
    yield Case("texts that share are not adjacent", ([[1, 2, 3, 4], [7, 8], [1, 2, 3, 9], [1, 2]], 2))
    yield Case("texts shorter than a block", ([[1], [1], [2]], 4))
    slots = draw.whole(3, 5)
    head = draw.wholes(0, 9, 4 * slots).tolist()
    texts = [head[: draw.whole(1, len(head))] + draw.wholes(0, 9, draw.whole(1, 9)).tolist() for _ in range(6)]
    yield Case("other texts", (texts, slots))
    yield Case("blocks of one slot", ([[1, 2, 3], [1, 2, 4], [2, 2]], 1))
    yield Case("a text without tokens", ([[], [1, 2]], 2), robust="every text in the lesson has a token")
    yield Case("no texts", ([], 2), robust="every text in the lesson has tokens")
    yield Case("zero slots are rejected", ([[1, 2]], 0), refuse=True)


def _slots(slots):
    if slots < 1:
        raise ValueError("expected a slot")


def _cut(text, slots):
    return [tuple(text[at : at + slots]) for at in range(0, len(text), slots)]


@blocks_for.mistake(
    "after a different beginning, the same tokens have different keys and values: a block is identified by all tokens up to its end"
)
def _(texts, slots):
    _slots(slots)
    full = {block for text in texts for block in _cut(text, slots) if len(block) == slots}
    return len(full) + sum(len(text) % slots > 0 for text in texts)


@blocks_for.mistake("a block that is not full will still be written to, so each text needs its own")
def _(texts, slots):
    _slots(slots)
    return len({tuple(text[: at + slots]) for text in texts for at in range(0, len(text), slots)})


@blocks_for.mistake("you share nothing: full blocks of equal beginnings are stored once")
def _(texts, slots):
    _slots(slots)
    return sum(-(-len(text) // slots) for text in texts)


@blocks_for.mistake("blocks that are not full count as well: you counted only full ones")
def _(texts, slots):
    _slots(slots)
    return len({tuple(text[:end]) for text in texts for end in range(slots, len(text) + 1, slots)})


@blocks_for.mistake("a text may share blocks with any other text, not only with the one before it in the list")
def _(texts, slots):
    _slots(slots)
    count, before = 0, []
    for text in texts:
        same = 0
        while same + slots <= min(len(text), len(before)) and text[: same + slots] == before[: same + slots]:
            same += slots
        count += -(-len(text) // slots) - same // slots
        before = text
    return count


@blocks_for.mistake("you compare only a block's position and its own tokens, but all tokens before it matter as well")
def _(texts, slots):
    _slots(slots)
    full = {(at, block) for text in texts for at, block in enumerate(_cut(text, slots)) if len(block) == slots}
    return len(full) + sum(len(text) % slots > 0 for text in texts)


@blocks_for.mistake("fewer than one slot must be rejected with a ValueError")
def _(texts, slots):
    slots = max(slots, 1)
    full = {tuple(text[:end]) for text in texts for end in range(slots, len(text) + 1, slots)}
    return len(full) + sum(len(text) % slots > 0 for text in texts)


@blocks_for.variant
def _(texts, slots):
    # Build a tree in which each node is a full block and its parent is the block before it
    _slots(slots)
    root, count = {}, 0
    for text in texts:
        node = root
        for block in _cut(text, slots):
            if len(block) < slots:
                count += 1
            else:
                count += block not in node
                node = node.setdefault(block, {})
    return count


@blocks_for.variant
def _(texts, slots):
    # Store what a server stores: the index of the previous block, and the block's tokens
    _slots(slots)
    number, own = {}, 0
    for text in texts:
        before = -1
        for block in _cut(text, slots):
            if len(block) == slots:
                before = number.setdefault((before, block), len(number))
            else:
                own += 1
    return len(number) + own
