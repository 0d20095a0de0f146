"""Stage 5, the model: the stack of blocks, a decoder with a tied head, caches, initial weights, and `count`."""

import torch

import companion
from companion.config.model import AttentionConfig, FeedForwardConfig, ModelConfig
from companion_school.build.isolated_modules import PlainCache, default_dtype, run_with
from companion_school.build.parts import part
from companion_school.build.simulated_device import on_simulated_device
from companion_school.checking.derived_cases import LARGE
from companion_school.checking.exercise import Case

_EXCUSED = {
    name: "a whole model: its own cases cover every size, and with weights in the thousands no digit is right"
    for name in ("one", "levels", "offset", "nan", "tie", "edge", "scale")
}
_SIZES = {"vocab": 19, "d_model": 16, "layers": 3, "heads": 4, "kv_heads": 2, "d_ff": 20, "base": 500.0}


def _weights(sizes, seed, dtype=torch.float64):
    """Return random weights under the companion's names, large enough for each of them to affect the logits."""
    config = ModelConfig(
        vocab=sizes["vocab"],
        d_model=sizes["d_model"],
        layers=sizes["layers"],
        context=64,
        attention=AttentionConfig(sizes["heads"], sizes["kv_heads"]),
        feed_forward=FeedForwardConfig(sizes["d_ff"]),
    )
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, weight in companion.Transformer(config).state_dict().items():
        drawn = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        made[name] = (drawn / weight.shape[-1] ** 0.5 if weight.dim() > 1 else 1 + drawn / 4).to(dtype)
    return made


@part(5, points=2, excused=_EXCUSED)
def Stack(code, sizes, x, weights, factors):
    """The stack applies its blocks one after the other, then a final norm."""
    config = code.Config(**sizes)

    class Other(torch.nn.Module):
        def __init__(self, d_model, heads, kv_heads, d_ff):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(float(d_model + heads + kv_heads + d_ff)))

        def forward(self, x, cache=None, more=None):
            return (x * self.scale + (0 if cache is None else cache)).tanh() + (0 if more is None else more)

    mine = {f"blocks.{number}.scale": factor for number, factor in enumerate(factors)}
    mine["norm.weight"] = weights["norm.weight"]
    other = [lambda: code.Stack(config, Other), mine, x]
    caches = [number + 0.5 for number in range(len(factors))]
    return {
        "with your blocks": run_with(lambda: code.Stack(config), weights, x),
        "with other blocks": run_with(*other),
        "with other blocks and caches": run_with(*other, caches=caches, more=x[:1] / 2),
    }


@Stack.cases
def _(draw):
    for layers, shows in ((1, "one block and the norm after it"), (3, "blocks in order, each with its cache")):
        sizes = _SIZES | {"layers": layers}
        weights = _weights(sizes, draw.whole(1, 99))
        inside = {name.removeprefix("decoder."): value for name, value in weights.items() if "decoder" in name}
        factors = list(draw.normal(layers))
        yield Case(shows, (sizes, draw.normal(2, 5, 16), inside, factors), gradients=True)
    yield Case(LARGE, (sizes, draw.normal(1, draw.whole(33, 40), 16), inside, factors))


_CALL = "x = block(x, cache=caches[number] if caches else None, **inputs)"
Stack.mistake("the norm after the last block is missing", "        return self.norm(x)", "        return x")
Stack.mistake("the norm comes after every block; apply it once, after the last", _CALL,
              "x = self.norm(block(x, cache=caches[number] if caches else None, **inputs))")  # fmt: skip
Stack.mistake("the norm comes before every block; apply it once, after the last", _CALL, f"x = self.norm(x)\n            {_CALL}",
              "        return self.norm(x)", "        return x")  # fmt: skip
Stack.mistake("every block reads the stack's input; it must read what the block before it returned", "for number, block in enumerate(self.blocks):\n            x = block(x,",
              "y = x\n        for number, block in enumerate(self.blocks):\n            x = block(y,")  # fmt: skip
Stack.mistake("all blocks share the first one's cache", "cache=caches[number]", "cache=caches[0]")
Stack.mistake("the blocks get no cache", "cache=caches[number] if caches else None, ", "")
Stack.mistake(
    "the blocks do not get the other inputs, such as the mask and `turn`", " else None, **inputs)", " else None)"
)
Stack.mistake(
    "the blocks are in a plain list, where PyTorch does not find their weights: use an nn.ModuleList",
    "nn.ModuleList(block(*sizes) for _ in range(config.layers))",
    "[block(*sizes) for _ in range(config.layers)]",
)
Stack.mistake(
    "the list contains one block several times: create a new one for each layer",
    "nn.ModuleList(block(*sizes) for _ in range(config.layers))", "nn.ModuleList([block(*sizes)] * config.layers)",
)  # fmt: skip
Stack.mistake("the blocks have as many key heads as query heads; give them `kv_heads`",
              "config.heads, config.kv_heads, config.d_ff", "config.heads, config.heads, config.d_ff")  # fmt: skip
Stack.mistake("what the blocks return is not used: each reads what the one before it returned", _CALL,
              _CALL.replace("x = ", "y = "))  # fmt: skip
Stack.mistake("the blocks run in reverse order", "enumerate(self.blocks)", "reversed(list(enumerate(self.blocks)))")
Stack.mistake(
    "the argument `block`, the class of the blocks, is not used",
    "nn.ModuleList(block(*sizes)",
    "nn.ModuleList(Block(*sizes)",
)
Stack.variant(
    """
    class Stack(nn.Module):
        def __init__(self, config, block=Block):
            super().__init__()
            self.norm = RMSNorm(config.d_model)
            self.blocks = nn.ModuleList()
            for _ in range(config.layers):
                self.blocks.append(block(config.d_model, config.heads, config.kv_heads, config.d_ff))

        def forward(self, x, caches=None, **inputs):
            for block, cache in zip(self.blocks, caches or [None] * len(self.blocks)):
                x = block.forward(x, cache=cache, **inputs)
            return self.norm(x)
    """
)


@part(5, points=4, excused=_EXCUSED)
def Transformer(code, sizes, weights, ids):
    """With the companion's weights, the decoder computes the companion's logits and gradients."""
    leaves = {name: weight.detach().clone().requires_grad_() for name, weight in weights.items()}
    logits = run_with(lambda: code.Transformer(code.Config(**sizes)), leaves, ids)
    upstream = torch.linspace(-1, 2, logits.numel(), dtype=logits.dtype).cos().view_as(logits)
    found = torch.autograd.grad((logits * upstream).sum(), list(leaves.values()), allow_unused=True)
    return {"logits": logits, "gradients": dict(zip(leaves, found, strict=True))}


@Transformer.cases
def _(draw):
    small = {"vocab": 5, "d_model": 4, "layers": 1, "heads": 1, "kv_heads": 1, "d_ff": 6, "base": 10000.0}
    yield Case("one token and one block", (small, _weights(small, draw.whole(1, 99)), torch.tensor([[3]])))
    yield Case("a text of two tokens", (small, _weights(small, draw.whole(1, 99)), torch.tensor([[3, 1]])))
    weights, ids = _weights(_SIZES, draw.whole(1, 99)), draw.wholes(0, 18, 2, 7)
    yield Case("several texts, several blocks, grouped keys", (_SIZES, weights, ids))
    dense = _SIZES | {"kv_heads": 4}
    yield Case("as many keys as queries", (dense, _weights(dense, draw.whole(1, 99)), ids))
    single = {name: weight.float() for name, weight in weights.items()}
    yield Case("float32 stays float32", (_SIZES, single, ids), tolerance=1e-4)
    yield Case(LARGE, (small, _weights(small, draw.whole(1, 99)), draw.wholes(0, 4, 1, draw.whole(33, 40))))


_MASK = "mask=causal(new, seen + new).to(ids.device)"
Transformer.mistake(
    "each token sees later ones: the mask is missing", f"caches, {_MASK}, turn=turn", "caches, turn=turn"
)
Transformer.mistake("the mask is inverted: True means that a query may look", _MASK, _MASK.replace("causal", "~causal"))
Transformer.mistake("queries and keys are not rotated: `turn` is not passed on", f"{_MASK}, turn=turn)", f"{_MASK})")
Transformer.mistake("the configuration's base does not reach the rotary positions", ", base=self.config.base)", ")")
Transformer.mistake("the embedding is multiplied by the square root of d_model; do not scale it", "self.decoder(self.embedding(ids)",
                    "self.decoder(self.embedding(ids) * self.config.d_model**0.5")  # fmt: skip
Transformer.mistake("the logits are divided by the square root of d_model; do not scale them", "return x @ self.embedding.weight.T",
                    "return x @ self.embedding.weight.T / self.config.d_model**0.5")  # fmt: skip
Transformer.mistake("these are probabilities; return logits, because the loss applies the softmax", "return x @ self.embedding.weight.T",
                    "return (x @ self.embedding.weight.T).softmax(-1)")  # fmt: skip
Transformer.mistake("the head's gradient does not reach the embedding: both are the same matrix, which is trained at both ends",
                    "self.embedding.weight.T", "self.embedding.weight.detach().T")  # fmt: skip
Transformer.mistake("the head has its own weights; use the embedding", "self.config, self.embedding, self.decoder = config, nn.Embedding(config.vocab, config.d_model), Stack(config)",
                    "self.config, self.embedding, self.decoder = config, nn.Embedding(config.vocab, config.d_model), Stack(config)\n"
                    "        self.head = nn.Linear(config.d_model, config.vocab, bias=False)",
                    "return x @ self.embedding.weight.T", "return self.head(x)")  # fmt: skip
Transformer.mistake("the head is a copy of the embedding, which is trained by itself: multiply by `self.embedding.weight`",
                    "self.config, self.embedding, self.decoder = config, nn.Embedding(config.vocab, config.d_model), Stack(config)",
                    "self.config, self.embedding, self.decoder = config, nn.Embedding(config.vocab, config.d_model), Stack(config)\n"
                    "        self.head = nn.Parameter(self.embedding.weight.detach().clone())",
                    "return x @ self.embedding.weight.T", "return x @ self.head.T")  # fmt: skip
Transformer.mistake("only the last token gets logits, and its axis is gone; return (batch, token, vocab)",
                    "return x @ self.embedding.weight.T", "return x[:, -1] @ self.embedding.weight.T")  # fmt: skip
Transformer.mistake("only the last token gets logits; all tokens need them for training", "return x @ self.embedding.weight.T",
                    "return x[:, -1:] @ self.embedding.weight.T")  # fmt: skip
Transformer.variant(
    """
    class Transformer(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.config = config
            self.embedding = nn.Embedding(config.vocab, config.d_model)
            self.decoder = Stack(config)
            self.head = nn.Linear(config.d_model, config.vocab, bias=False)
            self.head.weight = self.embedding.weight
            initialise(self, config.d_model, 2 * config.layers)

        def forward(self, ids, caches=None):
            seen = 0 if not caches else len(caches[0])
            places = torch.arange(ids.shape[1]) + seen + 1  # only distances count
            look = causal(ids.shape[1], seen + ids.shape[1])
            x = self.embedding(ids)
            return self.head(self.decoder(x, caches, mask=look, turn=lambda y: rotate(y, places, self.config.base)))
    """
)
Transformer.variant(
    """
    class Transformer(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.decoder, self.config = Stack(config), config
            self.embedding = nn.Embedding(config.vocab, config.d_model)
            initialise(self, config.d_model, writes=config.layers * 2)

        def forward(self, ids, caches=None):
            before = len(caches[0]) if caches else 0
            places = torch.arange(before, before + ids.shape[1])

            def turn(y):
                return rotate(y, places=places, base=self.config.base)

            mask = torch.arange(before + ids.shape[1])[None] <= places[:, None]
            x = self.decoder(nn.functional.embedding(ids, self.embedding.weight), caches, turn=turn, mask=mask)
            return torch.einsum("btd,vd->btv", x, self.embedding.weight)
    """
)


@part(5, points=2, excused=_EXCUSED)
def Transformer_goes_on(code, sizes, weights, ids, cut):
    """With caches, a text can be read in pieces, and the logits are those of the whole text."""

    made = code.Transformer
    pieces, caches = [], [PlainCache() for _ in range(sizes["layers"])]
    for piece in (ids[:, :cut], ids[:, cut:-1], ids[:, -1:]):
        pieces.append(run_with(lambda: made(code.Config(**sizes)), weights, piece, caches))
    return {"the logits": torch.cat(pieces, dim=1), "the lengths of the caches": [len(cache) for cache in caches]}


@Transformer_goes_on.cases
def _(draw):
    weights, ids = _weights(_SIZES, draw.whole(1, 99)), draw.wholes(0, 18, 2, 8)
    yield Case("a text in three pieces", (_SIZES, weights, ids, draw.whole(2, 5)))
    yield Case(LARGE, (_SIZES, weights, draw.wholes(0, 18, 1, draw.whole(36, 42)), 34))


Transformer_goes_on.mistake("the positions after the cache restart at 0: continue at len(caches[0])", "torch.arange(seen, seen + new",
                            "torch.arange(0, new")  # fmt: skip
Transformer_goes_on.mistake(
    "the mask does not fit the scores: rows are the new tokens and columns all tokens, cached ones included, causal(new, seen + new)",
    "causal(new, seen + new)",
    "causal(new, new)",
)
Transformer_goes_on.mistake(
    "the caches do not reach the blocks",
    "self.decoder(self.embedding(ids), caches, mask",
    "self.decoder(self.embedding(ids), None, mask",
)
Transformer_goes_on.mistake("the new tokens see each other's future: use the causal mask of the last queries over all keys",
                            "causal(new, seen + new)", "torch.ones(new, seen + new, dtype=torch.bool)")  # fmt: skip
Transformer_goes_on.mistake(
    "the mask has a row for each cached token, too; only the new tokens are queries: causal(new, seen + new)",
    "causal(new, seen + new)", "causal(seen + new, seen + new)",
)  # fmt: skip
Transformer_goes_on.mistake(
    "the number of new tokens is read from the axis of the texts: ids are (batch, token)",
    "ids.shape[1]",
    "ids.shape[0]",
)
Transformer_goes_on.mistake(
    "the positions after the cache are one too large",
    "torch.arange(seen, seen + new",
    "torch.arange(seen + bool(seen), seen + new + bool(seen)",
)


@part(5, points=1, excused=_EXCUSED | {"other": "a few numbers have no fixed standard deviation"})
def Transformer_begins(code, sizes, seed):
    """A new decoder draws its weights with `initialise` and stores its configuration."""
    config = code.Config(**sizes)
    with default_dtype(torch.float64):
        torch.manual_seed(seed)
        model = code.Transformer(config)
    matrices = ("attention.query", "attention.key", "attention.value", "attention.output", "feed_forward.gate",
                "feed_forward.inner", "feed_forward.outer")  # fmt: skip
    names = [f"decoder.blocks.{block}.{matrix}.weight" for block in range(config.layers) for matrix in matrices]
    weights = dict(model.named_parameters())
    if lost := [name for name in ("embedding.weight", *names) if name not in weights]:
        raise TypeError(
            f"Transformer: the model has no weight {lost[0]}" + f", and {len(lost) - 1} more" * (len(lost) > 1)
        )
    spread = {name: 100 * weights[name].std().item() for name in ("embedding.weight", *names)}
    return spread | {"`config` is the configuration it was built with": getattr(model, "config", None) == config}


@Transformer_begins.cases
def _(draw):
    sizes = {"vocab": 300, "d_model": 64, "layers": 3, "heads": 4, "kv_heads": 2, "d_ff": 96, "base": 10000.0}
    yield Case("a hundred times the standard deviations, to a tenth", (sizes, draw.whole(1, 99)), tolerance=0.07)


_INIT = "initialise(self, config.d_model, writes=2 * config.layers)"
Transformer_begins.mistake(
    "the model does not store its configuration, which `save` from stage 6 writes: `self.config = config`",
    "self.config, self.embedding, self.decoder = config, nn.Embedding",
    "self.base, self.embedding, self.decoder = config.base, nn.Embedding",
    "base=self.config.base", "base=self.base",
)  # fmt: skip
Transformer_begins.mistake("the weights are PyTorch's: call `initialise`", _INIT, "pass")
Transformer_begins.mistake(
    "`initialise` is called before the stack is created, so its weights are PyTorch's: call it last", _INIT, "pass",
    "self.config, self.embedding, self.decoder = config, nn.Embedding(config.vocab, config.d_model), Stack(config)",
    f"self.config, self.embedding = config, nn.Embedding(config.vocab, config.d_model)\n        {_INIT}\n"
    "        self.decoder = Stack(config)",
)  # fmt: skip
Transformer_begins.mistake(
    "each block writes to the stream twice: there are 2 * layers writes", _INIT, _INIT.replace("2 * ", "")
)
Transformer_begins.mistake(
    "`initialise` gets the size of the vocabulary; pass d_model",
    _INIT,
    _INIT.replace("config.d_model", "config.vocab"),
)
Transformer_begins.mistake(
    "`initialise` gets the width of the network; pass d_model",
    _INIT,
    _INIT.replace("config.d_model", "config.d_ff"),
)


@part(5, points=1, excused=_EXCUSED | {"dtype": "one dtype", "layout": "of ids", "memory": "likewise"})
def Transformer_on_a_GPU(code, sizes, ids, seed):
    """The model gives the same logits on another device, such as a GPU, with and without caches."""

    def logits(device):
        torch.manual_seed(seed)
        model = code.Transformer(code.Config(**sizes)).to(device)
        caches = [PlainCache() for _ in range(sizes["layers"])]
        pieces = [model(ids.to(device)), model(ids[:, :2].to(device), caches), model(ids[:, 2:].to(device), caches)]
        return [piece.detach().cpu() for piece in pieces]

    return on_simulated_device(logits)


@Transformer_on_a_GPU.cases
def _(draw):
    yield Case("a text on a GPU", (_SIZES, draw.wholes(0, 18, 2, 5), draw.whole(1, 99)), tolerance=1e-4)
    yield Case(LARGE, (_SIZES, draw.wholes(0, 18, 2, draw.whole(33, 60)), draw.whole(1, 99)), tolerance=1e-4)


Transformer_on_a_GPU.mistake(
    "the mask is on the CPU: move it to the device of the ids, `causal(...).to(ids.device)`",
    "causal(new, seen + new).to(ids.device)",
    "causal(new, seen + new)",
)
Transformer_on_a_GPU.mistake(
    "the positions are created on the CPU: create them where the ids are, `torch.arange(..., device=ids.device)`",
    ", device=ids.device)",
    ")",
)
Transformer_on_a_GPU.variant(
    """
    class Transformer(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.config = config
            self.embedding = nn.Embedding(config.vocab, config.d_model)
            self.decoder = Stack(config)
            initialise(self, config.d_model, 2 * config.layers)

        def forward(self, ids, caches=None):
            before, device = len(caches[0]) if caches else 0, self.embedding.weight.device
            places = torch.arange(before, before + ids.shape[1]).to(device)
            mask = torch.arange(before + ids.shape[1], device=device)[None] <= places[:, None]
            turn = partial(rotate, places=places, base=self.config.base)
            return self.decoder(self.embedding(ids), caches, turn=turn, mask=mask) @ self.embedding.weight.T
    """
)


@part(5, points=3, excused=_EXCUSED)
def count(code, sizes):
    """The formula gives the number of parameters of the model."""
    config = code.Config(**sizes)
    if sizes["vocab"] > 1000:  # too large to build here
        return {"your count": code.count(config)}
    built = sum(weight.numel() for weight in code.Transformer(config).parameters())
    return {"your count": code.count(config), "the parameters of your Transformer": built}


@count.cases
def _(draw):
    tiny = {"vocab": 7, "d_model": 4, "layers": 1, "heads": 1, "kv_heads": 1, "d_ff": 5, "base": 10000.0}
    yield Case("one block", (tiny,))
    yield Case("several blocks, grouped keys", (_SIZES,))
    kv_heads = draw.whole(1, 3)
    heads = kv_heads * draw.whole(1, 3)
    drawn = {"vocab": draw.whole(5, 60), "d_model": 2 * heads * draw.whole(1, 5), "layers": draw.whole(1, 4)}
    drawn |= {"heads": heads, "kv_heads": kv_heads, "d_ff": draw.whole(5, 40), "base": 10000.0}
    yield Case("several blocks, grouped keys", (drawn,))
    yield Case(
        "a model of 1.1 billion",
        ({"vocab": 32000, "d_model": 2048, "layers": 22, "heads": 32, "kv_heads": 4, "d_ff": 5632, "base": 1e4},),
    )


count.mistake("the norm after the last block is missing", "config.layers * block + d_model", "config.layers * block")
count.mistake("only one norm per block is counted: there are two", "+ 2 * d_model\n", "+ d_model\n")
count.mistake(
    "the head is counted, but it is the embedding",
    "return config.vocab * d_model +",
    "return 2 * config.vocab * d_model +",
)
count.mistake("the embedding is missing", "return config.vocab * d_model + ", "return ")
count.mistake("a head is d_model / heads wide; you divide by kv_heads", "config.d_model // config.heads",
              "config.d_model // config.kv_heads")  # fmt: skip
count.mistake(
    "you count as many keys and values as queries; there are kv_heads of them",
    "(config.heads + config.kv_heads)",
    "(2 * config.heads)",
)
count.mistake(
    "only two matrices per network are counted: a gated one has three",
    "3 * d_model * config.d_ff",
    "2 * d_model * config.d_ff",
)
count.mistake(
    "queries and output, keys and values: four matrices, two of each kind", "2 * d_model * d_head", "d_model * d_head"
)
count.variant(
    """
    def count(config):
        width = config.d_model // config.heads
        shapes = [(config.vocab, config.d_model), (1, config.d_model)]
        for _ in range(config.layers):
            shapes += [(config.heads * width, config.d_model)] * 2 + [(config.kv_heads * width, config.d_model)] * 2
            shapes += [(config.d_ff, config.d_model)] * 3 + [(1, config.d_model)] * 2
        return sum(rows * columns for rows, columns in shapes)
    """
)
