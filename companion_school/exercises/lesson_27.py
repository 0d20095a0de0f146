"""Exercises of lesson 27: from start to finish."""

import itertools
import math

import torch

from companion_school.checking.exercise import Case, exercise

# 27.1


@exercise(
    "27.1",
    "What an evening buys",
    task="Compute the size of a model that an evening can train",
    points=1,
    difficulty=1,
    minutes=5,
    hints=(
        "How many operations does the laptop do in four hours?",
        "Training costs six operations for each parameter and token, and there are 20 tokens for each parameter.",
        "So the number of operations is 120 times the square of the number of parameters.",
    ),
)
def evening_parameters():
    """A laptop trains a model for 4 hours and performs $5 \\cdot 10^{10}$ operations per second. The model reads 20
    tokens for each parameter. How many parameters does the model have? Return a `float` with a relative error of at
    most 0.001.
    """
    ### BEGIN SOLUTION
    operations = 4 * 3600 * 5e10
    return (operations / (6 * 20)) ** 0.5
    ### END SOLUTION


@evening_parameters.cases
def _(draw):
    yield Case("the number of parameters", (), tolerance=1e-3)


@evening_parameters.mistake("training costs 6 operations for each parameter and token: the 6 is missing")
def _():
    return (4 * 3600 * 5e10 / 20) ** 0.5


@evening_parameters.mistake("training costs 6 operations for each parameter and token, not 2")
def _():
    return (4 * 3600 * 5e10 / 40) ** 0.5


@evening_parameters.mistake("those are the tokens: there are 20 for each parameter")
def _():
    return 20 * (4 * 3600 * 5e10 / 120) ** 0.5


@evening_parameters.mistake("an hour has 3,600 seconds, not 60")
def _():
    return (4 * 60 * 5e10 / 120) ** 0.5


@evening_parameters.mistake(
    "the number of tokens is 20 times that of the parameters, so the product contains a square: take the square root"
)
def _():
    return 4 * 3600 * 5e10 / 120


@evening_parameters.variant
def _():
    return 2_449_489.742783178


@evening_parameters.variant
def _():
    tokens = math.sqrt(20 * 4 * 60 * 60 * 5e10 / 6)
    return tokens / 20


# 27.2


@exercise(
    "27.2",
    "How sure is the score?",
    task="Put a bootstrap interval around bits per byte",
    points=2,
    difficulty=3,
    minutes=20,
    limits={"confidence": (0, 1)},
    excused={
        "dtype": "sums over a whole text in half precision would lose digits, so correct answers compute in float64",
    },
    hints=(
        "A resample takes whole documents: index both tensors with the same row of `picks`.",
        "The bits per byte of a resample are its summed nats divided by ln 2 and by its summed bytes.",
        "A share of (1 - confidence) / 2 of the resamples lies on each side of the interval: call `torch.quantile` twice.",
    ),
)
def score_interval(nats, size, picks, confidence):
    """The tensors `nats` and `size` (document) hold the loss and the number of bytes of each held-out document. Each
    row of `picks` (resample, document) holds the indices of the documents in one bootstrap resample. Return
    `(score, low, high)`, three floats in bits per byte: the score of all documents, and the ends of the interval that
    contains the share `confidence` of the resampled scores, with as many of them below the interval as above it
    (`torch.quantile`).

    ```python
    >>> picks = torch.tensor([[0, 0], [0, 1], [1, 1]])
    >>> found = score_interval(torch.tensor([2.0, 4.0]), torch.tensor([1, 4]), picks, 0.5)
    >>> [round(number, 4) for number in found]
    [1.7312, 1.587, 2.3083]
    ```

    ★
    - Raise a `ValueError` for a `confidence` that is not strictly between 0 and 1, for tensors of different lengths, or
      if there is no document.
    - Do not change the arguments.
    """
    ### BEGIN SOLUTION
    if not 0 < confidence < 1 or not len(nats) == len(size) == picks.shape[1] >= 1:
        counts = f"{len(nats)}, {len(size)}, {picks.shape[1]} documents"
        raise ValueError(
            f"{counts}, confidence={confidence}: expected equal lengths, at least one document and a confidence between 0 and 1"
        )
    bits, size = nats.double() / math.log(2), size.double()
    again = bits[picks].sum(1) / size[picks].sum(1)
    tail = (1 - confidence) / 2
    low, high = again.quantile(tail).item(), again.quantile(1 - tail).item()
    return (bits.sum() / size.sum()).item(), low, high
    ### END SOLUTION


@score_interval.cases
def _(draw):
    count, resamples = draw.whole(6, 9), draw.whole(30, 40)
    nats = 40 + 100 * draw.uniform(count)
    size = draw.wholes(50, 400, count)
    picks = draw.wholes(0, count - 1, resamples, count)
    yield Case("documents of unequal size", (nats, size, picks, 0.9))
    yield Case("a narrower interval", (nats, size, picks, 0.5))
    yield Case("documents of one size", (nats, torch.full((count,), 100), picks, 0.8))
    yield Case("all documents are equally hard: an interval of width 0", (0.3 * size.double(), size, picks, 0.9))
    yield Case("a single document", (nats[:1], size[:1], torch.zeros(4, 1, dtype=torch.int64), 0.9))
    yield Case("every resample is the same", (nats, size, torch.arange(count).repeat(3, 1), 0.9))
    yield Case("a confidence of 1 is rejected", (nats, size, picks, 1.0), refuse=True)
    yield Case("a confidence of 0 is rejected", (nats, size, picks, 0.0), refuse=True)
    yield Case("one loss too few is rejected", (nats[1:], size, picks, 0.9), refuse=True)
    yield Case("one size too few is rejected", (nats, size[1:], picks, 0.9), refuse=True)
    yield Case("picks of fewer documents are rejected", (nats, size, picks[:, 1:], 0.9), refuse=True)
    yield Case(
        "zero documents are rejected", (nats[:0], size[:0], torch.zeros(3, 0, dtype=torch.int64), 0.9), refuse=True
    )


def _scored(nats, size, picks, confidence, *, ln=True, ratios=False, own=True, tails=2, bytes_first=True):
    """Compute the score and the interval, correctly by default; the options introduce mistakes."""
    if not 0 < confidence < 1 or not len(nats) == len(size) == picks.shape[1] >= 1:
        raise ValueError("documents, confidence")
    bits, size = nats.double() / (math.log(2) if ln else 1), size.double()
    each = bits / size
    if ratios:
        again, score = each[picks].mean(1), each.mean()
    else:
        below = size[picks].sum(1) if own else size.sum()
        again, score = bits[picks].sum(1) / below, bits.sum() / size.sum()
    tail = (1 - confidence) / tails
    return score.item(), again.quantile(tail).item(), again.quantile(1 - tail).item()


@score_interval.mistake("those are nats: a bit is ln 2 nats")
def _(*given):
    return _scored(*given, ln=False)


@score_interval.mistake(
    "a mean of the documents' own scores gives short and long documents the same weight: add first, then divide"
)
def _(*given):
    return _scored(*given, ratios=True)


@score_interval.mistake("a resample has its own bytes: divide by them, not by those of all documents")
def _(*given):
    return _scored(*given, own=False)


@score_interval.mistake("the scores outside the interval lie on both sides: leave out half of them on each side")
def _(*given):
    return _scored(*given, tails=1)


@score_interval.mistake("for every confidence you return the lowest and the highest resampled score")
def _(nats, size, picks, confidence):
    score, *_ = _scored(nats, size, picks, confidence)
    again = nats.double()[picks].sum(1) / math.log(2) / size.double()[picks].sum(1)
    return score, again.min().item(), again.max().item()


@score_interval.mistake("the score is that of all documents, not the mean of the resamples")
def _(nats, size, picks, confidence):
    _, low, high = _scored(nats, size, picks, confidence)
    again = nats.double()[picks].sum(1) / math.log(2) / size.double()[picks].sum(1)
    return again.mean().item(), low, high


@score_interval.mistake(
    "documents that do not match, or a confidence that is not between 0 and 1, must be rejected with a ValueError"
)
def _(nats, size, picks, confidence):
    count = min(len(nats), len(size), picks.shape[1])
    if not count:
        return 0.0, 0.0, 0.0
    return _scored(nats[:count], size[:count], picks[:, :count] % count, min(max(confidence, 0.01), 0.99))


@score_interval.variant
def _(nats, size, picks, confidence):
    # Count how often each document is drawn, and add up with a matrix product
    if not 0 < confidence < 1 or len({len(nats), len(size), picks.shape[1]}) != 1 or not len(nats):
        raise ValueError("documents, confidence")
    drawn = torch.nn.functional.one_hot(picks, len(nats)).sum(1).double()
    again = (drawn @ nats.double()) / (drawn @ size.double()) / math.log(2)
    ends = again.quantile(torch.tensor([0.5 - confidence / 2, 0.5 + confidence / 2], dtype=torch.float64))
    return float(nats.double().sum() / size.double().sum() / math.log(2)), float(ends[0]), float(ends[1])


@score_interval.variant
def _(nats, size, picks, confidence):
    # Sort the scores, and interpolate linearly between two of them
    if not len(nats) == len(size) == picks.shape[1] or len(nats) == 0 or not 0 < confidence < 1:
        raise ValueError("documents, confidence")
    again = sorted(
        sum(float(nats[at]) for at in row) / sum(float(size[at]) for at in row) / math.log(2) for row in picks.tolist()
    )

    def at(share):
        where = share * (len(again) - 1)
        left = min(int(where), len(again) - 1)
        right = min(left + 1, len(again) - 1)
        return again[left] + (where - left) * (again[right] - again[left])

    whole = sum(map(float, nats)) / sum(map(float, size)) / math.log(2)
    return whole, at((1 - confidence) / 2), at((1 + confidence) / 2)


# 27.3


@exercise(
    "27.3",
    "Where in a text is it good?",
    task="Measure bits per byte by position in the text",
    points=2,
    difficulty=2,
    minutes=15,
    excused={
        "dtype": "sums over a whole text in half precision would lose digits, so correct answers compute in float64",
    },
    hints=(
        "The first part holds the tokens from `edges[0]` up to, but not including, `edges[1]`.",
        "Slice every document in the same way: a slice after its end is empty and adds nothing.",
        "First add up nats and bytes over all documents, then divide once for each part.",
    ),
)
def bits_by_position(nats, size, edges):
    """For each document, the list `nats` contains a tensor (token) with the loss of each token, and the list `size`
    contains a tensor (token) with the number of bytes in each token. The documents have different lengths. `edges`, such as
    `[0, 64, 128]`, cut the positions into parts: 0 to 63, and 64 to 127. Return a `float64` tensor (part) with the bits
    per byte of all tokens in each part.

    ```python
    >>> nats = [torch.tensor([1.0, 3.0, 5.0]), torch.tensor([1.0])]
    >>> size = [torch.tensor([2, 1, 1]), torch.tensor([1])]
    >>> bits_by_position(nats, size, [0, 1, 3]) * math.log(2)
    tensor([0.6667, 4.0000], dtype=torch.float64)
    ```

    ★
    - A part that no text reaches is NaN.
    - Raise a `ValueError` for edges that are not ascending, for fewer than two edges, or if a document has more or fewer losses than sizes.
    """
    ### BEGIN SOLUTION
    rise = all(edges[at] < edges[at + 1] for at in range(len(edges) - 1))
    if len(edges) < 2 or not rise or [len(one) for one in nats] != [len(one) for one in size]:
        raise ValueError(f"edges={edges}: expected two or more ascending edges, and one size for each loss")
    found = []
    for at in range(len(edges) - 1):
        first, end = edges[at], edges[at + 1]
        lost = sum(one[first:end].double().sum() for one in nats)
        spelled = sum(one[first:end].double().sum() for one in size)
        found.append(float(lost) / math.log(2) / float(spelled) if spelled else math.nan)
    return torch.tensor(found, dtype=torch.float64)
    ### END SOLUTION


@bits_by_position.cases
def _(draw):
    lengths = [*draw.sizes(4, 7, 15)]
    nats = [3 * draw.uniform(length) for length in lengths]
    size = [draw.wholes(1, 6, length) for length in lengths]
    yield Case("texts of different length", (nats, size, [0, 3, 6]))
    yield Case("long documents", (nats, size, [0, 5, max(lengths)]))
    yield Case("one part covers everything", (nats, size, [0, 20]))
    yield Case("parts of unequal width that do not start at 0", (nats, size, [1, 2, 6, 7]))
    yield Case("one text", (nats[:1], size[:1], [0, 2, 5]))
    yield Case("a part that no text reaches", (nats, size, [0, 4, 30, 40]), robust="the value is a convention")
    yield Case("a single edge is rejected", (nats, size, [3]), refuse=True)
    yield Case("descending edges are rejected", (nats, size, [0, 5, 3]), refuse=True)
    yield Case("equal edges are rejected", (nats, size, [0, 3, 3]), refuse=True)
    yield Case("one size too few is rejected", (nats, [size[0][1:], *size[1:]], [0, 3]), refuse=True)
    yield Case("one document too few is rejected", (nats, size[1:], [0, 3]), refuse=True)


def _ranged(nats, size, edges, *, ln=True, shift=0, closed=0, each=False, tokens=False):
    rise = all(one < two for one, two in itertools.pairwise(edges))
    if len(edges) < 2 or not rise or [len(one) for one in nats] != [len(one) for one in size]:
        raise ValueError("edges, documents")
    found = []
    for first, end in itertools.pairwise(edges):
        part = slice(first + shift, end + shift + closed)
        pairs = [(a[part].double().sum(), b[part].double().sum()) for a, b in zip(nats, size, strict=False)]
        counts = [len(a[part]) for a in nats]
        if each:
            ratios = [float(a / b) for a, b in pairs if b > 0]
            value = sum(ratios) / len(ratios) if ratios else math.nan
        else:
            below = sum(counts) if tokens else float(sum(b for _, b in pairs))
            value = float(sum(a for a, _ in pairs)) / below if below else math.nan
        found.append(value / (math.log(2) if ln else 1))
    return torch.tensor(found, dtype=torch.float64)


@bits_by_position.mistake("those are nats: a bit is ln 2 nats")
def _(*given):
    return _ranged(*given, ln=False)


@bits_by_position.mistake(
    "a mean of the texts' own scores gives short and long texts the same weight: add first, then divide"
)
def _(*given):
    return _ranged(*given, each=True)


@bits_by_position.mistake("those are bits per token: divide by the bytes of the tokens")
def _(*given):
    return _ranged(*given, tokens=True)


@bits_by_position.mistake("the token at an edge belongs to the next part, but you count it twice")
def _(*given):
    return _ranged(*given, closed=1)


@bits_by_position.mistake("positions start at 0: your parts begin one position too late")
def _(*given):
    return _ranged(*given, shift=1)


@bits_by_position.mistake("each part begins at its own edge: you measured everything up to its end")
def _(nats, size, edges):
    _ranged(nats, size, edges)
    ends = [_ranged(nats, size, [edges[0], end]) for end in edges[1:]]
    return torch.cat(ends)


@bits_by_position.mistake(
    "edges that are not ascending, and documents that do not match, must be rejected with a ValueError"
)
def _(nats, size, edges):
    edges = sorted({0, *edges}) if len(edges) < 2 else sorted(set(edges))
    pairs = [(a[: min(len(a), len(b))], b[: min(len(a), len(b))]) for a, b in zip(nats, size, strict=False)]
    return _ranged([a for a, _ in pairs], [b for _, b in pairs], edges)


@bits_by_position.variant
def _(nats, size, edges):
    # Put all tokens into one row, each with its position, and compute sums for each part
    if len(edges) < 2 or sorted(set(edges)) != list(edges) or list(map(len, nats)) != list(map(len, size)):
        raise ValueError("edges, documents")
    where = torch.cat([torch.arange(len(one)) for one in nats])
    part = torch.bucketize(where, torch.tensor(edges), right=True)
    sums = torch.zeros(2, len(edges) + 1, dtype=torch.float64)
    sums[0].index_add_(0, part, torch.cat([one.double() for one in nats]))
    sums[1].index_add_(0, part, torch.cat([one.double() for one in size]))
    return (sums[0] / sums[1] / math.log(2))[1:-1]


@bits_by_position.variant
def _(nats, size, edges):
    # Process one token at a time
    if any(len(a) != len(b) for a, b in zip(nats, size, strict=False)) or len(nats) != len(size) or len(edges) < 2:
        raise ValueError("documents")
    found = []
    for first, end in itertools.pairwise(edges):
        if end <= first:
            raise ValueError("edges")
        lost = spelled = 0.0
        for losses, sizes in zip(nats, size, strict=False):
            for at in range(first, min(end, len(losses))):
                lost, spelled = lost + losses[at].item(), spelled + sizes[at].item()
        found.append(math.log2(math.e) * lost / spelled if spelled > 0 else float("nan"))
    return torch.tensor(found).double() if not found else torch.tensor(found, dtype=torch.float64)


# 27.4


@exercise(
    "27.4",
    "What the card leaves out",
    task="Check a model card against its own numbers",
    points=1,
    difficulty=2,
    minutes=10,
    hints=(
        "Go through the six names, and collect those whose entry fails its own test.",
        "`card.get(name)` is None both for a missing entry and for one that is None.",
        "A valid interval is two numbers with `low <= score <= high`.",
    ),
)
def card_faults(card):
    """A model card is a dictionary. Return a list of the names of its faulty entries, in alphabetical order. The
    entries have to meet these conditions:

    - `data`, `licence` and `limits` are strings that are not empty;
    - `score` is a number above 0, and `interval` is a pair `(low, high)` with `low <= score <= high`;
    - `documents`, the number of documents that were scored, is an integer of at least 1.

    An entry that is missing or None is faulty. If the score is faulty, so is the interval. Other entries do not matter.

    ```python
    >>> card_faults({"data": "stories", "licence": "", "limits": "English", "score": 0.4, "interval": (0.5, 0.6), "documents": 20})
    ['interval', 'licence']
    ```

    ★
    - A string of blanks counts as empty.
    - Do not change the dictionary.
    """
    ### BEGIN SOLUTION
    faults = [name for name in ("data", "licence", "limits") if not (card.get(name) or "").strip()]
    score, interval, documents = card.get("score"), card.get("interval"), card.get("documents")
    right = score is not None and score > 0
    if not right:
        faults.append("score")
    if not right or interval is None or not interval[0] <= score <= interval[1]:
        faults.append("interval")
    if documents is None or documents < 1:
        faults.append("documents")
    return sorted(faults)
    ### END SOLUTION


@card_faults.cases
def _(draw):
    score = draw.whole(40, 90) / 100
    card = {
        "data": "stories from a grammar",
        "licence": "CC BY 4.0",
        "limits": "knows eight plots",
        "score": score,
        "interval": (score - 0.02, score + 0.03),
        "documents": draw.whole(20, 90),
    }

    def but(**changes):
        return ({**card, **changes},)

    yield Case("a complete card", (card,))
    yield Case("other entries do not matter", but(watts=None, colour=""))
    yield Case("a score below its interval", but(interval=(score + 0.01, score + 0.02)))
    yield Case("a score above its interval", but(interval=(score - 0.02, score - 0.01)))
    yield Case("a score at the end of its interval", but(interval=(score - 0.02, score)))
    yield Case("a score at the beginning of its interval", but(interval=(score, score + 0.5)))
    yield Case("no limits", but(limits=""))
    yield Case("no document", but(documents=0))
    yield Case("one document", but(documents=1))
    yield Case("a score of 0 has no interval", but(score=0.0, interval=(0.0, 0.1)))
    yield Case("two faults, in alphabetical order", but(licence="", data=None))
    yield Case("a string of blanks", but(licence="  "), robust="the lesson has no such text")
    for name in card:
        yield Case(f"{name} is missing", ({key: value for key, value in card.items() if key != name},))
    yield Case("an empty card", ({},))


def _faulty(card, *, skip=(), order=True, strict=False, follows=True, least=1):
    faults = [name for name in ("data", "licence", "limits") if not (card.get(name) or "").strip()]
    score, interval, documents = card.get("score"), card.get("interval"), card.get("documents")
    right = score is not None and score > 0
    if not right:
        faults.append("score")
    ends = interval if interval is not None else (0, 0)
    around = ends[0] < score < ends[1] if right and strict else not right or ends[0] <= score <= ends[1]
    if interval is None or (not right and follows) or not around:
        faults.append("interval")
    if documents is None or documents < least:
        faults.append("documents")
    faults = [name for name in faults if name not in skip]
    return sorted(faults) if order else faults


@card_faults.mistake("an interval must contain the score: compare it with both ends")
def _(card):
    missing = card.get("interval") is None or not (card.get("score") or 0) > 0
    return sorted([*_faulty(card, skip=("interval",)), *["interval"] * missing])


@card_faults.mistake("your names are not in alphabetical order")
def _(card):
    return _faulty(card, order=False)


@card_faults.mistake("a score at the end of its interval is inside: use <=")
def _(card):
    return _faulty(card, strict=True)


@card_faults.mistake("you accept an interval although the score is faulty: then the interval is faulty, too")
def _(card):
    return _faulty(card, follows=False)


@card_faults.mistake("one document is enough: the number must be an integer of at least 1")
def _(card):
    return _faulty(card, least=2)


@card_faults.mistake("check the number of documents, too: a score on no documents means nothing")
def _(card):
    return _faulty(card, skip=("documents",))


@card_faults.mistake("you checked only for missing entries: an entry can also be empty or wrong")
def _(card):
    return sorted(
        name for name in ("data", "licence", "limits", "score", "interval", "documents") if card.get(name) is None
    )


@card_faults.mistake("a string of blanks says nothing: strip it first")
def _(card):
    blank = [name for name in ("data", "licence", "limits") if card.get(name) and not card[name].strip()]
    return [name for name in _faulty(card) if name not in blank]


@card_faults.variant
def _(card):
    tests = {
        "data": lambda value: isinstance(value, str) and value.strip() != "",
        "documents": lambda value: value is not None and value >= 1,
        "interval": lambda value: (
            tests["score"](card.get("score"))
            and value is not None
            and sorted([value[0], card["score"], value[1]])[1] == card["score"]
            and value[0] <= value[1]
        ),
        "licence": lambda value: isinstance(value, str) and value.strip() != "",
        "limits": lambda value: isinstance(value, str) and value.strip() != "",
        "score": lambda value: value is not None and value > 0,
    }
    return [name for name, fine in tests.items() if not fine(card.get(name))]


@card_faults.variant
def _(card):
    found = set()
    for name in ("data", "licence", "limits"):
        text = card.get(name)
        if text is None or len(text.split()) == 0:
            found.add(name)
    score = card.get("score")
    if score is None or not score > 0:
        found |= {"score", "interval"}
    else:
        low, high = card.get("interval") or (math.inf, -math.inf)
        if low > score or score > high:
            found.add("interval")
    if (card.get("documents") or 0) <= 0:
        found.add("documents")
    return sorted(found)


# 27.5


@exercise(
    "27.5",
    "The bill",
    task="Compute the operations, kilowatt-hours and dollars that a project takes",
    points=2,
    difficulty=2,
    minutes=15,
    limits={"speed": (0,), "watts": (0,)},
    hints=(
        "A token in training costs six operations for each parameter, and a token that is only read or written costs two.",
        "Seconds are operations divided by speed. A kilowatt-hour is 1,000 watts for 3,600 seconds.",
        "Electricity is paid per kilowatt-hour, and a rented machine per hour.",
    ),
)
def bill(runs, speed, watts, price, rent=0.0):
    """A project is a list of `runs`, each `(kind, parameters, tokens)`; the kind is `"train"`, or `"read"` for scoring
    or writing text. The machine performs `speed` operations per second and draws `watts` watts. A kilowatt-hour costs
    `price` dollars, and an hour of the machine costs `rent` dollars. Return `(operations, kilowatt_hours, dollars)`,
    three floats.

    ```python
    >>> operations, energy, dollars = bill([("train", 1e6, 3e8), ("read", 1e6, 9e8)], 1e12, 500, 0.3, 2.0)
    >>> f"{operations:.1e} {energy:.4f} {dollars:.4f}"
    '3.6e+15 0.5000 2.1500'
    ```

    ★
    - Raise a `ValueError` for any other kind of run, or if `speed` or `watts` is not above 0.
    - An empty list costs nothing.
    """
    ### BEGIN SOLUTION
    each = {"train": 6, "read": 2}
    if speed <= 0 or watts <= 0 or any(kind not in each for kind, _, _ in runs):
        raise ValueError(
            f"speed={speed}, watts={watts}, runs={runs}: expected a positive speed and power, and only the kinds 'train' and 'read'"
        )
    operations = float(sum(each[kind] * parameters * tokens for kind, parameters, tokens in runs))
    hours = operations / speed / 3600
    energy = watts * hours / 1000
    return operations, energy, energy * price + hours * rent
    ### END SOLUTION


@bill.cases
def _(draw):
    a, b, c = (1e5 * draw.whole(2, 90) for _ in range(3))
    speed, watts, price, rent = 1e10 * draw.whole(2, 9), draw.whole(20, 90), draw.whole(10, 45) / 100, 2.5
    runs = [("train", a, 20 * a), ("read", a, 3 * b), ("train", b, 7 * c)]
    yield Case("only training, at home", ([("train", a, 20 * a)], speed, watts, price))
    yield Case("a text that is scored is read, not trained on", ([("read", a, 20 * b)], speed, watts, price))
    yield Case("three runs", (runs, speed, watts, price))
    yield Case("three runs on a rented machine", (runs, speed, watts, price, rent))
    yield Case("a rent that includes electricity", (runs, speed, watts, 0.0, rent))
    pilots = [("read" if at % 3 else "train", a, (at + 1) * b) for at in range(40)]
    yield Case("forty pilots and runs", (pilots, speed, watts, price, rent))
    yield Case("an empty list costs nothing", ([], speed, watts, price, rent), robust="every project has runs")
    yield Case("any other kind of run is rejected", ([("rest", a, b)], speed, watts, price), refuse=True)
    yield Case("a speed of 0 is rejected", (runs, 0.0, watts, price), refuse=True)
    yield Case("0 watts are rejected", (runs, speed, 0, price), refuse=True)


def _charged(runs, speed, watts, price, rent=0.0, *, each=(6, 2), kilo=1000, hour=3600, rented=True, power=True):
    cost = dict(zip(("train", "read"), each, strict=True))
    if speed <= 0 or watts <= 0 or any(kind not in cost for kind, _, _ in runs):
        raise ValueError("runs, speed, watts")
    operations = float(sum(cost[kind] * parameters * tokens for kind, parameters, tokens in runs))
    hours = operations / speed / hour
    energy = watts * hours / kilo
    return operations, energy, energy * price * power + hours * rent * rented


@bill.mistake("a token that is only read takes 2 operations for each parameter: it has no backward pass")
def _(*given):
    return _charged(*given, each=(6, 6))


@bill.mistake("a token in training takes 6 operations for each parameter, not 2")
def _(*given):
    return _charged(*given, each=(2, 2))


@bill.mistake("those are watt-hours: a kilowatt-hour has 1,000 of them")
def _(*given):
    return _charged(*given, kilo=1)


@bill.mistake("speed is in operations per second: an hour has 3,600 seconds")
def _(*given):
    return _charged(*given, hour=1)


@bill.mistake("you left out the rent")
def _(*given):
    return _charged(*given, rented=False)


@bill.mistake("you left out the electricity")
def _(*given):
    return _charged(*given, power=False)


@bill.mistake("any other kind of run, and numbers that are not above 0, must be rejected with a ValueError")
def _(runs, speed, watts, price, rent=0.0):
    known = [run for run in runs if run[0] in ("train", "read")]
    return _charged(known, speed or 1.0, watts or 1.0, price, rent)


@bill.variant
def _(runs, speed, watts, price, rent=0.0):
    # Compute the energy in joules first
    if any(kind not in ("train", "read") for kind, *_ in runs) or not (speed > 0 and watts > 0):
        raise ValueError("runs, speed, watts")
    operations = 0.0
    for kind, parameters, tokens in runs:
        operations += 2 * parameters * tokens
        if kind == "train":
            operations += 4 * parameters * tokens
    seconds = operations / speed
    energy = watts * seconds / 3.6e6
    return operations, energy, price * energy + rent * seconds / 3600


@bill.variant
def _(runs, speed, watts, price, rent=0.0):
    # Process one run at a time
    if not speed > 0 or not watts > 0:
        raise ValueError("speed, watts")
    total = [0.0, 0.0, 0.0]
    for kind, parameters, tokens in runs:
        if kind not in {"train", "read"}:
            raise ValueError("kind")
        operations = (6 if kind == "train" else 2) * parameters * tokens
        hours = operations / (3600 * speed)
        energy = hours * watts / 1000
        for at, value in enumerate((operations, energy, energy * price + hours * rent)):
            total[at] += value
    return total[0], total[1], total[2]
