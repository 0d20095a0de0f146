"""Exercises of lesson 24: what should a model read?"""

import itertools
import math
from collections import Counter

import torch

from companion_school.checking.exercise import Case, exercise

# 24.1


@exercise(
    "24.1",
    "To be or not to be, on paper",
    task="Compute a Jaccard similarity and the probability of a link",
    points=1,
    difficulty=1,
    minutes=5,
    hints=(
        "Write down the shingles of two words of each sentence. A set contains each shingle once.",
        "The similarity is the number of shingles in both sets, divided by the number in either.",
        "The probability that a band of three rows agrees is the similarity cubed. Both bands must fail for the pair to be missed.",
    ),
)
def similarity_and_link():
    """Take "to be or not to be" and "to be or not to see". What is the Jaccard similarity of their sets of two-word
    shingles? And with what probability do 2 bands of 3 rows link the two texts? Return both as a tuple of two `float`s,
    accurate to at least four decimal places.
    """
    ### BEGIN SOLUTION
    similarity = 4 / 5
    return similarity, 1 - (1 - similarity**3) ** 2
    ### END SOLUTION


@similarity_and_link.cases
def _(draw):
    yield Case("similarity and probability", (), tolerance=5e-5)


def _link(similarity, rows=3, bands=2):
    return similarity, 1 - (1 - similarity**rows) ** bands


@similarity_and_link.mistake('"to be" occurs twice in the first sentence, but a set contains it once')
def _():
    return _link(4 / 6)


@similarity_and_link.mistake("divide by the number of shingles in either sentence, and count the shared ones only once")
def _():
    return _link(4 / 9)


@similarity_and_link.mistake("bands and rows are swapped: all rows of a band must agree, and one band is enough")
def _():
    return _link(4 / 5, rows=2, bands=3)


@similarity_and_link.mistake("that is the probability that both bands agree: one is enough")
def _():
    return 4 / 5, 0.8**6


@similarity_and_link.mistake("that is the probability that the pair is missed")
def _():
    return 4 / 5, (1 - 0.8**3) ** 2


@similarity_and_link.mistake("you returned the similarity twice: the second number is the probability of a link")
def _():
    return 4 / 5, 4 / 5


@similarity_and_link.variant
def _():
    runs = [{*itertools.pairwise(text.split())} for text in ("to be or not to be", "to be or not to see")]
    similarity = len(runs[0] & runs[1]) / len(runs[0] | runs[1])
    fails = 1 - similarity**3
    return similarity, 1 - fails * fails


@similarity_and_link.variant
def _():
    return 0.8, 0.761856


# 24.2


@exercise(
    "24.2",
    "A page that repeats itself",
    task="Compute the shares of repeated lines and characters",
    points=2,
    difficulty=1,
    minutes=10,
    hints=(
        "Which lines count? Strip each line, and leave out those that are then empty.",
        "A line is a repetition if an equal one came before it, so two of three equal lines are repetitions.",
        "Divide the number of repetitions by the number of lines, and their characters by the characters of all lines.",
    ),
)
def repeated_lines(text):
    """One of Gopher's rules removes pages whose lines repeat. Return `(share of lines, share of characters)`, two floats: the share of the
    nonblank lines of `text` that repeat an earlier line, and the share of the characters that such repetitions contain. Leading and
    trailing spaces are removed before lines are compared and counted.

    ```python
    >>> repeated_lines("buy\\nbuy\\nrun now\\nbuy")
    (0.5, 0.375)
    ```

    ★
    - Raise a `ValueError` if all lines are blank.
    - A line is blank if it has only whitespace. Case matters.
    """
    ### BEGIN SOLUTION
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise ValueError(f"text={text!r}: expected a line that is not blank")
    seen, repeated = set(), []
    for line in lines:
        if line in seen:
            repeated.append(line)
        seen.add(line)
    return len(repeated) / len(lines), sum(map(len, repeated)) / sum(map(len, lines))
    ### END SOLUTION


@repeated_lines.cases
def _(draw):
    yield Case("one line twice", ("a menu\na menu\nthe end",))
    yield Case("three equal lines have two repetitions", ("buy\nbuy\nrun now\nbuy",))
    yield Case("equal lines that are far apart", ("shoes\nlamps and mugs\ntents\nshoes\nrugs",))
    yield Case("nothing repeats", ("one\ntwo\nthree\nfour",))
    yield Case("spaces at both ends do not count", ("  first line\nfirst line  \n\tlast",))
    yield Case("blank lines are not lines", ("a page\n\n   \na page\n\n\nits end\n",))
    yield Case("capital letters are different letters", ("Sale\nsale\nSALE\nsale",))
    yield Case("one line", ("alone",))
    words = ["rugs", "a pan", "toys", "tin roofs", "lamp"]
    drawn = [words[draw.whole(0, 4)] for _ in range(12)]
    yield Case("twelve lines drawn from five", ("\n".join(drawn),))
    yield Case("an empty text is rejected", ("",), refuse=True)
    yield Case("a text of blank lines is rejected", ("\n  \n\t\n",), refuse=True)


def _repeats(text, strip=True, blank=False, again=lambda line, seen: line in seen, lower=False):
    lines = text.splitlines()
    if not "".join(lines).strip():
        raise ValueError("text")
    lines = [line.strip() if strip else line for line in lines if blank or line.strip()]
    lines = [line.lower() if lower else line for line in lines]
    seen: list[str] = []
    repeated: list[str] = []
    for line in lines:
        repeated += [line] if again(line, seen) else []
        seen.append(line)
    return len(repeated) / len(lines), sum(map(len, repeated)) / sum(map(len, lines))


@repeated_lines.mistake("the first of several equal lines is not a repetition: count only the others")
def _(text):
    _repeats(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    many = [line for line in lines if Counter(lines)[line] > 1]
    return len(many) / len(lines), sum(map(len, many)) / sum(map(len, lines))


@repeated_lines.mistake("you count blank lines as lines and as repetitions of each other")
def _(text):
    return _repeats(text, blank=True)


@repeated_lines.mistake("you compared lines without removing the spaces at both ends: strip them first")
def _(text):
    return _repeats(text, strip=False)


@repeated_lines.mistake("you compared each line only with the one before it")
def _(text):
    return _repeats(text, again=lambda line, seen: seen[-1:] == [line])


@repeated_lines.mistake("you ignored case: capital letters are different letters")
def _(text):
    return _repeats(text, lower=True)


@repeated_lines.mistake("the second number is a share of characters, not of lines")
def _(text):
    lines, _ = _repeats(text)
    return lines, lines


@repeated_lines.mistake("the two shares are swapped")
def _(text):
    lines, characters = _repeats(text)
    return characters, lines


@repeated_lines.mistake("a text without any nonblank line must be rejected with a ValueError")
def _(text):
    return _repeats(text) if text.strip() else (0.0, 0.0)


@repeated_lines.variant
def _(text):
    # Compute what remains after merging equal lines
    lines = [line for line in map(str.strip, text.splitlines()) if line]
    if len(lines) == 0:
        raise ValueError("text: no line")
    once = dict.fromkeys(lines)
    return 1 - len(once) / len(lines), 1 - len("".join(once)) / len("".join(lines))


@repeated_lines.variant
def _(text):
    counts = Counter(line.strip() for line in text.splitlines())
    counts.pop("", None)
    if not counts:
        raise ValueError("text: no line")
    again = {line: count - 1 for line, count in counts.items()}
    characters = sum(len(line) * count for line, count in again.items())
    return (
        sum(again.values()) / sum(counts.values()),
        characters / sum(len(line) * count for line, count in counts.items()),
    )


# 24.3


@exercise(
    "24.3",
    "The first in each order",
    task="Compute MinHash signatures and the similarities that they estimate",
    points=3,
    difficulty=2,
    minutes=15,
    hints=(
        "A shingle that a text lacks must never count as its first. Which rank ensures that?",
        "Broadcast `member` to (text, 1, shingle) and `rank` to (1, order, shingle), hide the shingles that a text lacks, and take the minimum.",
        "The estimate for a pair is the fraction of the orders where both signatures are equal.",
    ),
)
def minhash(member, rank):
    """`member` (text, shingle) is a boolean tensor that says which shingles a text has. `rank` (order, shingle) is an integer tensor with the
    rank of each shingle in each order. Return `(signature, similarity)`. The signature (text, order) holds the smallest rank of each text's
    shingles in each order, as integers. The double-precision similarity (text, text) holds, for each pair of texts, the share of
    orders in which their signatures are equal.

    ```python
    >>> minhash(torch.tensor([[True, True, False], [False, True, True]]), torch.tensor([[0, 1, 2], [2, 0, 1]]))
    (tensor([[0, 0],
            [1, 0]]), tensor([[1.0000, 0.5000],
            [0.5000, 1.0000]], dtype=torch.float64))
    ```

    ★
    - Raise a `ValueError` for a text without any shingle, or if `rank` and `member` have different numbers of shingles.
    """
    ### BEGIN SOLUTION
    if member.shape[1] != rank.shape[1] or not member.any(dim=1).all():
        raise ValueError(
            f"member {tuple(member.shape)}, rank {tuple(rank.shape)}: expected one rank per shingle, and at least one shingle in every text"
        )
    hidden = rank[None].masked_fill(~member[:, None], torch.iinfo(rank.dtype).max)
    signature = hidden.amin(dim=2)
    return signature, (signature[:, None] == signature[None]).double().mean(dim=2)
    ### END SOLUTION


def _texts(draw, texts, orders, shingles):
    member = draw.normal(texts, shingles) > 0
    member[torch.arange(texts), torch.arange(texts) % shingles] = True
    return member, draw.normal(orders, shingles).argsort(dim=1).argsort(dim=1)


@minhash.cases
def _(draw):
    member = torch.tensor([[True, True, False], [False, True, True]])
    yield Case("two texts, two orders", (member, torch.tensor([[0, 1, 2], [2, 0, 1]])))
    yield Case("a first shingle that a text lacks", (member, torch.tensor([[1, 2, 0]])))
    yield Case("equal texts agree in all orders", (member[[0, 0]], torch.tensor([[0, 1, 2], [2, 1, 0], [1, 2, 0]])))
    yield Case("texts that share nothing", (torch.eye(3).bool(), torch.tensor([[0, 1, 2], [2, 0, 1]])))
    texts, orders, shingles = draw.sizes(3, 4, 9)
    given = _texts(draw, texts, orders, shingles)
    yield Case("random texts", given)
    yield Case("ranks that begin far from zero", (given[0], given[1] + 1000))
    yield Case("a text that has all shingles", (given[0] | (torch.arange(texts) == 1)[:, None], given[1]))
    yield Case(
        "a text without shingles is rejected", (given[0] & (torch.arange(texts) != 2)[:, None], given[1]), refuse=True
    )
    yield Case("ranks for a different number of shingles are rejected", (given[0], given[1][:, 1:]), refuse=True)
    yield Case("ranks for one shingle are rejected", (given[0], given[1][:, :1]), refuse=True)


def _hash(member, rank, least=True, hidden=None, same=None):
    if member.shape[1] != rank.shape[1] or not member.any(dim=1).all():
        raise ValueError("member, rank")
    away = torch.iinfo(torch.int64).max if least else -1
    shown = torch.where(member[:, None], rank[None], away if hidden is None else hidden)
    signature = shown.amin(dim=2) if least else shown.amax(dim=2)
    equal = (signature[:, None] == signature[None]).double()
    return signature, equal.mean(dim=2) if same is None else same(equal)


@minhash.mistake("a shingle that the text lacks must not count as its first: hide it")
def _(member, rank):
    signature, similarity = _hash(torch.ones_like(member), rank)
    _hash(member, rank)
    return signature, similarity


@minhash.mistake("hidden shingles have rank 0 here, which is less than all others: give them a large one")
def _(member, rank):
    return _hash(member, rank, hidden=0)


@minhash.mistake("the first shingle has the smallest rank, not the largest")
def _(member, rank):
    return _hash(member, rank, least=False)


@minhash.mistake("the similarity is a share of the orders: take the mean, not the sum")
def _(member, rank):
    return _hash(member, rank, same=lambda equal: equal.sum(dim=2))


@minhash.mistake("return the share of the orders where the signatures agree, not whether they agree in all orders")
def _(member, rank):
    return _hash(member, rank, same=lambda equal: equal.all(dim=2).double())


@minhash.mistake("that is the exact Jaccard similarity: return the estimate from the signatures")
def _(member, rank):
    signature, _ = _hash(member, rank)
    sets = member.double()
    both = sets @ sets.T
    return signature, both / (sets.sum(1)[:, None] + sets.sum(1)[None] - both)


@minhash.mistake("the signature is (text, order): it is transposed")
def _(member, rank):
    signature, similarity = _hash(member, rank)
    return signature.T, similarity


@minhash.mistake("the signature holds the ranks, not the indices of the shingles")
def _(member, rank):
    _, similarity = _hash(member, rank)
    shown = torch.where(member[:, None], rank[None], torch.iinfo(torch.int64).max)
    return shown.argmin(dim=2), similarity


@minhash.mistake(
    "texts without shingles, and ranks for a different number of shingles, must be rejected with a ValueError"
)
def _(member, rank):
    shown = torch.where(member[:, None], rank[None, :, : member.shape[1]], torch.iinfo(torch.int64).max) \
        if rank.shape[1] >= member.shape[1] else rank[None, :, :1].expand(len(member), -1, -1)  # fmt: skip
    signature = shown.amin(dim=2)
    return signature, (signature[:, None] == signature[None]).double().mean(dim=2)


@minhash.variant
def _(member, rank):
    # Process one text at a time, and compare all pairs
    if member.shape[1] != rank.shape[1]:
        raise ValueError("rank")
    rows = []
    for text in member:
        if not text.any():
            raise ValueError("member")
        rows.append(rank[:, text].min(dim=1).values)
    signature = torch.stack(rows)
    shares = [[(one == other).double().mean() for other in rows] for one in rows]
    return signature, torch.tensor(shares, dtype=torch.float64)


@minhash.variant
def _(member, rank):
    # Walk through each order and stop at the first shingle that a text has
    if member.size(1) != rank.size(1) or bool((member.sum(1) == 0).any()):
        raise ValueError("member and rank")
    order = rank.argsort(dim=1)
    first = torch.stack([member[:, along].int().argmax(dim=1) for along in order], dim=1)  # (text, order)
    ranks = rank.sort(dim=1).values
    signature = torch.stack([ranks[at, first[:, at]] for at in range(len(rank))], dim=1)
    differs = (signature.unsqueeze(0) - signature.unsqueeze(1)).ne(0).double()
    return signature, 1 - differs.mean(dim=-1)


# 24.4


@exercise(
    "24.4",
    "Who meets in a bucket",
    task="Group texts that agree in all rows of a band",
    points=3,
    difficulty=3,
    minutes=20,
    limits={"bands": (1,)},
    hints=(
        "Cut each signature into `bands` equal parts. Two texts are linked if some part is the same in both.",
        "Use a dictionary that maps a band's index and hashes to the first text that has them. Bands with different indices never match.",
        "Links form chains: if a link joins two groups, all their members belong together. Label a group with its smallest index.",
    ),
)
def linked_groups(signatures, bands):
    """`signatures` (text, hash) is an integer tensor. Cut each signature into `bands` bands of equal length. Two texts are linked if they agree in
    all elements of at least one band. Texts connected by a chain of links form a group. Return a list of `int`s: for
    each text, the index of the first text in its group.

    ```python
    >>> linked_groups(torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8], [1, 2, 9, 9]]), 2)
    [0, 1, 0]
    ```

    ★
    - Raise a `ValueError` if `bands` is below 1, or if the signatures cannot be cut into that many equal bands.
    - If there are no texts, return an empty list.
    """
    ### BEGIN SOLUTION
    if bands < 1 or signatures.shape[1] % bands:
        raise ValueError(f"bands={bands}: expected a divisor of {signatures.shape[1]}")
    first, buckets = [], {}
    for at, signature in enumerate(signatures.tolist()):
        rows = len(signature) // bands
        keys = [(band, *signature[band * rows : (band + 1) * rows]) for band in range(bands)]
        first.append(at)
        groups = {at, *(first[buckets.setdefault(key, at)] for key in keys)}
        first = [min(groups) if group in groups else group for group in first]
    return first
    ### END SOLUTION


@linked_groups.cases
def _(draw):
    three = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8], [1, 2, 9, 9]])
    yield Case("a link through the first band", (three, 2))
    yield Case("a link through the last band", (torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8], [0, 0, 3, 4]]), 2))
    yield Case("half a band makes no link", (torch.tensor([[1, 2, 3, 4], [1, 6, 3, 8]]), 2))
    yield Case("the same numbers in another band make no link", (torch.tensor([[1, 2, 3, 4], [3, 4, 5, 6]]), 2))
    yield Case("one band: all hashes must agree", (torch.tensor([[1, 2], [1, 2], [1, 3]]), 1))
    yield Case("a band for each hash: one is enough", (torch.tensor([[1, 2], [3, 4], [9, 4], [1, 7]]), 2))
    chain = torch.tensor([[1, 1, 2, 2], [3, 3, 4, 4], [3, 3, 2, 2], [8, 8, 4, 4], [7, 7, 7, 7]])
    yield Case("a chain joins two groups", (chain, 2))
    late = torch.tensor([[1, 1], [2, 2], [3, 3], [4, 4], [4, 3], [2, 3], [1, 2]])
    yield Case("groups that meet late", (late, 2))
    yield Case("shifted signatures with another link", (torch.tensor([[5, 1, 2], [1, 2, 5], [6, 1, 5]]), 3))
    texts, rows = draw.whole(14, 20), draw.whole(2, 3)
    drawn = (draw.normal(texts, 4 * rows) > 0).long()
    yield Case("random texts", (drawn, 4))
    yield Case("one text", (three[:1], 2))
    yield Case("no text", (three[:0], 2))
    yield Case("a number of bands that does not divide the signature is rejected", (three, 3), refuse=True)
    yield Case("more bands than hashes are rejected", (three, 8), refuse=True)


def _whole_bands(signatures, bands):
    if bands < 1 or signatures.shape[1] % bands:
        raise ValueError("bands")
    return signatures.reshape(len(signatures), bands, signatures.shape[1] // bands)


def _groups(parts, meets):
    first = list(range(len(parts)))
    for at, before in itertools.product(range(len(parts)), repeat=2):
        if before < at and meets(parts[at], parts[before]):
            low, high = sorted((first[at], first[before]))
            first = [low if one == high else one for one in first]
    return first


@linked_groups.mistake("links form chains: join whole groups, not only the two texts that meet")
def _(signatures, bands):
    parts = _whole_bands(signatures, bands)
    return [
        next(before for before in range(at + 1) if (parts[at] == parts[before]).all(dim=1).any())
        for at in range(len(parts))
    ]


@linked_groups.mistake("a band agrees only if all of its hashes do")
def _(signatures, bands):
    return _groups(_whole_bands(signatures, bands), lambda one, other: bool((one == other).any()))


@linked_groups.mistake("one band that agrees is enough for a link")
def _(signatures, bands):
    return _groups(_whole_bands(signatures, bands), lambda one, other: bool((one == other).all()))


@linked_groups.mistake("bands with different indices must not match: put the band's index into the key")
def _(signatures, bands):
    def meets(one, other):
        return bool({*map(tuple, one.tolist())} & {*map(tuple, other.tolist())})

    return _groups(_whole_bands(signatures, bands), meets)


@linked_groups.mistake("a band consists of neighbouring hashes, not of hashes at regular distances")
def _(signatures, bands):
    parts = _whole_bands(signatures, bands)
    parts = signatures.reshape(len(signatures), parts.shape[2], bands).mT if len(signatures) else parts
    return _groups(parts, lambda one, other: bool((one == other).all(dim=1).any()))


@linked_groups.mistake("you returned the last text of a group: return the first")
def _(signatures, bands):
    first = _groups(_whole_bands(signatures, bands), lambda one, other: bool((one == other).all(dim=1).any()))
    return [max(at for at, one in enumerate(first) if one == group) for group in first]


@linked_groups.mistake("`bands` is the number of bands, not the number of hashes in each")
def _(signatures, bands):
    _whole_bands(signatures, bands)
    return _groups(
        _whole_bands(signatures, signatures.shape[1] // bands),
        lambda one, other: bool((one == other).all(dim=1).any()),
    )


@linked_groups.mistake("signatures that cannot be cut into equal bands must be rejected with a ValueError")
def _(signatures, bands):
    bands = max(1, min(bands, signatures.shape[1]))
    rows = signatures.shape[1] // bands
    cut = signatures[:, : bands * rows]
    return _groups(_whole_bands(cut, bands), lambda one, other: bool((one == other).all(dim=1).any()))


@linked_groups.variant
def _(signatures, bands):
    # Follow the links of each text that has no group yet, in a table of links
    parts = _whole_bands(signatures, bands)
    links = (parts[:, None] == parts[None]).all(dim=3).any(dim=2)
    first: list[int | None] = [None] * len(parts)
    for start in range(len(parts)):
        waiting = [start] if first[start] is None else []
        while waiting:
            at = waiting.pop()
            if first[at] is None:
                first[at] = start
                waiting += links[at].nonzero().flatten().tolist()
    return first


@linked_groups.variant
def _(signatures, bands):
    # Use union-find over the buckets
    if bands < 1:
        raise ValueError("bands")
    rows, rest = divmod(signatures.shape[1], bands)
    if rest:
        raise ValueError("bands")
    parent = list(range(len(signatures)))

    def root(at):
        while parent[at] != at:
            at = parent[at]
        return at

    for band in range(bands):
        met: dict[tuple, int] = {}
        for at, key in enumerate(map(tuple, signatures[:, band * rows : (band + 1) * rows].tolist())):
            one, other = root(met.setdefault(key, at)), root(at)
            parent[max(one, other)] = min(one, other)
    return [root(at) for at in range(len(parent))]


# 24.5


@exercise(
    "24.5",
    "How often each source is read",
    task="Compute the shares of a data mixture, and how often it reads each source",
    points=2,
    difficulty=2,
    minutes=10,
    hints=(
        "Raise each size to the power first, then divide so that the shares sum to one.",
        "A share of the budget is a number of tokens. How often must the source be read to supply that many?",
        "readings = share of the budget · tokens of the run / tokens of the source.",
    ),
)
def mixture(sizes, tokens, power):
    """A data mixture draws from several sources, and `sizes` lists the number of tokens in each. The share of a source
    is proportional to its size raised to the given `power`: 1 mixes in proportion to size, 0 gives all sources the same
    share, and values in between upsample the small sources. Return `(shares, readings)`, two lists of floats: the share
    of each source in a run of `tokens` tokens, and how many times the run reads that source.

    ```python
    >>> mixture([100, 900], 1200, 0.5)
    ([0.25, 0.75], [3.0, 1.0])
    ```

    ★
    - Raise a `ValueError` if there is no source, if a size is not above zero, or if the number of tokens is negative.
    """
    ### BEGIN SOLUTION
    if not sizes or min(sizes) <= 0 or tokens < 0:
        raise ValueError(f"sizes={sizes}, tokens={tokens}: expected positive sizes and a non-negative number of tokens")
    weights = [size**power for size in sizes]
    shares = [weight / sum(weights) for weight in weights]
    return shares, [share * tokens / size for share, size in zip(shares, sizes, strict=True)]
    ### END SOLUTION


@mixture.cases
def _(draw):
    yield Case("a small and a large source", ([100, 400], 1000, 0.5))
    yield Case("in proportion to size: all are read equally often", ([100, 300, 600], 2000, 1.0))
    yield Case("equal shares: the small source is read most often", ([100, 300, 600], 900, 0.0))
    sizes = [draw.whole(100, 9000) for _ in range(4)]
    yield Case("four sources", (sizes, draw.whole(1000, 90_000), 0.7))
    yield Case("a negative power favours the small ones", (sizes, 5000, -0.5))
    yield Case("a single source", ([250], 1000, 0.3))
    yield Case("a source of one token", ([1, 50], 100, 0.5))
    yield Case("equal sources", ([70, 70], 700, 0.4))
    yield Case("a run of 0 tokens", (sizes, 0, 0.5))
    yield Case("zero sources are rejected", ([], 1000, 0.5), refuse=True)
    yield Case("a source of 0 tokens is rejected", ([100, 0], 1000, 0.5), refuse=True)
    yield Case("a negative number of tokens is rejected", ([100], -1, 0.5), refuse=True)


def _mix(sizes, tokens, power, share=None, reading=None):
    if len(sizes) == 0 or min(sizes) <= 0 or tokens < 0:
        raise ValueError("sizes, tokens")
    weights = [size**power for size in sizes]
    shares = [weight / sum(weights) for weight in weights] if share is None else share(weights)
    reading = reading or (lambda share, size: share * tokens / size)
    return shares, [reading(share, size) for share, size in zip(shares, sizes, strict=True)]


@mixture.mistake("you left the power out: the shares are in proportion to size")
def _(sizes, tokens, power):
    return _mix(sizes, tokens, 1)


@mixture.mistake("the shares must sum to one: divide by the sum of the powers, not by the sum of the sizes")
def _(sizes, tokens, power):
    return _mix(sizes, tokens, power, share=lambda weights: [weight / sum(sizes) for weight in weights])


@mixture.mistake("raise each size to the power first, and normalize last")
def _(sizes, tokens, power):
    _mix(sizes, tokens, power)
    shares = [(size / sum(sizes)) ** power for size in sizes]
    return shares, [share * tokens / size for share, size in zip(shares, sizes, strict=True)]


@mixture.mistake("those are the tokens of each source: divide them by its size")
def _(sizes, tokens, power):
    return _mix(sizes, tokens, power, reading=lambda share, size: share * tokens)


@mixture.mistake("you read every source equally often: use each source's own share and size")
def _(sizes, tokens, power):
    return _mix(sizes, tokens, power, reading=lambda share, size: tokens / sum(sizes))


@mixture.mistake("your division is upside down: a small source is read more often")
def _(sizes, tokens, power):
    if tokens == 0:
        return _mix(sizes, tokens, power, reading=lambda share, size: 1.0)
    return _mix(sizes, tokens, power, reading=lambda share, size: size / (share * tokens))


@mixture.mistake("impossible numbers and an empty list must be rejected with a ValueError")
def _(sizes, tokens, power):
    sizes = [max(size, 1) for size in sizes] or [1]
    return _mix(sizes, max(tokens, 0), power)


@mixture.variant
def _(sizes, tokens, power):
    # Compute the shares as a softmax of logarithms
    if not sizes or any(size <= 0 for size in sizes) or tokens < 0:
        raise ValueError("sizes, tokens")
    logs = torch.tensor(sizes, dtype=torch.float64).log()
    shares = torch.softmax(power * logs, dim=0)
    return shares.tolist(), (shares * tokens * torch.exp(-logs)).tolist()


@mixture.variant
def _(sizes, tokens, power):
    # Compute all shares relative to the first source
    if not sizes or min(sizes) <= 0 or min(tokens, 0) < 0:
        raise ValueError("sizes, tokens")
    relative = [math.exp(power * math.log(size / sizes[0])) for size in sizes]
    first = 1 / math.fsum(relative)
    shares = [first * one for one in relative]
    return shares, [tokens / size * share for size, share in zip(sizes, shares, strict=True)]
