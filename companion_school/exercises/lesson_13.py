"""Exercises for lesson 13: one model, many names."""

import torch

from companion_school.checking.exercise import Case, exercise

# 13.1


@exercise(
    "13.1",
    "A block of GPT-2 with a pencil",
    task="Count the parameters of one block of GPT-2",
    points=1,
    difficulty=1,
    minutes=10,
    hints=(
        "Four projections of d by d and two matrices of d by 4 d have 4 d^2 + 8 d^2 parameters.",
        "Each of these six has a bias as long as its output: 4 d in all for the projections, and 4 d + d for the network.",
        "Two LayerNorms, each with a gain and a bias, have 4 d parameters.",
    ),
)
def block_of_gpt2():
    """How many parameters does one block of the smallest GPT-2 have? It has $d = 768$ and $d_{ff} = 4d$, every linear map has a bias, and the
    block has two LayerNorms, each with a gain and a bias. Return an `int`.
    """
    ### BEGIN SOLUTION
    d = 768
    attention = 4 * (d * d + d)
    feed_forward = d * 4 * d + 4 * d + 4 * d * d + d
    norms = 2 * 2 * d
    return attention + feed_forward + norms
    ### END SOLUTION


@block_of_gpt2.cases
def _(draw):
    yield Case("the parameters of a block", ())


@block_of_gpt2.mistake("that is 12 d^2: the biases and the norms are missing")
def _():
    return 12 * 768**2


@block_of_gpt2.mistake("the norms are missing: there are two, with a gain and a bias each")
def _():
    return 12 * 768**2 + 9 * 768


@block_of_gpt2.mistake("the biases are missing: every linear map has one, as long as its output")
def _():
    return 12 * 768**2 + 4 * 768


@block_of_gpt2.mistake("you left out the biases of the LayerNorms")
def _():
    return 12 * 768**2 + 11 * 768


@block_of_gpt2.mistake("the first bias of the feed-forward network is d_ff long, not d_model")
def _():
    return 12 * 768**2 + 10 * 768


@block_of_gpt2.mistake("attention has four projections: the output projection is missing")
def _():
    return 11 * 768**2 + 12 * 768


@block_of_gpt2.mistake("that is the whole model, not one block")
def _():
    return 124_439_808


@block_of_gpt2.mistake("that is only the attention")
def _():
    return 4 * (768**2 + 768)


@block_of_gpt2.mistake("that is only the feed-forward network")
def _():
    return 8 * 768**2 + 5 * 768


@block_of_gpt2.variant
def _():
    block = torch.nn.TransformerEncoderLayer(768, 12, 3072, device="meta")
    return sum(parameter.numel() for parameter in block.parameters())


@block_of_gpt2.variant
def _():
    return 768 * (12 * 768 + 13)


# 13.2


@exercise(
    "13.2",
    "LLaMA by formula",
    task="Count the parameters of any model of LLaMA's family",
    points=3,
    difficulty=2,
    minutes=15,
    robust={
        "more than a float can represent exactly": "no model is that large",
    },
    hints=(
        "A head has width d // heads. The matrices of the queries and the output are d by d, and those of the keys and values are d by kv_heads times that width.",
        "SwiGLU has three matrices of d by d_ff. A block has two RMSNorms, each with a gain of length d.",
        "Outside the blocks, count the embedding table, one final norm and, unless the head is tied, a second table.",
    ),
)
def llama_parameters(vocab, d, layers, heads, kv_heads, d_ff, tied):
    """Return the number of parameters of a decoder of width `d` in LLaMA's layout. The decoder has no biases, and its
    rotary position embeddings have no parameters. Each block has two RMSNorms, grouped-query attention with `kv_heads`
    key-value heads, and a SwiGLU network of width `d_ff`. One more RMSNorm comes after the last block. There is an
    embedding table with `vocab` rows and an output head, which shares this table if `tied` is True.

    ```python
    >>> llama_parameters(1, 2, 1, 1, 1, 1, True)
    30
    ```

    ★
    - Raise a `ValueError` unless `heads` divides `d` and `kv_heads` divides `heads`.
    - Counts of more than $2^{53}$ are exact.
    """
    ### BEGIN SOLUTION
    if d % heads or heads % kv_heads:
        raise ValueError(f"{d=}, {heads=}, {kv_heads=}: expected each to be a multiple of the next")
    d_head = d // heads
    attention = 2 * d * d + 2 * d * kv_heads * d_head
    block = attention + 3 * d * d_ff + 2 * d
    tables = vocab * d * (1 if tied else 2)
    return tables + layers * block + d
    ### END SOLUTION


@llama_parameters.cases
def _(draw):
    yield Case("one layer, one head, a tied table", (5, 4, 1, 1, 1, 3, True))
    yield Case("a separate output head", (5, 4, 1, 1, 1, 3, False))
    yield Case("three layers, grouped queries", (11, 12, 3, 6, 2, 20, True))
    d_head, groups, kv_heads, layers, d_ff = draw.sizes(5, 2, 9)
    heads = groups * kv_heads
    yield Case("any sizes", (draw.whole(20, 40), heads * d_head, layers, heads, kv_heads, d_ff, False))
    yield Case("LLaMA-7B", (32000, 4096, 32, 32, 32, 11008, False))
    yield Case("Llama-2-70B", (32000, 8192, 80, 64, 8, 28672, False))
    yield Case("a number of heads that does not divide d is rejected", (11, 10, 3, 4, 2, 20, True), refuse=True)
    yield Case(
        "a number of key-value heads that does not divide the heads is rejected",
        (11, 12, 3, 6, 4, 20, True),
        refuse=True,
    )
    yield Case("more than a float can represent exactly", (2**53 + 1, 1, 1, 1, 1, 1, True))


def _llama(vocab, d, layers, heads, kv_heads, d_ff, tied, *, matrices=3, norms=2, last=1, biased=0, tables=None):
    if d % heads or heads % kv_heads:
        raise ValueError("expected heads to divide d and kv_heads to divide heads")
    attention = 2 * d * d + 2 * d * kv_heads * (d // heads)
    block = attention + matrices * d * d_ff + norms * d + biased
    return vocab * d * ((1 if tied else 2) if tables is None else tables) + layers * block + last * d


@llama_parameters.mistake("with grouped queries, keys and values are narrower: they have kv_heads heads")
def _(vocab, d, layers, heads, kv_heads, d_ff, tied):
    return _llama(vocab, d, layers, heads, kv_heads, d_ff, tied) + 2 * layers * d * (d - kv_heads * (d // heads))


@llama_parameters.mistake("you made the output projection too narrow: it is d by d, because it reads all heads")
def _(vocab, d, layers, heads, kv_heads, d_ff, tied):
    return _llama(vocab, d, layers, heads, kv_heads, d_ff, tied) - layers * d * (d - kv_heads * (d // heads))


@llama_parameters.mistake("a SwiGLU network has three matrices, not two")
def _(vocab, d, layers, heads, kv_heads, d_ff, tied):
    return _llama(vocab, d, layers, heads, kv_heads, d_ff, tied, matrices=2)


@llama_parameters.mistake("the norm after the last block is missing")
def _(vocab, d, layers, heads, kv_heads, d_ff, tied):
    return _llama(vocab, d, layers, heads, kv_heads, d_ff, tied, last=0)


@llama_parameters.mistake("a block has two norms: one before attention, one before the feed-forward network")
def _(vocab, d, layers, heads, kv_heads, d_ff, tied):
    return _llama(vocab, d, layers, heads, kv_heads, d_ff, tied, norms=1)


@llama_parameters.mistake("the norms are missing")
def _(vocab, d, layers, heads, kv_heads, d_ff, tied):
    return _llama(vocab, d, layers, heads, kv_heads, d_ff, tied, norms=0, last=0)


@llama_parameters.mistake("an RMSNorm has a gain and no bias")
def _(vocab, d, layers, heads, kv_heads, d_ff, tied):
    return _llama(vocab, d, layers, heads, kv_heads, d_ff, tied, norms=4, last=2)


@llama_parameters.mistake("a head that is not tied is a second table, so count it")
def _(vocab, d, layers, heads, kv_heads, d_ff, tied):
    return _llama(vocab, d, layers, heads, kv_heads, d_ff, tied, tables=1)


@llama_parameters.mistake("a tied head is the embedding table itself: count it once")
def _(vocab, d, layers, heads, kv_heads, d_ff, tied):
    return _llama(vocab, d, layers, heads, kv_heads, d_ff, tied, tables=2)


@llama_parameters.mistake("`tied` means one table: you counted two tables if tied, and one if not")
def _(vocab, d, layers, heads, kv_heads, d_ff, tied):
    return _llama(vocab, d, layers, heads, kv_heads, d_ff, not tied)


@llama_parameters.mistake("the tables are missing: embeddings are parameters, too")
def _(vocab, d, layers, heads, kv_heads, d_ff, tied):
    return _llama(vocab, d, layers, heads, kv_heads, d_ff, tied, tables=0)


@llama_parameters.mistake("this layout has no biases")
def _(vocab, d, layers, heads, kv_heads, d_ff, tied):
    narrow = kv_heads * (d // heads)
    return _llama(vocab, d, layers, heads, kv_heads, d_ff, tied, biased=3 * d + 2 * narrow + 2 * d_ff)


@llama_parameters.mistake("raise a ValueError if d or the heads cannot be divided evenly")
def _(vocab, d, layers, heads, kv_heads, d_ff, tied):
    block = 2 * d * d + 2 * d * kv_heads * (d // heads) + 3 * d * d_ff + 2 * d
    return vocab * d * (1 if tied else 2) + layers * block + d


@llama_parameters.variant
def _(vocab, d, layers, heads, kv_heads, d_ff, tied):
    # Create all tensors on the meta device, where they take no memory
    if d % heads != 0 or heads % kv_heads != 0:
        raise ValueError("d must be divisible by heads, and heads by kv_heads")
    narrow = d // heads * kv_heads
    block = [(d, d), (narrow, d), (narrow, d), (d, d), (d_ff, d), (d_ff, d), (d, d_ff), (d,), (d,)]
    shapes = layers * block + [(vocab, d), (d,)] + ([] if tied else [(vocab, d)])
    return sum(torch.empty(shape, device="meta").numel() for shape in shapes)


@llama_parameters.variant
def _(vocab, d, layers, heads, kv_heads, d_ff, tied):
    if d != d // heads * heads or heads != heads // kv_heads * kv_heads:
        raise ValueError("d must be divisible by heads, and heads by kv_heads")
    of_a_row = (2 - bool(tied)) * vocab + 1 + layers * (2 + 3 * d_ff + 2 * (d + d * kv_heads // heads))
    return d * of_a_row


# 13.3


@exercise(
    "13.3",
    "From one layout to the other",
    task="Reorder a published query projection for the half layout",
    points=3,
    difficulty=3,
    minutes=20,
    excused={
        "memory": "in heads of width 2 the rows stay where they are",
    },
    hints=(
        "In the interleaved layout, pair j of a head is its rows 2 j and 2 j + 1. In the half layout, it is its rows j and j + d_head / 2.",
        "New row j is old row 2 j, and new row j + d_head / 2 is old row 2 j + 1. So each head holds its even rows first, and then its odd ones.",
        "`weight.view(heads, d_head // 2, 2, -1)` has the axes (head, pair, which of the two, d_model). Which two axes must be swapped?",
    ),
)
def half_from_interleaved_rows(weight, heads):
    """A published checkpoint stores the query matrix, `weight` (heads · d_head, d_model), as `nn.Linear` does. It uses
    the interleaved rotary layout, where rows $2j$ and $2j + 1$ of each head form pair $j$. Your model uses the half
    layout, where rows $j$ and $j + d_k/2$ of each head's $d_k$ rows form pair $j$. Return the matrix with its rows
    reordered, so that your model computes the same scores as the published one.

    ```python
    >>> half_from_interleaved_rows(torch.tensor([[0.0], [1.0], [2.0], [3.0]]), 1).flatten()
    tensor([0., 2., 1., 3.])
    ```

    ★
    - Raise a `ValueError` if the rows cannot be divided into `heads` heads of an even width.
    - The result has the dtype of `weight`. Do not change `weight` itself.
    """
    ### BEGIN SOLUTION
    rows, d_model = weight.shape
    if rows % (2 * heads):
        raise ValueError(f"{rows} rows, {heads} heads: expected heads of an even width")
    pairs = weight.reshape(heads, rows // heads // 2, 2, d_model)
    return pairs.transpose(1, 2).reshape(rows, d_model)
    ### END SOLUTION


@half_from_interleaved_rows.cases
def _(draw):
    yield Case("one head of width 4", (torch.arange(4.0, dtype=torch.float64)[:, None], 1))
    yield Case("two heads of width 6: each keeps its rows", (torch.arange(12.0, dtype=torch.float64)[:, None], 2))
    yield Case("a head of width 2 stays as it is", (draw.normal(6, 3), 3))
    heads, pairs, d_model = draw.sizes(3, 3, 7)
    yield Case("any sizes", (draw.normal(heads * 2 * pairs, d_model), heads))
    yield Case("half precision stays half precision", (draw.normal(16, 3, dtype=torch.bfloat16), 2))
    yield Case("heads of an odd width are rejected", (draw.normal(9, 2), 3), refuse=True)
    yield Case("rows that do not divide are rejected", (draw.normal(8, 2), 3), refuse=True)
    yield Case("six rows in two heads are rejected", (torch.ones(6, 3, dtype=torch.float64), 2), refuse=True)


def _heads(weight, heads):
    if weight.shape[0] % (2 * heads):
        raise ValueError("expected heads of an even width")
    return weight.reshape(heads, -1, weight.shape[1])


@half_from_interleaved_rows.mistake("that is the reverse conversion, from half to interleaved")
def _(weight, heads):
    rows = _heads(weight, heads)
    return rows.reshape(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


@half_from_interleaved_rows.mistake("you reordered all rows at once: each head keeps its own rows together")
def _(weight, heads):
    _heads(weight, heads)
    return torch.cat((weight[0::2], weight[1::2]))


@half_from_interleaved_rows.mistake("nothing is reordered")
def _(weight, heads):
    _heads(weight, heads)
    return weight.clone()


@half_from_interleaved_rows.mistake(
    "the even rows come first: you swapped the halves, which rotates every pair backwards"
)
def _(weight, heads):
    rows = _heads(weight, heads)
    return torch.cat((rows[:, 1::2], rows[:, 0::2]), 1).reshape(weight.shape)


@half_from_interleaved_rows.mistake(
    "you swapped the rows of each pair: they must be moved to the two halves of the head"
)
def _(weight, heads):
    rows = _heads(weight, heads)
    return torch.stack((rows[:, 1::2], rows[:, 0::2]), 2).reshape(weight.shape)


@half_from_interleaved_rows.mistake("the heads are mixed up: the rows of each head stay together")
def _(weight, heads):
    _heads(weight, heads)
    pairs = weight.reshape(-1, 2, heads, weight.shape[1])
    return pairs.permute(2, 1, 0, 3).reshape(weight.shape)


@half_from_interleaved_rows.mistake("the result must have the dtype of `weight`")
def _(weight, heads):
    rows = _heads(weight, heads).double() if weight.dtype != torch.float64 else _heads(weight, heads).float()
    return torch.cat((rows[:, 0::2], rows[:, 1::2]), 1).reshape(weight.shape)


@half_from_interleaved_rows.mistake("heads of an odd width have no pairs: raise a ValueError")
def _(weight, heads):
    if weight.shape[0] % heads:
        raise ValueError("rows")
    rows = weight.reshape(heads, -1, weight.shape[1])
    return torch.cat((rows[:, 0::2], rows[:, 1::2]), 1).reshape(weight.shape)


@half_from_interleaved_rows.variant
def _(weight, heads):
    width = len(weight) // heads
    if width * heads != len(weight) or width % 2:
        raise ValueError("width")
    order = [h * width + i for h in range(heads) for i in (*range(0, width, 2), *range(1, width, 2))]
    return weight[order]


@half_from_interleaved_rows.variant
def _(weight, heads):
    if len(weight) % heads or len(weight) // heads % 2:
        raise ValueError("width")
    out = []
    for head in weight.chunk(heads):
        out += [head[0::2], head[1::2]]
    return torch.cat(out)


# 13.4


def _bounds(memory, parameters, layers, kv_heads, d_head, batch, number):
    """Return two sizes in bytes: that of the weights, and that of the weights plus a cache of three tokens per text."""
    token = 2 * layers * kv_heads * d_head * number * batch
    return parameters * number, parameters * number + 3 * token


@exercise(
    "13.4",
    "How long a conversation fits?",
    task="Find the longest context that fits beside the weights",
    points=2,
    difficulty=2,
    minutes=10,
    limits={"memory": _bounds},
    robust={
        "more bytes than a float can represent exactly": "no memory is that large",
    },
    hints=(
        "How much memory is left after the weights have been loaded?",
        "Each token of each text has a key and a value in the cache, in each layer and for each key-value head.",
        "Divide and round down: `//`.",
    ),
)
def longest_context(memory, parameters, layers, kv_heads, d_head, batch, number):
    """What is the largest number of tokens that each of `batch` texts can have if the weights and the key-value cache
    of all texts must fit into `memory` bytes? The model has `parameters` parameters and `layers` layers. Each layer has
    `kv_heads` key-value heads, whose keys and values have width `d_head`. Each element of the weights and of the cache
    takes `number` bytes. Return an `int`.

    ```python
    >>> longest_context(100, 10, 1, 1, 2, 1, 4)
    3
    ```

    ★
    - Raise a `ValueError` if the weights do not fit.
    - Results are exact beyond $2^{53}$ bytes.
    """
    ### BEGIN SOLUTION
    left = memory - parameters * number
    if left < 0:
        raise ValueError(f"{memory=}: expected at least {parameters * number} bytes, the size of the weights")
    token = 2 * layers * kv_heads * d_head * number
    return left // (batch * token)
    ### END SOLUTION


@longest_context.cases
def _(draw):
    yield Case("one layer, one head, one text", (100, 10, 1, 1, 3, 1, 2))
    yield Case("two texts share the memory", (1000, 10, 1, 1, 3, 2, 2))
    yield Case("weights that fill the memory leave no room", (40, 20, 2, 1, 3, 1, 2))
    layers, kv_heads, d_head, batch = draw.sizes(4, 2, 9)
    yield Case("any sizes", (draw.whole(900_000, 999_999), draw.whole(999, 9999), layers, kv_heads, d_head, batch, 4))
    yield Case("Llama-2-70B in bf16 on two devices of 80 GB", (160 * 10**9, 68_976_648_192, 80, 8, 128, 4, 2))
    yield Case("weights that do not fit are rejected", (39, 20, 2, 1, 3, 1, 2), refuse=True)
    yield Case("three tokens fit exactly", (14, 1, 1, 1, 1, 1, 2))
    yield Case("more bytes than a float can represent exactly", (2**60 + 1, 1, 1, 1, 1, 1, 2))


def _room(memory, parameters, number):
    if memory < parameters * number:
        raise ValueError("the weights do not fit into the memory")
    return memory - parameters * number


@longest_context.mistake("a token has both a key and a value in the cache, which doubles the memory")
def _(memory, parameters, layers, kv_heads, d_head, batch, number):
    return _room(memory, parameters, number) // (layers * kv_heads * d_head * batch * number)


@longest_context.mistake("you left out the batch: every text has its own cache")
def _(memory, parameters, layers, kv_heads, d_head, batch, number):
    return _room(memory, parameters, number) // (2 * layers * kv_heads * d_head * number)


@longest_context.mistake("you left out the layers: every layer has its own keys and values")
def _(memory, parameters, layers, kv_heads, d_head, batch, number):
    return _room(memory, parameters, number) // (2 * kv_heads * d_head * batch * number)


@longest_context.mistake("the weights take memory, too: subtract their bytes first")
def _(memory, parameters, layers, kv_heads, d_head, batch, number):
    _room(memory, parameters, number)
    return memory // (2 * layers * kv_heads * d_head * batch * number)


@longest_context.mistake(
    "each element of the cache takes `number` bytes: you divided by the count of elements, not by their bytes"
)
def _(memory, parameters, layers, kv_heads, d_head, batch, number):
    return _room(memory, parameters, number) // (2 * layers * kv_heads * d_head * batch)


@longest_context.mistake("each weight takes `number` bytes: you subtracted the count of the weights, not their bytes")
def _(memory, parameters, layers, kv_heads, d_head, batch, number):
    _room(memory, parameters, number)
    return (memory - parameters) // (2 * layers * kv_heads * d_head * batch * number)


@longest_context.mistake("round down: part of a token does not fit")
def _(memory, parameters, layers, kv_heads, d_head, batch, number):
    return -(-_room(memory, parameters, number) // (2 * layers * kv_heads * d_head * batch * number))


@longest_context.mistake("each key-value head has its own keys and values: you counted one head")
def _(memory, parameters, layers, kv_heads, d_head, batch, number):
    return _room(memory, parameters, number) // (2 * layers * d_head * batch * number)


@longest_context.mistake("that is the number of tokens in all texts together")
def _(memory, parameters, layers, kv_heads, d_head, batch, number):
    return _room(memory, parameters, number) // (2 * layers * kv_heads * d_head * batch * number) * batch


@longest_context.mistake("weights that do not fit must raise a ValueError")
def _(memory, parameters, layers, kv_heads, d_head, batch, number):
    return (memory - parameters * number) // (2 * layers * kv_heads * d_head * batch * number)


@longest_context.variant
def _(memory, parameters, layers, kv_heads, d_head, batch, number):
    numbers = memory // number - parameters
    if memory - number * parameters < 0:
        raise ValueError("the weights do not fit into the memory")
    return numbers // (layers * (kv_heads * d_head + kv_heads * d_head)) // batch


@longest_context.variant
def _(memory, parameters, layers, kv_heads, d_head, batch, number):
    if parameters * number > memory:
        raise ValueError("the weights do not fit into the memory")
    keys_values = torch.empty(2, layers, batch, kv_heads, d_head, device="meta").numel() * number
    return divmod(memory - parameters * number, keys_values)[0]
