"""Exercises for lesson 07: the encoder stack."""

import math
from fractions import Fraction

import torch

from companion_school.checking.exercise import Case, Group, exercise

# 7.1


@exercise(
    "7.1",
    "How many are shown wrongly?",
    task="Work out what BERT's rule does to 10,000 tokens",
    points=1,
    difficulty=1,
    minutes=5,
    hints=(
        "How many are shown as `[MASK]`? All of them differ from the original.",
        "How many are shown as a random token? How often is the random token the original one by accident?",
        "Equation (D7.4) of the deeper notebook has both terms: 12 % of the tokens, and 1.5 % times the probability 9/10 that the random token is a different one.",
    ),
)
def shown_wrongly():
    """A text has 10,000 tokens, and the vocabulary has 10. You apply BERT's rule, which chooses 15 % of the tokens. Of
    these, 80 % become `[MASK]`, which is not one of the 10; 10 % become a random token of the vocabulary, which may be
    the original one; and 10 % do not change. How many tokens do you expect to be *shown as a different token*? Return a
    number that is accurate to one decimal place.
    """
    ### BEGIN SOLUTION
    chosen = 0.15 * 10_000
    masked = 0.8 * chosen
    random_and_wrong = 0.1 * chosen * 9 / 10  # one random token in ten is the original one
    return masked + random_and_wrong
    ### END SOLUTION


@shown_wrongly.cases
def _(draw):
    yield Case("the number of tokens that are shown as a different token", (), tolerance=0.05)


@shown_wrongly.mistake("these are all chosen tokens; some of them are shown unchanged")
def _():
    return 1500


@shown_wrongly.mistake("the random ones are missing: most of them differ, too")
def _():
    return 1200


@shown_wrongly.mistake("a random token is the original one in 1 of 10 cases, because the vocabulary has 10 tokens")
def _():
    return 1350


@shown_wrongly.mistake(
    "one chosen token in ten does not change: you subtracted only the random ones that happen to be right"
)
def _():
    return 1485


@shown_wrongly.mistake("these are only the random ones; those shown as [MASK] differ, too")
def _():
    return 135


@shown_wrongly.mistake("these are the chosen tokens that are shown unchanged; count the others")
def _():
    return 165


@shown_wrongly.mistake("these are all tokens that are shown unchanged; count the others")
def _():
    return 8665


@shown_wrongly.mistake("only 15 % of the tokens are chosen; you applied 80/10/10 to all of them")
def _():
    return 8900


@shown_wrongly.mistake("that is a share; return the number of tokens")
def _():
    return 0.1335


@shown_wrongly.variant
def _():
    return 1335


@shown_wrongly.variant
def _():
    # subtract from all tokens those not chosen, those shown unchanged, and the random ones that happen to be right
    shown_right = Fraction(85, 100) + Fraction(15, 1000) + Fraction(15, 1000) / 10
    return float(10_000 * (1 - shown_right))


# 7.2


@exercise(
    "7.2",
    "Count an encoder",
    task="Count the parameters of an encoder with or without shared layers",
    points=2,
    difficulty=2,
    minutes=15,
    limits={"vocab": (1,), "context": (1,), "d_model": (1,), "layers": (1,), "d_ff": (1,)},
    robust={
        "more parameters than a float can represent exactly": "no model is that large",
    },
    hints=(
        "Attention has four matrices (d_model, d_model) and four biases. The number of heads does not matter.",
        "With its bias, the network's first matrix has d_model d_ff + d_ff parameters, and the second has d_ff d_model + d_model.",
        "There are two norms in each layer and one before the stack; each has a gain and a bias with d_model entries.",
    ),
)
def encoder_size(vocab, context, d_model, layers, d_ff, shared):
    """Return the number of parameters of an encoder. It has a table of `vocab` token embeddings, a table of `context`
    learned position embeddings, one norm after their sum, and `layers` post-norm layers, equations (7.1) and (7.2). All
    matrices have biases, and all norms have a gain and a bias. The tables are `d_model` wide and have no biases. There
    is no pooler and no output head. With `shared=True` all layers share *one* set of weights.

    ```python
    >>> encoder_size(1, 1, 1, 1, 1, False)
    20
    ```

    ★
    - Raise a `ValueError` for a size below 1.
    - Counts of more than $2^{53}$ are exact.
    """
    ### BEGIN SOLUTION
    sizes = {"vocab": vocab, "context": context, "d_model": d_model, "layers": layers, "d_ff": d_ff}
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name}={value}: expected at least 1")
    attention = 4 * (d_model**2 + d_model)
    network = 2 * d_model * d_ff + d_ff + d_model
    norms = 2 * 2 * d_model
    return (vocab + context + 2) * d_model + (1 if shared else layers) * (attention + network + norms)
    ### END SOLUTION


@encoder_size.cases
def _(draw):
    yield Case("one layer", (5, 4, 3, 1, 7, False))
    yield Case("several layers", (11, 16, 12, 3, 20, False))
    yield Case("layers that share their weights", (11, 16, 12, 3, 20, True))
    sizes = draw.sizes(5, 2, 60)
    yield Case("any sizes", (*sizes, False))
    yield Case("any sizes, shared", (*sizes, True))
    yield Case("BERT's sizes", (30522, 512, 768, 12, 3072, False))
    for name, place in (("layer", 3), ("token", 0), ("hidden number", 4)):
        bad = [11, 16, 12, 3, 20]
        bad[place] = 0
        yield Case(f"an encoder without a {name} is rejected", (*bad, False), refuse=True)
    yield Case("a network of width 1", (5, 3, 2, 2, 1, False))
    yield Case("more parameters than a float can represent exactly", (2**53 + 2, 1, 1, 1, 1, True))
    yield Case("a context of 0 is rejected", (5, 0, 2, 2, 3, False), refuse=True)


def _layer(d_model, d_ff):
    return 4 * (d_model**2 + d_model) + 2 * d_model * d_ff + d_ff + d_model + 4 * d_model


def _encoder(vocab, context, d_model, layers, d_ff, shared, less=0):
    """Return the correct count, reduced by `less` parameters for each layer."""
    return (vocab + context + 2) * d_model + (1 if shared else layers) * (_layer(d_model, d_ff) - less)


@encoder_size.mistake("your matrices have no biases")
def _(vocab, context, d_model, layers, d_ff, shared):
    return _encoder(vocab, context, d_model, layers, d_ff, shared, 5 * d_model + d_ff)


@encoder_size.mistake("your layers have one norm; there is one after each of the two additions")
def _(vocab, context, d_model, layers, d_ff, shared):
    return _encoder(vocab, context, d_model, layers, d_ff, shared, 2 * d_model)


@encoder_size.mistake("the norm before the stack is missing")
def _(vocab, context, d_model, layers, d_ff, shared):
    return _encoder(vocab, context, d_model, layers, d_ff, shared) - 2 * d_model


@encoder_size.mistake("your attention has three matrices: the output projection is missing")
def _(vocab, context, d_model, layers, d_ff, shared):
    return _encoder(vocab, context, d_model, layers, d_ff, shared, d_model**2 + d_model)


@encoder_size.mistake("the matrices of your attention have no biases")
def _(vocab, context, d_model, layers, d_ff, shared):
    return _encoder(vocab, context, d_model, layers, d_ff, shared, 4 * d_model)


@encoder_size.mistake("you left out the biases of the network's two matrices, which have d_ff and d_model entries")
def _(vocab, context, d_model, layers, d_ff, shared):
    return _encoder(vocab, context, d_model, layers, d_ff, shared, d_ff + d_model)


@encoder_size.mistake("your norms have a gain but no bias")
def _(vocab, context, d_model, layers, d_ff, shared):
    return _encoder(vocab, context, d_model, layers, d_ff, shared, 2 * d_model) - d_model


@encoder_size.mistake("learned positions are parameters, too: their table is missing")
def _(vocab, context, d_model, layers, d_ff, shared):
    return _encoder(vocab, context, d_model, layers, d_ff, shared) - context * d_model


@encoder_size.mistake("there is no output head here: the table of tokens counts once")
def _(vocab, context, d_model, layers, d_ff, shared):
    return _encoder(vocab, context, d_model, layers, d_ff, shared) + vocab * d_model


@encoder_size.mistake("there is no pooler here: you counted an extra d_model x d_model matrix and its bias")
def _(vocab, context, d_model, layers, d_ff, shared):
    return _encoder(vocab, context, d_model, layers, d_ff, shared) + d_model**2 + d_model


@encoder_size.mistake("with shared=True there is one set of weights, however many layers use it")
def _(vocab, context, d_model, layers, d_ff, shared):
    return _encoder(vocab, context, d_model, layers, d_ff, False)


@encoder_size.mistake("a size below 1 must raise a ValueError")
def _(vocab, context, d_model, layers, d_ff, shared):
    return _encoder(vocab, context, d_model, layers, d_ff, shared)


@encoder_size.variant
def _(vocab, context, d_model, layers, d_ff, shared):
    # build the encoder on the meta device, which stores no data
    if min(vocab, context, d_model, layers, d_ff) < 1:
        raise ValueError("expected every size to be at least 1")
    nn = torch.nn
    with torch.device("meta"):
        parts = [nn.Embedding(vocab, d_model), nn.Embedding(context, d_model), nn.LayerNorm(d_model)]
        parts += [nn.TransformerEncoderLayer(d_model, 1, d_ff) for _ in range(1 if shared else layers)]
    return sum(p.numel() for part in parts for p in part.parameters())


@encoder_size.variant
def _(vocab, context, d_model, layers, d_ff, shared):
    # list the shapes of all parameters
    if any(size < 1 for size in (vocab, context, d_model, layers, d_ff)):
        raise ValueError(f"{vocab=}, {context=}, {d_model=}, {layers=}, {d_ff=}: expected each to be at least 1")
    layer = [(d_model, d_model), (d_model,)] * 4 + [(d_model, d_ff), (d_ff,), (d_ff, d_model), (d_model,)]
    layer += [(d_model,)] * 4
    shapes = [(vocab, d_model), (context, d_model), (d_model,), (d_model,)] + layer * (layers if not shared else 1)
    return sum(math.prod(shape) for shape in shapes)


# 7.3


@exercise(
    "7.3",
    "One vector for a sentence",
    task="Average the real rows of each sequence, whatever its padding contains",
    points=2,
    difficulty=2,
    minutes=10,
    right={
        "gradients": "its answer goes into a model that learns",
    },
    robust={
        "NaN in a padding row does not reach the mean": "the lesson's padding is finite",
        "infinity in a padding row does not reach the mean": "the lesson's padding is finite",
        "the sum of large rows is out of range in half precision, but their mean is not": "the lesson does not discuss half precision",
    },
    hints=(
        "Zero times NaN is NaN, so multiplying by the mask is not enough.",
        "`masked_fill(~real[..., None], 0)` replaces entries instead of multiplying them.",
        "Each sequence has its own divisor: `real.sum(dim=1, keepdim=True)`.",
    ),
)
def mean_of_real(stream, real):
    """`stream` (batch, token, d_model) holds the states of several sequences. `real` (batch, token) is boolean: True
    marks a real token, and False marks padding, which may be anywhere. Return one vector for each sequence, (batch,
    d_model): the mean of its real rows. The contents of padding rows must not matter.

    ```python
    >>> mean_of_real(torch.tensor([[[1.0], [9.0], [3.0]]]), torch.tensor([[True, False, True]]))
    tensor([[2.]])
    ```

    ★
    - Raise a `ValueError` if the shape of `real` is not (batch, token), or if a sequence has no real token.
    - Padding may contain NaN or infinity.
    - In `float16`, the mean is right even if the sum is out of range.
    """
    ### BEGIN SOLUTION
    if real.shape != stream.shape[:2]:
        raise ValueError(f"real: expected shape {tuple(stream.shape[:2])}, got {tuple(real.shape)}")
    if not real.any(dim=1).all():
        raise ValueError("real: expected at least one real token in every sequence")
    kept = stream.double().masked_fill(
        ~real[..., None], 0.0
    )  # a sum of many entries may leave the range of half precision
    return (kept.sum(dim=1) / real.sum(dim=1, keepdim=True)).to(stream.dtype)
    ### END SOLUTION


@mean_of_real.cases
def _(draw):
    yield Case("padding is not part of the mean", (draw.normal(1, 3, 2), torch.tensor([[True, True, False]])))
    look = torch.tensor([[False, True, False, True, True], [True] * 5, [False, False, False, False, True]])
    yield Case("each sequence has its own divisor, wherever its padding is", (draw.normal(3, 5, 4), look))
    batch, token, d_model = draw.sizes(3, 2, 8)
    real = draw.uniform(batch, token) > 0.4
    real[:, draw.whole(0, token - 1)] = True
    real[0, draw.whole(0, token - 2) :] = False
    real[0, 0] = True
    yield Case("any sizes, gradients included", (draw.normal(batch, token, d_model), real), gradients=True)
    yield Case("the result has the dtype of the stream", (draw.normal(3, 5, 4, dtype=torch.float32), look))
    large = (2e4 + draw.normal(3, 5, 4)).half()
    yield Case("the sum of large rows is out of range in half precision, but their mean is not", (large, look))
    broken = draw.normal(3, 5, 4)
    broken[0, 0] = math.nan
    yield Case("NaN in a padding row does not reach the mean", (broken, look))
    broken = draw.normal(3, 5, 4)
    broken[2, 1, 3] = math.inf
    yield Case("infinity in a padding row does not reach the mean", (broken, look))
    none = look.clone()
    none[1] = False
    yield Case("a sequence without a real token is rejected", (draw.normal(3, 5, 4), none), refuse=True)
    yield Case("one mask row for all sequences is rejected", (draw.normal(3, 5, 4), look[1:2]), refuse=True)
    ones, marks = torch.ones(2, 3, 4, dtype=torch.float64), torch.ones(2, 3, 1, dtype=torch.bool)
    yield Case("a mask with one more axis is rejected", (ones, marks), refuse=True)


@mean_of_real.mistake("your mean includes padding rows")
def _(stream, real):
    return stream.mean(dim=1)


@mean_of_real.mistake("you divide by the number of all tokens; divide by the number of real ones")
def _(stream, real):
    return stream.masked_fill(~real[..., None], 0.0).mean(dim=1)


@mean_of_real.mistake("you divide by the number of real tokens in the whole batch; each sequence has its own divisor")
def _(stream, real):
    return stream.masked_fill(~real[..., None], 0.0).sum(dim=1) / real.sum()


@mean_of_real.mistake("you divide every sequence by the length of the longest one; each has its own divisor")
def _(stream, real):
    return stream.masked_fill(~real[..., None], 0.0).sum(dim=1) / real.sum(dim=1).max()


@mean_of_real.mistake("that is the sum of the real rows: divide it by their number")
def _(stream, real):
    return stream.masked_fill(~real[..., None], 0.0).sum(dim=1)


@mean_of_real.mistake("your mask is inverted: that is the mean of the padding")
def _(stream, real):
    return stream.masked_fill(real[..., None], 0.0).sum(dim=1) / (~real).sum(dim=1, keepdim=True)


@mean_of_real.mistake("you use the right number of rows, but always the first ones: padding may be anywhere")
def _(stream, real):
    return torch.stack([rows[: keep.sum()].mean(dim=0) for rows, keep in zip(stream, real, strict=True)])


@mean_of_real.mistake("you multiply padding by 0, and 0 times NaN or infinity is NaN: replace it instead")
def _(stream, real):
    return (stream * real[..., None]).sum(dim=1) / real.sum(dim=1, keepdim=True)


@mean_of_real.mistake("your sum leaves the range of half precision, but the mean does not: add up in float32")
def _(stream, real):
    if real.shape != stream.shape[:2] or not real.any(dim=1).all():
        raise ValueError("real: expected (batch, token) with a True in every row")
    return stream.masked_fill(~real[..., None], 0.0).sum(dim=1) / real.sum(dim=1, keepdim=True)


@mean_of_real.mistake("you wrote zeros into the caller's stream: work on a copy")
def _(stream, real):
    mean_of_real(stream, real)
    stream[~real] = 0.0
    return stream.sum(dim=1) / real.sum(dim=1, keepdim=True)


@mean_of_real.mistake("your result is detached: no gradient flows back to the stream")
def _(stream, real):
    return mean_of_real(stream, real).detach()


@mean_of_real.mistake("a sequence without a real token has no mean: raise a ValueError")
def _(stream, real):
    if real.shape != stream.shape[:2]:
        raise ValueError("real: expected (batch, token)")
    return stream.masked_fill(~real[..., None], 0.0).sum(dim=1) / real.sum(dim=1, keepdim=True)


@mean_of_real.mistake("a mask of another shape is broadcast silently: raise a ValueError")
def _(stream, real):
    if not real.any(dim=1).all():
        raise ValueError("real: expected a real token in every sequence")
    return stream.masked_fill(~real[..., None], 0.0).sum(dim=1) / real.sum(dim=1, keepdim=True)


@mean_of_real.variant
def _(stream, real):
    # process one sequence at a time, over its real rows only
    if real.shape != stream.shape[:2] or (real.sum(dim=1) == 0).any():
        raise ValueError("real: expected (batch, token) with a True in every row")
    means = [rows[keep].mean(dim=0, dtype=torch.float64) for rows, keep in zip(stream, real, strict=True)]
    return torch.stack(means).to(stream.dtype)


@mean_of_real.variant
def _(stream, real):
    # compute a weighted sum, with weights that add up to one
    if real.shape != stream.shape[:2] or not all(row.any() for row in real):
        raise ValueError("bad mask")
    shares = real.double()
    shares = shares / shares.sum(dim=1, keepdim=True)
    return torch.einsum("bt,btd->bd", shares, torch.where(real[..., None], stream.double(), 0.0)).to(stream.dtype)


@mean_of_real.variant
def _(stream, real):
    # add each real row to the sum of its sequence
    if tuple(real.shape) != tuple(stream.shape[:2]) or int(real.sum(1).min()) < 1:
        raise ValueError("bad mask")
    wide = stream.double()
    sums = wide.new_zeros(stream.shape[0], stream.shape[2]).index_add(0, real.nonzero()[:, 0], wide[real])
    return (sums / real.sum(1)[:, None]).to(stream.dtype)


# 7.4


@exercise(
    "7.4",
    "BERT's rule for a batch with padding",
    task="Choose, mask and replace tokens with given random numbers",
    points=3,
    difficulty=2,
    minutes=15,
    limits={"lots": (0.15,), "how": (0.8, 0.9)},
    hints=(
        "A token is chosen if its number in `lots` is below 0.15 *and* it is real.",
        "`torch.where(chosen & (how < 0.8), mask_id, tokens)` shows the masked tokens. Which tokens are shown as random ones?",
        "The targets do not depend on what is shown: `torch.where(chosen, tokens, -100)`.",
    ),
)
def cloze(tokens, real, mask_id, lots, how, anything):
    """Apply BERT's rule with given random numbers. A token of `tokens` is *chosen* if it is `real` (boolean) and its
    number in `lots` is below 0.15. Its number in `how` decides what is shown: `mask_id` if the number is below 0.8, its
    id in `anything` from 0.8 to below 0.9, and the token itself from 0.9 on. All other tokens, including padding, are
    shown unchanged. Return `(shown, targets)`, where `targets` holds the true id of every chosen token, and -100
    elsewhere. All tensors are (batch, token).

    ```python
    >>> cloze(torch.tensor([[5, 6]]), torch.tensor([[True, True]]), 1, torch.tensor([[0.1, 0.5]]), torch.zeros(1, 2), torch.tensor([[7, 7]]))
    (tensor([[1, 6]]), tensor([[   5, -100]]))
    ```

    ★
    - Raise a `ValueError` if `tokens` and `real` have different shapes.
    - Do not change `tokens`. The results are `int64`.
    """
    ### BEGIN SOLUTION
    if tokens.shape != real.shape:
        raise ValueError(f"real: expected shape {tuple(tokens.shape)}, got {tuple(real.shape)}")
    chosen = (lots < 0.15) & real
    shown = torch.where(chosen & (how < 0.8), mask_id, tokens)
    shown = torch.where(chosen & (how >= 0.8) & (how < 0.9), anything, shown)
    return shown, torch.where(chosen, tokens, -100)
    ### END SOLUTION


_MET = [[0.15, 0.1, 0.1, 0.1, 0.1]], [[0.3, 0.8, 0.9, 0.0, 0.3]]  # values of `lots` and `how` at the bounds


@cloze.cases
def _(draw):
    # one row with a masked, a random, an unchanged and an unchosen token, and padding that `lots` would have chosen
    tokens, mask_id = 1 + draw.shuffled(8)[None, :5], 50
    real, anything = torch.tensor([[True, True, True, True, False]]), 20 + draw.shuffled(8)[None, :5]
    lots = torch.tensor([[0.05, 0.05, 0.05, 0.5, 0.05]], dtype=torch.float64)
    how = torch.tensor([[0.3, 0.85, 0.95, 0.3, 0.3]], dtype=torch.float64)
    yield Case("one token of each kind", (tokens, real, mask_id, lots, how, anything))
    lots_met, how_met = (torch.tensor(numbers, dtype=torch.float64) for numbers in _MET)
    yield Case("numbers that are exactly on a bound", (tokens, real, mask_id, lots_met, how_met, anything))
    # twelve columns of chosen tokens, of four kinds, and three of unchosen tokens, all shuffled
    width = 15
    order = draw.shuffled(width)
    lots = 0.01 + 0.13 * draw.uniform(3, width)
    lots[:, 12:] = 0.2 + 0.8 * draw.uniform(3, 3)
    kinds = torch.tensor([0.05, 0.3, 0.6, 0.75, 0.81, 0.83, 0.86, 0.88, 0.91, 0.93, 0.96, 0.98, 0.3, 0.85, 0.95])
    how = kinds.double().expand(3, width) + 0.005 * draw.uniform(3, width)
    real = torch.ones(3, width, dtype=torch.bool)
    real[0, draw.whole(0, 3)] = real[1, draw.whole(4, 7)] = real[2, draw.whole(8, 11)] = False
    tokens, anything = draw.wholes(1, 9, 3, width), draw.wholes(20, 29, 3, width)
    several = (tokens, real[:, order], draw.whole(30, 60), lots[:, order], how[:, order], anything)
    yield Case("several sequences with padding anywhere", several)
    yield Case("real of another shape is rejected", (tokens, real[:1], 50, lots, how, anything), refuse=True)
    ids, all_real = torch.tensor([[9, 2, 3, 4]]), torch.ones(1, 4, dtype=torch.bool)
    lots = torch.tensor([[0.15 - 1e-10, 0.1, 0.1, 0.15]], dtype=torch.float64)
    how = torch.tensor([[0.95, 0.8 - 1e-10, 0.9 - 1e-10, 0.0]], dtype=torch.float64)
    yield Case("just below each bound, and a mask among the tokens", (ids, all_real, 9, lots, how, ids + 40))


def _cloze(tokens, chosen, mask_id, how, anything, masked=0.8, random=0.9):
    shown = torch.where(chosen & (how < masked), mask_id, tokens)
    return torch.where(chosen & (how >= masked) & (how < random), anything, shown)


@cloze.mistake("padding is chosen, too: choose only real tokens")
def _(tokens, real, mask_id, lots, how, anything):
    chosen = lots < 0.15
    return _cloze(tokens, chosen, mask_id, how, anything), torch.where(chosen, tokens, -100)


@cloze.mistake("you show all chosen tokens as mask_id; one in ten is shown as a random token, and one in ten unchanged")
def _(tokens, real, mask_id, lots, how, anything):
    chosen = (lots < 0.15) & real
    return torch.where(chosen, mask_id, tokens), torch.where(chosen, tokens, -100)


@cloze.mistake("you replace every chosen token: from 0.9 on, the token itself is shown")
def _(tokens, real, mask_id, lots, how, anything):
    chosen = (lots < 0.15) & real
    return _cloze(tokens, chosen, mask_id, how, anything, random=2.0), torch.where(chosen, tokens, -100)


@cloze.mistake("the last two kinds are swapped: random from 0.8 to 0.9, unchanged from 0.9 on")
def _(tokens, real, mask_id, lots, how, anything):
    chosen = (lots < 0.15) & real
    shown = torch.where(chosen & (how < 0.8), mask_id, tokens)
    return torch.where(chosen & (how >= 0.9), anything, shown), torch.where(chosen, tokens, -100)


@cloze.mistake("chosen tokens that are shown unchanged have a target, too: the loss covers all chosen ones")
def _(tokens, real, mask_id, lots, how, anything):
    chosen = (lots < 0.15) & real
    shown = _cloze(tokens, chosen, mask_id, how, anything)
    return shown, torch.where(shown != tokens, tokens, -100)


@cloze.mistake("only your masked tokens have a target; random and unchanged ones have one, too")
def _(tokens, real, mask_id, lots, how, anything):
    chosen = (lots < 0.15) & real
    shown = _cloze(tokens, chosen, mask_id, how, anything)
    return shown, torch.where(shown == mask_id, tokens, -100)


@cloze.mistake(
    "you set a target for every real token: it must be -100 unless the token is chosen, or the model learns to copy"
)
def _(tokens, real, mask_id, lots, how, anything):
    return _cloze(tokens, (lots < 0.15) & real, mask_id, how, anything), torch.where(real, tokens, -100)


@cloze.mistake("your targets hold what is shown; they must hold the true ids")
def _(tokens, real, mask_id, lots, how, anything):
    chosen = (lots < 0.15) & real
    shown = _cloze(tokens, chosen, mask_id, how, anything)
    return shown, torch.where(chosen, shown, -100)


@cloze.mistake("you wrote 0 where there is no target; 0 is a token, and the loss ignores -100")
def _(tokens, real, mask_id, lots, how, anything):
    chosen = (lots < 0.15) & real
    return _cloze(tokens, chosen, mask_id, how, anything), torch.where(chosen, tokens, 0)


@cloze.mistake("you replace tokens that were not chosen: 80/10/10 applies only to the chosen ones")
def _(tokens, real, mask_id, lots, how, anything):
    return _cloze(tokens, real, mask_id, how, anything), torch.where((lots < 0.15) & real, tokens, -100)


@cloze.mistake("you wrote into the caller's tokens: work on a copy")
def _(tokens, real, mask_id, lots, how, anything):
    shown, targets = cloze(tokens, real, mask_id, lots, how, anything)
    tokens.copy_(shown)
    return tokens, targets


@cloze.mistake("a mask of another shape is broadcast silently: raise a ValueError")
def _(tokens, real, mask_id, lots, how, anything):
    chosen = (lots < 0.15) & real
    return _cloze(tokens, chosen, mask_id, how, anything), torch.where(chosen, tokens, -100)


@cloze.variant
def _(tokens, real, mask_id, lots, how, anything):
    # process one token at a time
    if tokens.shape != real.shape:
        raise ValueError("real: expected the shape of tokens")
    shown, targets = tokens.clone(), torch.full_like(tokens, -100)
    for place in ((b, t) for b in range(tokens.shape[0]) for t in range(tokens.shape[1])):
        if real[place] and lots[place] < 0.15:
            targets[place] = tokens[place]
            if how[place] < 0.8:
                shown[place] = mask_id
            elif how[place] < 0.9:
                shown[place] = anything[place]
    return shown, targets


@cloze.variant
def _(tokens, real, mask_id, lots, how, anything):
    # stack the three candidates, and select one of them by its index
    if list(tokens.shape) != list(real.shape):
        raise ValueError("shapes differ")
    chosen = real.logical_and(lots.lt(0.15))
    candidates = torch.stack([torch.full_like(tokens, mask_id), anything, tokens])
    kind = (how >= 0.8).long() + (how >= 0.9).long()
    shown = candidates.gather(0, kind.masked_fill(~chosen, 2)[None])[0]
    return [shown, tokens.masked_fill(~chosen, -100)]


# 7.5


@exercise(
    "7.5",
    "The other order, with padding",
    task="Write a pre-norm encoder layer that hides padding",
    points=4,
    difficulty=3,
    minutes=25,
    forbidden=(
        "MultiheadAttention",
        "TransformerEncoderLayer",
        "TransformerEncoder",
        "multi_head_attention_forward",
        "scaled_dot_product_attention",
    ),
    groups=(
        Group("one head, no padding", 2, ("one head, no padding",)),
        Group("several heads", 1, ("two heads, no padding",)),
        Group("padding, gradients and edge cases", 1),
    ),
    right={
        "gradients": "its answer goes into a model that learns",
    },
    hints=(
        "Start from `layer_by_tensors` in the deeper notebook and move the norms: is the output added to the normed state or to the state before the norm?",
        "Queries, keys and values are all computed from the normed state.",
        "The mask hides keys, so it has the axes (batch, 1, 1, key): `real[:, None, None, :]`.",
    ),
)
def pre_layer(X, p, heads, real):
    """Compute one **pre-norm** encoder layer: $X \\leftarrow X + \\operatorname{MultiHead}(\\operatorname{LN}_1(X))$, then
    $X \\leftarrow X + \\operatorname{FFN}(\\operatorname{LN}_2(X))$, with a ReLU and $\\varepsilon = 10^{-5}$. `X` is (batch, token, d_model).
    `real` (batch, token), boolean, hides padding *keys* from every query, but padding rows are computed like the
    others. `p` is a dict with the entries `"W_q"`, `"W_k"`, `"W_v"`, `"W_o"`, `"W_1"`, `"W_2"` (used as `x @ W + b`,
    with consecutive columns of q, k and v for each head), `"b_q"` to `"b_2"`, and `"gain_1"`, `"bias_1"`, `"gain_2"`,
    `"bias_2"`. Do not use PyTorch's attention.

    ```python
    >>> ones = dict.fromkeys("b_q b_k b_v b_o b_1 b_2 gain_1 bias_1 gain_2 bias_2".split(), torch.ones(2))
    >>> zeros = dict.fromkeys("W_q W_k W_v W_o W_1 W_2".split(), torch.zeros(2, 2))
    >>> pre_layer(torch.tensor([[[1.0, 3.0]]]), ones | zeros, 1, torch.tensor([[True]]))
    tensor([[[3., 5.]]])
    ```

    ★
    - Raise a `ValueError` if `heads` does not divide d_model.
    """
    ### BEGIN SOLUTION
    width = X.shape[-1]
    if width % heads:
        raise ValueError(f"heads={heads}: expected a divisor of d_model={width}")

    def norm(x, number):
        return torch.nn.functional.layer_norm(x, (width,), p[f"gain_{number}"], p[f"bias_{number}"], eps=1e-5)

    def split(x):  # (batch, token, d_model) -> (batch, head, token, d_head)
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)

    normed = norm(X, 1)
    q, k, v = (split(normed @ p[f"W_{a}"] + p[f"b_{a}"]) for a in "qkv")
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    weights = torch.softmax(scores.masked_fill(~real[:, None, None, :], -math.inf), dim=-1)
    X = X + (weights @ v).transpose(1, 2).flatten(-2) @ p["W_o"] + p["b_o"]
    hidden = torch.relu(norm(X, 2) @ p["W_1"] + p["b_1"])
    return X + hidden @ p["W_2"] + p["b_2"]
    ### END SOLUTION


def _weights(draw, d_model, d_ff):
    p = {f"W_{name}": draw.normal(d_model, d_model) / math.sqrt(d_model) for name in "qkvo"}
    p |= {"W_1": draw.normal(d_model, d_ff) / 2, "W_2": draw.normal(d_ff, d_model) / 2}
    p |= {f"b_{name}": draw.normal(d_model) / 2 for name in "qkvo2"} | {"b_1": draw.normal(d_ff) / 2}
    for number in (1, 2):
        p |= {f"gain_{number}": 0.5 + 1.5 * draw.uniform(d_model), f"bias_{number}": draw.normal(d_model)}
    return p


@pre_layer.cases
def _(draw):
    all_real = torch.ones(1, 3, dtype=torch.bool)
    yield Case("one head, no padding", (draw.normal(1, 3, 4), _weights(draw, 4, 6), 1, all_real))
    yield Case("two heads, no padding", (draw.normal(1, 3, 4), _weights(draw, 4, 6), 2, all_real))
    real = torch.tensor([[True, True, True, True, True], [False, True, True, False, False]])
    yield Case("padding columns are hidden", (draw.normal(2, 5, 6), _weights(draw, 6, 9), 3, real))
    batch, token, d_ff = draw.sizes(3, 2, 8)
    heads, d_head = draw.sizes(2, 2, 5)
    real = draw.uniform(batch, token) > 0.4
    real[:, -1] = True
    inputs = (2 * draw.normal(batch, token, heads * d_head), _weights(draw, heads * d_head, d_ff), heads, real)
    yield Case("any sizes, gradients included", inputs, gradients=True)
    yield Case(
        "a number of heads that does not divide d_model is rejected",
        (draw.normal(1, 3, 4), _weights(draw, 4, 6), 3, all_real),
        refuse=True,
    )


def _norm(x, p, number, eps=1e-5):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], p[f"gain_{number}"], p[f"bias_{number}"], eps=eps)


def _attention(x, p, heads, may_look, values=None, scale=None, split=None, merge=None, project=True):
    """Compute attention the wrong way, making the given mistakes; `may_look` has four axes."""

    def part(t):
        return t.unflatten(-1, (heads, -1)).transpose(1, 2)

    q, k = (x @ p[f"W_{a}"] + p[f"b_{a}"] for a in "qk")
    v = (x if values is None else values) @ p["W_v"] + p["b_v"]
    q, k, v = ((split or part)(t) for t in (q, k, v))
    scores = q @ k.transpose(-2, -1) / (scale or math.sqrt(q.shape[-1]))
    out = torch.softmax(scores.masked_fill(~may_look, -math.inf), dim=-1) @ v
    out = merge(out) if merge else out.transpose(1, 2).flatten(-2)
    return out @ p["W_o"] + p["b_o"] if project else out


def _network(x, p):
    return torch.relu(x @ p["W_1"] + p["b_1"]) @ p["W_2"] + p["b_2"]


def _pre_layer(X, p, heads, real, eps=1e-5, may_look=None, **wrong):
    if X.shape[-1] % heads:
        raise ValueError("heads must divide d_model")
    X = X + _attention(_norm(X, p, 1, eps), p, heads, real[:, None, None] if may_look is None else may_look, **wrong)
    return X + _network(_norm(X, p, 2, eps), p)


@pre_layer.mistake("that is post-norm, which normalises after the addition; here each part reads a normed copy")
def _(X, p, heads, real):
    mid = _norm(X + _attention(X, p, heads, real[:, None, None]), p, 1)
    return _norm(mid + _network(mid, p), p, 2)


@pre_layer.mistake("you add the output to the normed state; add it to the plain state, which passes through unchanged")
def _(X, p, heads, real):
    normed = _norm(X, p, 1)
    normed = _norm(normed + _attention(normed, p, heads, real[:, None, None]), p, 2)
    return normed + _network(normed, p)


@pre_layer.mistake("your network reads the plain state: the second norm is missing")
def _(X, p, heads, real):
    X = X + _attention(_norm(X, p, 1), p, heads, real[:, None, None])
    return X + _network(X, p)


@pre_layer.mistake("both of your norms use the gain and bias of the first; the second has its own")
def _(X, p, heads, real):
    return _pre_layer(X, {**p, "gain_2": p["gain_1"], "bias_2": p["bias_1"]}, heads, real)


@pre_layer.mistake("your values are computed from the plain state; queries, keys and values all read the normed one")
def _(X, p, heads, real):
    return _pre_layer(X, p, heads, real, values=X)


@pre_layer.mistake("your padding keys are visible")
def _(X, p, heads, real):
    return _pre_layer(X, p, heads, real, may_look=torch.ones_like(real)[:, None, None])


@pre_layer.mistake("your mask hides the rows of padding queries instead of the columns of padding keys")
def _(X, p, heads, real):
    return _pre_layer(X, p, heads, real, may_look=real[:, None, :, None])


@pre_layer.mistake("your scores are divided by the square root of d_model; a head's width is d_model / heads")
def _(X, p, heads, real):
    return _pre_layer(X, p, heads, real, scale=math.sqrt(X.shape[-1]))


@pre_layer.mistake("your heads are cut across tokens: split the last axis first, then move the head axis forward")
def _(X, p, heads, real):
    return _pre_layer(X, p, heads, real, split=lambda t: t.reshape(t.shape[0], heads, t.shape[1], t.shape[2] // heads))


@pre_layer.mistake("your heads are merged without moving the head axis back after the token axis")
def _(X, p, heads, real):
    return _pre_layer(X, p, heads, real, merge=lambda t: t.reshape(X.shape))


@pre_layer.mistake("the output projection W_o is missing")
def _(X, p, heads, real):
    return _pre_layer(X, p, heads, real, project=False)


@pre_layer.mistake("a number of heads that does not divide d_model must raise a ValueError")
def _(X, p, heads, real):
    while X.shape[-1] % heads:
        heads -= 1
    return _pre_layer(X, p, heads, real)


@pre_layer.variant
def _(X, p, heads, real):
    # process one sequence and one head at a time, over the real keys only
    width = X.shape[-1]
    if heads < 1 or width % heads != 0:
        raise ValueError("heads must divide d_model")
    each, out = width // heads, []
    for x, keep in zip(X, real, strict=True):
        deviation = x - x.mean(-1, keepdim=True)
        z = deviation / (deviation.square().mean(-1, keepdim=True) + 1e-5).sqrt() * p["gain_1"] + p["bias_1"]
        for h in range(heads):
            part = slice(h * each, (h + 1) * each)
            q = z @ p["W_q"][:, part] + p["b_q"][part]
            k = z[keep] @ p["W_k"][:, part] + p["b_k"][part]
            v = z[keep] @ p["W_v"][:, part] + p["b_v"][part]
            x = x + torch.softmax(q @ k.T * each**-0.5, -1) @ v @ p["W_o"][part]
        x = x + p["b_o"]
        z = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
        z = z * p["gain_2"] + p["bias_2"]
        out.append(x + (z @ p["W_1"] + p["b_1"]).clamp(min=0) @ p["W_2"] + p["b_2"])
    return torch.stack(out)


@pre_layer.variant
def _(X, p, heads, real):
    # use einsum, with a separate head axis in the weights
    batch, token, width = X.shape
    if width % heads:
        raise ValueError(f"a width of {width} cannot be split into {heads} heads")
    norm = torch.nn.functional.layer_norm
    z = norm(X, [width], p["gain_1"], p["bias_1"])
    q, k, v = (
        torch.einsum("btd,dhe->bthe", z, p[f"W_{a}"].reshape(width, heads, -1)) + p[f"b_{a}"].view(heads, -1)
        for a in "qkv"
    )
    scores = torch.einsum("bqhe,bkhe->bhqk", q, k) / (width / heads) ** 0.5
    scores = scores + torch.zeros(batch, 1, 1, token, dtype=X.dtype).masked_fill(~real[:, None, None], -math.inf)
    o = torch.einsum("bhqk,bkhe->bqhe", scores.softmax(-1), v)
    y = X + torch.einsum("bqhe,hed->bqd", o, p["W_o"].reshape(heads, -1, width)) + p["b_o"]
    z = norm(y, [width], p["gain_2"], p["bias_2"])
    return y + torch.relu(z @ p["W_1"] + p["b_1"]) @ p["W_2"] + p["b_2"]
