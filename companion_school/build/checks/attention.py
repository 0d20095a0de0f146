"""Stage 2, attention: the formula, the causal mask, splitting and merging heads, and the layer that combines them."""

import torch

from companion_school.build.isolated_modules import run_with
from companion_school.build.parts import part
from companion_school.checking.derived_cases import LARGE
from companion_school.checking.exercise import Case

_VIEW = {"memory": "the result may be a view of its argument"}


@part(2, points=2)
def attend(code, q, k, v, mask):
    """The output is the average of the values, weighted by the softmax of the scaled scores."""
    return code.attend(q, k, v, mask)


@attend.cases
def _(draw):
    batch, heads, queries, keys, d_head, d_v = draw.sizes(6, 2, 8)
    q, k, v = draw.normal(1, 1, 1, 4), draw.normal(1, 1, 2, 4), draw.normal(1, 1, 2, 3)
    yield Case("one query averages the values of two keys", (q, k, v, None))
    yield Case("a hidden key has no weight", (q, k, v, torch.tensor([[True, False]])))
    q, k = draw.normal(batch, heads, queries, d_head), draw.normal(batch, heads, keys, d_head)
    v = draw.normal(batch, heads, keys, d_v)
    yield Case("several queries, each by itself", (q, k, v, None), gradients=True)
    look = draw.uniform(queries, keys) < 0.5
    look[:, 1] = True
    yield Case("a mask (query, key), True where a query may look", (q, k, v, look), gradients=True)
    real = torch.arange(keys) < draw.wholes(1, keys, batch, 1)
    yield Case("a mask (batch, 1, 1, key) broadcasts over heads and queries", (q, k, v, real[:, None, None]))
    yield Case("scores in the hundreds of thousands do not overflow", (400 * q, 400 * k, v, look))
    yield Case("float32 stays float32", (q.float(), k.float(), v.float(), look), gradients=True)


attend.mistake("the scores are not divided by the square root of d_head", " / math.sqrt(q.shape[-1])", "")
attend.mistake("you divide the scores by d_head; divide by its square root", "math.sqrt(q.shape[-1])", "q.shape[-1]")
attend.mistake(
    "you multiply the scores by the square root of d_head; divide by it",
    "/ math.sqrt(q.shape[-1])",
    "* math.sqrt(q.shape[-1])",
)
attend.mistake(
    "you divide by the square root of the values' width; use the width of queries and keys, over which the scores sum",
    "math.sqrt(q.shape[-1])", "math.sqrt(v.shape[-1])",
)  # fmt: skip
attend.mistake(
    "you divide by the square root of the number of keys; use the width of a query, the last axis",
    "math.sqrt(q.shape[-1])", "math.sqrt(k.shape[-2])",
)  # fmt: skip
attend.mistake(
    "the softmax runs over the queries; each query's weights must add up to one, so take it over the keys, the last axis",
    "scores.softmax(-1)", "scores.softmax(-2)",
)  # fmt: skip
attend.mistake(
    "the softmax runs over the heads, axis 1; take it over the keys, the last axis", "scores.softmax(-1)",
    "scores.softmax(1)",
)  # fmt: skip
attend.mistake(
    "the keys are not transposed: `k.mT` swaps their last two axes, so that each query is multiplied with each key",
    "q @ k.mT",
    "q @ k",
)
attend.mistake(
    "`k.T` reverses all four axes; `k.mT` swaps only the last two and leaves batch and heads in front",
    "q @ k.mT",
    "q @ k.T",
)
attend.mistake(
    "`transpose(1, 2)` swaps heads and keys; swap the last two axes, `k.transpose(-2, -1)` or `k.mT`",
    "q @ k.mT", "q @ k.transpose(1, 2)",
)  # fmt: skip
attend.mistake(
    "you divide by the square root of the number of heads; use the width of one head, the last axis of the queries",
    "math.sqrt(q.shape[-1])", "math.sqrt(q.shape[1])",
)  # fmt: skip
attend.mistake(
    "the mask is added to the scores as zeros and ones; where it is False, the score becomes minus infinity",
    "scores = scores.masked_fill(~mask, -math.inf)", "scores = scores + mask",
)  # fmt: skip
attend.mistake("the softmax is missing: apply it to the scores before you multiply by the values", ".softmax(-1)", "")
attend.mistake(
    "the mask is inverted: True means that a query may look, so the hidden positions are ~mask",
    "masked_fill(~mask", "masked_fill(mask",
)  # fmt: skip
attend.mistake("the mask is never used", "if mask is not None:", "if False:")
attend.mistake(
    "hidden scores become 0, and e^0 = 1 is a weight like any other; set them to minus infinity before the softmax",
    "~mask, -math.inf", "~mask, 0.0",
)  # fmt: skip
attend.mistake(
    "the mask comes after the softmax: hidden scores are still in the denominator of the others",
    """
    def attend(q, k, v, mask=None):
        weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
        if mask is not None:
            weights = weights.masked_fill(~mask, 0.0)
        return weights @ v
    """,
)
attend.mistake(
    "hidden scores become small instead of minus infinity, so hidden keys keep some weight",
    "~mask, -math.inf", "~mask, -10.0",
)  # fmt: skip
attend.mistake(
    "hidden scores become a number such as -1e4 instead of minus infinity, and large scores of visible keys can be even "
    "lower: use `-math.inf`",
    "~mask, -math.inf", "~mask, -1e4",
)  # fmt: skip
attend.mistake(
    "the mask is transposed: its rows are the queries and its columns the keys, like those of the scores",
    "masked_fill(~mask", "masked_fill(~mask.mT",
)  # fmt: skip
attend.mistake(
    "the exponentials overflow if scores are large: use `softmax`, or subtract each row's largest score first",
    """
    def attend(q, k, v, mask=None):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        weights = scores.exp()
        return weights / weights.sum(-1, keepdim=True) @ v
    """,
)
attend.mistake(
    "something is detached on the way: no gradient flows back through the weights",
    "scores.softmax(-1)", "scores.softmax(-1).detach()",
)  # fmt: skip
attend.mistake(
    "everything is computed in float32, whatever the dtype of the arguments",
    "    scores = q @ k.mT", "    q, k, v = q.float(), k.float(), v.float()\n    scores = q @ k.mT",
)  # fmt: skip
attend.variant(
    """
    def attend(q, k, v, mask=None):
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5
        if mask is not None:
            scores = torch.where(mask, scores, float("-inf"))
        return torch.einsum("bhqk,bhkd->bhqd", torch.softmax(scores, dim=-1), v)
    """
)
attend.variant(
    """
    def attend(q, k, v, mask=None):
        scores = (q / q.size(-1) ** 0.5) @ k.transpose(-2, -1)
        if mask is not None:
            scores = scores + torch.zeros(mask.shape, dtype=q.dtype).masked_fill(mask.logical_not(), float("-inf"))
        powers = (scores - scores.amax(dim=-1, keepdim=True)).exp()
        return (powers / powers.sum(dim=-1, keepdim=True)) @ v
    """
)
attend.variant(
    """
    def attend(q, k, v, mask=None):
        heads = []
        for head in range(q.shape[1]):
            scores = q[:, head] @ k[:, head].transpose(1, 2) / math.sqrt(q.shape[3])
            if mask is not None:
                seen = mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])[:, head]
                scores = scores.masked_fill(seen == False, float("-inf"))
            heads.append(scores.softmax(dim=2) @ v[:, head])
        return torch.stack(heads, dim=1)
    """
)


@part(2, points=2, excused={"edge": "the last query is at the last key, so there are never more queries than keys"})
def causal(code, queries, keys):
    """The causal mask lets each query attend to its own position and all earlier ones."""
    return code.causal(queries, keys)


@causal.cases
def _(draw):
    yield Case("one query and one key", (1, 1))
    yield Case("as many queries as keys: a triangle with its diagonal", (draw.whole(4, 6), 7)[:1] * 2)
    yield Case("fewer queries than keys: the last query is at the last key", (2, draw.whole(5, 7)))
    yield Case("one new query sees all keys", (1, draw.whole(3, 6)))
    yield Case("as many queries as keys: a triangle with its diagonal", (draw.whole(8, 60),) * 2)
    yield Case("fewer queries than keys: the last query is at the last key", (draw.whole(3, 20), draw.whole(21, 60)))


causal.mistake(
    "a query may look at its own position, too: the diagonal is True",
    "tril(keys - queries)",
    "tril(keys - queries - 1)",
)
causal.mistake("the mask lets each query look ahead, and hides what came before", "tril", "triu")
causal.mistake("the mask is inverted: True means that a query may look", "torch.ones(queries, keys, dtype=torch.bool)"
               ".tril(keys - queries)", "~torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)")  # fmt: skip
causal.mistake(
    "with fewer queries than keys, the last query is at the last key; your queries start at the first key", "tril(keys - queries)",
    "tril()",
)  # fmt: skip
causal.mistake("each query sees one position too far ahead", "tril(keys - queries)", "tril(keys - queries + 1)")
causal.mistake("the mask holds numbers; expected booleans, torch.bool", ", dtype=torch.bool", "")
causal.mistake(
    "rows and columns are swapped: the mask is (query, key)", "torch.ones(queries, keys", "torch.ones(keys, queries"
)
causal.variant(
    """
    def causal(queries, keys):
        at = torch.arange(keys - queries, keys)[:, None]
        return torch.arange(keys)[None, :] <= at
    """
)
causal.variant(
    """
    def causal(queries, keys):
        look = torch.zeros(queries, keys, dtype=torch.bool)
        for query in range(queries):
            look[query, : max(0, keys - queries + query + 1)] = True
        return look
    """
)


@part(2, points=1, excused=_VIEW)
def split(code, x, heads):
    """The last axis is split into heads: (batch, token, heads * d_head) -> (batch, head, token, d_head)."""
    return code.split(x, heads)


@split.cases
def _(draw):
    batch, tokens, heads, d_head = draw.sizes(4, 2, 6)
    yield Case("neighbouring components stay in one head", (torch.arange(8.0, dtype=torch.float64).view(1, 2, 4), 2))
    yield Case("batch, heads and tokens get the right axes", (draw.normal(batch, tokens, heads * d_head), heads),
               gradients=True)  # fmt: skip
    yield Case("a single head holds everything", (draw.normal(batch, tokens, d_head), 1))


split.mistake(
    "tokens are mixed up with heads: split the last axis in two first, then swap tokens and heads",
    "def split(x, heads):\n    return x.reshape(x.shape[0], heads, x.shape[1], -1)",
)
split.mistake("the head axis comes after the token axis; swap the two", "(heads, -1)).transpose(1, 2)", "(heads, -1))")
split.mistake(
    "a head's components are neighbours in the last axis; you take every heads-th component",
    "unflatten(-1, (heads, -1)).transpose(1, 2)", "unflatten(-1, (-1, heads)).permute(0, 3, 1, 2)",
)  # fmt: skip
split.mistake(
    "you split into d_head heads; split into `heads` heads of d_head components", "(heads, -1)", "(-1, heads)"
)
split.variant(
    """
    def split(x, heads):
        batch, tokens, width = x.shape
        return x.view(batch, tokens, heads, width // heads).permute(0, 2, 1, 3) if x.is_contiguous() else split(
            x.contiguous(), heads
        )
    """
)
split.variant("def split(x, heads):\n    return torch.stack(x.chunk(heads, dim=-1), dim=1)")


@part(2, points=1, excused=_VIEW)
def merge(code, x):
    """The heads are merged again: (batch, head, token, d_head) -> (batch, token, heads * d_head)."""
    return code.merge(x)


@merge.cases
def _(draw):
    yield Case(
        "each token has its heads one after the other", (torch.arange(8.0, dtype=torch.float64).view(1, 2, 2, 2),)
    )
    yield Case("batch, tokens and heads get the right axes", (draw.normal(*draw.sizes(4, 2, 6)),), gradients=True)


merge.mistake("heads and tokens are joined into one axis; swap the two first, then join heads and d_head", "x.transpose(1, 2).flatten(2)",
              "x.flatten(1, 2).transpose(1, 2)")  # fmt: skip
merge.mistake(
    "tokens are mixed up with heads: swap the two axes before you join",
    "def merge(x):\n    return x.reshape(x.shape[0], x.shape[2], -1)",
)
merge.mistake(
    "heads and tokens are joined; expected heads and d_head", "x.transpose(1, 2).flatten(2)", "x.flatten(1, 2)"
)
merge.mistake("each token's heads are interleaved; keep one head's components together", "x.transpose(1, 2).flatten(2)",
              "x.permute(0, 2, 3, 1).flatten(2)")  # fmt: skip
merge.variant("def merge(x):\n    return torch.cat([x[:, head] for head in range(x.shape[1])], dim=-1)")
merge.variant(
    """
    def merge(x):
        batch, heads, tokens, width = x.shape
        return x.permute(0, 2, 1, 3).contiguous().view(batch, tokens, heads * width)
    """
)

_STRICT = {
    "levels": "weights of a thousand give scores of millions, in which no digit is right",
    "offset": "weights of ten thousand give scores in which no digit is right",
}


def _weights(draw, d_model, kv_width):
    return [draw.normal(rows, d_model) / 2 for rows in (d_model, kv_width, kv_width, d_model)]


@part(2, points=2, excused=_STRICT)
def Attention(code, x, mask, query, key, value, output, heads):
    """The layer applies four projections around the formula, with as many key heads as query heads."""
    weights = {"query.weight": query, "key.weight": key, "value.weight": value, "output.weight": output}
    return run_with(lambda: code.Attention(x.shape[-1], heads, heads), weights, x, mask=mask)


@Attention.cases
def _(draw):
    batch, tokens, heads, d_head = draw.sizes(4, 2, 5)
    d_model = heads * d_head
    yield Case("one head", (draw.normal(1, 2, 4), None, *_weights(draw, 4, 4), 1))
    x, weights = draw.normal(batch, tokens, d_model), _weights(draw, d_model, d_model)
    yield Case("several heads", (x, None, *weights, heads), gradients=True)
    look = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    yield Case("several heads under a mask", (x, look, *weights, heads), gradients=True)
    single = [weight.float() for weight in weights]
    yield Case("float32 stays float32", (x.float(), look, *single, heads))


_CLASS = "self.query = nn.Linear(d_model, heads * d_head, bias=False)"
_KEYS = "self.key, self.value = (nn.Linear(d_model, kv_heads * d_head, bias=False) for _ in range(2))"
_SPLIT = "q, k = split(self.query(x), self.heads), split(self.key(source), self.kv_heads)"
Attention.mistake("the layers have a bias; those of lesson 03 have none", _CLASS, _CLASS.replace(", bias=False", ""))
Attention.mistake("the output projection is missing: the joined heads are projected once more",
                  "return self.output(merge(attend(q, k, v, mask)))", "return merge(attend(q, k, v, mask))")  # fmt: skip
Attention.mistake("the mask does not reach the formula", "attend(q, k, v, mask)))", "attend(q, k, v)))")
Attention.mistake("queries and keys are swapped: a token looks with its query and is found by its key",
                  "attend(q, k, v, mask)", "attend(k, q, v, mask)")  # fmt: skip
Attention.mistake("the scores are divided by the square root of d_head twice: once here and once in `attend`",
                  "q, k = split(self.query(x), self.heads),",
                  "q, k = split(self.query(x), self.heads) / math.sqrt(x.shape[-1] // self.heads),")  # fmt: skip
Attention.mistake("the keys are also used as values", "attend(q, k, v, mask)", "attend(q, k, k, mask)")
Attention.mistake(
    "the keys are computed with the queries' projection", "split(self.key(source)", "split(self.query(source)"
)
Attention.mistake("the values are not projected", "v = split(self.value(source), self.kv_heads)",
                  "v = split(source, self.kv_heads)")  # fmt: skip
Attention.mistake("the input is added to the result; the block does that, in stage 4",
                  "return self.output(", "return x + self.output(")  # fmt: skip
Attention.mistake("there is one head: the projections are not split", _SPLIT,
                  "self.heads = self.kv_heads = 1\n        " + _SPLIT)  # fmt: skip
Attention.variant(
    """
    class Attention(nn.Module):
        def __init__(self, d_model, heads, kv_heads):
            super().__init__()
            self.h, self.g, self.w = heads, kv_heads, d_model // heads
            self.output = nn.Linear(d_model, d_model, False)
            self.value = nn.Linear(d_model, self.g * self.w, False)
            self.key = nn.Linear(d_model, self.g * self.w, False)
            self.query = nn.Linear(d_model, d_model, False)

        def forward(self, x, source=None, mask=None, turn=None, cache=None):
            if source is None:
                source = x
            q, k, v = split(self.query(x), self.h), split(self.key(source), self.g), split(self.value(source), self.g)
            if turn is not None:
                q = turn(q)
                k = turn(k)
            if cache is not None:
                k, v = cache.extend(k, v)
            b, g, t, w = k.shape
            n = self.h // g
            k = k[:, :, None].expand(b, g, n, t, w).reshape(b, self.h, t, w)
            v = v[:, :, None].expand(b, g, n, t, w).reshape(b, self.h, t, w)
            return self.output(merge(attend(q, k, v, mask)))
    """
)
Attention.variant(
    """
    class Attention(nn.Module):
        def __init__(self, d_model, heads, kv_heads):
            super().__init__()
            self.heads, self.kv_heads = heads, kv_heads
            width = d_model // heads * kv_heads
            for name, wide in (("query", d_model), ("key", width), ("value", width), ("output", d_model)):
                self.add_module(name, nn.Linear(d_model, wide, bias=False))

        def forward(self, x, source=None, mask=None, turn=None, cache=None):
            other = x if source is None else source
            turn = turn or (lambda y: y)
            q = turn(split(x @ self.query.weight.T, self.heads))
            k, v = turn(split(self.key(other), self.kv_heads)), split(self.value(other), self.kv_heads)
            if cache is not None:
                k, v = cache.extend(k, v)
            shared = self.heads // self.kv_heads
            found = [
                attend(q[:, h : h + 1], k[:, h // shared : h // shared + 1], v[:, h // shared : h // shared + 1], mask)
                for h in range(self.heads)
            ]
            return self.output(merge(torch.cat(found, dim=1)))
    """
)


@part(2, points=2, excused=_STRICT)
def Attention_grouped(code, x, query, key, value, output, heads, kv_heads):
    """In grouped-query attention, neighboring query heads share keys and values."""
    weights = {"query.weight": query, "key.weight": key, "value.weight": value, "output.weight": output}
    return run_with(lambda: code.Attention(x.shape[-1], heads, kv_heads), weights, x)


@Attention_grouped.cases
def _(draw):
    d_head = draw.whole(2, 3)
    for heads, kv_heads, shows in (
        (2, 1, "two queries share one key"),
        (6, 2, "three neighbours share a key, and the next three another"),
        (4, 4, "each query has its own key"),
    ):
        d_model = heads * d_head
        weights = _weights(draw, d_model, kv_heads * d_head)
        yield Case(shows, (draw.normal(2, 5, d_model), *weights, heads, kv_heads), gradients=True)


Attention_grouped.mistake(
    "the keys are repeated as a whole, so every kv_heads-th query shares one; neighbouring queries must share a key",
    "y.repeat_interleave(self.heads // self.kv_heads, dim=1)", "y.repeat(1, self.heads // self.kv_heads, 1, 1)",
)  # fmt: skip
Attention_grouped.mistake(
    "every query has its own key and value: kv_heads is not used", _KEYS,
    _KEYS.replace("kv_heads * d_head", "heads * d_head"),
)  # fmt: skip
Attention_grouped.mistake(
    "keys and values are not repeated: each belongs to heads / kv_heads neighbouring queries",
    "        k, v = (y.repeat_interleave(self.heads // self.kv_heads, dim=1) for y in (k, v))\n", "",
)  # fmt: skip
Attention_grouped.mistake(
    "the values are repeated as a whole; repeat each of them for neighbouring queries, as you do with the keys",
    "        k, v = (y.repeat_interleave(self.heads // self.kv_heads, dim=1) for y in (k, v))\n",
    "        k = k.repeat_interleave(self.heads // self.kv_heads, dim=1)\n"
    "        v = v.repeat(1, self.heads // self.kv_heads, 1, 1)\n",
)  # fmt: skip
Attention_grouped.mistake(
    "all queries share the first key and value",
    "y.repeat_interleave(self.heads // self.kv_heads, dim=1)", "y[:, :1]",
)  # fmt: skip


@part(2, points=1, excused=_STRICT)
def Attention_elsewhere(code, x, source, mask, query, key, value, output, heads):
    """In cross-attention, keys and values are computed from a source, and queries from x."""
    weights = {"query.weight": query, "key.weight": key, "value.weight": value, "output.weight": output}
    return run_with(lambda: code.Attention(x.shape[-1], heads, heads), weights, x, source, mask)


@Attention_elsewhere.cases
def _(draw):
    batch, tokens, keys = draw.sizes(3, 2, 6)
    x, source, weights = draw.normal(batch, tokens, 6), draw.normal(batch, keys, 6), _weights(draw, 6, 6)
    yield Case("queries from x, keys and values from the source", (x, source, None, *weights, 2), gradients=True)
    real = torch.arange(keys) < draw.wholes(1, keys, batch, 1)
    yield Case("padding of the source is hidden", (x, source, real[:, None, None], *weights, 3))


Attention_elsewhere.mistake(
    "the source is not used: keys and values are computed from x",
    "source = x if source is None else source",
    "source = x",
)
Attention_elsewhere.mistake(
    "queries and keys are swapped: queries come from x, keys and values from the source",
    "split(self.query(x), self.heads), split(self.key(source), self.kv_heads)",
    "split(self.query(source), self.heads), split(self.key(x), self.kv_heads)",
)
Attention_elsewhere.mistake(
    "the queries are computed from the source; compute them from x", "split(self.query(x)", "split(self.query(source)"
)
Attention_elsewhere.mistake(
    "the values are computed from x; compute them from the source", "self.value(source)", "self.value(x)"
)


@part(2, points=1, excused=_STRICT | {"layout": "the cached tensors have their original memory layout"})
def Attention_kept(code, x, old_key, old_value, query, key, value, output, heads):
    """`turn` rotates the queries and keys, and `cache` stores the rotated keys and the values."""

    class Cache:
        kept = None, None

        def __len__(self):
            return old_key.shape[2]

        def extend(self, k, v):
            if k.shape[:2] != old_key.shape[:2] or v.shape[:2] != old_value.shape[:2]:
                raise TypeError(f"the cache received (batch, kv_head, token, d_head) = {tuple(k.shape)}; "
                                f"expected (batch, kv_head) = {tuple(old_key.shape[:2])}")  # fmt: skip
            self.kept = k, v
            return torch.cat([old_key, k], dim=2), torch.cat([old_value, v], dim=2)

    def turn(y):
        return y * torch.arange(1, y.shape[2] + 1, dtype=y.dtype)[:, None] + y.roll(1, -1)

    weights = {"query.weight": query, "key.weight": key, "value.weight": value, "output.weight": output}
    cache, kv_heads = Cache(), old_key.shape[1]
    layer = [lambda: code.Attention(x.shape[-1], heads, kv_heads), weights, x]
    turned = {"with `turn`": run_with(*layer, turn=turn)}
    turned["with `turn` and `cache`"] = run_with(*layer, turn=turn, cache=cache)
    return turned | {"the keys that the cache gets": cache.kept[0], "the values that the cache gets": cache.kept[1]}


@Attention_kept.cases
def _(draw):
    x, weights = draw.normal(2, 3, 12), _weights(draw, 12, 6)
    old = draw.normal(2, 2, 5, 3), draw.normal(2, 2, 5, 3)
    yield Case("new keys and values come after the cached ones", (x, *old, *weights, 4), gradients=True)
    length = draw.whole(33, 40)
    old = draw.normal(2, 2, length, 3), draw.normal(2, 2, length, 3)
    yield Case(LARGE, (x, *old, *weights, 4))
    empty = torch.zeros(2, 2, 0, 3, dtype=torch.float64)
    yield Case("a cache that is still empty gets the first keys and values", (x, empty, empty.clone(), *weights, 4))


_TURN, _CACHE = "q, k = turn(q), turn(k)", "k, v = cache.extend(k, v)"
Attention_kept.mistake("`turn` is not used", "if turn is not None:", "if False:")
Attention_kept.mistake(
    "`turn` gets all heads joined; split queries and keys first, then rotate them", _TURN,
    "q, k = split(turn(self.query(x)), self.heads), split(turn(self.key(source)), self.kv_heads)",
)  # fmt: skip
Attention_kept.mistake("only the queries are rotated; rotate the keys, too", _TURN, "q = turn(q)")
Attention_kept.mistake(
    "the values are rotated, too; positions affect only the scores", _TURN, _TURN + "\n            v = turn(v)"
)
Attention_kept.mistake("the `cache` is not used", "if cache is not None:", "if False:")
Attention_kept.mistake(
    "an empty cache is not used, because its length is 0 and `if cache:` takes that as False: write `if cache is not None:`",
    "if cache is not None:", "if cache:",
)  # fmt: skip
Attention_kept.mistake(
    "you continue with only the new keys: use the keys and values that `extend` returns", _CACHE,
    "cache.extend(k, v)",
)  # fmt: skip
Attention_kept.mistake(
    "the keys are rotated after they were cached, so old keys are rotated again, at other positions",
    "            q, k = turn(q), turn(k)\n        if cache is not None:\n            k, v = cache.extend(k, v)",
    "            q = turn(q)\n        if cache is not None:\n            k, v = cache.extend(k, v)\n"
    "        if turn is not None:\n            k = turn(k)",
)  # fmt: skip
