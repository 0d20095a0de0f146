"""Exercises for lesson 01: tokens and embeddings."""

import math
from itertools import pairwise

import torch

from companion_school.checking.exercise import Case, Group, exercise

# 1.1


@exercise(
    "1.1",
    "The first merge with a pencil",
    task="Find the first pair that byte-pair encoding joins in two words",
    points=1,
    difficulty=1,
    minutes=5,
    hints=(
        "Write out the letters of both words, and mark each `a`,`n` and each `n`,`a`.",
        "Neighbours in different words do not count. Pairs may overlap: `ana` contains `a`,`n` and `n`,`a`.",
        "Compare the two counts over both words. There is no tie.",
    ),
)
def first_merge():
    """The text is `banana bandana`, cut into `banana` and `␣bandana` (`␣` is the space before the word). Which pair does byte-pair encoding
    join first, and how often does it occur? Return `(first, second, count)`: two `str` and an `int`.
    """
    ### BEGIN SOLUTION
    return "a", "n", 4  # b[an]ana, ban[an]a, b[an]dana, band[an]a
    ### END SOLUTION


@first_merge.cases
def _(draw):
    yield Case("the most frequent pair, and its count", ())


@first_merge.mistake("the right pair, counted in one word only: both words count")
def _():
    return "a", "n", 2


@first_merge.mistake("the right pair, but you missed one of its positions: each word contains it twice")
def _():
    return "a", "n", 3


@first_merge.mistake("n, a occurs three times; another pair occurs more often")
def _():
    return "n", "a", 3


@first_merge.mistake("the right count, but the letters are in the wrong order: pairs have an order")
def _():
    return "n", "a", 4


@first_merge.mistake("the right pair, but 6 is how often the letter a occurs; count the positions where n follows it")
def _():
    return "a", "n", 6


@first_merge.mistake("you joined three tokens; a merge joins two")
def _():
    return "an", "a", 3


@first_merge.mistake("return the two letters as two strings: (first, second, count)")
def _():
    return "an", 4


@first_merge.variant
def _():
    words = ["banana", " bandana"]
    pairs = [pair for word in words for pair in pairwise(word)]
    best = max(set(pairs), key=pairs.count)
    return [*best, pairs.count(best)]


@first_merge.variant
def _():
    count = {}
    for word in ("banana", " bandana"):
        for i in range(len(word) - 1):
            count[word[i : i + 2]] = count.get(word[i : i + 2], 0) + 1
    (pair, times) = sorted(count.items(), key=lambda item: item[1])[-1]
    return pair[0], pair[1], times


# 1.2


@exercise(
    "1.2",
    "How many bytes may be shown?",
    task="Count the leading bytes of a cut text that form whole characters",
    points=3,
    difficulty=2,
    minutes=15,
    hints=(
        "A byte from 128 to 191 continues a character, and any other byte begins one. Where does the last character begin?",
        "Its first byte says how long it is: one byte if this value is below 128, two from 192 on, three from 224 on, and four from 240 on.",
        "If all its bytes are there, you can show all of `data`. If not, you can show everything before it.",
    ),
)
def whole_bytes(data):
    """A model writes bytes, and you show them as they arrive. `data`, a list of `int` from 0 to 255, is the beginning of a UTF-8 text and
    may be cut off anywhere. How many of its first bytes form complete characters, which you can show while the
    remaining bytes wait for more? Return an `int`. Find this number from the values of the bytes, without decoding
    them.

    ```python
    >>> whole_bytes([99, 195, 169, 231, 140])
    3
    ```

    ★
    - Raise a `ValueError` if `data` begins inside a character, with a byte from 128 to 191.
    """
    ### BEGIN SOLUTION
    if not data:
        return 0
    if 128 <= data[0] < 192:
        raise ValueError(f"data: expected the beginning of a character, got the byte {data[0]}")
    start = len(data) - 1
    while 128 <= data[start] < 192:
        start -= 1
    length = 1 + sum(data[start] >= first for first in (192, 224, 240))
    return len(data) if len(data) - start >= length else start
    ### END SOLUTION


_SIGNS = (*"a é猫𝄞", "\0", "\x7f", "\x80", "ÿ", "߿", "ࠀ", "€", "\uffff", "\U00010000", "\U0010ffff", "Ω")


@whole_bytes.cases
def _(draw):
    yield Case("plain letters", ([99, 97, 116],))
    yield Case("a character of two bytes, cut", ([*"né".encode()][:2],))
    yield Case("whole characters of two and three bytes", ([*"éé猫".encode()],))
    yield Case("a character of three bytes, cut after two", ([*"éé猫".encode()][:-1],))
    yield Case("a character of three bytes, cut after one", ([*"éé猫".encode()][:-2],))
    yield Case("a whole character of two bytes at the end", ([*"猫é".encode()],))
    lasts = {1: "without its last byte", 2: "without its last two bytes", 3: "without its last three bytes", 0: "whole"}
    for missing, last in lasts.items():
        yield Case(f"a character of four bytes, {last}", ([*"猫𝄞".encode()][: 7 - missing],))
    yield Case("nothing at all", ([],))
    text = "".join(_SIGNS[i] for i in draw.wholes(0, len(_SIGNS) - 1, 8).tolist()).encode()
    for _ in range(6):
        yield Case("any text, cut anywhere", ([*text[: draw.whole(1, len(text))]],))
    for letter in "\x7f\x80\xbf\u07ff\u0800\uffff\U00010000":
        code = [*letter.encode()]
        yield Case("the first and the last character of each length", ([97, *code],))
        yield Case("the first and the last character of each length, cut", ([*code, *code[:-1]],))
    yield Case("bytes that begin inside a character are rejected", ([*"é!".encode()][1:],), refuse=True)
    yield Case("a first byte that continues a character is rejected", ([128],), refuse=True)
    yield Case("the highest byte that continues a character is rejected at the beginning", ([191],), refuse=True)
    yield Case("the highest four-byte character of UTF-8", ([0xF4, 0x8F, 0xBF, 0xBF],))


def _beginning(data):
    if data and 128 <= data[0] < 192:
        raise ValueError("begins inside a character")


@whole_bytes.mistake("you count a character whose last bytes are missing")
def _(data):
    _beginning(data)
    return len(data)


@whole_bytes.mistake("you always hold the last character back; if all its bytes are there, it can be shown")
def _(data):
    _beginning(data)
    starts = [i for i, byte in enumerate(data) if not 128 <= byte < 192]
    return starts[-1] if starts else 0


@whole_bytes.mistake(
    "you always hold one byte back when a character has several; check whether all its bytes are there"
)
def _(data):
    _beginning(data)
    return len(data) - (bool(data) and data[-1] >= 128)


@whole_bytes.mistake(
    "you show only the letters below 128, and hold back characters of several bytes even when they are whole"
)
def _(data):
    _beginning(data)
    return max((i + 1 for i, byte in enumerate(data) if byte < 128), default=0)


@whole_bytes.mistake(
    "you held back only a first byte; from 224 on, a first byte waits for two more bytes, and from 240 on for three"
)
def _(data):
    _beginning(data)
    return len(data) - (bool(data) and data[-1] >= 192)


@whole_bytes.mistake("a first byte from 240 begins a character of four bytes, not of three")
def _(data):
    _beginning(data)
    start = max((i for i, byte in enumerate(data) if not 128 <= byte < 192), default=0)
    length = 1 + sum(data[start] >= first for first in (192, 224)) if data else 0
    return start if len(data) - start < length else len(data)


@whole_bytes.mistake("you counted whole characters; return the number of bytes")
def _(data):
    _beginning(data)
    return len(bytes(data).decode(errors="ignore"))


@whole_bytes.mistake("that is how many bytes must wait; return how many may be shown")
def _(data):
    _beginning(data)
    return len(data) - len(bytes(data).decode(errors="ignore").encode())


@whole_bytes.mistake("return how many bytes may be shown, not the bytes themselves")
def _(data):
    _beginning(data)
    return [*bytes(data).decode(errors="ignore").encode()]


@whole_bytes.mistake("an empty list is a special case: return 0")
def _(data):
    if 128 <= data[0] < 192:
        raise ValueError("begins inside a character")
    return len(bytes(data).decode(errors="ignore").encode())


@whole_bytes.mistake("bytes that begin inside a character must raise a ValueError")
def _(data):
    start = max((i for i, byte in enumerate(data) if not 128 <= byte < 192), default=0)
    length = 1 + sum(data[start] >= first for first in (192, 224, 240)) if data else 0
    return start if len(data) - start < length else len(data)


@whole_bytes.variant
def _(data):
    # start at the beginning, and jump from character to character
    place = 0
    while place < len(data):
        byte = data[place]
        if byte >> 6 == 0b10:
            raise ValueError("this byte continues a character")
        step = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
        if place + step > len(data):
            return place
        place += step
    return place


@whole_bytes.variant
def _(data):
    # scan from the end, where at most three bytes can be pending
    if data and data[0] in range(128, 192):
        raise ValueError(f"unexpected byte {data[0]}")
    for waiting in (1, 2, 3):
        if waiting <= len(data):
            first = data[-waiting]
            if first >= 192:
                return len(data) - waiting if waiting < {0b110: 2, 0b111: 3}[first >> 5] + (first >= 240) else len(data)
            if first < 128:
                break
    return len(data)


# 1.3


@exercise(
    "1.3",
    "The gradient of a table",
    task="Compute the gradient of an embedding table, without autograd",
    points=2,
    difficulty=2,
    minutes=10,
    forbidden=("backward", "autograd", "requires_grad", "requires_grad_", "vjp", "one_hot"),
    hints=(
        "Start from zeros of shape (vocab, d_model), in the dtype of `G`.",
        "`out[ids] = G` writes; where a token occurs twice, the last one wins. You need to *add*.",
        "`index_add_(0, ids, G)` adds row i of `G` to row `ids[i]`.",
    ),
)
def embedding_gradient(ids, G, vocab):
    """The forward pass looked up rows of a table $E$ (vocab, d_model): $X = E[\\text{ids}]$, where `ids` (token) is
    `int64`. The gradient that came back is `G` = $\\partial L / \\partial X$ (token, d_model). Return the table's
    gradient $\\partial L / \\partial E$, (vocab, d_model). Use neither autograd nor one-hot rows.

    ```python
    >>> embedding_gradient(torch.tensor([2, 0, 2]), torch.tensor([[1.0], [10.0], [100.0]]), 3)
    tensor([[ 10.],
            [  0.],
            [101.]])
    ```

    ★
    - Raise a `ValueError` for an id that is not one of 0, 1, ..., vocab - 1.
    - The result has the dtype of `G`.
    """
    ### BEGIN SOLUTION
    if ids.min() < 0 or ids.max() >= vocab:
        raise ValueError(f"ids from {int(ids.min())} to {int(ids.max())}: expected 0 to {vocab - 1}")
    return torch.zeros(vocab, G.shape[1], dtype=G.dtype).index_add_(0, ids, G)
    ### END SOLUTION


@embedding_gradient.cases
def _(draw):
    yield Case("a row of the table for each token that was read", (torch.tensor([2, 0]), draw.normal(2, 3), 4))
    yield Case("a token that occurs twice gets the sum of both rows", (torch.tensor([1, 0, 1]), draw.normal(3, 2), 4))
    yield Case("a token that occurs three times", (torch.tensor([2, 0, 2, 4, 2]), draw.normal(5, 3), 6))
    tokens, d_model, vocab = draw.sizes(3, 3, 12)
    ids = draw.wholes(0, vocab - 1, tokens)
    yield Case("any sizes", (ids, draw.normal(tokens, d_model), vocab))
    yield Case("the dtype of G", (torch.tensor([1, 0, 1]), draw.normal(3, 2, dtype=torch.float32), 4))
    yield Case("an id of -1 is rejected", (torch.tensor([1, -1]), draw.normal(2, 3), 4), refuse=True)
    yield Case("an id equal to vocab is rejected", (torch.tensor([4, 1]), draw.normal(2, 3), 4), refuse=True)
    yield Case("a vocabulary of one", (torch.tensor([0, 0]), torch.tensor([[1.0, 2.0], [3.0, 5.0]]), 1))


def _ids_of(ids, vocab):
    if not all(0 <= i < vocab for i in ids.tolist()):
        raise ValueError("an id is not in the vocabulary")


@embedding_gradient.mistake(
    "for a token that occurs several times, you kept only its last row of G (out[ids] = G and out[ids] += G both do that): add them all"
)
def _(ids, G, vocab):
    _ids_of(ids, vocab)
    out = G.new_zeros(vocab, G.shape[1])
    out[ids] = G
    return out


@embedding_gradient.mistake("for a token that occurs several times, you kept only its first row of G: add them all")
def _(ids, G, vocab):
    _ids_of(ids, vocab)
    out = G.new_zeros(vocab, G.shape[1])
    out[ids.flip(0)] = G.flip(0)
    return out


@embedding_gradient.mistake("you took the mean over the positions where a token occurs; their gradients add up")
def _(ids, G, vocab):
    _ids_of(ids, vocab)
    return G.new_zeros(vocab, G.shape[1]).index_add_(0, ids, G) / ids.bincount(minlength=vocab).clamp(min=1)[:, None]


@embedding_gradient.mistake("you divided by the number of tokens; the loss here is not a mean")
def _(ids, G, vocab):
    _ids_of(ids, vocab)
    return G.new_zeros(vocab, G.shape[1]).index_add_(0, ids, G) / len(ids)


@embedding_gradient.mistake(
    "the rows of the highest ids are missing: the table has a row for each of the vocab tokens, used or not"
)
def _(ids, G, vocab):
    _ids_of(ids, vocab)
    return G.new_zeros(int(ids.max()) + 1, G.shape[1]).index_add_(0, ids, G)


@embedding_gradient.mistake(
    "you used the ids to look up rows of G; they say which row of the table each row of G belongs to"
)
def _(ids, G, vocab):
    _ids_of(ids, vocab)
    return G[ids.clamp(max=len(G) - 1)]


@embedding_gradient.mistake("your gradient is transposed: its shape should be (vocab, d_model)")
def _(ids, G, vocab):
    _ids_of(ids, vocab)
    return G.new_zeros(vocab, G.shape[1]).index_add_(0, ids, G).T


@embedding_gradient.mistake("your zeros are always float64: use the dtype of G")
def _(ids, G, vocab):
    _ids_of(ids, vocab)
    return torch.zeros(vocab, G.shape[1], dtype=torch.float64).index_add_(0, ids, G.double())


@embedding_gradient.mistake("your zeros are always float32: use the dtype of G")
def _(ids, G, vocab):
    _ids_of(ids, vocab)
    return torch.zeros(vocab, G.shape[1]).index_add_(0, ids, G.float())


@embedding_gradient.mistake("id -1 silently wrote into the last row: raise a ValueError")
def _(ids, G, vocab):
    out = G.new_zeros(vocab, G.shape[1])
    for i, row in zip(ids, G, strict=True):
        out[i] += row
    return out


@embedding_gradient.mistake(
    "an id that is not in the table must raise a ValueError before PyTorch raises an error of its own"
)
def _(ids, G, vocab):
    return G.new_zeros(vocab, G.shape[1]).index_add_(0, ids, G)


@embedding_gradient.mistake("an id that is too large raises an error, but a negative one does not")
def _(ids, G, vocab):
    if ids.max() >= vocab:
        raise ValueError("an id is too large")
    return G.new_zeros(vocab, G.shape[1]).index_put_((ids,), G, accumulate=True)


@embedding_gradient.mistake(
    "a negative id raises an error, but one that is too large does not: the last row is vocab - 1"
)
def _(ids, G, vocab):
    if ids.min() < 0:
        raise ValueError("a negative id")
    return G.new_zeros(vocab + 1, G.shape[1]).index_add_(0, ids, G)[:vocab]


@embedding_gradient.variant
def _(ids, G, vocab):
    # for each token of the vocabulary, sum the gradients over its positions
    if bool((ids < 0).any()) or bool((ids >= vocab).any()):
        raise ValueError("ids must be from 0 to vocab - 1")
    return torch.stack([G[ids == token].sum(dim=0) for token in range(vocab)])


@embedding_gradient.variant
def _(ids, G, vocab):
    rows = [[0.0] * G.shape[1] for _ in range(vocab)]
    for i, token in enumerate(ids.tolist()):
        if not 0 <= token < vocab:
            raise ValueError(f"id {token}")
        for j, g in enumerate(G[i].tolist()):
            rows[token][j] += g
    return torch.tensor(rows, dtype=G.dtype)


@embedding_gradient.variant
def _(ids, G, vocab):
    # compute the matrix product of (D1.5), where P comes from a comparison
    if ids.min().item() < 0 or ids.max().item() > vocab - 1:
        raise ValueError("bad ids")
    return (torch.arange(vocab)[:, None] == ids[None, :]).to(G.dtype) @ G


# 1.4


@exercise(
    "1.4",
    "A table that is used twice",
    task="Compute the gradient of a table that is both embedding and output head",
    points=4,
    difficulty=3,
    minutes=20,
    forbidden=("backward", "autograd", "requires_grad", "requires_grad_", "vjp"),
    robust={
        "scores above 1000": "a table initialised as in the lesson gives scores around 1",
    },
    hints=(
        "The states are the rows that were read, times the square root of d. Compute D, equation (D1.9) of the deeper notebook: probabilities minus 1 at the right answer.",
        "The head contributes D^T H. The gradient at the input is G = sqrt(d) D E.",
        "Add the two sums in equation (D1.10) of the deeper notebook: row i of G is added to row `ids[i]` and does not replace it.",
    ),
)
def tied_gradient(E, ids, answers):
    """The smallest tied model uses the table `E` (vocab, d_model) twice, and has no other parameters. After token $t$,
    its scores are $\\sqrt d\\, E[t]\\, E^\\top$, with $d$ = d_model. `ids` (token) holds the tokens that the model
    reads, and `answers` (token) the tokens that should come next; both are `int64`. The loss is the *sum*, over all
    positions, of minus the logarithm of the right answer's probability. Return its gradient with respect to the table,
    (vocab, d_model), without autograd.

    ```python
    >>> tied_gradient(torch.tensor([[1.0], [0.0]]), torch.tensor([0]), torch.tensor([1]))
    tensor([[ 1.4621],
            [-0.7311]])
    ```

    ★
    - Scores of more than 1,000 do not overflow.
    """
    ### BEGIN SOLUTION
    root = math.sqrt(E.shape[1])
    H = root * E[ids]
    D = torch.softmax(H @ E.T, dim=1)
    D[torch.arange(len(ids)), answers] -= 1
    by_output = D.T @ H
    G = root * D @ E
    return by_output.index_add_(0, ids, G)
    ### END SOLUTION


@tied_gradient.cases
def _(draw):
    yield Case("one position", (draw.normal(3, 2), torch.tensor([1]), torch.tensor([2])))
    yield Case("several positions", (draw.normal(4, 2), torch.tensor([1, 3]), torch.tensor([2, 0])))
    yield Case(
        "a token that is read twice", (draw.normal(6, 3), torch.tensor([2, 0, 2, 4]), torch.tensor([0, 2, 4, 5]))
    )
    tokens, d_model, vocab = draw.sizes(3, 3, 9)
    read, wanted = draw.wholes(0, vocab - 1, tokens), draw.wholes(0, vocab - 1, tokens)
    yield Case("any sizes", (draw.normal(vocab, d_model), read, wanted))
    yield Case("scores above 1000", (20 * draw.normal(4, 7), torch.tensor([0, 1]), torch.tensor([1, 3])))


def _tied(E, ids, answers, *, root=None, back=None, hot=1.0, dim=1):
    """Return the two parts of the gradient: the part from the output, and the part from the input at each position."""
    root = math.sqrt(E.shape[1]) if root is None else root
    H = root * E[ids]
    D = torch.softmax(H @ E.T, dim=dim) - hot * torch.eye(len(E), dtype=E.dtype)[answers]
    return D.T @ H, (root if back is None else back) * D @ E


@tied_gradient.mistake("that is only the gradient through the output: add the gradient through the lookup")
def _(E, ids, answers):
    return _tied(E, ids, answers)[0]


@tied_gradient.mistake("that is only the gradient through the lookup: add the gradient through the output")
def _(E, ids, answers):
    return torch.zeros_like(E).index_add_(0, ids, _tied(E, ids, answers)[1])


@tied_gradient.mistake("you took the mean over the positions; the loss is their sum")
def _(E, ids, answers):
    head, G = _tied(E, ids, answers)
    return head.index_add_(0, ids, G) / len(ids)


@tied_gradient.mistake("you took the mean of the two parts; they must be added")
def _(E, ids, answers):
    head, G = _tied(E, ids, answers)
    return head.index_add_(0, ids, G) / 2


@tied_gradient.mistake("the factor sqrt(d) is missing everywhere")
def _(E, ids, answers):
    head, G = _tied(E, ids, answers, root=1.0)
    return head.index_add_(0, ids, G)


@tied_gradient.mistake("the factor sqrt(d) is missing on the way back to the input")
def _(E, ids, answers):
    head, G = _tied(E, ids, answers, back=1.0)
    return head.index_add_(0, ids, G)


@tied_gradient.mistake("your factor is d; it should be the square root of d")
def _(E, ids, answers):
    head, G = _tied(E, ids, answers, root=float(E.shape[1]))
    return head.index_add_(0, ids, G)


@tied_gradient.mistake("for a token that is read twice, you kept only one row of G: add them all")
def _(E, ids, answers):
    head, G = _tied(E, ids, answers)
    head[ids] += G
    return head


@tied_gradient.mistake("you did not subtract the 1 at the right answer: D is p minus 1 there")
def _(E, ids, answers):
    head, G = _tied(E, ids, answers, hot=0.0)
    return head.index_add_(0, ids, G)


@tied_gradient.mistake("all signs are wrong: the loss is minus the logarithm")
def _(E, ids, answers):
    head, G = _tied(E, ids, answers)
    return -head.index_add_(0, ids, G)


@tied_gradient.mistake("your softmax runs over the positions; each position has a distribution over the vocabulary")
def _(E, ids, answers):
    head, G = _tied(E, ids, answers, dim=0)
    return head.index_add_(0, ids, G)


@tied_gradient.mistake(
    "you added the gradient at the input to the rows of the answers; it belongs to the rows that were read"
)
def _(E, ids, answers):
    head, G = _tied(E, ids, answers)
    return head.index_add_(0, answers, G)


@tied_gradient.mistake("e^1000 is infinite: subtract each row's maximum before you exponentiate, or use softmax")
def _(E, ids, answers):
    root = math.sqrt(E.shape[1])
    H = root * E[ids]
    power = (H @ E.T).exp()
    D = power / power.sum(1, keepdim=True) - torch.eye(len(E), dtype=E.dtype)[answers]
    return (D.T @ H).index_add_(0, ids, root * D @ E)


@tied_gradient.variant
def _(E, ids, answers):
    # process one position and one row of the table at a time
    vocab, d = E.shape
    gradient = torch.zeros_like(E)
    for read, right in zip(ids.tolist(), answers.tolist(), strict=True):
        h = d**0.5 * E[read]
        z = [float(h @ row) for row in E]
        powers = [math.exp(score - max(z)) for score in z]
        for k in range(vocab):
            pull = powers[k] / sum(powers) - (k == right)
            gradient[k] += pull * h
            gradient[read] += d**0.5 * pull * E[k]
    return gradient


@tied_gradient.variant
def _(E, ids, answers):
    # with one-hot rows, the embedding and the output head are both linear layers
    eye = torch.eye(E.shape[0], dtype=E.dtype)
    P, Y = eye[ids], eye[answers]
    scale = E.shape[1] ** 0.5
    D = (scale * P @ E @ E.T).log_softmax(-1).exp() - Y
    return scale * (torch.einsum("ik,il,lj->kj", D, P, E) + torch.einsum("ik,il,lj->kj", P, D, E))


# 1.5


@exercise(
    "1.5",
    "Merges have an order",
    task="Cut a word into tokens by applying merges in the order they were learned",
    points=3,
    difficulty=2,
    minutes=15,
    hints=(
        "`rank = {pair: r for r, pair in enumerate(merges)}` tells you when a pair was learned.",
        "Which pairs of neighbours are in `rank`, and which of them has the smallest rank?",
        "Walk through the word and join that pair wherever it occurs. Repeat until no pair is known.",
    ),
)
def encode_word(word, merges):
    """Split `word`, a `str`, into tokens, and return them as a list. `merges` lists pairs of `str` in the order they
    were learned. Begin with single characters. Among all pairs of adjacent tokens, find the one that was learned first,
    and join it wherever it occurs, from left to right. Repeat this until no pair in `merges` occurs any more.

    ```python
    >>> encode_word("abab", [("b", "a"), ("a", "b")])
    ['a', 'ba', 'b']
    ```

    ★
    - Raise a `ValueError` for an empty word.
    """
    ### BEGIN SOLUTION
    if not word:
        raise ValueError("word: expected at least one character")
    rank = {pair: r for r, pair in enumerate(merges)}
    tokens = list(word)
    while True:
        neighbours = [(tokens[i], tokens[i + 1]) for i in range(len(tokens) - 1)]
        known = [pair for pair in neighbours if pair in rank]
        if not known:
            return tokens
        first = min(known, key=rank.get)
        joined, place = [], 0
        while place < len(tokens):
            step = 2 if tuple(tokens[place : place + 2]) == first else 1
            joined.append("".join(tokens[place : place + step]))
            place += step
        tokens = joined
    ### END SOLUTION


_RULES = [("a", "t"), ("t", "h"), ("e", "a"), ("th", "e"), ("h", "ea")]


def _join(tokens, pair, most=math.inf):
    """Join the pair from left to right, at most `most` times, and return the tokens."""
    out, place = [], 0
    while place < len(tokens):
        step = 2 if tuple(tokens[place : place + 2]) == pair and most > 0 else 1
        out.append("".join(tokens[place : place + step]))
        place, most = place + step, most - (step == 2)
    return out


def _by_rank(word, merges, prefer=min, rounds=math.inf):
    rank, tokens = {pair: r for r, pair in enumerate(merges)}, list(word)
    while rounds > 0 and (known := [pair for pair in pairwise(tokens) if pair in rank]):
        tokens = _join(tokens, prefer(known, key=rank.get))
        rounds -= 1
    return tokens


def _some_merges(draw, letters, count):
    """Draw merges as training could learn them: each joins two existing tokens into a new one."""
    tokens, merges = list(letters), []
    while len(merges) < count:
        pair = tuple(tokens[draw.whole(0, len(tokens) - 1)] for _ in range(2))
        if "".join(pair) not in tokens and len("".join(pair)) <= 4:
            merges.append(pair)
            tokens.append("".join(pair))
    return merges


@encode_word.cases
def _(draw):
    for word in ("at", "the", "dog", "a", "tea", "heat", "that", "theatre"):
        yield Case("the pair that was learned first is joined first", (word, _RULES))
    yield Case("a pair is joined wherever it occurs", ("ththth", _RULES))
    yield Case("from left to right", ("ttt", [("t", "t")]))
    yield Case("tokens are joined as pairs, not as text", ("the", [("h", "e"), ("t", "h"), ("th", "e")]))
    yield Case(
        "the order of the merges matters, not the length of a token", ("abc", [("b", "c"), ("a", "bc"), ("a", "b")])
    )
    yield Case("the order of the merges matters, not how often a pair occurs", ("abcbc", [("a", "b"), ("b", "c")]))
    yield Case("no merges at all", ("the", []))
    for _ in range(4):
        word = "".join("abc"[i] for i in draw.wholes(0, 2, draw.whole(6, 14)))
        yield Case("any word and any merges", (word, _some_merges(draw, "abc", draw.whole(3, 8))))
    yield Case("an empty word is rejected", ("", _RULES), refuse=True)
    yield Case("a space is a character", ("to the", [("t", "h"), ("o", " "), ("th", "e")]))


def _not_empty(word):
    if not word:
        raise ValueError("an empty word")


@encode_word.mistake("you took the longest known piece from the left; apply merges in the order they were learned")
def _(word, merges):
    _not_empty(word)
    known, out = {"".join(pair) for pair in merges}, []
    while word:
        size = next(n for n in range(len(word), 0, -1) if n == 1 or word[:n] in known)
        out, word = [*out, word[:size]], word[size:]
    return out


@encode_word.mistake(
    "you joined the first known pair from the left; join the one that was learned first, wherever it occurs"
)
def _(word, merges):
    _not_empty(word)
    tokens = list(word)
    while known := [pair for pair in pairwise(tokens) if pair in merges]:
        tokens = _join(tokens, known[0])
    return tokens


@encode_word.mistake("you joined the pair that was learned last; join the one that was learned first")
def _(word, merges):
    _not_empty(word)
    return _by_rank(word, merges, prefer=max)


@encode_word.mistake(
    "you joined the pair that occurs most often; counting is for learning, and encoding uses the order of the merges"
)
def _(word, merges):
    _not_empty(word)
    tokens = list(word)
    while known := [pair for pair in pairwise(tokens) if pair in merges]:
        tokens = _join(tokens, max(known, key=known.count))
    return tokens


@encode_word.mistake("you stopped after one merge: repeat until no known pair is left")
def _(word, merges):
    _not_empty(word)
    return _by_rank(word, merges, rounds=1)


@encode_word.mistake("each merge was applied at one position only: join the pair wherever it occurs")
def _(word, merges):
    _not_empty(word)
    tokens = list(word)
    for pair in merges:
        tokens = _join(tokens, pair, most=1)
    return tokens


@encode_word.mistake("you joined from right to left")
def _(word, merges):
    _not_empty(word)
    turned = [(b[::-1], a[::-1]) for a, b in merges]
    return [token[::-1] for token in reversed(_by_rank(word[::-1], turned))]


@encode_word.mistake("you compared joined texts: t + he is not the pair th + e, though both spell the")
def _(word, merges):
    _not_empty(word)
    rank, tokens = {}, list(word)
    for r, pair in enumerate(merges):
        rank.setdefault("".join(pair), r)
    while known := [pair for pair in pairwise(tokens) if "".join(pair) in rank]:
        tokens = _join(tokens, min(known, key=lambda pair: rank["".join(pair)]))
    return tokens


@encode_word.mistake("return a list of tokens; you joined them into one text")
def _(word, merges):
    _not_empty(word)
    return " ".join(_by_rank(word, merges))


@encode_word.mistake("return the tokens of the word, not the merges that were used")
def _(word, merges):
    _not_empty(word)
    tokens, used = list(word), []
    for pair in merges:
        if pair in pairwise(tokens):
            used.append(pair)
            tokens = _join(tokens, pair)
    return used


@encode_word.mistake("an empty word must raise a ValueError")
def _(word, merges):
    return _by_rank(word, merges)


@encode_word.variant
def _(word, merges):
    # apply one merge after another, because no earlier merge can use a token that a later one makes
    if word == "":
        raise ValueError("nothing to encode")
    tokens = list(word)
    for a, b in merges:
        i = 0
        while i + 1 < len(tokens):
            if tokens[i] == a and tokens[i + 1] == b:
                tokens[i : i + 2] = [a + b]
            i += 1
    return tokens


@encode_word.variant
def _(word, merges):
    # join one pair at a time: the leftmost occurrence of the pair that was learned first
    if not len(word):
        raise ValueError("empty")

    def reduce(tokens):
        ranked = [(merges.index(pair), i) for i, pair in enumerate(pairwise(tokens)) if pair in merges]
        if not ranked:
            return tokens
        _, i = min(ranked)
        return reduce((*tokens[:i], tokens[i] + tokens[i + 1], *tokens[i + 2 :]))

    return reduce(tuple(word))


# 1.6


@exercise(
    "1.6",
    "The factor and the first loss",
    task="Scale a tied table on the way in, and bound the loss before training",
    points=3,
    difficulty=3,
    minutes=15,
    limits={"vocab": (1,), "d_model": (1,)},
    hints=(
        "A factor changes a variance by its square. Which factor makes the standard deviation one?",
        "Equation (1.4): given a state of mean square one, a score has variance d_model times the variance of an entry.",
        "Equation (D1.6) of the deeper notebook bounds the mean loss by ln N plus half the variance of a score.",
    ),
)
def start_of_table(vocab, d_model, std):
    """The entries of a table (vocab, d_model) are initialised independently from a normal distribution with mean 0 and
    standard deviation `std`. The table serves as both embedding and output head. Its rows are multiplied by a factor at
    the input but not at the output, where the states have mean square 1. Return `(factor, bound)`, two `float`: the
    factor that gives the input variance 1, and the bound on the mean initial loss per position, in nats, from equation
    (D1.6) of the deeper notebook.

    ```python
    >>> start_of_table(1, 8, 0.5)
    (2.0, 1.0)
    ```

    ★
    - Raise a `ValueError` for `vocab < 1`, `d_model < 1` or `std <= 0`.
    """
    ### BEGIN SOLUTION
    if vocab < 1 or d_model < 1 or std <= 0:
        raise ValueError(f"vocab={vocab}, d_model={d_model}, std={std}: expected positive numbers")
    variance_of_score = d_model * std**2
    return 1 / std, math.log(vocab) + variance_of_score / 2
    ### END SOLUTION


@start_of_table.cases
def _(draw):
    yield Case("entries of variance 1 / d_model", (10, 16, 0.25))
    yield Case("entries of variance one", (10, 16, 1.0))
    yield Case("other entries", (1000, 64, 0.02))
    d_model = draw.whole(5, 90)
    yield Case("any numbers", (draw.whole(50, 9000), d_model, 0.3 + draw.uniform(1).item()))
    yield Case("one token, one component", (1, 1, 0.25))
    yield Case("zero tokens are rejected", (0, 16, 0.25), refuse=True)
    yield Case("a width of 0 is rejected", (10, 0, 0.25), refuse=True)
    yield Case("a standard deviation of zero is rejected", (10, 16, 0.0), refuse=True)


@start_of_table.mistake("the factor sqrt(d_model) is right only for entries of variance 1 / d_model")
def _(vocab, d_model, std):
    return math.sqrt(d_model), math.log(vocab) + d_model * std**2 / 2


@start_of_table.mistake("your factor is one over the variance, but a factor changes the variance by its square")
def _(vocab, d_model, std):
    return 1 / std**2, math.log(vocab) + d_model * std**2 / 2


@start_of_table.mistake(
    "the variance of an entry at the input depends only on std: d_model does not belong in the factor"
)
def _(vocab, d_model, std):
    return 1 / (std * math.sqrt(d_model)), math.log(vocab) + d_model * std**2 / 2


@start_of_table.mistake("the bound uses the variance of a score, not its standard deviation")
def _(vocab, d_model, std):
    return 1 / std, math.log(vocab) + math.sqrt(d_model) * std / 2


@start_of_table.mistake("the bound adds half the variance of a score, not all of it")
def _(vocab, d_model, std):
    return 1 / std, math.log(vocab) + d_model * std**2


@start_of_table.mistake("a standard deviation is not a variance: square std in the bound")
def _(vocab, d_model, std):
    return 1 / std, math.log(vocab) + d_model * std / 2


@start_of_table.mistake("ln N is the loss of equal scores; scores that vary cost more")
def _(vocab, d_model, std):
    return 1 / std, math.log(vocab)


@start_of_table.mistake("the factor applies only at the input: the output scores are computed with the table as it is")
def _(vocab, d_model, std):
    return 1 / std, math.log(vocab) + d_model / 2


@start_of_table.mistake("the loss is measured in nats: use the natural logarithm")
def _(vocab, d_model, std):
    return 1 / std, math.log2(vocab) + d_model * std**2 / 2


@start_of_table.mistake(
    "each of the d_model products adds its own variance to a score: the width is missing from the bound"
)
def _(vocab, d_model, std):
    return 1 / std, math.log(vocab) + std**2 / 2


@start_of_table.mistake("factor and bound are swapped")
def _(vocab, d_model, std):
    return math.log(vocab) + d_model * std**2 / 2, 1 / std


@start_of_table.mistake(
    "a width of 0 must raise a ValueError, too: Python raises an error of its own only for the logarithm of 0 tokens"
)
def _(vocab, d_model, std):
    return 1 / std, math.log(vocab) + d_model * std**2 / 2


@start_of_table.variant
def _(vocab, d_model, std):
    # the mean of e^z is e^(variance / 2), so take the logarithm of N such terms
    if min(vocab, d_model) < 1 or not std > 0:
        raise ValueError("all three must be positive")
    mean_of_power = torch.tensor(d_model * std * std / 2, dtype=torch.float64)
    terms = torch.full((vocab,), mean_of_power.item(), dtype=torch.float64)
    return torch.tensor(std, dtype=torch.float64).reciprocal(), terms.logsumexp(0)


@start_of_table.variant
def _(vocab, d_model, std):
    for number in (vocab, d_model, std):
        if number <= 0:
            raise ValueError(f"expected a positive number, got {number}")
    return [std**-1, 0.5 * (2 * math.log(vocab) + sum(std**2 for _ in range(d_model)))]


# 1.7


@exercise(
    "1.7",
    "Learn the merges",
    task="Learn merges from counted words, ties included",
    points=5,
    difficulty=3,
    minutes=25,
    limits={"most": (0,)},
    groups=(
        Group(
            "counting and joining the most frequent pair",
            2,
            ("a pair counts as often as its word occurs", "no more merges than asked for"),
        ),
        Group(
            "ties, and where to stop",
            1,
            ("the lesson's cat", "in a tie, the smallest pair is joined", "a pair that occurs once is not joined"),
        ),
        Group(
            "any words: pairs that overlap, or occur several times in a word",
            1,
            (
                "pairs may overlap when they are counted",
                "joined from left to right",
                "the pair is joined everywhere in a word",
                "any words",
            ),
        ),
        Group("words that need many merges, and special cases", 1),
    ),
    robust={
        "words of one letter have no pairs": "nothing to learn from",
        "no merge is asked for": "nothing to do",
    },
    hints=(
        "Store each word as a tuple of tokens, together with how often it occurs. Count the pairs of neighbours within the words, and weight each pair by how often its word occurs.",
        "The next merge is `min(count, key=lambda pair: (-count[pair], pair))`: the largest count, and in a tie the smallest pair.",
        "Join it in every word, from left to right; stop when the best pair occurs once, or when there are no pairs; then count again.",
    ),
)
def learn_merges(words, most):
    """Learn byte-pair merges. The dict `words` maps each word to the number of times it occurs. Begin with single
    characters. In each round, count the pairs of adjacent tokens within words, weighted by word frequency, and join
    every occurrence of the most frequent pair, from left to right. In a tie, take the pair that comes first when Python
    sorts tuples. Stop after `most` merges, or when no pair occurs twice. Return the joined pairs in order.

    ```python
    >>> learn_merges({"aba": 2, "ab": 1}, 5)
    [('a', 'b'), ('ab', 'a')]
    ```

    ★
    - Raise a `ValueError` if `most` is negative.
    """
    ### BEGIN SOLUTION
    if most < 0:
        raise ValueError(f"most={most}: expected 0 or more")
    texts = [(list(word), times) for word, times in words.items()]
    merges = []
    while len(merges) < most:
        count = {}
        for tokens, times in texts:
            for i in range(len(tokens) - 1):
                pair = tokens[i], tokens[i + 1]
                count[pair] = count.get(pair, 0) + times
        best = min(count, key=lambda pair: (-count[pair], pair), default=None)
        if best is None or count[best] < 2:
            break
        merges.append(best)
        for tokens, _ in texts:
            place = 0
            while place < len(tokens) - 1:
                if (tokens[place], tokens[place + 1]) == best:
                    tokens[place : place + 2] = ["".join(best)]
                place += 1
    return merges
    ### END SOLUTION


@learn_merges.cases
def _(draw):
    yield Case("the lesson's cat", ({"the": 1, " cat": 1, " sat": 1, " on": 1, " the": 1, " mat": 1}, 10))
    yield Case("a pair counts as often as its word occurs", ({"ab": 2, "cd": 1, "ced": 1, "bcd": 1}, 1))
    yield Case("no more merges than asked for", ({"the": 3, "that": 2}, 2))
    yield Case("in a tie, the smallest pair is joined", ({"zy": 2, "ba": 2, "ab": 2}, 3))
    yield Case("a pair that occurs once is not joined", ({"ab": 1, "cd": 2}, 5))
    yield Case("pairs may overlap when they are counted", ({"aaa": 1, "b": 4}, 5))
    yield Case("joined from left to right", ({"aaab": 3}, 3))
    yield Case("the pair is joined everywhere in a word", ({"abcabd": 2, "abe": 1}, 4))
    for _ in range(3):
        texts = {"".join("abcd"[i] for i in draw.wholes(0, 3, draw.whole(1, 8))): draw.whole(1, 4) for _ in range(6)}
        yield Case("any words", (texts, draw.whole(3, 9)))
    a, b, c, d, *others = (chr(ord("a") + i) for i in draw.shuffled(26))
    often = draw.whole(3, 9)
    words = {a + b: often, c + d: often - 1, c + a + d: 1, b + c + d: often - 2}
    yield Case("a pair counts as often as its word occurs", (words, 1))
    yield Case("no more merges than asked for", ({a + b + c: often, a + b + d + a: 2}, 2))
    yield Case("in a tie, the smallest pair is joined", ({a + b: often, c + d: often, b + a: often, d + a: often}, 4))
    yield Case("a pair that occurs once is not joined", ({a + b: 1, d + c: often}, 5))
    yield Case("words of one letter have no pairs", ({"a": 5, "b": 2}, 3))
    yield Case("no merge is asked for", ({"the": 3}, 0))
    yield Case("a negative number is rejected", ({"the": 3}, -1), refuse=True)
    yield Case("a long word, merged until a single token is left", ({"".join(others[: 10 + often]): 2}, 20))


def _prefer_small(count):
    return min(count, key=lambda pair: (-count[pair], pair))


def _learn(words, most, choose=_prefer_small, least=2, frequencies=True, recount=True, glue=_join, careful=True):
    if most < 0:
        raise ValueError("a negative number")
    texts = [(list(word), times if frequencies else 1) for word, times in words.items()]
    merges, count = [], None
    while len(merges) < most:
        if recount or count is None:
            count = {}
            for tokens, times in texts:
                for pair in pairwise(tokens):
                    count[pair] = count.get(pair, 0) + times
        if (careful and not count) or count[best := choose(count)] < least:
            break
        merges.append(best)
        if not recount:
            del count[best]
        texts = [(glue(tokens, best), times) for tokens, times in texts]
    return merges


@learn_merges.mistake("in a tie, join the smallest pair; you joined the one that was seen first")
def _(words, most):
    return _learn(words, most, choose=lambda count: max(count, key=count.get))


@learn_merges.mistake("in a tie, join the smallest pair; you joined the largest")
def _(words, most):
    return _learn(words, most, choose=lambda count: max(count, key=lambda pair: (count[pair], pair)))


@learn_merges.mistake("you counted each distinct word once: weight each pair by how often its word occurs")
def _(words, most):
    return _learn(words, most, frequencies=False)


@learn_merges.mistake("you counted only once: each merge changes the neighbours, so count again")
def _(words, most):
    return _learn(words, most, recount=False)


@learn_merges.mistake("you continued when the best pair occurred only once")
def _(words, most):
    return _learn(words, most, least=1)


@learn_merges.mistake("you stopped at a pair that occurs twice; twice is enough, once is not")
def _(words, most):
    return _learn(words, most, least=3)


@learn_merges.mistake("you joined one position in each word only: join the pair wherever it occurs")
def _(words, most):
    return _learn(words, most, glue=lambda tokens, pair: _join(tokens, pair, most=1))


@learn_merges.mistake("you joined from right to left")
def _(words, most):
    return _learn(
        words,
        most,
        glue=lambda t, p: [x[::-1] for x in _join([x[::-1] for x in t[::-1]], (p[1][::-1], p[0][::-1]))[::-1]],
    )


@learn_merges.mistake("you learned one merge too many: stop after `most` merges")
def _(words, most):
    return _learn(words, most + (most >= 0))


@learn_merges.mistake("you counted across the border of two words: merges never cross it")
def _(words, most):
    return _learn({"".join(word * times for word, times in words.items()): 1}, most)


@learn_merges.mistake("a merge is a pair of tokens; you returned the joined tokens")
def _(words, most):
    return ["".join(pair) for pair in _learn(words, most)]


@learn_merges.mistake("return only the pairs, without their counts")
def _(words, most):
    merges = _learn(words, most)
    texts, out = [(list(word), times) for word, times in words.items()], []
    for pair in merges:
        out.append((pair, sum(t * [*pairwise(x)].count(pair) for x, t in texts)))
        texts = [(_join(x, pair), t) for x, t in texts]
    return out


@learn_merges.mistake("words of one letter have no pairs: when there are none, stop")
def _(words, most):
    return _learn(words, most, careful=False)


@learn_merges.mistake("a negative number of merges must raise a ValueError")
def _(words, most):
    return _learn(words, max(most, 0))


@learn_merges.variant
def _(words, most):
    # keep each word as a tuple of tokens, and count the pairs by hand
    if most < 0:
        raise ValueError("most must not be negative")
    texts, merges = {tuple(word): times for word, times in words.items()}, []
    for _ in range(most):
        pairs = sorted({pair for word in texts for pair in pairwise(word)})
        counts = [sum(n * sum(two == pair for two in pairwise(w)) for w, n in texts.items()) for pair in pairs]
        if max(counts, default=0) <= 1:
            return merges
        a, b = pairs[counts.index(max(counts))]
        joined = {}
        for word, times in texts.items():
            new = []
            for token in word:
                if new and new[-1] == a and token == b:
                    new[-1] = a + b
                else:
                    new.append(token)
            joined[tuple(new)] = joined.get(tuple(new), 0) + times
        texts = joined
        merges.append((a, b))
    return merges


@learn_merges.variant
def _(words, most):
    # recursion: find the first merge, apply it, and learn the other merges from the resulting lists of tokens
    if most < 0:
        raise ValueError(f"{most} merges")

    def learn(texts, left):
        every = [pair for tokens, times in texts for pair in pairwise(tokens) for _ in range(times)]
        if left == 0 or len(set(every)) == len(every):
            return []
        best = max(every.count(pair) for pair in every)
        a, b = min(pair for pair in every if every.count(pair) == best)
        return [[a, b], *learn([(merge(tokens, a, b), times) for tokens, times in texts], left - 1)]

    def merge(tokens, a, b):
        if len(tokens) < 2:
            return tokens
        if tokens[:2] == [a, b]:
            return [a + b, *merge(tokens[2:], a, b)]
        return [tokens[0], *merge(tokens[1:], a, b)]

    return learn([(list(word), times) for word, times in words.items()], most)
