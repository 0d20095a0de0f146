"""Stage 14, delta: the delta rule, the layer that uses it, and a decoder with such layers."""

import torch
import torch.nn.functional as F

from companion_school.build.checks import USUAL
from companion_school.build.isolated_modules import default_dtype, run_with
from companion_school.build.parts import part
from companion_school.checking.derived_cases import LARGE
from companion_school.checking.exercise import Case


@part(14, points=4, excused=USUAL)
def delta_rule(code, q, k, v, beta, state):
    """Each token writes the missing part of its value to the state, then reads from it."""
    return code.delta_rule(q, k, v, beta, state)


def _unit(x):
    return F.normalize(x, dim=-1)


@delta_rule.cases
def _(draw):
    one = torch.tensor([[[[1.0, 0.0]]]]).double()
    value, strength = torch.tensor([[[[3.0, 5.0, 7.0]]]]).double(), torch.tensor([[[0.5]]]).double()
    yield Case("one token: half of its value is stored afterwards", (one, one, value, strength, None))
    twice = one.expand(1, 1, 2, 2), torch.cat([value, 2 * value], dim=2), torch.ones(1, 1, 2).double()
    yield Case("the same key again: the second value replaces the first", (twice[0], twice[0], *twice[1:], None))
    batch, heads, tokens, d_k, d_v = draw.sizes(5, 2, 6)
    q, k, v = (
        draw.normal(batch, heads, tokens, d_k),
        _unit(draw.normal(batch, heads, tokens, d_k)),
        draw.normal(batch, heads, tokens, d_v),
    )
    beta = draw.uniform(batch, heads, tokens)
    yield Case("several heads and tokens", (q, k, v, beta, None), gradients=True)
    yield Case("it continues with a given state", (q, k, v, beta, draw.normal(batch, heads, d_k, d_v)), gradients=True)
    tokens = draw.whole(33, 60)
    q, k, v = draw.normal(1, 2, tokens, 3), _unit(draw.normal(1, 2, tokens, 3)), draw.normal(1, 2, tokens, 2)
    yield Case(LARGE, (q, k, v, draw.uniform(1, 2, tokens), None))


_WRITE = "state = state + beta[:, :, t, None, None] * (key.mT @ missing)"
delta_rule.mistake("the stored value is not subtracted, so a second value is mixed with the first",
                   "missing = value - key @ state", "missing = value + 0 * (key @ state)")  # fmt: skip
delta_rule.mistake(
    "the write strength is not used", "beta[:, :, t, None, None] * (key.mT @ missing)", "(key.mT @ missing)"
)
delta_rule.mistake("a token reads before it has written: it does not see its own value", f"        {_WRITE}\n        read.append(query @ state)",
                   f"        read.append(query @ state)\n        {_WRITE}")  # fmt: skip
delta_rule.mistake(
    "the missing part is computed with the query: use what the key reads",
    "missing = value - key @ state",
    "missing = value - query @ state",
)
delta_rule.mistake("the given state is not used", "    if state is None:\n", "    if True:\n")
delta_rule.mistake(
    "the state is read with the key; read it with the query", "read.append(query @ state)", "read.append(key @ state)"
)
delta_rule.mistake("the whole state fades with the write strength; only what is stored under the key may fade",
                   _WRITE, "state = (1 - beta[:, :, t, None, None]) * state + beta[:, :, t, None, None] * (key.mT @ value)")  # fmt: skip
delta_rule.mistake(
    "the given state is changed in place", _WRITE, "state += beta[:, :, t, None, None] * (key.mT @ missing)"
)
delta_rule.mistake(
    "the value is written under the query; write it under the key", "(key.mT @ missing)", "(query.mT @ missing)"
)
delta_rule.mistake("the write strength multiplies only the value; multiply the whole missing part",
                   "missing = value - key @ state", "missing = beta[:, :, t, None, None] * value - key @ state",
                   "beta[:, :, t, None, None] * (key.mT @ missing)", "key.mT @ missing")  # fmt: skip
delta_rule.mistake("the write strength multiplies the value twice", "missing = value - key @ state",
                   "missing = beta[:, :, t, None, None] * value - key @ state")  # fmt: skip
delta_rule.mistake("the last write is returned; expected the state after it", "torch.cat(read, dim=2), state",
                   "torch.cat(read, dim=2), key.mT @ missing")  # fmt: skip
delta_rule.mistake(
    "the missing part has the wrong sign: it is the value minus what the key reads",
    "missing = value - key @ state",
    "missing = key @ state - value",
)
delta_rule.mistake(
    "every token uses the last write strength; each has its own, beta[:, :, t]",
    "beta[:, :, t, None, None]",
    "beta[:, :, -1, None, None]",
)
delta_rule.mistake(
    "the table is transposed: its rows belong to the key and its columns to the value",
    "(key.mT @ missing)",
    "(missing.mT @ key)",
)
delta_rule.mistake(
    "the zeros of a new state have PyTorch's default dtype; use that of k",
    "k.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1])",
    "torch.zeros(*k.shape[:2], k.shape[-1], v.shape[-1], dtype=torch.float32)",
)
delta_rule.mistake(
    "the loop runs over the heads; tokens are the third axis",
    "for t in range(k.shape[2])",
    "for t in range(k.shape[1])",
)
delta_rule.mistake(
    "what was read is stacked, which adds an axis; join it along the tokens with `cat`",
    "torch.cat(read, dim=2)",
    "torch.stack(read, dim=2)",
)
delta_rule.mistake(
    "what was read is joined along the heads; tokens are the third axis",
    "torch.cat(read, dim=2)",
    "torch.cat(read, dim=1)",
)
delta_rule.mistake(
    "the state is detached, so no gradient reaches the tokens that wrote it",
    "missing = value - key @ state",
    "missing = value - key @ state.detach()",
)
delta_rule.mistake(
    "what is read is divided by the square root of d_k; do not scale here",
    "read.append(query @ state)",
    "read.append(query @ state / query.shape[-1] ** 0.5)",
)
delta_rule.variant(
    """
    def delta_rule(q, k, v, beta, state=None):
        batch, heads, tokens, d_k = k.shape
        S = torch.zeros(batch, heads, d_k, v.shape[-1], dtype=k.dtype) if state is None else state
        unit, out = torch.eye(d_k, dtype=k.dtype), []
        for t in range(tokens):
            w = beta[..., t][..., None, None]
            kk = torch.einsum("bhi,bhj->bhij", k[:, :, t], k[:, :, t])
            S = (unit - w * kk) @ S + w * torch.einsum("bhi,bhj->bhij", k[:, :, t], v[:, :, t])
            out.append(torch.einsum("bhi,bhij->bhj", q[:, :, t], S))
        return torch.stack(out, dim=2), S
    """
)


@part(14, points=4, excused=USUAL)
def DeltaLayer(code, x, weights, heads, pieces):
    """The layer's output is the same for a whole text and for its pieces, and the state is updated correctly."""
    with default_dtype(x.dtype):
        layer = code.DeltaLayer(x.shape[-1], heads)
    whole = run_with(lambda: layer, weights, x)
    state, rows, lengths = code.State(), [], []
    for piece in x.split(pieces, dim=1):
        rows.append(run_with(lambda: layer, weights, piece, mask=None, turn=lambda y: -y, cache=state))
        lengths.append(len(state))
    return {"at once": whole, "in pieces": torch.cat(rows, dim=1), "tokens read": lengths, "the table": state.table}


def _layer(draw, d_model, heads):
    shapes = {name: (d_model, d_model) for name in ("query", "key", "value", "output")} | {"write": (heads, d_model)}
    return {f"{name}.weight": draw.normal(*shape) for name, shape in shapes.items()}


@DeltaLayer.cases
def _(draw):
    yield Case("one head, token by token", (draw.normal(1, 3, 4), _layer(draw, 4, 1), 1, [1, 1, 1]))
    yield Case("three heads, in two pieces", (draw.normal(2, 5, 6), _layer(draw, 6, 3), 3, [3, 2]))
    yield Case("a single token", (draw.normal(2, 1, 6), _layer(draw, 6, 2), 2, [1]))
    tokens = draw.whole(33, 60)
    yield Case(LARGE, (draw.normal(1, tokens, 4), _layer(draw, 4, 2), 2, [tokens - 9, 9]))


DeltaLayer.mistake(
    "keys and queries are not scaled to length 1",
    "F.normalize(split(layer(x), self.heads), dim=-1)",
    "split(layer(x), self.heads)",
)
DeltaLayer.mistake("keys and queries are scaled before the heads are split: scale each head to length 1",
                   "F.normalize(split(layer(x), self.heads), dim=-1)", "split(F.normalize(layer(x), dim=-1), self.heads)")  # fmt: skip
DeltaLayer.mistake(
    "the write strength is not a sigmoid", "self.write(x).sigmoid().transpose(1, 2)", "self.write(x).transpose(1, 2)"
)
DeltaLayer.mistake("keys and queries are rotated: no rotation is needed, because the order of the writes encodes the positions",
                   "        v, beta = split", "        q, k = (q, k) if turn is None else (turn(q), k)\n        v, beta = split")  # fmt: skip
DeltaLayer.mistake(
    "the state is not stored, so every piece starts from zeros",
    "cache.table, cache.tokens = table,",
    "cache.table, cache.tokens = 0 * table,",
)
DeltaLayer.mistake("the state's count of tokens does not continue", "cache.tokens + x.shape[1]", "x.shape[1]")
DeltaLayer.mistake("the state that the cache holds is not read", "None if cache is None else cache.table", "None")
DeltaLayer.mistake(
    "the values are scaled to length 1, too",
    "split(self.value(x), self.heads)",
    "F.normalize(split(self.value(x), self.heads), dim=-1)",
)
DeltaLayer.mistake(
    "keys and queries are scaled along the tokens; scale each token's to length 1, dim=-1",
    "self.heads), dim=-1)",
    "self.heads), dim=-2)",
)
DeltaLayer.mistake(
    "the write strengths are a softmax over the heads; use a sigmoid for each",
    "self.write(x).sigmoid()",
    "self.write(x).softmax(-1)",
)
DeltaLayer.mistake("only the keys are scaled to length 1; scale the queries, too",
                   "q, k = (F.normalize(split(layer(x), self.heads), dim=-1) for layer in (self.query, self.key))",
                   "q, k = split(self.query(x), self.heads), F.normalize(split(self.key(x), self.heads), dim=-1)")  # fmt: skip
DeltaLayer.mistake("the state counts calls; count tokens", "cache.tokens + x.shape[1]", "cache.tokens + 1")
DeltaLayer.mistake(
    "the write strengths are only reshaped; swap heads and tokens",
    "self.write(x).sigmoid().transpose(1, 2)",
    "self.write(x).sigmoid().reshape(len(x), self.heads, -1)",
)
DeltaLayer.mistake(
    "`output` is not used: apply it to the merged heads", "return self.output(merge(heads))", "return merge(heads)"
)
DeltaLayer.mistake(
    "the values come from `key`; compute them with `value`",
    "split(self.value(x), self.heads)",
    "split(self.key(x), self.heads)",
)
DeltaLayer.mistake(
    "queries and keys are swapped", "for layer in (self.query, self.key))", "for layer in (self.key, self.query))"
)
DeltaLayer.mistake(
    "the state counts texts; count tokens, the second axis of x",
    "cache.tokens + x.shape[1]",
    "cache.tokens + x.shape[0]",
)
DeltaLayer.variant(
    """
    class DeltaLayer(nn.Module):
        def __init__(self, d_model, heads):
            super().__init__()
            self.n = heads
            for name in ("query", "key", "value", "output"):
                setattr(self, name, nn.Linear(d_model, d_model, bias=False))
            self.write = nn.Linear(d_model, heads, bias=False)

        def forward(self, x, mask=None, turn=None, cache=None):
            q, k, v = (split(f(x), self.n) for f in (self.query, self.key, self.value))
            q, k = q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)
            beta = torch.sigmoid(self.write(x)).mT
            state = cache.table if cache is not None else None
            y, state = delta_rule(q, k, v, beta, state)
            if cache is not None:
                cache.table = state
                cache.tokens += x.shape[1]
            return self.output(merge(y))
    """
)


@part(14, points=2, excused=USUAL)
def put_states(code, attend, ids):
    """The right layers of a decoder have a state, and reading a text in pieces gives the same logits."""
    model = code["model"]
    torch.manual_seed(3)
    with default_dtype(torch.float64), torch.no_grad():
        plain = model.Transformer(model.Config(13, 16, 3, 2, 1, 12))
        embedding = plain.embedding.weight.clone()
        own = code.put_states(plain, attend)
        pieces, caches = [], code.new_caches(own)
        for piece in ids.split([3, 1, 1], dim=1):
            pieces.append(own(piece, caches))
        apart = (torch.cat(pieces, dim=1) - own(ids)).abs().max()
    attentions = [block.attention for block in own.decoder.blocks]
    spread = max(float(attention.output.weight.detach().std()) for attention in attentions)
    return {"the attention of each block": [type(block.attention).__name__ for block in own.decoder.blocks],
            "the cache of each block": [type(cache).__name__ for cache in caches],
            "the logits in pieces are those of the whole": bool(apart < 1e-9),
            "write strengths of each state": [len(layer.write.weight) for layer in attentions if hasattr(layer, "write")],
            "`initialise` makes `output` smaller": spread < 0.1,
            "the embedding is initialized again": not torch.equal(own.embedding.weight, embedding)}  # fmt: skip


@put_states.cases
def _(draw):
    ids = draw.wholes(0, 12, 2, 5)
    yield Case("a state in every block", ((), ids))
    yield Case("attention in the last block", ((2,), ids))
    yield Case("attention in the first block, whose cache gives the positions", ((0,), ids))
    yield Case(LARGE, ((1,), draw.wholes(0, 12, draw.whole(33, 60), 5)))


put_states.mistake(
    "`attend` lists the blocks that keep your attention", "if number not in attend:", "if number in attend:"
)
put_states.mistake("every block has a state: `attend` is not used", "if number not in attend:", "if True:")
put_states.mistake(
    "blocks with attention get no cache: give them a `Cache`",
    "State() if isinstance(block.attention, DeltaLayer) else Cache()",
    "State()",
)
put_states.mistake("all blocks share one state: give each its own", "    return [State() if isinstance(block.attention, DeltaLayer) else Cache() for",
                   "    one = State()\n    return [one if isinstance(block.attention, DeltaLayer) else Cache() for")  # fmt: skip
put_states.mistake("all blocks share one layer: give each its own", "    for number, block in enumerate(model.decoder.blocks):\n        if number not in attend:\n            block.attention = DeltaLayer(config.d_model, config.heads)",
                   "    one = DeltaLayer(config.d_model, config.heads)\n    one.__class__.__name__ = 'DeltaLayer'\n    for number, block in enumerate(model.decoder.blocks[:2]):\n        if number not in attend:\n            block.attention = one")  # fmt: skip
put_states.mistake(
    "the caches are swapped: a `State` belongs to a `DeltaLayer`, and a `Cache` to your attention",
    "State() if isinstance(block.attention, DeltaLayer) else Cache()",
    "Cache() if isinstance(block.attention, DeltaLayer) else State()",
)
put_states.mistake(
    "the weights are not initialized again: call `initialise` at the end",
    "    initialise(model, config.d_model, writes=2 * config.layers)\n",
    "",
)
put_states.mistake(
    "blocks are counted from 1; `attend` counts them from 0", "if number not in attend:", "if number + 1 not in attend:"
)
put_states.mistake(
    "the layer has `kv_heads` heads, as many as your attention has keys; give it `heads`",
    "DeltaLayer(config.d_model, config.heads)",
    "DeltaLayer(config.d_model, config.kv_heads)",
)
put_states.mistake(
    "the weights are initialized before the new layers are in the model: call `initialise` at the end",
    "    config = model.config\n",
    "    config = model.config\n    initialise(model, config.d_model, writes=2 * config.layers)\n",
    "    initialise(model, config.d_model, writes=2 * config.layers)\n    return model",
    "    return model",
)
put_states.variant(
    """
    def new_caches(model):
        made = []
        for block in model.decoder.blocks:
            made.append(Cache() if hasattr(block.attention, "kv_heads") else State())
        return made
    """
)
