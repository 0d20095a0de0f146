"""Stage 12, latent: both ways of computing latent attention, the layer, its cache, a decoder, and the cache size."""

import torch

from companion_school.build.checks import USUAL
from companion_school.build.isolated_modules import PlainCache, default_dtype, numbers_made, run_with
from companion_school.build.parts import part
from companion_school.checking.derived_cases import LARGE
from companion_school.checking.exercise import Case


def _asked(draw, queries, keys, mask=None):
    """Return random queries, latents, rotated keys, U_k and U_v of distinct sizes, and the given mask."""
    batch, heads, d_k, d_v, rank, d_rope = 2, 3, 5, 6, 7, 4
    return (draw.normal(batch, heads, queries, d_k + d_rope), draw.normal(batch, 1, keys, rank),
            draw.normal(batch, 1, keys, d_rope), draw.normal(heads, d_k, rank), draw.normal(heads, d_v, rank), mask)  # fmt: skip


def _by_pencil():
    """Return the lesson's example: keys (3, 2) and (3, 6), and unscaled scores 5 and 9. The rotated part is zero."""
    q = torch.tensor([1.0, 1, 0, 0]).double().view(1, 1, 1, 4)
    c, k = torch.tensor([[2.0, 1], [0, 3]]).double()[None, None], torch.zeros(1, 1, 2, 2).double()
    U_k, U_v = torch.tensor([[[1.0, 1], [0, 2]]]).double(), torch.tensor([[[1.0, 2]]]).double()
    return q, c, k, U_k, U_v, None


def _causal(queries, keys):
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)


@part(12, points=2)
def expanded(code, q, c, k, U_k, U_v, mask):
    """Attention is applied to every head's keys and values, which are computed from the latents."""
    return code.expanded(q, c, k, U_k, U_v, mask)


@expanded.cases
def _(draw):
    yield Case("the numbers of the lesson: keys (3, 2) and (3, 6)", _by_pencil())
    yield Case("one query of each head", _asked(draw, 1, 6), gradients=True)
    yield Case("several queries, and a mask", _asked(draw, 4, 9, _causal(4, 9)), gradients=True)
    yield Case("a mask for each row", _asked(draw, 4, 9, (torch.arange(9) < torch.tensor([[5], [8]]))[:, None, None]))
    keys = draw.whole(33, 60)
    yield Case(LARGE, _asked(draw, 3, keys, _causal(3, keys)))


_KEYS = "torch.cat([c @ U_k.mT, k.expand(-1, len(U_k), -1, -1)], dim=-1)"
expanded.mistake("the rotated key comes first; it comes after the other part, as in the queries",
                 _KEYS, "torch.cat([k.expand(-1, len(U_k), -1, -1), c @ U_k.mT], dim=-1)")  # fmt: skip
expanded.mistake("the rotated key is missing: the scores need it to depend on the distance",
                 _KEYS, "torch.cat([c @ U_k.mT, 0 * k.expand(-1, len(U_k), -1, -1)], dim=-1)")  # fmt: skip
expanded.mistake("the values are computed with U_k; use U_v",
                 "attend(q, keys, c @ U_v.mT, mask)", "attend(q, keys, c @ U_k.mT, mask)")  # fmt: skip
expanded.mistake("the mask is not passed on", "attend(q, keys, c @ U_v.mT, mask)", "attend(q, keys, c @ U_v.mT)")
expanded.mistake("all heads have the keys of the first one: each has its own U_k",
                 _KEYS, "torch.cat([c @ U_k[:1].expand_as(U_k).mT, k.expand(-1, len(U_k), -1, -1)], dim=-1)")  # fmt: skip
expanded.mistake("the scores are divided by the square root of d_k; a query is d_k + d_rope wide",
                 "attend(q, keys,", "attend(q * math.sqrt(q.shape[-1] / U_k.shape[1]), keys,")  # fmt: skip
expanded.variant(
    """
    def expanded(q, c, k, U_k, U_v, mask=None):
        keys = torch.einsum("btr,hdr->bhtd", c[:, 0], U_k)
        values = torch.einsum("btr,hdr->bhtd", c[:, 0], U_v)
        d_k = U_k.shape[1]
        scores = q[..., :d_k] @ keys.mT + q[..., d_k:] @ k.mT
        scores = scores / q.shape[-1] ** 0.5
        if mask is not None:
            scores = torch.where(mask, scores, -torch.inf)
        return torch.softmax(scores, dim=-1) @ values
    """
)


@part(12, points=3)
def absorbed(code, q, c, k, U_k, U_v, mask):
    """The same result is computed from the latents, without computing any head's keys or values."""
    return code.absorbed(q, c, k, U_k, U_v, mask)


@absorbed.cases
def _(draw):
    yield Case("the numbers of the lesson: the projected query is (1, 3), and the scores are 5 and 9", _by_pencil())
    yield Case("one query of each head", _asked(draw, 1, 6), gradients=True)
    yield Case("several queries, and a mask", _asked(draw, 4, 9, _causal(4, 9)), gradients=True)
    keys = draw.whole(33, 60)
    yield Case(LARGE, _asked(draw, 3, keys, _causal(3, keys)))


_SCALE = "asks = asks * math.sqrt(asks.shape[-1] / q.shape[-1])"
absorbed.mistake("the scores are divided by the square root of the cached width; use that of d_k + d_rope, the width of the keys that are not computed",
                 _SCALE, "asks = asks * 1")  # fmt: skip
absorbed.mistake("the scores are divided by the square root of d_k; the rotated part counts, too",
                 _SCALE, "asks = asks * math.sqrt(asks.shape[-1] / d_k)")  # fmt: skip
absorbed.mistake("the rotated part of the query is not used",
                 "torch.cat([down, q[..., d_k:]], dim=-1)", "torch.cat([down, 0 * q[..., d_k:]], dim=-1)")  # fmt: skip
absorbed.mistake(
    "the order of [k, c] does not match the query, whose rotated part is last", "torch.cat([c, k], dim=-1)", "torch.cat([k, c], dim=-1)",
)  # fmt: skip
absorbed.mistake("the average is multiplied by U_k; use U_v, which computes the values",
                 "attend(asks, kept, c, mask), U_v)", "attend(asks, kept, c, mask), U_k)")  # fmt: skip
absorbed.mistake("the mask is not used", "attend(asks, kept, c, mask)", "attend(asks, kept, c)")
absorbed.mistake("every head uses the first one's U_k",
                 "q[..., :d_k], U_k)", "q[..., :d_k], U_k[:1].expand_as(U_k))")  # fmt: skip
absorbed.variant(
    """
    def absorbed(q, c, k, U_k, U_v, mask=None):
        heads = []
        for head, (down, up) in enumerate(zip(U_k, U_v)):
            what, where = q[:, head].split([len(down), k.shape[-1]], dim=-1)
            scores = (what @ down @ c[:, 0].mT + where @ k[:, 0].mT) * q.shape[-1] ** -0.5
            if mask is not None:
                seen = mask.expand(len(q), len(U_k), *scores.shape[1:])[:, head]
                scores = scores.masked_fill(~seen, float("-inf"))
            heads.append(scores.softmax(-1) @ c[:, 0] @ up.T)
        return torch.stack(heads, dim=1)
    """
)


def _layer(draw, d_model, heads, rank, d_rope):
    d_head = d_model // heads
    return {"query.weight": draw.normal(heads * (d_head + d_rope), d_model), "down.weight": draw.normal(rank + d_rope, d_model),
            "latent_norm.weight": draw.normal(rank), "up.weight": draw.normal(heads * 2 * d_head, rank),
            "output.weight": draw.normal(d_model, heads * d_head)}  # fmt: skip


@part(12, points=3)
def LatentAttention(code, x, weights, heads, rank, d_rope, mask, turned):
    """The layer computes a latent and a rotated key per token, and rotates the last part of each query."""

    def turn(y):
        return y * torch.arange(1, y.shape[2] + 1, dtype=y.dtype)[:, None] + y.roll(1, -1)

    return run_with(lambda: code.LatentAttention(x.shape[-1], heads, rank, d_rope), weights, x,
                    mask=mask, turn=turn if turned else None)  # fmt: skip


@LatentAttention.cases
def _(draw):
    d_model, heads, rank, d_rope = 12, 3, 7, 2
    layer = _layer(draw, d_model, heads, rank, d_rope), heads, rank, d_rope
    yield Case("one token sees itself", (draw.normal(2, 1, d_model), *layer, None, False))
    yield Case("without a rotation or a mask", (draw.normal(2, 5, d_model), *layer, None, False))
    yield Case("rotated and causal", (draw.normal(2, 5, d_model), *layer, _causal(5, 5), True))
    tokens = draw.whole(33, 60)
    yield Case(LARGE, (draw.normal(1, tokens, d_model), *layer, _causal(tokens, tokens), False))


LatentAttention.mistake("the latent is not normed", "c = self.latent_norm(c)", "c = 1 * c")
LatentAttention.mistake("the whole query is rotated; rotate only its last d_rope components",
                        "q = torch.cat([q[..., : self.d_head], turn(q[..., self.d_head :])], dim=-1)", "q = turn(q)")  # fmt: skip
LatentAttention.mistake("the first components of the query are rotated; rotate its last d_rope",
                        "torch.cat([q[..., : self.d_head], turn(q[..., self.d_head :])], dim=-1)",
                        "torch.cat([turn(q[..., : self.d_rope]), q[..., self.d_rope :]], dim=-1)")  # fmt: skip
LatentAttention.mistake("the key is not rotated", "            k = turn(k)\n", "")
LatentAttention.mistake("the query is not rotated", "            q = torch.cat([q[..., : self.d_head], turn(q[..., self.d_head :])], dim=-1)\n", "")  # fmt: skip
LatentAttention.mistake("the latent is rotated, too, so nothing can be absorbed", "            k = turn(k)\n", "            k, c = turn(k), turn(c)\n")  # fmt: skip
LatentAttention.mistake("the latent and the key are swapped: `down` gives the latent first, then the key to rotate",
                        "c, k = self.down(x)[:, None].split([self.rank, self.d_rope], dim=-1)",
                        "k, c = self.down(x)[:, None].split([self.d_rope, self.rank], dim=-1)")  # fmt: skip
LatentAttention.mistake("`up` holds U_k and U_v for each head in turn, not first all U_k and then all U_v",
                        "U_k, U_v = self.up.weight.unflatten(0, (self.heads, -1)).chunk(2, dim=1)",
                        "U_k, U_v = self.up.weight.unflatten(0, (2, self.heads, -1))")  # fmt: skip
LatentAttention.mistake(
    "U_k and U_v are swapped: for each head, U_k comes first", "U_k, U_v = self.up", "U_v, U_k = self.up"
)
LatentAttention.mistake("the mask is not passed on", "k, U_k, U_v, mask)))", "k, U_k, U_v)))")
LatentAttention.mistake("the norm runs over the latent and the key together; apply it only to the latent",
                        "c = self.latent_norm(c)", "both = torch.cat([c, k], dim=-1)\n        scale = (both.square().mean(-1, keepdim=True) + 1e-6).rsqrt()\n        c, k = c * scale * self.latent_norm.weight, k * scale")  # fmt: skip
LatentAttention.mistake("the heads of the query are mixed up with the tokens: use `split`", "q = split(self.query(x), self.heads)",
                        "q = self.query(x).view(x.shape[0], self.heads, x.shape[1], -1)")  # fmt: skip
LatentAttention.variant(
    """
    class LatentAttention(nn.Module):
        def __init__(self, d_model, heads, rank, d_rope):
            super().__init__()
            self.width, self.heads, self.rank, self.rope = d_model // heads, heads, rank, d_rope
            self.output = nn.Linear(self.width * heads, d_model, bias=False)
            self.latent_norm = RMSNorm(rank)
            self.up = nn.Linear(rank, 2 * self.width * heads, bias=False)
            self.query = nn.Linear(d_model, (self.width + d_rope) * heads, bias=False)
            self.down = nn.Linear(d_model, rank + d_rope, bias=False)

        def forward(self, x, mask=None, turn=None, cache=None):
            turn = turn or (lambda y: y)
            q = split(self.query(x), self.heads)
            q = torch.cat([q[..., :self.width], turn(q[..., self.width:])], -1)
            both = self.down(x)
            c, k = self.latent_norm(both[..., :self.rank]).unsqueeze(1), turn(both[..., self.rank:].unsqueeze(1))
            if cache is not None:
                c, k = cache.extend(c, k)
            matrices = self.up.weight.view(self.heads, 2, self.width, self.rank)
            heads = absorbed(q, c, k, matrices[:, 0], matrices[:, 1], mask)
            return self.output(merge(heads))
    """
)


@part(12, points=2, excused=USUAL)
def LatentAttention_kept(code, x, weights, heads, rank, d_rope, pieces):
    """The cache stores latents and rotated keys, texts can be read in pieces, and one-token steps compute no keys."""
    cache, rows = PlainCache(), []
    with default_dtype(x.dtype):
        layer = code.LatentAttention(x.shape[-1], heads, rank, d_rope)

    def turn(y):
        return y * torch.arange(1, y.shape[2] + 1, dtype=y.dtype)[:, None] + y.roll(1, -1)

    for piece in x.split(pieces, dim=1):
        new, seen = piece.shape[1], len(cache)
        mask = torch.ones(new, seen + new, dtype=torch.bool).tril(seen)
        with numbers_made() as made:
            rows.append(run_with(lambda: layer, weights, piece, mask=mask, cache=cache, turn=turn))
    c, k = cache.extend(piece[:, None, :0, :rank], piece[:, None, :0, :d_rope])
    again = pieces[-1] == 1 and sum(made) > 2 * len(x) * len(cache) * x.shape[-1]
    return {"the rows": torch.cat(rows, dim=1), "the cached latents": c, "the cached rotated keys": k,
            "keys and values that a single token computes": again}  # fmt: skip


@LatentAttention_kept.cases
def _(draw):
    layer = _layer(draw, 96, 3, 5, 2), 3, 5, 2
    yield Case("two pieces of a text", (draw.normal(1, 7, 96), *layer, [4, 3]))
    yield Case("token by token, after a prompt", (draw.normal(2, 60, 96), *layer, [58, 1, 1]))
    tokens = draw.whole(33, 60)
    yield Case(LARGE, (draw.normal(1, tokens, 96), *layer, [tokens - 2, 2]))


_CACHE = "c, k = cache.extend(c, k)"
LatentAttention_kept.mistake("the step computes every head's keys and values again: use `absorbed` for a single token",
                             "absorbed if x.shape[1] == 1 else expanded", "expanded")  # fmt: skip
LatentAttention_kept.mistake("the `cache` is not used", "if cache is not None:", "if False:")
LatentAttention_kept.mistake(
    "you continue with only the new latents: use what `extend` returns", _CACHE, "cache.extend(c, k)"
)
LatentAttention_kept.mistake("the keys are rotated after they were cached, so old keys are rotated again, at other positions",
                             "            k = turn(k)\n        if cache is not None:\n            c, k = cache.extend(c, k)",
                             "        if cache is not None:\n            c, k = cache.extend(c, k)\n        if turn is not None:\n            k = turn(k)")  # fmt: skip
LatentAttention_kept.mistake(
    "latents and rotated keys are swapped: the latents come first", _CACHE, "k, c = cache.extend(k, c)"
)
LatentAttention_kept.mistake("the latents are normed after they were cached, so old ones are normed again: apply the norm first",
                             "        c = self.latent_norm(c)\n        if turn", "        if turn",
                             f"            {_CACHE}\n", f"            {_CACHE}\n        c = self.latent_norm(c)\n")  # fmt: skip
LatentAttention_kept.variant(
    """
    class LatentAttention(nn.Module):
        def __init__(self, d_model, heads, rank, d_rope):
            super().__init__()
            self.heads, self.rank, self.d_head = heads, rank, d_model // heads
            self.query = nn.Linear(d_model, heads * (self.d_head + d_rope), bias=False)
            self.down = nn.Linear(d_model, rank + d_rope, bias=False)
            self.latent_norm = RMSNorm(rank)
            self.up = nn.Linear(rank, heads * 2 * self.d_head, bias=False)
            self.output = nn.Linear(heads * self.d_head, d_model, bias=False)

        def forward(self, x, mask=None, turn=lambda y: y, cache=None):
            what, where = split(self.query(x), self.heads).tensor_split([self.d_head], dim=-1)
            c, k = self.down(x).unsqueeze(1).tensor_split([self.rank], dim=-1)
            c, k = self.latent_norm(c), turn(k) if turn else k
            q = torch.cat([what, turn(where) if turn else where], dim=-1)
            if cache is not None:
                c, k = cache.extend(c, k)
            up = self.up.weight.unflatten(0, (self.heads, 2, self.d_head))
            few = c.shape[2] > 4 * x.shape[1]
            return self.output(merge((absorbed if few else expanded)(q, c, k, up[:, 0], up[:, 1], mask)))
    """
)


@part(12, points=1, excused=USUAL, seconds=60.0)
def put_latents(code, rank, d_rope, ids):
    """Every block has latent attention with the right initial weights, and caches do not change the logits."""
    model = code["model"]
    torch.manual_seed(3)
    with default_dtype(torch.float64), torch.no_grad():
        own = code.put_latents(model.Transformer(model.Config(300, 64, 2, 4, 2, 48)), rank, d_rope)
        caches = [PlainCache() for _ in own.decoder.blocks]
        pieces = [own(piece, caches) for piece in ids.split([3, 1, 1], dim=1)]
        apart = (torch.cat(pieces, dim=1) - own(ids)).abs().max()
    large = {name: weight for name, weight in own.named_parameters() if weight.numel() >= 2000}
    spread = {name: 100 * float(weight.detach().std()) for name, weight in large.items()}
    return {"the weights": sorted((name, tuple(weight.shape)) for name, weight in own.named_parameters()),
            "a hundred times their standard deviations": spread,
            "the logits in pieces are those of the whole": bool(apart < 1e-9)}  # fmt: skip


@put_latents.cases
def _(draw):
    yield Case("latent attention in every block", (32, 4, draw.wholes(0, 10, 2, 5)), tolerance=0.08)
    rank = 32 + 2 * draw.whole(2, 12)
    yield Case("another rank, and a smaller rotated key", (rank, 2, draw.wholes(0, 10, 3, 5)), tolerance=0.08)
    yield Case(LARGE, (32, 4, draw.wholes(0, 10, draw.whole(33, 40), 5)), tolerance=0.08)


put_latents.mistake(
    "only the first block has latent attention", "for block in model.decoder.blocks:", "for block in model.decoder.blocks[:1]:"
)  # fmt: skip
put_latents.mistake("the weights are not initialized with `initialise`", "    initialise(model, config.d_model, writes=2 * config.layers)\n", "")  # fmt: skip
put_latents.mistake("all blocks share one attention; give each its own",
                    "    for block in model.decoder.blocks:\n        block.attention = LatentAttention(config.d_model, config.heads, rank, d_rope)",
                    "    one = LatentAttention(config.d_model, config.heads, rank, d_rope)\n    for block in model.decoder.blocks:\n        block.attention = one")  # fmt: skip
put_latents.variant(
    """
    def put_latents(model, rank, d_rope):
        sizes = model.config
        for at in range(sizes.layers):
            model.decoder.blocks[at].attention = LatentAttention(sizes.d_model, sizes.heads, rank=rank, d_rope=d_rope)
        initialise(model, sizes.d_model, 2 * sizes.layers)
        return model
    """
)


@part(12, points=1, excused=USUAL)
def bytes_kept(code, heads, kv_heads, layers, tokens, rank, d_rope, size):
    """The formula gives the size of the caches of all layers, in bytes."""
    config = code["model"].Config(11, heads * 6, layers, heads, kv_heads, 5)
    return code.bytes_kept(config, tokens, rank, d_rope, size)


@bytes_kept.cases
def _(draw):
    yield Case("one layer, one token: 2 keys and values of 6 elements, 4 bytes each", (4, 2, 1, 1, None, 0, 4))
    yield Case("one layer, one token: a latent of 8 elements and a key of 2", (4, 2, 1, 1, 8, 2, 4))
    heads, layers, tokens = 6, draw.whole(2, 5), draw.whole(50, 90)
    yield Case("keys and values of a text", (heads, 3, layers, tokens, None, 0, 2))
    yield Case("latents of a text", (heads, 3, layers, tokens, draw.whole(7, 30), 4, 2))
    yield Case("every head has its own keys", (heads, heads, layers, tokens, None, 0, 4))


bytes_kept.mistake("only keys are counted: count the values, too", "2 * config.kv_heads *", "config.kv_heads *")
bytes_kept.mistake("every query head is counted; kv_heads keys are cached", "2 * config.kv_heads", "2 * config.heads")
bytes_kept.mistake("the rotated key is not counted", "else rank + d_rope", "else rank")
bytes_kept.mistake(
    "you count a latent for each head; all heads share one", "else rank + d_rope", "else config.heads * (rank + d_rope)"
)
bytes_kept.mistake(
    "the latent is counted twice, as if for keys and for values", "else rank + d_rope", "else 2 * rank + d_rope"
)
bytes_kept.mistake("only one layer is counted", "return config.layers * tokens", "return tokens")
bytes_kept.mistake("you count elements; count bytes", "* numbers * size", "* numbers")
bytes_kept.variant(
    """
    def bytes_kept(config, tokens, rank=None, d_rope=0, size=4):
        d_head = config.d_model // config.heads
        one = [config.kv_heads * d_head] * 2 if rank is None else [rank, d_rope]
        return sum(one) * size * config.layers * tokens
    """
)
