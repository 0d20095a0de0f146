"""Stage 4, the block: the norm, the gated feed-forward network, the block itself, and the initial weights."""

import torch

from companion_school.build.isolated_modules import default_dtype, run_with
from companion_school.build.parts import part
from companion_school.checking.exercise import Case

_STRICT = {
    "levels": "products of thousands leave no right digit after the decimal point",
    "offset": "products of tens of thousands leave no right digit after the decimal point",
}


@part(4, points=2)
def RMSNorm(code, x, weight, eps):
    """The norm divides x by its root mean square and multiplies the result by a gain."""
    return run_with(lambda: code.RMSNorm(x.shape[-1], eps), {"weight": weight}, x)


@RMSNorm.cases
def _(draw):
    tokens, d_model = draw.sizes(2, 3, 7)
    ones = torch.ones(2, dtype=torch.float64)
    yield Case("the mean of the squares becomes 1", (torch.tensor([[3.0, 4.0]], dtype=torch.float64), ones, 0.0))
    x, weight = draw.normal(2, tokens, d_model), draw.normal(d_model)
    yield Case("each component has its own gain", (x, weight, 1e-6), gradients=True)
    yield Case("eps is added under the square root", (x / 100, weight, 0.01), gradients=True)
    yield Case("the mean is not subtracted, unlike in LayerNorm", (x + 3, weight, 1e-5))
    yield Case("zeros give zeros", (torch.zeros(1, 2, d_model, dtype=torch.float64), weight, 1e-6))
    yield Case("float32 stays float32", (x.float(), weight.float(), 1e-6), gradients=True)


_NORM = "x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight"
RMSNorm.mistake("the mean is subtracted first; that is LayerNorm", "return x * (x.square()",
                "x = x - x.mean(-1, keepdim=True)\n        return x * (x.square()")  # fmt: skip
RMSNorm.mistake("you divide by the mean of the squares, not by its square root", ".rsqrt()", ".reciprocal()")
RMSNorm.mistake("you multiply by the square root; divide by it", ".rsqrt()", ".sqrt()")
RMSNorm.mistake("you take the sum of the squares; take their mean", "x.square().mean(", "x.square().sum(")
RMSNorm.mistake("eps is added to the square root; add it under the root", _NORM,
                "x / ((x.square().mean(-1, keepdim=True)).sqrt() + self.eps) * self.weight")  # fmt: skip
RMSNorm.mistake("eps is not used", " + self.eps).rsqrt()", ").rsqrt()")
RMSNorm.mistake("the gain is not used", ".rsqrt() * self.weight", ".rsqrt()")
RMSNorm.mistake("the gain is added; multiply by it", ".rsqrt() * self.weight", ".rsqrt() + self.weight")
RMSNorm.mistake(
    "the mean runs over all tokens; each token has its own", ".mean(-1, keepdim=True)", ".mean((-2, -1), keepdim=True)"
)
RMSNorm.mistake("the mean runs over the whole tensor, texts and tokens included: take it over the last axis, with keepdim=True",
                ".mean(-1, keepdim=True)", ".mean()")  # fmt: skip
RMSNorm.mistake("the mean runs over the tokens; take it over a token's components, the last axis",
                ".mean(-1, keepdim=True)", ".mean(-2, keepdim=True)")  # fmt: skip
RMSNorm.mistake("the scale is detached: it is part of the function, and gradients flow through it",
                "+ self.eps).rsqrt()", "+ self.eps).rsqrt().detach()")  # fmt: skip
RMSNorm.mistake("`std` subtracts the mean and divides by n - 1; take the square root of the mean of the squares",
                "return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt()",
                "return x / (x.std(-1, keepdim=True) + self.eps)")  # fmt: skip
RMSNorm.mistake("`mean(-1)` drops the axis, so the means broadcast to the wrong entries: use keepdim=True",
                "mean(-1, keepdim=True)", "mean(-1)")  # fmt: skip
RMSNorm.variant(
    """
    class RMSNorm(nn.Module):
        def __init__(self, d_model, eps=1e-6):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(d_model))
            self.small = eps

        def forward(self, x):
            mean = (x * x).sum(dim=-1, keepdim=True) / x.shape[-1]
            return self.weight * (x / torch.sqrt(mean + self.small))
    """
)
RMSNorm.variant(
    """
    class RMSNorm(nn.Module):
        def __init__(self, d_model, eps=1e-6):
            super().__init__()
            self.weight, self.eps = nn.Parameter(torch.ones(d_model)), eps

        def forward(self, x):
            return torch.einsum("...d,d->...d", x, self.weight) * (x.pow(2).mean(-1) + self.eps)[..., None].pow(-0.5)
    """
)


@part(4, points=2, excused=_STRICT)
def FeedForward(code, x, gate, inner, outer):
    """The gated network computes outer(silu(gate(x)) * inner(x))."""
    weights = {"gate.weight": gate, "inner.weight": inner, "outer.weight": outer}
    return run_with(lambda: code.FeedForward(x.shape[-1], gate.shape[0]), weights, x)


@FeedForward.cases
def _(draw):
    batch, tokens, d_model, d_ff = draw.sizes(4, 2, 8)
    weights = [draw.normal(d_ff, d_model), draw.normal(d_ff, d_model), draw.normal(d_model, d_ff)]
    yield Case("one token", (draw.normal(1, 1, 2), draw.normal(3, 2), draw.normal(3, 2), draw.normal(2, 3)))
    x = draw.normal(batch, tokens, d_model)
    yield Case("each token by itself", (x, *weights), gradients=True)
    yield Case("float32 stays float32", (x.float(), *(weight.float() for weight in weights)), gradients=True)


_FORWARD = "self.outer(F.silu(self.gate(x)) * self.inner(x))"
FeedForward.mistake("the gate and the inner layer are swapped: apply silu to the gate", _FORWARD,
                    "self.outer(F.silu(self.inner(x)) * self.gate(x))")  # fmt: skip
FeedForward.mistake(
    "the activation is a sigmoid; silu(x) is x * sigmoid(x)", "F.silu(self.gate(x))", "self.gate(x).sigmoid()"
)
FeedForward.mistake("the activation is ReLU; use SiLU", "F.silu(self.gate(x))", "F.relu(self.gate(x))")
FeedForward.mistake("the activation is GELU; use SiLU", "F.silu(self.gate(x))", "F.gelu(self.gate(x))")
FeedForward.mistake("the activation is missing", "F.silu(self.gate(x))", "self.gate(x)")
FeedForward.mistake("gate and inner are added; multiply them", "F.silu(self.gate(x)) * self.inner(x)",
                    "F.silu(self.gate(x)) + self.inner(x)")  # fmt: skip
FeedForward.mistake("silu is applied to the product; apply it only to the gate", "F.silu(self.gate(x)) * self.inner(x)",
                    "F.silu(self.gate(x) * self.inner(x))")  # fmt: skip
FeedForward.mistake("the inner layer is not used", " * self.inner(x))", ")")
FeedForward.mistake("x is added; the block does that", "return self.outer(F.silu", "return x + self.outer(F.silu")
FeedForward.mistake(
    "the layers have a bias",
    "self.outer = nn.Linear(d_ff, d_model, bias=False)",
    "self.outer = nn.Linear(d_ff, d_model)",
)
FeedForward.mistake("the gate is not used: silu(gate(x)) multiplies inner(x)", "F.silu(self.gate(x)) * self.inner(x)",
                    "F.silu(self.inner(x))")  # fmt: skip
FeedForward.variant(
    """
    class FeedForward(nn.Module):
        def __init__(self, d_model, d_ff):
            super().__init__()
            self.gate = nn.Linear(d_model, d_ff, bias=False)
            self.inner = nn.Linear(d_model, d_ff, bias=False)
            self.outer = nn.Linear(d_ff, d_model, bias=False)

        def forward(self, x):
            opened = self.gate(x)
            return (opened * torch.sigmoid(opened) * self.inner(x)) @ self.outer.weight.mT
    """
)


@part(4, points=4, excused=_STRICT)
def Block(code, x, mask, norm, query, key, value, output, second, gate, inner, outer, heads):
    """The block has two sub-layers, each with a norm before it and a sum after it."""
    kv_heads = key.shape[0] * heads // query.shape[0]
    weights = {
        "attention_norm.weight": norm, "attention.query.weight": query, "attention.key.weight": key,
        "attention.value.weight": value, "attention.output.weight": output, "feed_forward_norm.weight": second,
        "feed_forward.gate.weight": gate, "feed_forward.inner.weight": inner, "feed_forward.outer.weight": outer,
    }  # fmt: skip

    class Cache:
        def extend(self, k, v):
            return k.flip(2), v

    def turn(y):
        return y * torch.arange(1, y.shape[2] + 1, dtype=y.dtype)[:, None]

    block = [lambda: code.Block(x.shape[-1], heads, kv_heads, gate.shape[0]), weights, x]
    return {
        "with the mask": run_with(*block, mask=mask),
        "with the mask and `turn`": run_with(*block, mask=mask, turn=turn),
        "with a cache": run_with(*block, cache=Cache()),
    }


@Block.cases
def _(draw):
    batch, tokens = draw.sizes(2, 3, 6)
    sizes = (8,), (8, 8), (4, 8), (4, 8), (8, 8), (8,), (11, 8), (11, 8), (8, 11)
    weights = [draw.normal(*size) / 2 for size in sizes]
    x, look = draw.normal(batch, tokens, 8), torch.ones(tokens, tokens, dtype=torch.bool).tril()
    yield Case("one token", (draw.normal(1, 1, 8), None, *weights, 4))
    yield Case("several tokens under a mask, with rotation and a cache", (x, look, *weights, 4), gradients=True)


_FIRST = "x = x + self.attention(self.attention_norm(x), mask=mask, turn=turn, cache=cache)"
_SECOND = "return x + self.feed_forward(self.feed_forward_norm(x))"
Block.mistake("the norm comes after the sum, as in 2017; put it before the sub-layer",
              _FIRST, "x = self.attention_norm(x + self.attention(x, mask=mask, turn=turn, cache=cache))",
              _SECOND, "return self.feed_forward_norm(x + self.feed_forward(x))")  # fmt: skip
Block.mistake("the normed x is added instead of x: the stream itself must not be normed", _FIRST,
              "x = self.attention_norm(x)\n        x = x + self.attention(x, mask=mask, turn=turn, cache=cache)")  # fmt: skip
Block.mistake(
    "the first residual connection is missing: the output of attention replaces x",
    _FIRST,
    _FIRST.replace("x = x + ", "x = "),
)
Block.mistake(
    "the second residual connection is missing: the output of the network replaces x",
    _SECOND,
    _SECOND.replace("x + ", ""),
)
Block.mistake("attention reads x without its norm", "self.attention(self.attention_norm(x)", "self.attention(x")
Block.mistake(
    "the network reads x without its norm", "self.feed_forward(self.feed_forward_norm(x))", "self.feed_forward(x)"
)
Block.mistake("the norms are swapped", "self.attention(self.attention_norm(x)", "self.attention(self.feed_forward_norm(x)",
              "self.feed_forward(self.feed_forward_norm(x))", "self.feed_forward(self.attention_norm(x))")  # fmt: skip
Block.mistake("the network reads the block's input: it must read the stream after attention", _FIRST,
              "y = x\n        " + _FIRST, _SECOND, "return x + self.feed_forward(self.feed_forward_norm(y))")  # fmt: skip
Block.mistake("the network's norm comes after it; put it before, so that the stream is not normed", _SECOND,
              "return x + self.feed_forward_norm(self.feed_forward(x))")  # fmt: skip
Block.mistake("the network reads attention's norm; it has its own, `feed_forward_norm`",
              "self.feed_forward(self.feed_forward_norm(x))", "self.feed_forward(self.attention_norm(x))")  # fmt: skip
Block.mistake("`mask`, `turn` and `cache` are passed by position, but attention's second argument is the source: pass them by "
              "name, `mask=mask, turn=turn, cache=cache`", _FIRST,
              _FIRST.replace("mask=mask, turn=turn, cache=cache", "mask, turn, cache"))  # fmt: skip
Block.mistake("the mask is passed as attention's second argument, which is the source: write `mask=mask`", _FIRST,
              _FIRST.replace("mask=mask", "mask"))  # fmt: skip
Block.mistake("the mask is not passed on", "mask=mask, turn=turn, cache=cache)\n        return x + self.feed_forward(",
              "turn=turn, cache=cache)\n        return x + self.feed_forward(")  # fmt: skip
Block.mistake("`turn` is not passed on", "mask=mask, turn=turn, cache=cache)\n        return x + self.feed_forward(",
              "mask=mask, cache=cache)\n        return x + self.feed_forward(")  # fmt: skip
Block.mistake("the cache is not passed on", "mask=mask, turn=turn, cache=cache)\n        return x + self.feed_forward(",
              "mask=mask, turn=turn)\n        return x + self.feed_forward(")  # fmt: skip
Block.variant(
    """
    class Block(nn.Module):
        def __init__(self, d_model, heads, kv_heads, d_ff):
            super().__init__()
            self.feed_forward = FeedForward(d_model, d_ff)
            self.attention = Attention(d_model, heads, kv_heads)
            self.feed_forward_norm = RMSNorm(d_model)
            self.attention_norm = RMSNorm(d_model)

        def forward(self, x, mask=None, turn=None, cache=None):
            found = self.attention.forward(self.attention_norm(x), None, mask, turn, cache)
            stream = found + x
            return self.feed_forward(self.feed_forward_norm(stream)) + stream
    """
)


@part(4, points=2)
def initialise(code, d_model, d_ff, writes, seed):
    """The initial weights of each matrix have the right variance."""
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(400, d_model)
            self.block = code.Block(d_model, 4, 2, d_ff)
            self.cube = nn.Parameter(torch.zeros(3, d_model, d_ff))

    with default_dtype(torch.float64):
        torch.manual_seed(seed)
        model = Model()
        gains = {name: weight.detach().clone() for name, weight in model.named_parameters() if "norm" in name}
        code.initialise(model, d_model, writes)
    named = dict(model.named_parameters())
    spread = {name: 100 * weight.std().item() for name, weight in named.items() if weight.ndim > 1}
    middle = {name: 100 * named[name].mean().item() / (std or 1.0) for name, std in spread.items()}
    ones = all(bool(gain.eq(1).all()) for gain in gains.values())
    kept = all(named[name].equal(gain) for name, gain in gains.items())
    return {
        "hundred times the standard deviations": spread,
        "means, in standard deviations": middle,
        "gains start at one": ones,
        "gains do not change": kept,
    }


@initialise.cases
def _(draw):
    shows = (
        "standard deviations within a tenth of those in the docstring, for what writes to the stream and for the rest"
    )
    yield Case(shows, (96, 128, 2, draw.whole(1, 99)), tolerance=0.06)
    yield Case(shows, (64, 160, 12, draw.whole(1, 99)), tolerance=0.06)


_DRAW = 'nn.init.normal_(weight, std=math.sqrt(variance / writes if "out" in name else variance))'
initialise.excused = dict.fromkeys(
    ("edge", "other", "one"), "the sizes depend on each other, and a few numbers have no fixed standard deviation"
)
initialise.mistake("the embedding is drawn like the other matrices; its variance must be 1 / d_model",
                   '1 / d_model if "embedding" in name else 2 / (5 * d_model)', "2 / (5 * d_model)")  # fmt: skip
initialise.mistake("all matrices are drawn like the embedding; their variance must be 2 / (5 d_model)",
                   '1 / d_model if "embedding" in name else 2 / (5 * d_model)', "1 / d_model")  # fmt: skip
initialise.mistake("matrices that write to the stream are as large as the rest; divide their variance by `writes`",
                   'variance / writes if "out" in name else variance', "variance")  # fmt: skip
initialise.mistake("the variance is used as the standard deviation: take its square root", "std=math.sqrt(", "std=(")
initialise.mistake("the standard deviation is divided by `writes`; divide the variance", _DRAW,
                   'nn.init.normal_(weight, std=math.sqrt(variance) / (writes if "out" in name else 1))')  # fmt: skip
initialise.mistake("gains are drawn, too; leave them at one", "if weight.ndim > 1:", "if True:")
initialise.mistake("the gains of your norms do not start at one", "torch.ones(d_model)", "torch.zeros(d_model)")
initialise.mistake("everything is divided by `writes`; divide only matrices that write to the stream",
                   'variance / writes if "out" in name else variance', "variance / writes")  # fmt: skip
_SMALL = 'variance / writes if "out" in name else variance'
_FIRST_VARIANCE = '1 / d_model if "embedding" in name else 2 / (5 * d_model)'
initialise.mistake("only `output` is drawn smaller; `outer` writes to the stream, too", '"out" in name',
                   '"output" in name')  # fmt: skip
initialise.mistake("only `outer` is drawn smaller; `output` writes to the stream, too", '"out" in name',
                   '"outer" in name')  # fmt: skip
initialise.mistake("the variance is divided by the square root of `writes`; divide it by `writes`", _SMALL,
                   'variance / math.sqrt(writes) if "out" in name else variance')  # fmt: skip
initialise.mistake("the variance is divided by 2 `writes`; `writes` already counts both writes of a block", _SMALL,
                   'variance / (2 * writes) if "out" in name else variance')  # fmt: skip
initialise.mistake("the numbers are uniform up to the standard deviation; draw them from a normal distribution", _DRAW,
                   f"bound = math.sqrt({_SMALL})\n            nn.init.uniform_(weight, -bound, bound)")  # fmt: skip
initialise.mistake("every standard deviation is 0.02, as in GPT-2; here it depends on d_model", _FIRST_VARIANCE,
                   "0.02**2")  # fmt: skip
initialise.mistake("the variance is Xavier's, from both sizes of a matrix; use 2 / (5 d_model) for all of them",
                   "2 / (5 * d_model)", "2 / sum(weight.shape[-2:])")  # fmt: skip
initialise.mistake("the variance is computed from each matrix's own number of inputs; use d_model for all, also for `outer`",
                   "2 / (5 * d_model)", "2 / (5 * weight.shape[-1])")  # fmt: skip
initialise.mistake("the variance is Kaiming's, 2 / inputs; use 1 / d_model for the embedding and 2 / (5 d_model) for the others",
                   _DRAW, "nn.init.kaiming_normal_(weight)")  # fmt: skip
initialise.mistake(
    "the variance is 5 / (2 d_model); it must be 2 / (5 d_model)", "2 / (5 * d_model)", "5 / (2 * d_model)"
)
initialise.mistake("`2 / 5 * d_model` multiplies by d_model; write 2 / (5 * d_model)", "2 / (5 * d_model)",
                   "2 / 5 * d_model")  # fmt: skip
initialise.mistake("no weight changes: `weight = ...` only names a new tensor; draw in place, as `nn.init.normal_` does",
                   _DRAW, f"weight = torch.randn_like(weight) * math.sqrt({_SMALL})")  # fmt: skip
initialise.mistake("only matrices are drawn; the experts' tables of stage 9 have three axes and must be drawn, too",
                   "if weight.ndim > 1:", "if weight.ndim == 2:")  # fmt: skip
initialise.variant(
    """
    def initialise(model, d_model, writes):
        for name, weight in model.named_parameters():
            if weight.dim() < 2:
                continue
            std = d_model**-0.5 if name.split(".")[0] == "embedding" else (0.4 / d_model) ** 0.5
            if any(part in ("output", "outer") for part in name.split(".")):
                std = std / writes**0.5
            with torch.no_grad():
                weight.copy_(torch.randn(weight.shape) * std)
    """
)
