"""Stage 13, gpt2: the components that GPT-2 has and LLaMA lacks, and loading a GPT-2 checkpoint folder."""

import torch

from companion_school.build.checks import USUAL
from companion_school.build.isolated_modules import PlainCache, checkpoint, default_dtype, run_with
from companion_school.build.parts import part
from companion_school.checking.derived_cases import LARGE
from companion_school.checking.exercise import Case


@part(13, points=1, excused=USUAL)
def LayerNorm(code, x, weight, bias, eps):
    """The norm subtracts the mean and adds a bias."""
    return run_with(lambda: code.LayerNorm(x.shape[-1], eps), {"weight": weight, "bias": bias}, x)


@LayerNorm.cases
def _(draw):
    width = draw.whole(5, 8)
    yield Case("one row", (draw.normal(1, 4), torch.ones(4).double(), torch.zeros(4).double(), 1e-5))
    yield Case(
        "gain and bias", (draw.normal(3, 2, width) + 2, draw.normal(width), draw.normal(width), 1e-5), gradients=True
    )
    yield Case(
        "eps is added under the square root", (0.1 * draw.normal(3, width), draw.normal(width), draw.normal(width), 0.5)
    )
    width = draw.whole(33, 40)
    yield Case(LARGE, (draw.normal(2, width) + 2, draw.normal(width), draw.normal(width), 1e-5))


LayerNorm.mistake("the mean is not subtracted", "        x = x - x.mean(-1, keepdim=True)\n", "")
LayerNorm.mistake("the bias is not added", "* self.weight + self.bias", "* self.weight + 0 * self.bias")
LayerNorm.mistake("the gain is not used", "* self.weight + self.bias", "* (1 + 0 * self.weight) + self.bias")
LayerNorm.mistake(
    "the variance is divided by the width minus one; divide by the width",
    "x.square().mean(-1, keepdim=True)",
    "x.var(-1, keepdim=True)",
)
LayerNorm.mistake("eps is added to the square root; add it under the root", "(x.square().mean(-1, keepdim=True) + self.eps).rsqrt()",
                  "1 / (x.square().mean(-1, keepdim=True).sqrt() + self.eps)")  # fmt: skip
LayerNorm.mistake(
    "the norm runs over the tokens; it must run over each token's components",
    "x.mean(-1, keepdim=True)",
    "x.mean(0, keepdim=True)",
)
LayerNorm.variant(
    """
    class LayerNorm(nn.Module):
        def __init__(self, d_model, eps):
            super().__init__()
            self.bias, self.weight = nn.Parameter(torch.zeros(d_model)), nn.Parameter(torch.ones(d_model))
            self.eps = eps

        def forward(self, x):
            return nn.functional.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)
    """
)


@part(13, points=2, excused=USUAL)
def PlainFeedForward(code, x, inner, inner_bias, outer, outer_bias):
    """The feed-forward network has biases and a GELU, but no gate."""
    weights = {"inner.weight": inner, "inner.bias": inner_bias, "outer.weight": outer, "outer.bias": outer_bias}
    return code.gelu(x), run_with(lambda: code.PlainFeedForward(x.shape[-1], len(inner)), weights, x)


@PlainFeedForward.cases
def _(draw):
    d_model, d_ff = draw.sizes(2, 4, 9)
    weights = draw.normal(d_ff, d_model), draw.normal(d_ff), draw.normal(d_model, d_ff), draw.normal(d_model)
    yield Case("the GELU, and the network's output", (2 * draw.normal(3, 2, d_model), *weights), gradients=True)
    yield Case(LARGE, (2 * draw.normal(1, draw.whole(33, 40), d_model), *weights))


PlainFeedForward.mistake("that is the exact GELU; GPT-2 has the one with the tanh", "return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))",
                         "return x / 2 * (1 + torch.erf(x / math.sqrt(2)))")  # fmt: skip
PlainFeedForward.mistake("the cubic term is missing", "0.044715 * x**3", "0.044715 * x")
PlainFeedForward.mistake("the factor of the cube is 0.044715; yours is 0.44715", "0.044715 * x**3", "0.44715 * x**3")
PlainFeedForward.mistake("the factor is the square root of 2 / pi; yours is that of 2 pi", "math.sqrt(2 / math.pi)",
                         "math.sqrt(2 * math.pi)")  # fmt: skip
PlainFeedForward.mistake("the factor 1/2 is missing", "return x / 2 * (1 + torch.tanh", "return x * (1 + torch.tanh")
PlainFeedForward.mistake(
    "that is SiLU, which LLaMA uses",
    "return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))",
    "return x * x.sigmoid()",
)
PlainFeedForward.mistake(
    "the GELU between the two layers is missing", "self.outer(gelu(self.inner(x)))", "self.outer(self.inner(x))"
)
PlainFeedForward.variant(
    """
    def gelu(x):
        return nn.functional.gelu(x, approximate="tanh")
    """
)


_D, _HEADS, _VOCAB, _LAYERS, _PLACES = 8, 4, 13, 2, 9


@part(13, points=2, excused=USUAL)
def GPT2(code, ids, weights, heads, layers, d_ff):
    """A decoder with GPT-2's parts computes the right logits, for a whole text and for its pieces."""
    vocab, d_model = weights["embedding.weight"].shape
    config = code["model"].Config(vocab, d_model, layers, heads, heads, d_ff)
    with default_dtype(torch.float64):
        model = code.GPT2(config, len(weights["positions.weight"]), 1e-2)
    logits = run_with(lambda: model, weights, ids)
    caches = [PlainCache() for _ in model.decoder.blocks]
    pieces = [run_with(lambda: model, weights, piece, caches) for piece in ids.split([3, 1, 1], dim=1)]
    return logits, torch.cat(pieces, dim=1)


def _weights(draw, d_ff):
    shapes = {"embedding.weight": (_VOCAB, _D), "positions.weight": (_PLACES, _D)}
    for n in range(_LAYERS):
        block = f"decoder.blocks.{n}."
        for name, rows, columns in (("attention.query", _D, _D), ("attention.key", _D, _D), ("attention.value", _D, _D),
                                    ("attention.output", _D, _D), ("feed_forward.inner", d_ff, _D),
                                    ("feed_forward.outer", _D, d_ff)):  # fmt: skip
            shapes |= {f"{block}{name}.weight": (rows, columns), f"{block}{name}.bias": (rows,)}
        for name in ("attention_norm", "feed_forward_norm"):
            shapes |= {f"{block}{name}.{kind}": (_D,) for kind in ("weight", "bias")}
    shapes |= {f"decoder.norm.{kind}": (_D,) for kind in ("weight", "bias")}
    return {name: draw.normal(*shape) for name, shape in shapes.items()}


@GPT2.cases
def _(draw):
    for shows, d_ff in (("at once, and in pieces with caches", 12), ("a wider network", 20)):
        yield Case(shows, (draw.wholes(0, 12, 2, 5), _weights(draw, d_ff), _HEADS, _LAYERS, d_ff))
    ids = draw.wholes(0, 12, draw.whole(33, 60), 5)
    yield Case(LARGE, (ids, _weights(draw, 12), _HEADS, _LAYERS, 12))
    weights = _weights(draw, 12) | {"positions.weight": draw.normal(4, _D)}
    ids = draw.wholes(0, 12, 1, 5)
    yield Case("a text longer than the learned positions", (ids, weights, _HEADS, _LAYERS, 12), refuse=True)


_POSITIONS = "self.positions(torch.arange(seen, seen + new, device=ids.device))"
GPT2.mistake(
    "the learned positions are not added",
    f"self.embedding(ids) + {_POSITIONS}",
    f"self.embedding(ids) + 0 * {_POSITIONS}",
)
GPT2.mistake(
    "with caches the positions restart at 0: continue at len(caches[0])",
    "torch.arange(seen, seen + new",
    "torch.arange(0, new",
)
GPT2.mistake("queries and keys are rotated, too: GPT-2 has only learned positions", "mask=causal(new, seen + new).to(ids.device))",
             "mask=causal(new, seen + new).to(ids.device), turn=lambda y: __import__('positions').rotate(y, torch.arange(seen, seen + new)))")  # fmt: skip
GPT2.mistake(
    "the mask is missing: every token sees later ones", "mask=causal(new, seen + new).to(ids.device)", "mask=None"
)
GPT2.mistake("the norms do not use the model's eps", "(LayerNorm(d_model, eps) for _ in range(2))", "(LayerNorm(d_model, 1e-5) for _ in range(2))",
             "LayerNorm(d_model, eps)\n        for", "LayerNorm(d_model, 1e-5)\n        for")  # fmt: skip
GPT2.mistake("the attention layers have no biases, but in GPT-2 they do", "setattr(block.attention, name, nn.Linear(d_model, d_model))",
             "setattr(block.attention, name, nn.Linear(d_model, d_model, bias=False))")  # fmt: skip
GPT2.mistake("a text with more tokens than positions raises an IndexError; expected a ValueError",
             "if seen + new > self.positions.num_embeddings:", "if False:")  # fmt: skip
GPT2.variant(
    """
    class GPT2(Transformer):
        def __init__(self, config, places, eps):
            super().__init__(config)
            self.positions = nn.Embedding(places, config.d_model)
            for block in self.decoder.blocks:
                block.attention_norm = LayerNorm(config.d_model, eps)
                block.feed_forward_norm = LayerNorm(config.d_model, eps)
                block.feed_forward = PlainFeedForward(config.d_model, config.d_ff)
                block.attention.query = nn.Linear(config.d_model, config.d_model)
                block.attention.key = nn.Linear(config.d_model, config.d_model)
                block.attention.value = nn.Linear(config.d_model, config.d_model)
                block.attention.output = nn.Linear(config.d_model, config.d_model)
            self.decoder.norm = LayerNorm(config.d_model, eps)

        def forward(self, ids, caches=None):
            before = len(caches[0]) if caches else 0
            end = before + ids.shape[1]
            if end > len(self.positions.weight):
                raise ValueError("too long")
            x = self.embedding.weight[ids] + self.positions.weight[before:end]
            return nn.functional.linear(self.decoder(x, caches, mask=causal(ids.shape[1], end)), self.embedding.weight)
    """
)


def _released(draw, whole, wide=12):
    """Return the config fields and tensors of a small random checkpoint.

    If `whole` is true, the checkpoint has the layout of old files: names without `transformer.`, stored masks, and a
    head.
    """
    ff = 4 * _D if whole else wide
    fields = {"model_type": "gpt2", "vocab_size": _VOCAB, "n_embd": _D, "n_head": _HEADS, "n_layer": _LAYERS,
              "n_positions": _PLACES, "n_inner": None if whole else ff, "layer_norm_epsilon": 1e-2,
              "scale_attn_weights": True, "activation_function": "gelu_new", "tie_word_embeddings": True,
              "scale_attn_by_inverse_layer_idx": False}  # fmt: skip
    one = {"ln_1.weight": (_D,), "ln_1.bias": (_D,), "ln_2.weight": (_D,), "ln_2.bias": (_D,),
           "attn.c_attn.weight": (_D, 3 * _D), "attn.c_attn.bias": (3 * _D,), "attn.c_proj.weight": (_D, _D),
           "attn.c_proj.bias": (_D,), "mlp.c_fc.weight": (_D, ff), "mlp.c_fc.bias": (ff,),
           "mlp.c_proj.weight": (ff, _D), "mlp.c_proj.bias": (_D,)}  # fmt: skip
    shapes = {"wte.weight": (_VOCAB, _D), "wpe.weight": (_PLACES, _D), "ln_f.weight": (_D,), "ln_f.bias": (_D,)}
    shapes |= {f"h.{n}.{name}": shape for n in range(_LAYERS) for name, shape in one.items()}
    made = {name: draw.normal(*shape).float() for name, shape in shapes.items()}
    if not whole:
        return fields, {f"transformer.{name}": tensor for name, tensor in made.items()}
    for n in range(_LAYERS):
        made |= {f"h.{n}.attn.bias": torch.ones(1, 1, 9, 9).tril(), f"h.{n}.attn.masked_bias": torch.tensor(-1e4)}
    return fields, made | {"lm_head.weight": made["wte.weight"]}


@part(13, points=3, excused=USUAL, seconds=60.0)
def gpt2(code, fields, tensors, names, ids):
    """A GPT-2 checkpoint folder becomes your own model, with the right weights and logits."""
    assert code.gpt2  # executes the file, which registers GPT-2 with `load`
    with checkpoint(fields, tensors) as folder:
        model = code["published"].load(folder)
    own = model.state_dict()
    with torch.no_grad():
        logits = model(ids).float()
    return {name: own[name].float() if name in own else "there is no such weight" for name in names} | {
        "the logits": logits
    }


@gpt2.cases
def _(draw):
    ids, names = draw.wholes(0, 12, 2, 7), list(_weights(draw, 12))
    fields, tensors = _released(draw, False)
    yield Case("names that begin with transformer.", (fields, tensors, names, ids), tolerance=1e-4)
    yield Case(
        "names as released, with stored masks and a second copy of the head",
        (*_released(draw, True), names, ids),
        tolerance=1e-4,
    )
    yield Case(LARGE, (*_released(draw, False, draw.whole(33, 60)), names, ids), tolerance=1e-4)
    for other in ({"activation_function": "relu"}, {"tie_word_embeddings": False}, {"scale_attn_weights": False},
                  {"scale_attn_by_inverse_layer_idx": True}):  # fmt: skip
        yield Case(f"another {next(iter(other))} is rejected", (fields | other, tensors, names, ids), refuse=True)
    less = {name: tensor for name, tensor in tensors.items() if "h.1.mlp.c_fc" not in name}
    yield Case("a missing tensor is rejected", (fields, less, names, ids), refuse=True)


gpt2.mistake(
    "GPT-2's matrices are stored (in, out): transpose them",
    "            x = x.t()",
    "            x = x.reshape(x.shape[::-1])",
)
gpt2.mistake("the parts of GPT-2's joined matrix are in the wrong order: it holds query, key, value", 'zip(("query", "key", "value"), x.chunk(3))',
             'zip(("key", "query", "value"), x.chunk(3))')  # fmt: skip
gpt2.mistake("the joined matrix is divided before it is transposed: each part has a third of its columns",
             "x.chunk(3))}", "x.reshape(3, -1, *x.shape[1:]).transpose(0, 1).reshape(x.shape).chunk(3))}")  # fmt: skip
gpt2.mistake("the two norms of a layer are swapped: ln_2 comes before the network", '"ln_1": "attention_norm"', '"ln_1": "feed_forward_norm"',
             '"ln_2": "feed_forward_norm"', '"ln_2": "attention_norm"')  # fmt: skip
gpt2.mistake("files may contain masks, `attn.bias`, and a second copy of the head: leave them out",
             "            continue  # a stored mask, or a second copy of the embedding\n", "            pass\n")  # fmt: skip
gpt2.mistake(
    "names may begin with `transformer.`, but need not",
    'name.removeprefix("transformer.")',
    'name[len("transformer.") :]',
)
gpt2.mistake(
    "`n_inner` may be missing or null; the network is then 4 d_model wide",
    'fields.get("n_inner") or 4 * d_model',
    'fields["n_inner"] or 3 * d_model',
)
gpt2.mistake("only the joined matrix is transposed; the other matrices are (in, out), too", 'if ".c_" in name:',
             'if ".c_attn" in name:')  # fmt: skip
gpt2.mistake("the eps of the norms is not read", 'fields["layer_norm_epsilon"])', "1e-5)")
gpt2.variant(
    """
    def gpt2(fields, tensors):
        wanted = {"activation_function": "gelu_new", "tie_word_embeddings": True, "scale_attn_weights": True,
                  "scale_attn_by_inverse_layer_idx": False}
        take(fields, wanted)
        d, layers = fields["n_embd"], fields["n_layer"]
        inner = fields.get("n_inner")
        config = Config(fields["vocab_size"], d, layers, fields["n_head"], fields["n_head"], inner if inner else 4 * d)
        own = {}
        for name, x in tensors.items():
            if name.startswith("transformer."):
                name = name[12:]
            first, _, kind = name.rpartition(".")
            if first in NAMES:
                own[f"{NAMES[first]}.{kind}"] = x
            elif name.startswith("h."):
                _, layer, rest = first.split(".", 2)
                if rest == "attn":
                    continue
                x = x.T if x.dim() == 2 else x
                if rest == "attn.c_attn":
                    for part, y in zip(("query", "key", "value"), x.split(d)):
                        own[f"decoder.blocks.{layer}.attention.{part}.{kind}"] = y
                else:
                    own[f"decoder.blocks.{layer}.{LAYER_NAMES[rest]}.{kind}"] = x
            elif first != "lm_head":
                own[name] = x
        return GPT2(config, fields["n_positions"], fields["layer_norm_epsilon"]), own
    """
)
