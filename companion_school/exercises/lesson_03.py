"""Exercises for lesson 03: multi-head attention."""

import math

import torch

from companion_school.checking.exercise import Case, Group, exercise

# 3.1


@exercise(
    "3.1",
    "What the first head says of five dogs",
    task="Work out the output of one head for one word",
    points=1,
    difficulty=1,
    minutes=5,
    hints=(
        "The weights do not depend on the counts, so they are those of the first sentence.",
        "One of them is e^3 / (e^3 + 2), and the other two are 1 / (e^3 + 2).",
        "The values are 5 for the dogs, 0 for the verb and 1 for the cat. What is their average with these weights?",
    ),
)
def five_dogs():
    """Take the sentence *five dogs chase one cat* and the matrices from the beginning of lesson 03. The head that looks for the subject
    gives "chase" the scores $(3, 0, 0)$ for "dogs", "chase" and "cat", and $d_k = 1$. What is its output for "chase"?
    Return a `float` that is accurate to at least three decimal places.
    """
    ### BEGIN SOLUTION
    return (5 * math.exp(3) + 0 + 1) / (math.exp(3) + 2)
    ### END SOLUTION


@five_dogs.cases
def _(draw):
    yield Case("the output for chase", (), tolerance=5e-4)


@five_dogs.mistake("the weight of the dogs is not 1: the softmax also gives weight to the two other words")
def _():
    return 5.0


@five_dogs.mistake("you left out the cat, whose value of 1 contributes, too")
def _():
    return 5 * math.exp(3) / (math.exp(3) + 2)


@five_dogs.mistake("that is the head that looks at both nouns: its scores are (3, 0, 3)")
def _():
    return 6 * math.exp(3) / (2 * math.exp(3) + 1)


@five_dogs.mistake("that is the output for three dogs")
def _():
    return (3 * math.exp(3) + 1) / (math.exp(3) + 2)


@five_dogs.mistake("that is the head that looks for the object")
def _():
    return (5 + math.exp(3)) / (math.exp(3) + 2)


@five_dogs.mistake("that is the weight of the dogs; the output is the average of the values with these weights")
def _():
    return math.exp(3) / (math.exp(3) + 2)


@five_dogs.mistake("the verb's own score of 0 contributes e^0 = 1: it belongs in the denominator")
def _():
    return (5 * math.exp(3) + 1) / (math.exp(3) + 1)


@five_dogs.mistake("the denominator is missing: divide by the sum of the exponentials")
def _():
    return 5 * math.exp(3) + 1


@five_dogs.variant
def _():
    return torch.softmax(torch.tensor([3.0, 0.0, 0.0]), dim=0) @ torch.tensor([5.0, 0.0, 1.0])


@five_dogs.variant
def _():
    return 4.592


# 3.2


@exercise(
    "3.2",
    "Count the parameters",
    task="Count the parameters of an attention layer, for any widths, groups and biases",
    points=2,
    difficulty=2,
    minutes=10,
    robust={
        "more parameters than a float can represent exactly": "no model is that wide",
    },
    hints=(
        "A query head has a query matrix and its rows of the output matrix. A key head has a key matrix and a value matrix.",
        "A projection has one bias for each of its outputs.",
        "Queries have `heads * d_k` outputs, keys `kv_heads * d_k`, values `kv_heads * d_v`, and the last projection `d_model`.",
    ),
)
def attention_numbers(d_model, heads, kv_heads, d_k, d_v, bias):
    """How many parameters does an attention layer have? The layer has `heads` query heads, and `kv_heads` heads for keys and values. In each
    head, queries and keys have width `d_k`, and values have width `d_v`. Input and output have width `d_model`. If `bias` is true, each of the
    four projections has a bias. Return an `int`.

    ```python
    >>> attention_numbers(4, 2, 1, 2, 2, False)
    48
    ```

    ★
    - Raise a `ValueError` if `kv_heads` does not divide `heads`.
    - Counts of more than $2^{53}$ are exact.
    """
    ### BEGIN SOLUTION
    if heads % kv_heads:
        raise ValueError(f"kv_heads={kv_heads}: expected a divisor of heads={heads}")
    matrices = d_model * (heads + kv_heads) * (d_k + d_v)
    biases = heads * d_k + kv_heads * (d_k + d_v) + d_model
    return matrices + biases if bias else matrices
    ### END SOLUTION


@attention_numbers.cases
def _(draw):
    yield Case("usual widths", (12, 3, 3, 4, 4, False))
    yield Case("values of another width", (12, 3, 3, 4, 5, False))
    yield Case("grouped heads", (10, 6, 2, 3, 5, False))
    yield Case("with biases", (10, 6, 2, 3, 5, True))
    yield Case("one key head for all", (16, 4, 1, 7, 3, True))
    kv_heads, d_k, d_v = draw.sizes(3, 2, 9)
    yield Case("any sizes", (draw.whole(20, 90), kv_heads * draw.whole(2, 4), kv_heads, d_k, d_v, True))
    yield Case("a number of key heads that does not divide the heads is rejected", (24, 6, 4, 4, 4, False), refuse=True)
    yield Case("more key heads than heads are rejected", (24, 2, 4, 4, 4, True), refuse=True)
    yield Case("one head", (5, 1, 1, 2, 3, True))
    yield Case("more parameters than a float can represent exactly", (2**53 + 1, 1, 1, 1, 1, False))


def _divides(heads, kv_heads):
    if heads % kv_heads:
        raise ValueError("kv_heads must divide heads")


def _count(d_model, heads, kv_heads, d_k, d_v, bias):
    """Return the number of parameters in projections that have the given numbers of outputs."""
    return heads * d_k * (d_model + bias) + kv_heads * (d_k + d_v) * (d_model + bias) + (heads * d_v + bias) * d_model


@attention_numbers.mistake("4 d^2 holds only for kv_heads = heads and d_k = d_v = d_model / heads")
def _(d_model, heads, kv_heads, d_k, d_v, bias):
    _divides(heads, kv_heads)
    return 4 * d_model**2 + 4 * d_model * bias


@attention_numbers.mistake("the biases are missing")
def _(d_model, heads, kv_heads, d_k, d_v, bias):
    _divides(heads, kv_heads)
    return _count(d_model, heads, kv_heads, d_k, d_v, False)


@attention_numbers.mistake("you counted biases although there are none")
def _(d_model, heads, kv_heads, d_k, d_v, bias):
    _divides(heads, kv_heads)
    return _count(d_model, heads, kv_heads, d_k, d_v, True)


@attention_numbers.mistake("the output matrix is missing: it has head * d_v rows and d_model columns")
def _(d_model, heads, kv_heads, d_k, d_v, bias):
    _divides(heads, kv_heads)
    return _count(d_model, heads, kv_heads, d_k, d_v, bias) - heads * d_v * d_model


@attention_numbers.mistake("keys and values have only `kv_heads` heads; the queries have `heads`")
def _(d_model, heads, kv_heads, d_k, d_v, bias):
    _divides(heads, kv_heads)
    return _count(d_model, heads, heads, d_k, d_v, bias)


@attention_numbers.mistake("the output matrix joins `heads` heads, not `kv_heads`")
def _(d_model, heads, kv_heads, d_k, d_v, bias):
    _divides(heads, kv_heads)
    return _count(d_model, heads, kv_heads, d_k, d_v, bias) - (heads - kv_heads) * d_v * d_model


@attention_numbers.mistake("you used d_k for the values, but their width is d_v")
def _(d_model, heads, kv_heads, d_k, d_v, bias):
    _divides(heads, kv_heads)
    return _count(d_model, heads, kv_heads, d_k, d_k, bias)


@attention_numbers.mistake("you counted only one head; there are `heads` query heads and `kv_heads` key heads")
def _(d_model, heads, kv_heads, d_k, d_v, bias):
    _divides(heads, kv_heads)
    return _count(d_model, 1, 1, d_k, d_v, bias)


@attention_numbers.mistake(
    "a projection has one bias for each of its outputs, and not every projection has d_model outputs"
)
def _(d_model, heads, kv_heads, d_k, d_v, bias):
    _divides(heads, kv_heads)
    return _count(d_model, heads, kv_heads, d_k, d_v, False) + 4 * d_model * bias


@attention_numbers.mistake("you left out the bias of the last projection, which has d_model entries")
def _(d_model, heads, kv_heads, d_k, d_v, bias):
    _divides(heads, kv_heads)
    return _count(d_model, heads, kv_heads, d_k, d_v, bias) - d_model * bias


@attention_numbers.mistake("a number of key heads that does not divide the heads must raise a ValueError")
def _(d_model, heads, kv_heads, d_k, d_v, bias):
    return _count(d_model, heads, kv_heads, d_k, d_v, bias)


@attention_numbers.variant
def _(d_model, heads, kv_heads, d_k, d_v, bias):
    # build the layer on the meta device, which stores no data, and count its parameters
    if heads // kv_heads * kv_heads != heads:
        raise ValueError(f"{heads} heads, {kv_heads} key heads")
    wide = (d_model, heads * d_k), (d_model, kv_heads * d_k), (d_model, kv_heads * d_v), (heads * d_v, d_model)
    layers = torch.nn.ModuleList([torch.nn.Linear(*sizes, bias, device="meta") for sizes in wide])
    return sum(parameter.numel() for parameter in layers.parameters())


@attention_numbers.variant
def _(d_model, heads, kv_heads, d_k, d_v, bias):
    # for each projection, multiply inputs by outputs, and add one bias for each output
    if kv_heads not in [n for n in range(1, heads + 1) if heads % n == 0]:
        raise ValueError("kv_heads")
    total = 0
    for inputs, outputs in (
        (d_model, heads * d_k), (d_model, kv_heads * d_k), (d_model, kv_heads * d_v), (heads * d_v, d_model)
    ):  # fmt: skip
        total += (inputs + int(bias)) * outputs
    return total


# 3.3


@exercise(
    "3.3",
    "Out to the heads",
    task="Split the last axis into heads",
    points=2,
    difficulty=2,
    minutes=10,
    excused={
        "memory": "a split is a view, which copies nothing",
    },
    robust={
        "booleans": "heads hold real numbers",
        "complex numbers": "heads hold real numbers",
        "a tensor whose memory is in another order": "the lesson does not discuss memory layout",
    },
    hints=(
        "Cut the last axis in two first; the token axis stays where it is.",
        "Use `x.view(batch, token, heads, width)`, and then exchange the token axis and the head axis.",
        "`transpose(1, 2)` exchanges them. Before all that, reject a number of heads that does not divide the last axis.",
    ),
)
def to_heads(x, heads):
    """Split the last axis into heads: reshape `x` (batch, token, head · width) to (batch, head, token, width). For
    every token, head $i$, counted from 0, holds the components from $i \\cdot$ width up to, but not including, $(i + 1)
    \\cdot$ width.

    ```python
    >>> to_heads(torch.tensor([[[1, 2, 3, 4], [5, 6, 7, 8]]]), 2).tolist()
    [[[[1, 2], [5, 6]], [[3, 4], [7, 8]]]]
    ```

    ★
    - Raise a `ValueError` if `heads` does not divide the last axis.
    - Every dtype works, and gradients flow back to `x`.
    """
    ### BEGIN SOLUTION
    batch, tokens, wide = x.shape
    if wide % heads:
        raise ValueError(f"heads={heads}: expected a divisor of the width {wide}")
    return x.reshape(batch, tokens, heads, wide // heads).transpose(1, 2)
    ### END SOLUTION


def _numbered(*shape):
    """Return a tensor whose elements are all different, so that each element identifies its position."""
    return torch.arange(math.prod(shape)).reshape(shape)


@to_heads.cases
def _(draw):
    yield Case("two tokens, two heads", (_numbered(1, 2, 4), 2))
    yield Case("head i holds part i of each token", (_numbered(2, 3, 8), 4))
    yield Case("one head holds everything", (_numbered(2, 3, 4), 1))
    yield Case("heads of width one", (_numbered(2, 3, 4), 4))
    batch, tokens, heads, width = draw.sizes(4, 2, 7)
    yield Case("any sizes", (draw.normal(batch, tokens, heads * width), heads))
    yield Case("a tensor whose memory is in another order", (draw.normal(6, tokens, batch).transpose(0, 2), 3))
    yield Case("gradients", (draw.normal(2, 3, 8), 4), gradients=True)
    yield Case("a number of heads that does not divide the width is rejected", (_numbered(2, 3, 8), 3), refuse=True)
    yield Case("more heads than components are rejected", (_numbered(2, 3, 8), 16), refuse=True)
    yield Case("booleans", (torch.arange(24).reshape(2, 3, 4) % 3 == 0, 2))
    yield Case("complex numbers", (torch.complex(draw.normal(2, 3, 4).float(), draw.normal(2, 3, 4).float()), 2))


def _divisor(x, heads):
    if x.shape[-1] % heads:
        raise ValueError("heads must divide the width")


@to_heads.mistake(
    "you used view alone to get the final shape, so each head holds pieces of other tokens: view first, then transpose"
)
def _(x, heads):
    _divisor(x, heads)
    return x.reshape(x.shape[0], heads, x.shape[1], -1)


@to_heads.mistake("the transpose is missing: the head axis comes before the token axis")
def _(x, heads):
    _divisor(x, heads)
    return x.reshape(*x.shape[:2], heads, -1)


@to_heads.mistake("your heads take every `heads`-th component; the components of one head are neighbours")
def _(x, heads):
    _divisor(x, heads)
    return x.reshape(*x.shape[:2], -1, heads).permute(0, 3, 1, 2)


@to_heads.mistake("heads and width are swapped: `heads` is the number of heads, not the width of one")
def _(x, heads):
    _divisor(x, heads)
    return x.reshape(*x.shape[:2], -1, heads).transpose(1, 2)


@to_heads.mistake("you exchanged the head axis with the batch axis")
def _(x, heads):
    _divisor(x, heads)
    return x.reshape(*x.shape[:2], heads, -1).permute(2, 1, 0, 3)


@to_heads.mistake("token and width are swapped in the result")
def _(x, heads):
    _divisor(x, heads)
    return x.reshape(*x.shape[:2], heads, -1).permute(0, 2, 3, 1)


@to_heads.mistake("the result is detached: gradients must flow through it")
def _(x, heads):
    _divisor(x, heads)
    return x.detach().reshape(*x.shape[:2], heads, -1).transpose(1, 2)


@to_heads.mistake(
    "you leave it to PyTorch to raise an error when the heads do not divide the width: raise a ValueError that says what is wrong"
)
def _(x, heads):
    return x.reshape(*x.shape[:2], heads, x.shape[-1] // heads).transpose(1, 2)


@to_heads.mistake("components are silently lost when the heads do not divide the width: raise a ValueError")
def _(x, heads):
    width = x.shape[-1] // heads
    return x[..., : heads * width].reshape(*x.shape[:2], heads, width).transpose(1, 2)


@to_heads.variant
def _(x, heads):
    # cut the last axis into slices and stack them
    width, rest = divmod(x.size(2), heads)
    if rest:
        raise ValueError(f"{x.size(2)} components for {heads} heads")
    return torch.stack([x[:, :, i * width : (i + 1) * width] for i in range(heads)], dim=1)


@to_heads.variant
def _(x, heads):
    # write one component at a time into a tensor of the right shape
    batch, tokens, wide = x.shape
    if wide / heads != wide // heads:
        raise ValueError(f"the width {wide} is not divisible by {heads} heads")
    width = wide // heads
    out = x.new_zeros(batch, heads, tokens, width)
    for i in range(heads):
        for c in range(width):
            out[:, i, :, c] = x[:, :, i * width + c]
    return out


@to_heads.variant
def _(x, heads):
    if x.shape[-1] % heads != 0:
        raise ValueError("heads")
    return x.unflatten(-1, (heads, -1)).permute(0, 2, 1, 3).contiguous()


# 3.4


@exercise(
    "3.4",
    "And back again",
    task="Join the heads again",
    points=2,
    difficulty=2,
    minutes=5,
    excused={
        "memory": "joining one head is a view",
    },
    robust={
        "booleans": "heads hold real numbers",
        "complex numbers": "heads hold real numbers",
        "a tensor whose memory is in another order": "the lesson does not discuss memory layout",
    },
    hints=(
        "Undo the two steps of the split in reverse order. Which one comes first?",
        "Exchange the axes for head and token, then join the last two.",
        "After a transpose, memory is no longer in the order of the axes, so `view` raises an error. `flatten(2)` and `reshape` do not.",
    ),
)
def from_heads(x):
    """Join the heads again: reshape `x` (batch, head, token, width) to (batch, token, head · width), with the heads of
    a token one after the other, head 0 first. This is the inverse of `to_heads`.

    ```python
    >>> from_heads(torch.tensor([[[[1, 2], [5, 6]], [[3, 4], [7, 8]]]]))
    tensor([[[1, 2, 3, 4],
             [5, 6, 7, 8]]])
    ```

    ★
    - Raise a `ValueError` if `x` does not have four axes.
    - Every dtype works, and gradients flow back to `x`.
    """
    ### BEGIN SOLUTION
    if x.ndim != 4:
        raise ValueError(f"x has shape {tuple(x.shape)}: expected (batch, head, token, width)")
    return x.transpose(1, 2).flatten(2)
    ### END SOLUTION


@from_heads.cases
def _(draw):
    yield Case("two heads, two tokens", (_numbered(1, 2, 2, 3),))
    yield Case("each token's heads one after the other", (_numbered(2, 4, 3, 2),))
    yield Case("one head", (_numbered(2, 1, 3, 4),))
    sizes = draw.sizes(4, 2, 7)
    yield Case("any sizes", (draw.normal(*sizes),))
    yield Case("a tensor whose memory is in another order", (draw.normal(*sizes).transpose(1, 2),))
    yield Case("gradients", (draw.normal(2, 4, 3, 2),), gradients=True)
    yield Case("a tensor without heads is rejected", (_numbered(2, 3, 8),), refuse=True)
    yield Case("a tensor with five axes is rejected", (_numbered(2, 3, 4, 2)[..., None],), refuse=True)
    yield Case("booleans", (torch.arange(48).reshape(2, 2, 3, 4) % 3 == 0,))
    yield Case("complex numbers", (torch.complex(draw.normal(2, 2, 3, 4).float(), draw.normal(2, 2, 3, 4).float()),))


def _four(x):
    if x.ndim != 4:
        raise ValueError("expected four axes")


@from_heads.mistake(
    "you reshaped without the transpose: the shape is right, but each row holds pieces of several tokens"
)
def _(x):
    _four(x)
    return x.reshape(x.shape[0], x.shape[2], -1)


@from_heads.mistake("the transpose is missing: you joined the tokens of a head, not the heads of a token")
def _(x):
    _four(x)
    return x.flatten(2)


@from_heads.mistake("you joined the head axis and the token axis; join the head axis and the width axis")
def _(x):
    _four(x)
    return x.flatten(1, 2)


@from_heads.mistake("the heads are interleaved: all components of head 0 come first, then those of head 1")
def _(x):
    _four(x)
    return x.permute(0, 2, 3, 1).flatten(2)


@from_heads.mistake("you added the heads; keep them side by side, because only the output matrix mixes them")
def _(x):
    _four(x)
    return x.sum(1)


@from_heads.mistake(
    "if your error comes from view, which rejects a transposed tensor, use reshape or flatten, or call contiguous() first"
)
def _(x):
    _four(x)
    return x.transpose(1, 2).view(x.shape[0], x.shape[2], -1)


@from_heads.mistake("the heads are the wrong way round: head 0 comes first")
def _(x):
    _four(x)
    return x.flip(1).transpose(1, 2).flatten(2)


@from_heads.mistake("the result is detached: gradients must flow through it")
def _(x):
    _four(x)
    return x.detach().transpose(1, 2).flatten(2)


@from_heads.mistake("a tensor without a head axis must raise a ValueError")
def _(x):
    return x.transpose(1, 2).flatten(2)


@from_heads.variant
def _(x):
    if len(x.shape) != 4:
        raise ValueError("expected a tensor with four axes")
    return torch.cat([x[:, i] for i in range(x.shape[1])], dim=-1)


@from_heads.variant
def _(x):
    # unpacking raises its own ValueError
    batch, heads, tokens, width = x.shape
    out = torch.zeros(batch, tokens, heads * width, dtype=x.dtype)
    for t in range(tokens):
        for i in range(heads):
            out[:, t, width * i : width * i + width] = x[:, i, t]
    return out


@from_heads.variant
def _(x):
    if x.dim() != 4:
        raise ValueError(str(x.shape))
    return torch.einsum("bhtw->bthw", x).contiguous().view(x.size(0), x.size(2), x.size(1) * x.size(3))


# 3.5


@exercise(
    "3.5",
    "Groups without copies",
    task="Write grouped-query attention that copies no key and no value",
    points=3,
    difficulty=3,
    minutes=20,
    room=lambda q, k, v: k.nbytes,
    forbidden=("repeat", "repeat_interleave", "tile", "scaled_dot_product_attention"),
    right={
        "gradients": "its answer goes into a model that learns",
    },
    robust={
        "the result stays in half precision": "the lesson does not discuss half precision",
    },
    hints=(
        "View `q` as (batch, kv_head, group, query, d_k): the heads of one group are neighbours, so the group axis comes after the kv_head axis.",
        "A product with `k[:, :, None]` gives the right numbers but copies the keys, because a batched product expands what it broadcasts. Stack all queries of a group instead: (batch, kv_head, group · query, d_k).",
        "`q.reshape(batch, kv_heads, -1, d_k) @ k.transpose(-2, -1)`, divided by the square root of d_k, gives the scores. Take the softmax over the keys, multiply by `v`, and reshape to (batch, head, query, d_v).",
    ),
)
def grouped(q, k, v):
    """Compute attention with grouped heads, without a mask. `q` is (batch, head, query, d_k), `k` is (batch, kv_head, key, d_k), and `v` is
    (batch, kv_head, key, d_v). Query head $i$, counted from 0, uses key and value head $\\lfloor i / g \\rfloor$, where $g$ = head /
    kv_head. Return (batch, head, query, d_v). Do not use `scaled_dot_product_attention`.

    ```python
    >>> grouped(torch.zeros(1, 4, 1, 1), torch.zeros(1, 2, 1, 1), torch.tensor([[[[7.0]], [[9.0]]]])).flatten()
    tensor([7., 7., 9., 9.])
    ```

    ★
    - Raise a `ValueError` if kv_head does not divide head.
    - Do not copy keys or values: with one query and 256 keys, the tensors that a call allocates must never occupy more
      bytes at once than `k` does. A product that broadcasts its arguments copies them too.
    - The result has the dtype of `q`, `k` and `v`, which may be `float16`.
    """
    ### BEGIN SOLUTION
    heads, kv_heads, d_k = q.shape[1], k.shape[1], q.shape[-1]
    if heads % kv_heads:
        raise ValueError(f"k has {kv_heads} heads: expected a divisor of the {heads} heads of q")
    stacked = q.reshape(len(q), kv_heads, -1, d_k)  # (batch, kv_head, group * query, d_k): one matrix for each key head
    scores = stacked @ k.transpose(-2, -1) / math.sqrt(d_k)
    return (torch.softmax(scores, dim=-1) @ v).reshape(*q.shape[:3], v.shape[-1])
    ### END SOLUTION


@grouped.cases
def _(draw):
    def inputs(batch, heads, kv_heads, queries, keys, d_k, d_v, dtype=torch.float64):
        q = draw.normal(batch, heads, queries, d_k, dtype=dtype)
        return (
            q,
            draw.normal(batch, kv_heads, keys, d_k, dtype=dtype),
            draw.normal(batch, kv_heads, keys, d_v, dtype=dtype),
        )

    yield Case("two query heads on one key head", inputs(1, 2, 1, 1, 3, 2, 2))
    yield Case("four query heads on two key heads", inputs(1, 4, 2, 2, 3, 3, 2))
    yield Case("as many key heads as heads", inputs(2, 3, 3, 2, 4, 3, 5))
    yield Case("all widths and lengths different", inputs(2, 6, 2, 3, 5, 4, 7))
    batch, kv_heads, queries, keys = draw.sizes(4, 2, 6)
    yield Case("any sizes", inputs(batch, kv_heads * draw.whole(2, 3), kv_heads, queries, keys, 3, 5))
    yield Case("the dtype of q, k and v", inputs(2, 4, 2, 3, 5, 4, 3, torch.float32))
    yield Case("gradients", inputs(1, 4, 2, 2, 3, 3, 2), gradients=True)
    yield Case("3 key heads for 4 query heads are rejected", inputs(2, 4, 3, 3, 5, 4, 7), refuse=True)
    yield Case("more key heads than heads are rejected", inputs(2, 2, 4, 3, 5, 4, 7), refuse=True)
    half = [t.to(torch.float16) for t in inputs(2, 4, 2, 3, 5, 2, 3)]
    yield Case("the result stays in half precision", tuple(half), tolerance=1e-2)
    yield Case("many keys", inputs(1, 8, 2, 1, 256, 16, 16))


def _fits(q, k):
    if q.shape[1] % k.shape[1]:
        raise ValueError("the number of key-value heads must divide the number of heads")


def _attend(q, k, v, scale=None, dim=-1):
    scores = q @ k.transpose(-2, -1) / (math.sqrt(q.shape[-1]) if scale is None else scale)
    return torch.softmax(scores, dim=dim) @ v


def _shared(q, *tensors):
    return [x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in tensors]


@grouped.mistake(
    "your groups are in the wrong order: query heads 0, 1, ..., g - 1 share key head 0, as repeat_interleave arranges them (repeat and tile give it every kv_head-th query head)"
)
def _(q, k, v):
    _fits(q, k)
    return _attend(q, *(x.repeat(1, q.shape[1] // k.shape[1], 1, 1) for x in (k, v)))


@grouped.mistake(
    "the heads of the result are in the wrong order: when you join the two head axes again, the group axis must be the inner one"
)
def _(q, k, v):
    _fits(q, k)
    out = _attend(q, *_shared(q, k, v)).unflatten(1, (k.shape[1], -1))
    return out.transpose(1, 2).flatten(1, 2)


@grouped.mistake("every head uses key head 0: with several key heads, each group has its own")
def _(q, k, v):
    _fits(q, k)
    return _attend(q, k[:, :1], v[:, :1])


@grouped.mistake("your scores are not divided by the square root of d_k")
def _(q, k, v):
    _fits(q, k)
    return _attend(q, *_shared(q, k, v), scale=1.0)


@grouped.mistake("your scores are divided by d_k, not by its square root")
def _(q, k, v):
    _fits(q, k)
    return _attend(q, *_shared(q, k, v), scale=q.shape[-1])


@grouped.mistake("your scores are divided by the square root of d_model = head * d_k; use the width of one head")
def _(q, k, v):
    _fits(q, k)
    return _attend(q, *_shared(q, k, v), scale=math.sqrt(q.shape[1] * q.shape[-1]))


@grouped.mistake("your scores are divided by the square root of d_v; queries and keys have the width d_k")
def _(q, k, v):
    _fits(q, k)
    return _attend(q, *_shared(q, k, v), scale=math.sqrt(v.shape[-1]))


@grouped.mistake("your softmax runs over the queries; each row of weights is a distribution over the keys")
def _(q, k, v):
    _fits(q, k)
    return _attend(q, *_shared(q, k, v), dim=-2)


@grouped.mistake("you averaged the queries of a group: each query head has its own weights and its own output")
def _(q, k, v):
    _fits(q, k)
    return _attend(q.unflatten(1, (k.shape[1], -1)).mean(2), k, v)


@grouped.mistake(
    "the right numbers, but you copied the keys and values: a matrix product of expanded or broadcast tensors copies, too"
)
def _(q, k, v):
    _fits(q, k)
    return _attend(q.unflatten(1, (k.shape[1], -1)), k[:, :, None], v[:, :, None]).flatten(1, 2)


@grouped.mistake("the two head axes are still there: flatten(1, 2) merges them")
def _(q, k, v):
    _fits(q, k)
    return _attend(q, *_shared(q, k, v)).unflatten(1, (k.shape[1], -1))


@grouped.mistake("the keys are detached: gradients must flow to q, k and v")
def _(q, k, v):
    _fits(q, k)
    return _attend(q, *_shared(q, k.detach(), v))


@grouped.mistake("the result is detached: gradients must flow to q, k and v")
def _(q, k, v):
    _fits(q, k)
    return _attend(q, *_shared(q, k, v)).detach()


@grouped.mistake(
    "a number of key heads that does not divide the heads must raise a ValueError before PyTorch raises its own error"
)
def _(q, k, v):
    return _attend(q.unflatten(1, (k.shape[1], q.shape[1] // k.shape[1])), k[:, :, None], v[:, :, None]).flatten(1, 2)


@grouped.mistake("heads that cannot be divided evenly among the key heads must raise a ValueError")
def _(q, k, v):
    group = max(q.shape[1] // k.shape[1], 1)
    places = [min(i // group, k.shape[1] - 1) for i in range(q.shape[1])]
    return torch.stack([_attend(q[:, i], k[:, at], v[:, at]) for i, at in enumerate(places)], dim=1)


@grouped.variant
def _(q, k, v):
    # process one head at a time
    if q.shape[1] % k.shape[1] != 0:
        raise ValueError(f"{q.shape[1]} heads on {k.shape[1]}")
    g, out = q.shape[1] // k.shape[1], []
    for i in range(q.shape[1]):
        key, value = k[:, i // g], v[:, i // g]
        z = q[:, i] @ key.mT * q.shape[-1] ** -0.5
        e = (z - z.amax(-1, keepdim=True)).exp()
        out.append(e / e.sum(-1, keepdim=True) @ value)
    return torch.stack(out, 1)


@grouped.variant
def _(q, k, v):
    # use einsum, with a separate letter for the group axis
    batch, heads, queries, d_k = q.shape
    groups, rest = divmod(heads, k.shape[1])
    if rest or not groups:
        raise ValueError("the number of key-value heads must divide the number of heads")
    parts = q.reshape(batch, k.shape[1], groups, queries, d_k) / math.sqrt(d_k)
    weights = torch.einsum("bngqd,bnkd->bngqk", parts, k).softmax(-1)
    return torch.einsum("bngqk,bnke->bngqe", weights, v).reshape(batch, heads, queries, v.shape[-1])


@grouped.variant
def _(q, k, v):
    # process one key head at a time, with all queries of its group
    if q.shape[1] % k.shape[1]:
        raise ValueError("heads")
    of_heads = zip(q.chunk(k.shape[1], dim=1), k.unbind(1), v.unbind(1), strict=True)
    outputs = []
    for queries, key, value in of_heads:
        long = queries.flatten(1, 2)  # (batch, group * query, d_k)
        weights = ((long @ key.mT) / queries.shape[-1] ** 0.5).log_softmax(-1).exp()
        outputs.append((weights @ value).unflatten(1, queries.shape[1:3]))
    return torch.cat(outputs, 1)


# 3.6


@exercise(
    "3.6",
    "Cut heads out",
    task="Extract the weights of a few heads from a layer",
    points=4,
    difficulty=3,
    minutes=20,
    excused={
        "edge": "w_q has heads times d_k rows, w_v has heads times d_v, and a different number of heads does not divide both",
        "one": "w_q has heads times d_k rows, so it cannot be cut to a single row",
    },
    hints=(
        "`nn.Linear` stores its matrix transposed. Which *rows* of `w_q` belong to head i? Which rows of `w_v`, whose heads have a different width?",
        "A head's rows are neighbours: `w_q.split(d_k)` cuts `w_q` into one block per head, with d_k = number of rows / heads.",
        "In `w_o` a head owns *columns*: `w_o.split(d_v, dim=1)`. Join the blocks of the heads to keep, in their order, with `torch.cat`.",
    ),
)
def keep_heads(w_q, w_k, w_v, w_o, heads, keep):
    """A layer without biases has `heads` heads. Its weights are stored as in `nn.Linear`: `w_q` and `w_k` (head · d_k, d_model), `w_v` (head ·
    d_v, d_model), and `w_o` (d_model, head · d_v). Return the weights `(w_q, w_k, w_v, w_o)` of a *smaller* layer that has only the heads in the
    list `keep`, counted from 0, in that order. It must compute what the large layer computes when all other heads are switched off.

    ```python
    >>> keep_heads(*[torch.tensor([[1.0], [2.0]])] * 3, torch.tensor([[1.0, 2.0]]), 2, [1])
    (tensor([[2.]]), tensor([[2.]]), tensor([[2.]]), tensor([[2.]]))
    ```

    ★
    - Raise a `ValueError` if `keep` is empty or holds a number that is not one of 0, 1, ..., heads - 1.
    - Do not change the given weights.
    """
    ### BEGIN SOLUTION
    if not keep or not all(0 <= i < heads for i in keep):
        raise ValueError(f"keep={keep}: expected at least one number from 0 to {heads - 1}")
    d_k, d_v = len(w_q) // heads, len(w_v) // heads
    rows = [(w_q, d_k), (w_k, d_k), (w_v, d_v)]
    smaller = [torch.cat([w[i * width : (i + 1) * width] for i in keep]) for w, width in rows]
    columns = torch.cat([w_o[:, i * d_v : (i + 1) * d_v] for i in keep], dim=1)
    return *smaller, columns
    ### END SOLUTION


@keep_heads.cases
def _(draw):
    def layer(d_model, heads, d_k, d_v, keep):
        rows = draw.normal(heads * d_k, d_model), draw.normal(heads * d_k, d_model), draw.normal(heads * d_v, d_model)
        return *rows, draw.normal(d_model, heads * d_v), heads, keep

    yield Case("the second of two heads", layer(5, 2, 1, 3, [1]))
    yield Case("two heads of three", layer(5, 3, 2, 2, [0, 2]))
    yield Case("in the order of keep", layer(7, 4, 2, 3, [3, 1, 0]))
    yield Case("all heads", layer(12, 4, 3, 5, [0, 1, 2, 3]))
    d_model, heads, d_k, d_v = draw.sizes(4, 3, 8)
    yield Case("any sizes", layer(d_model, heads, d_k, d_v, draw.shuffled(heads)[: draw.whole(2, heads)].tolist()))
    yield Case("an empty list is rejected", layer(5, 3, 2, 4, []), refuse=True)
    yield Case("a head that does not exist is rejected", layer(5, 3, 2, 4, [3]), refuse=True)
    yield Case("a negative number is rejected", layer(5, 3, 2, 4, [0, -1]), refuse=True)


def _are_heads(keep, heads):
    if not keep or min(keep) < 0 or max(keep) >= heads:
        raise ValueError(f"keep: expected heads from 0 to {heads - 1}")


def _cut(w, heads, keep, dim=0):
    blocks = w.chunk(heads, dim=dim)
    return torch.cat([blocks[i] for i in keep], dim=dim)


def _interleaved(w, heads, keep, dim=0):
    w = w.T if dim else w
    found = torch.cat([w[i::heads] for i in keep])
    return found.T if dim else found


def _smaller(w_q, w_k, w_v, w_o, heads, keep, cut=_cut):
    return *(cut(w, heads, keep) for w in (w_q, w_k, w_v)), cut(w_o, heads, keep, 1)


@keep_heads.mistake("your heads take every `heads`-th row; the rows of one head are neighbours")
def _(w_q, w_k, w_v, w_o, heads, keep):
    _are_heads(keep, heads)
    return _smaller(w_q, w_k, w_v, w_o, heads, keep, _interleaved)


@keep_heads.mistake("the output weight is still whole: remove the other heads' columns from it, too")
def _(w_q, w_k, w_v, w_o, heads, keep):
    _are_heads(keep, heads)
    return *_smaller(w_q, w_k, w_v, w_o, heads, keep)[:3], w_o


@keep_heads.mistake("in the output weight a head owns columns, not rows")
def _(w_q, w_k, w_v, w_o, heads, keep):
    _are_heads(keep, heads)
    d_v = len(w_v) // heads
    rows = [w_o[i * d_v : (i + 1) * d_v] for i in keep]
    return *_smaller(w_q, w_k, w_v, w_o, heads, keep)[:3], torch.cat(rows)


@keep_heads.mistake(
    "in the weights of queries, keys and values a head owns rows, not columns: nn.Linear stores its matrix transposed"
)
def _(w_q, w_k, w_v, w_o, heads, keep):
    _are_heads(keep, heads)
    widths = len(w_q) // heads, len(w_k) // heads, len(w_v) // heads
    columns = [
        torch.cat([w[:, i * n : (i + 1) * n] for i in keep], dim=1)
        for w, n in zip((w_q, w_k, w_v), widths, strict=True)
    ]
    return *columns, _cut(w_o, heads, keep, 1)


@keep_heads.mistake("the values' blocks have the width d_v, not d_k")
def _(w_q, w_k, w_v, w_o, heads, keep):
    _are_heads(keep, heads)
    d_k = len(w_q) // heads
    values = torch.cat([w_v[i * d_k : (i + 1) * d_k] for i in keep])
    outputs = torch.cat([w_o[:, i * d_k : (i + 1) * d_k] for i in keep], dim=1)
    return _cut(w_q, heads, keep), _cut(w_k, heads, keep), values, outputs


@keep_heads.mistake("you removed the heads that `keep` lists")
def _(w_q, w_k, w_v, w_o, heads, keep):
    _are_heads(keep, heads)
    others = [i for i in range(heads) if i not in keep]
    return _smaller(w_q, w_k, w_v, w_o, heads, others) if others else tuple(w[:0] for w in (w_q, w_k, w_v, w_o))


@keep_heads.mistake("the heads must come in the order of `keep`; yours are sorted")
def _(w_q, w_k, w_v, w_o, heads, keep):
    _are_heads(keep, heads)
    return _smaller(w_q, w_k, w_v, w_o, heads, sorted(keep))


@keep_heads.mistake("the blocks of the output weight are not in the same order as those of the values")
def _(w_q, w_k, w_v, w_o, heads, keep):
    _are_heads(keep, heads)
    return *_smaller(w_q, w_k, w_v, w_o, heads, keep)[:3], _cut(w_o, heads, sorted(keep), 1)


@keep_heads.mistake("you switched the other heads off with zeros; the layer must become smaller")
def _(w_q, w_k, w_v, w_o, heads, keep):
    _are_heads(keep, heads)
    off = torch.tensor([i in keep for i in range(heads)]).repeat_interleave(len(w_v) // heads)
    return w_q, w_k, w_v, w_o * off


@keep_heads.mistake("you counted the heads from 1: the first is head 0")
def _(w_q, w_k, w_v, w_o, heads, keep):
    _are_heads(keep, heads)
    return _smaller(w_q, w_k, w_v, w_o, heads, [i - 1 for i in keep])


@keep_heads.mistake("your code uses only the length of `keep`; it also says which heads to keep")
def _(w_q, w_k, w_v, w_o, heads, keep):
    _are_heads(keep, heads)
    return _smaller(w_q, w_k, w_v, w_o, heads, range(len(keep)))


@keep_heads.mistake("an empty list must raise a ValueError, before your code looks for its first head")
def _(w_q, w_k, w_v, w_o, heads, keep):
    if any(not 0 <= i < heads for i in keep):
        raise ValueError(f"keep: expected heads from 0 to {heads - 1}")
    rest = [_cut(w_o, heads, [i], 1) for i in keep[1:]]
    columns = torch.cat([_cut(w_o, heads, [keep[0]], 1), *rest], dim=1)
    return *_smaller(w_q, w_k, w_v, w_o, heads, keep)[:3], columns


@keep_heads.mistake("an empty list gives a layer without heads: raise a ValueError")
def _(w_q, w_k, w_v, w_o, heads, keep):
    if any(not 0 <= i < heads for i in keep):
        raise ValueError(f"keep: expected heads from 0 to {heads - 1}")
    return _smaller(w_q, w_k, w_v, w_o, heads, keep) if keep else (w_q[:0], w_k[:0], w_v[:0], w_o[:, :0])


@keep_heads.mistake("a head that does not exist must raise a ValueError, not give an empty block")
def _(w_q, w_k, w_v, w_o, heads, keep):
    if not keep:
        raise ValueError("keep: expected at least one head")
    d_k, d_v = len(w_q) // heads, len(w_v) // heads
    rows = [torch.cat([w[i * n : (i + 1) * n] for i in keep]) for w, n in ((w_q, d_k), (w_k, d_k), (w_v, d_v))]
    return *rows, torch.cat([w_o[:, i * d_v : (i + 1) * d_v] for i in keep], dim=1)


@keep_heads.mistake("a negative head number counts from the end in Python: raise a ValueError")
def _(w_q, w_k, w_v, w_o, heads, keep):
    if not keep or max(keep) >= heads:
        raise ValueError(f"keep: expected heads from 0 to {heads - 1}")
    return _smaller(w_q, w_k, w_v, w_o, heads, keep)


@keep_heads.variant
def _(w_q, w_k, w_v, w_o, heads, keep):
    # keep a separate head axis and index into it
    if len(keep) == 0 or not set(keep) <= set(range(heads)):
        raise ValueError(f"keep={keep}")
    picked = [w.unflatten(0, (heads, -1))[keep].flatten(0, 1) for w in (w_q, w_k, w_v)]
    return [*picked, w_o.unflatten(1, (heads, -1))[:, keep].flatten(1)]


@keep_heads.variant
def _(w_q, w_k, w_v, w_o, heads, keep):
    # list the indices of all rows to keep
    for i in keep:
        if i < 0 or i >= heads:
            raise ValueError(f"there is no head {i}")
    if keep == []:
        raise ValueError("keep at least one head")

    def places(width):
        return torch.tensor([i * width + c for i in keep for c in range(width)])

    d_k, d_v = w_k.shape[0] // heads, w_o.shape[1] // heads
    small_q, small_k, small_v = w_q[places(d_k)], w_k.index_select(0, places(d_k)), w_v[places(d_v)]
    return small_q, small_k, small_v, w_o.index_select(1, places(d_v))


# 3.7


@exercise(
    "3.7",
    "Many heads, two sequences, one mask",
    task="Write multi-head attention between two sequences, with a mask",
    points=5,
    difficulty=3,
    minutes=25,
    groups=(
        Group("one head", 2, ("one head, nothing hidden",)),
        Group("several heads", 1, ("two heads, nothing hidden",)),
        Group(
            "a different mask for each sequence",
            1,
            (
                "the same number of heads and sequences, each sequence with its own mask",
                "all sizes different",
                "a causal mask, all lengths equal",
            ),
        ),
        Group("gradients and edge cases", 1),
    ),
    right={
        "gradients": "its answer goes into a model that learns",
    },
    robust={
        "scores far below zero, and a huge hidden value": "no lesson has such scores",
    },
    hints=(
        "Queries come from `x`, keys and values from `source`. Project, then split each into heads: view, then transpose.",
        "The mask lacks a head axis: `may_look[:, None]` is (batch, 1, query, key). Write minus infinity into the scaled scores where it is False.",
        "Take the softmax over the keys and multiply by the values. Transpose back, join the heads with `flatten(2)`, and multiply by `w_o`.",
    ),
)
def many_heads(x, source, w_q, w_k, w_v, w_o, heads, may_look):
    """Compute multi-head attention, (3.2) and (3.3). `x` (batch, query, d_model) looks at `source` (batch, key,
    d_model), and keys and values are computed from `source`. The matrices `w_q`, `w_k` (d_model, head · d_k), `w_v`
    (d_model, head · d_v) and `w_o` (head · d_v, d_model) multiply rows from the right, and contain one block for each
    head, in order. `may_look` (batch, query, key) is boolean, is True where a query may look, and applies to all heads.
    Every row has at least one True. Return (batch, query, d_model).

    ```python
    >>> many_heads(torch.zeros(1, 1, 2), torch.tensor([[[1.0, 2.0], [9.0, 9.0]]]), *[torch.eye(2)] * 4, 2, torch.tensor([[[True, False]]]))
    tensor([[[1., 2.]]])
    ```

    ★
    - Raise a `ValueError` if `heads` does not divide the columns of `w_q` or of `w_v`.
    - Scores far below zero and hidden values of $10^{15}$ do not spoil the result.
    """
    ### BEGIN SOLUTION
    if w_q.shape[1] % heads or w_v.shape[1] % heads:
        raise ValueError(f"heads={heads}: expected a divisor of {w_q.shape[1]} and of {w_v.shape[1]}")
    projected = x @ w_q, source @ w_k, source @ w_v
    q, k, v = (
        product.unflatten(2, (heads, -1)).transpose(1, 2) for product in projected
    )  # (batch, head, token, width)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    weights = scores.masked_fill(~may_look[:, None], -math.inf).softmax(dim=-1)
    return (weights @ v).transpose(1, 2).flatten(2) @ w_o
    ### END SOLUTION


@many_heads.cases
def _(draw):
    def inputs(batch, queries, keys, d_model, heads, d_k, d_v, hide=0.3):
        look = draw.uniform(batch, queries, keys) >= hide
        look[:, :, 0] = True
        x, source = draw.normal(batch, queries, d_model), draw.normal(batch, keys, d_model)
        matrices = (draw.normal(d_model, heads * width) / math.sqrt(d_model) for width in (d_k, d_k, d_v))
        return x, source, *matrices, draw.normal(heads * d_v, d_model), heads, look

    yield Case("one head, nothing hidden", inputs(1, 2, 3, 3, 1, 2, 4, hide=0))
    yield Case("two heads, nothing hidden", inputs(1, 2, 3, 5, 2, 4, 3, hide=0))
    hidden = inputs(2, 2, 3, 3, 2, 2, 4)
    hidden[-1][:] = torch.tensor([[[1, 1, 0], [0, 1, 1]], [[1, 0, 1], [1, 1, 0]]]).bool()
    yield Case("the same number of heads and sequences, each sequence with its own mask", hidden)
    batch, queries, keys, heads, d_k, d_v = draw.sizes(6, 2, 7)
    yield Case("all sizes different", inputs(batch, queries, keys, 10, heads, d_k, d_v))
    square = inputs(3, 3, 3, 6, 3, 2, 4)
    square[-1][:] = torch.ones(3, 3).tril().bool()
    yield Case("a causal mask, all lengths equal", square)
    yield Case("gradients", inputs(2, 2, 3, 3, 2, 2, 3), gradients=True)
    yield Case(
        "a number of heads that does not divide the queries' columns is rejected",
        (*inputs(1, 2, 3, 4, 2, 3, 4)[:6], 4, torch.ones(1, 2, 3).bool()),
        refuse=True,
    )
    yield Case(
        "a number of heads that does not divide the values' columns is rejected",
        (*inputs(1, 2, 3, 4, 2, 4, 3)[:6], 4, torch.ones(1, 2, 3).bool()),
        refuse=True,
    )
    eye = torch.eye(2, dtype=torch.float64)
    sources = torch.tensor([[[-1e6, 0.0], [-1e6, 1.0], [1e15, 1e15]]], dtype=torch.float64)
    looks = (1e6 * eye[None, :1], sources, eye, eye, eye, eye, 1, torch.tensor([[[True, True, False]]]))
    yield Case("scores far below zero, and a huge hidden value", looks)
    odd = torch.ones(2, 3, dtype=torch.float64)
    refused = (eye[None], eye[None], eye, eye, odd, odd.T, 2, torch.ones(1, 2, 2, dtype=torch.bool))
    yield Case("values that do not divide are rejected", refused, refuse=True)


def _even(w_q, w_v, heads):
    if w_q.shape[1] % heads or w_v.shape[1] % heads:
        raise ValueError("heads must divide the columns")


def _whole(
    x, source, w_q, w_k, w_v, w_o, heads, may_look, *,
    split=None, join=None, scale=None, dim=-1, hide=None, values_of=None,
):  # fmt: skip
    """Compute the whole layer with one step replaced."""
    _even(w_q, w_v, heads)
    split = split or (lambda y: y.unflatten(2, (heads, -1)).transpose(1, 2))
    join = join or (lambda y: y.transpose(1, 2).flatten(2))
    hide = hide or (lambda z: z.masked_fill(~may_look[:, None], -math.inf).softmax(dim))
    q, k, v = split(x @ w_q), split(source @ w_k), split((source if values_of is None else values_of) @ w_v)
    return join(hide(q @ k.mT / (scale or math.sqrt(q.shape[-1]))) @ v) @ w_o


def _directly(heads):
    return lambda y: y.reshape(y.shape[0], heads, y.shape[1], -1)


@many_heads.mistake(
    "you split the heads with view alone: each head holds pieces of other tokens; view first, then transpose"
)
def _(x, source, w_q, w_k, w_v, w_o, heads, may_look):
    return _whole(x, source, w_q, w_k, w_v, w_o, heads, may_look, split=_directly(heads))


@many_heads.mistake("you joined the heads without the transpose: each row holds pieces of several tokens")
def _(x, source, w_q, w_k, w_v, w_o, heads, may_look):
    return _whole(x, source, w_q, w_k, w_v, w_o, heads, may_look, join=lambda y: y.reshape(y.shape[0], y.shape[2], -1))


@many_heads.mistake(
    "you split the heads with view alone and joined them without the transpose: the two mistakes cancel only in the shapes"
)
def _(x, source, w_q, w_k, w_v, w_o, heads, may_look):
    join = lambda y: y.reshape(y.shape[0], y.shape[2], -1)  # noqa: E731
    return _whole(x, source, w_q, w_k, w_v, w_o, heads, may_look, split=_directly(heads), join=join)


@many_heads.mistake("your heads take every `heads`-th column; the columns of one head are neighbours")
def _(x, source, w_q, w_k, w_v, w_o, heads, may_look):
    split = lambda y: y.unflatten(2, (-1, heads)).permute(0, 3, 1, 2)  # noqa: E731
    return _whole(x, source, w_q, w_k, w_v, w_o, heads, may_look, split=split)


@many_heads.mistake("the output matrix is missing: the joined heads must be multiplied by w_o")
def _(x, source, w_q, w_k, w_v, w_o, heads, may_look):
    return _whole(x, source, w_q, w_k, w_v, torch.eye(len(w_o), dtype=x.dtype), heads, may_look)


@many_heads.mistake("your scores are not divided by the square root of d_k")
def _(x, source, w_q, w_k, w_v, w_o, heads, may_look):
    return _whole(x, source, w_q, w_k, w_v, w_o, heads, may_look, scale=1.0)


@many_heads.mistake("your scores are divided by the square root of d_model; use the width of one head, d_k")
def _(x, source, w_q, w_k, w_v, w_o, heads, may_look):
    return _whole(x, source, w_q, w_k, w_v, w_o, heads, may_look, scale=math.sqrt(x.shape[-1]))


@many_heads.mistake("your scores are divided by the square root of all columns of w_q; use the width of one head, d_k")
def _(x, source, w_q, w_k, w_v, w_o, heads, may_look):
    return _whole(x, source, w_q, w_k, w_v, w_o, heads, may_look, scale=math.sqrt(w_q.shape[1]))


@many_heads.mistake("your scores are divided by the square root of d_v; queries and keys have the width d_k")
def _(x, source, w_q, w_k, w_v, w_o, heads, may_look):
    return _whole(x, source, w_q, w_k, w_v, w_o, heads, may_look, scale=math.sqrt(w_v.shape[1] // heads))


@many_heads.mistake("your scores are divided by d_k, not by its square root")
def _(x, source, w_q, w_k, w_v, w_o, heads, may_look):
    return _whole(x, source, w_q, w_k, w_v, w_o, heads, may_look, scale=w_q.shape[1] // heads)


@many_heads.mistake("your softmax runs over the queries; each row of weights is a distribution over the keys")
def _(x, source, w_q, w_k, w_v, w_o, heads, may_look):
    return _whole(x, source, w_q, w_k, w_v, w_o, heads, may_look, dim=-2)


@many_heads.mistake("queries, keys and values all come from x: keys and values belong to the source")
def _(x, source, w_q, w_k, w_v, w_o, heads, may_look):
    look = may_look[:, :, : x.shape[1]]
    return _whole(x, x, w_q, w_k, w_v, w_o, heads, look)


@many_heads.mistake("queries, keys and values all come from the source: the queries belong to x")
def _(x, source, w_q, w_k, w_v, w_o, heads, may_look):
    look = may_look[:, :1] if may_look.all() else may_look
    return _whole(source, source, w_q, w_k, w_v, w_o, heads, look)


@many_heads.mistake("keys and queries are computed with each other's matrices")
def _(x, source, w_q, w_k, w_v, w_o, heads, may_look):
    return _whole(x, source, w_k, w_q, w_v, w_o, heads, may_look)


@many_heads.mistake("the mask is missing")
def _(x, source, w_q, w_k, w_v, w_o, heads, may_look):
    return _whole(x, source, w_q, w_k, w_v, w_o, heads, may_look, hide=lambda z: z.softmax(-1))


@many_heads.mistake("your mask is inverted: True means that a key may be seen")
def _(x, source, w_q, w_k, w_v, w_o, heads, may_look):
    return _whole(x, source, w_q, w_k, w_v, w_o, heads, ~may_look)


@many_heads.mistake("your mask comes after the softmax: hidden scores are still in the denominator")
def _(x, source, w_q, w_k, w_v, w_o, heads, may_look):
    return _whole(x, source, w_q, w_k, w_v, w_o, heads, may_look, hide=lambda z: z.softmax(-1) * may_look[:, None])


@many_heads.mistake(
    "the batch axis of your mask is aligned with the heads: give the mask a head axis of length one, may_look[:, None]"
)
def _(x, source, w_q, w_k, w_v, w_o, heads, may_look):
    return _whole(
        x, source, w_q, w_k, w_v, w_o, heads, may_look, hide=lambda z: z.masked_fill(~may_look, -math.inf).softmax(-1)
    )


@many_heads.mistake("you used the first sequence's mask for all: each sequence has its own")
def _(x, source, w_q, w_k, w_v, w_o, heads, may_look):
    return _whole(x, source, w_q, w_k, w_v, w_o, heads, may_look[:1].expand_as(may_look))


@many_heads.mistake("something is detached: gradients must flow to x, to source and to all matrices")
def _(x, source, w_q, w_k, w_v, w_o, heads, may_look):
    return _whole(x, source, w_q.detach(), w_k.detach(), w_v.detach(), w_o.detach(), heads, may_look)


@many_heads.mistake(
    "a number of heads that does not divide the columns must raise a ValueError before PyTorch raises its own error"
)
def _(x, source, w_q, w_k, w_v, w_o, heads, may_look):
    if not w_q.shape[1] % heads and not w_v.shape[1] % heads:
        return _whole(x, source, w_q, w_k, w_v, w_o, heads, may_look)
    return (x @ w_q).unflatten(2, (heads, -1)), (source @ w_v).unflatten(2, (heads, -1))


@many_heads.mistake("a number of heads that does not divide the columns of w_v must raise a ValueError, too")
def _(x, source, w_q, w_k, w_v, w_o, heads, may_look):
    if w_q.shape[1] % heads:
        raise ValueError("heads must divide the columns of w_q")
    return _whole(
        x,
        source,
        w_q,
        w_k,
        w_v[:, : w_v.shape[1] // heads * heads],
        w_o[: w_v.shape[1] // heads * heads],
        heads,
        may_look,
    )


@many_heads.variant
def _(x, source, w_q, w_k, w_v, w_o, heads, may_look):
    # each head writes its own contribution, and the contributions are added: equation (3.4)
    if any(w.shape[1] % heads for w in (w_q, w_k, w_v)):
        raise ValueError("the width of a matrix is not divisible by the number of heads")
    d_k, d_v = w_q.shape[1] // heads, w_v.shape[1] // heads
    parts = zip(w_q.split(d_k, 1), w_k.split(d_k, 1), w_v.split(d_v, 1), w_o.split(d_v), strict=True)
    hidden = torch.zeros(may_look.shape, dtype=x.dtype).masked_fill(~may_look, -torch.inf)
    return sum(
        torch.softmax((x @ a) @ (source @ b).mT / d_k**0.5 + hidden, -1) @ (source @ c) @ o for a, b, c, o in parts
    )


@many_heads.variant
def _(x, source, w_q, w_k, w_v, w_o, heads, may_look):
    # use einsum, and write the softmax by hand
    if w_q.size(1) % heads != 0 or w_v.size(1) % heads != 0:
        raise ValueError(f"{heads} heads")
    d_model = x.size(2)
    q = torch.einsum("btm,mhc->bhtc", x, w_q.view(d_model, heads, -1))
    k = torch.einsum("btm,mhc->bhtc", source, w_k.view(d_model, heads, -1))
    v = torch.einsum("btm,mhc->bhtc", source, w_v.view(d_model, heads, -1))
    z = torch.einsum("bhqc,bhkc->bhqk", q, k) * q.size(3) ** -0.5
    z = z.masked_fill(~may_look.unsqueeze(1), -torch.inf)
    e = torch.exp(z - z.amax(3, keepdim=True))
    return torch.einsum("bhqk,bhkc,hcm->bqm", e / e.sum(3, keepdim=True), v, w_o.view(heads, -1, d_model))


@many_heads.variant
def _(x, source, w_q, w_k, w_v, w_o, heads, may_look):
    # use PyTorch's operator on one sequence at a time
    if w_q.shape[1] % heads or w_v.shape[1] % heads:
        raise ValueError("heads")
    out = []
    for own, other, look in zip(x, source, may_look, strict=True):
        q, k, v = (torch.stack(y.chunk(heads, dim=1)) for y in (own @ w_q, other @ w_k, other @ w_v))
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=look)
        out.append(torch.cat(list(found), dim=1) @ w_o)
    return torch.stack(out)
