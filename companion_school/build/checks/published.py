"""Stage 10, published: the parts that the own model lacks, and checkpoints of three layouts in a folder."""

import torch

from companion_school.build.isolated_modules import PlainCache, run_with
from companion_school.build.parts import part
from companion_school.checking.derived_cases import LARGE
from companion_school.checking.exercise import Case

_USUAL = {
    law: "of a usual kind"
    for law in ("levels", "offset", "nan", "scale", "edge", "one", "dtype", "layout", "memory", "other", "tie")
}


@part(10, points=1, excused=_USUAL)
def LayerNorm(code, x, weight, bias, eps):
    """A norm with a mean and a bias."""
    return run_with(lambda: code.LayerNorm(x.shape[-1], eps), {"weight": weight, "bias": bias}, x)


@LayerNorm.cases
def _(draw):
    width = draw.whole(5, 8)
    yield Case("one row", (draw.normal(1, 4), torch.ones(4).double(), torch.zeros(4).double(), 1e-5))
    yield Case(
        "gain and bias", (draw.normal(3, 2, width) + 2, draw.normal(width), draw.normal(width), 1e-5), gradients=True
    )
    yield Case("eps stands under the root", (0.1 * draw.normal(3, width), draw.normal(width), draw.normal(width), 0.5))
    width = draw.whole(33, 40)
    yield Case(LARGE, (draw.normal(2, width) + 2, draw.normal(width), draw.normal(width), 1e-5))


LayerNorm.mistake("the mean is not taken away", "        x = x - x.mean(-1, keepdim=True)\n", "")
LayerNorm.mistake("the bias is not added", "* self.weight + self.bias", "* self.weight + 0 * self.bias")
LayerNorm.mistake("the gain is not used", "* self.weight + self.bias", "* (1 + 0 * self.weight) + self.bias")
LayerNorm.mistake(
    "the variance is divided by one less than the width", "x.square().mean(-1, keepdim=True)", "x.var(-1, keepdim=True)"
)
LayerNorm.mistake("eps is added to the root; it stands under it", "(x.square().mean(-1, keepdim=True) + self.eps).rsqrt()",
                  "1 / (x.square().mean(-1, keepdim=True).sqrt() + self.eps)")  # fmt: skip
LayerNorm.mistake(
    "the norm is over the tokens; it is over the width of each", "x.mean(-1, keepdim=True)", "x.mean(0, keepdim=True)"
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


@part(10, points=1, excused=_USUAL)
def PlainFeedForward(code, x, inner, inner_bias, outer, outer_bias):
    """A network without a gate, with biases and a GELU."""
    weights = {"inner.weight": inner, "inner.bias": inner_bias, "outer.weight": outer, "outer.bias": outer_bias}
    return code.gelu(x), run_with(lambda: code.PlainFeedForward(x.shape[-1], len(inner)), weights, x)


@PlainFeedForward.cases
def _(draw):
    d_model, d_ff = draw.sizes(2, 4, 9)
    weights = draw.normal(d_ff, d_model), draw.normal(d_ff), draw.normal(d_model, d_ff), draw.normal(d_model)
    yield Case("the GELU, and what the network makes of it", (2 * draw.normal(3, 2, d_model), *weights), gradients=True)
    yield Case(LARGE, (2 * draw.normal(1, draw.whole(33, 40), d_model), *weights))


PlainFeedForward.mistake("that is the exact GELU; GPT-2 has the one with the tanh", "return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))",
                         "return x / 2 * (1 + torch.erf(x / math.sqrt(2)))")  # fmt: skip
PlainFeedForward.mistake("the cube is missing", "0.044715 * x**3", "0.044715 * x")
PlainFeedForward.mistake("the half is missing", "return x / 2 * (1 + torch.tanh", "return x * (1 + torch.tanh")
PlainFeedForward.mistake(
    "that is a silu, LLaMA's",
    "return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))",
    "return x * x.sigmoid()",
)
PlainFeedForward.mistake(
    "between the two layers there is no GELU", "self.outer(gelu(self.inner(x)))", "self.outer(self.inner(x))"
)
PlainFeedForward.variant(
    """
    def gelu(x):
        return nn.functional.gelu(x, approximate="tanh")
    """
)


@part(10, points=2, excused=_USUAL)
def WideAttention(code, x, weights, heads, kv_heads, d_head, bias, normed):
    """Heads of a width of their own, biases, normed queries and keys."""
    return run_with(
        lambda: code.WideAttention(x.shape[-1], heads, kv_heads, d_head, bias=bias, normed=normed, eps=1e-3), weights, x
    )


@WideAttention.cases
def _(draw):
    for shows, d_head, bias, normed in (
        ("heads wider than d_model / heads", 5, False, False),
        ("biases of all four", 2, True, False),
        ("queries and keys of each head are normed", 3, False, True),
    ):
        rows = {"query": 4 * d_head, "key": 2 * d_head, "value": 2 * d_head, "output": 8}
        weights = {f"{name}.weight": draw.normal(n, 4 * d_head if name == "output" else 8) for name, n in rows.items()}
        weights |= {f"{name}.bias": draw.normal(n) for name, n in rows.items() if bias}
        weights |= {f"{name}.norm.weight": draw.normal(d_head) for name in ("query", "key") if normed}
        yield Case(shows, (draw.normal(2, 3, 8), weights, 4, 2, d_head, bias, normed))
    yield Case(LARGE, (draw.normal(1, draw.whole(33, 40), 8), weights, 4, 2, d_head, bias, normed))


WideAttention.mistake("queries and keys are normed over all heads together; each head has a norm of its own",
                      "return self.norm(super().forward(x).unflatten(-1, (-1, self.d_head))).flatten(-2)",
                      "y = super().forward(x)\n        gain = self.norm.weight.repeat(y.shape[-1] // self.d_head)\n        return y * (y.square().mean(-1, keepdim=True) + self.norm.eps).rsqrt() * gain")  # fmt: skip
WideAttention.mistake(
    "the norms are not used",
    "return self.norm(super().forward(x).unflatten(-1, (-1, self.d_head))).flatten(-2)",
    "return super().forward(x)",
)
WideAttention.mistake(
    "the norms have another eps than the model's", "Normed(d_model, n, d_head, eps)", "Normed(d_model, n, d_head, 1e-6)"
)
WideAttention.mistake("only the queries are normed: the keys have a norm as well", "self.query, self.key = (Normed(d_model, n, d_head, eps) for n in (heads, kv_heads))",
                      "self.query, self.key = (Normed(d_model, n, d_head, eps) for n in (heads, kv_heads))\n            self.key.forward = lambda x: nn.functional.linear(x, self.key.weight)")  # fmt: skip
WideAttention.variant(
    """
    class Normed(nn.Linear):
        def __init__(self, d_model, heads, d_head, eps):
            super().__init__(d_model, heads * d_head, bias=False)
            self.norm, self.heads = RMSNorm(d_head, eps), heads

        def forward(self, x):
            heads = (x @ self.weight.T).chunk(self.heads, dim=-1)
            return torch.cat([self.norm(head) for head in heads], dim=-1)
    """
)


def _layout(draw, kind):
    """The fields and the tensors of a small random checkpoint, as released files name them."""
    d, heads, kv, ff, vocab, layers, wide = 8, 4, 2, 12, 13, 2, 4
    if kind.startswith("gpt2"):
        released = kind.endswith("released")
        ff = 4 * d if released else ff
        fields = {"model_type": "gpt2", "vocab_size": vocab, "n_embd": d, "n_head": heads, "n_layer": layers,
                  "n_positions": 9, "n_inner": None if released else ff, "layer_norm_epsilon": 1e-2, "scale_attn_weights": True,
                  "activation_function": "gelu_new", "tie_word_embeddings": True, "scale_attn_by_inverse_layer_idx": False}  # fmt: skip
        one = {"ln_1.weight": (d,), "ln_1.bias": (d,), "ln_2.weight": (d,), "ln_2.bias": (d,),
               "attn.c_attn.weight": (d, 3 * d), "attn.c_attn.bias": (3 * d,), "attn.c_proj.weight": (d, d),
               "attn.c_proj.bias": (d,), "mlp.c_fc.weight": (d, ff), "mlp.c_fc.bias": (ff,),
               "mlp.c_proj.weight": (ff, d), "mlp.c_proj.bias": (d,)}  # fmt: skip
        shapes = {"wte.weight": (vocab, d), "wpe.weight": (9, d), "ln_f.weight": (d,), "ln_f.bias": (d,)}
        shapes |= {f"h.{n}.{name}": shape for n in range(layers) for name, shape in one.items()}
        made = {name: draw.normal(*shape).float() for name, shape in shapes.items()}
        if not released:
            return fields, {f"transformer.{name}": tensor for name, tensor in made.items()}
        for n in range(layers):
            made |= {f"h.{n}.attn.bias": torch.ones(1, 1, 9, 9).tril(), f"h.{n}.attn.masked_bias": torch.tensor(-1e4)}
        return fields, made | {"lm_head.weight": made["wte.weight"]}
    fields = {"model_type": kind.split()[0], "vocab_size": vocab, "hidden_size": d, "num_attention_heads": heads,
              "num_key_value_heads": kv, "num_hidden_layers": layers, "intermediate_size": ff, "rms_norm_eps": 1e-2,
              "rope_theta": 50.0, "hidden_act": "silu", "head_dim": wide, "tie_word_embeddings": kind.endswith("tied"),
              "attention_bias": False, "mlp_bias": False, "use_sliding_window": False}  # fmt: skip
    if kind == "llama of the first":
        heads = kv = fields["num_attention_heads"] = 2
        for name in ("num_key_value_heads", "head_dim", "rope_theta", "tie_word_embeddings"):
            del fields[name]
    one = {"input_layernorm": (d,), "post_attention_layernorm": (d,), "self_attn.q_proj": (heads * wide, d),
           "self_attn.k_proj": (kv * wide, d), "self_attn.v_proj": (kv * wide, d), "self_attn.o_proj": (d, heads * wide),
           "mlp.gate_proj": (ff, d), "mlp.up_proj": (ff, d), "mlp.down_proj": (d, ff)}  # fmt: skip
    if kind.startswith("qwen3"):
        one |= {"self_attn.q_norm": (wide,), "self_attn.k_norm": (wide,)}
    shapes = {"model.embed_tokens": (vocab, d), "model.norm": (d,)}
    shapes |= {} if kind.endswith("tied") else {"lm_head": (vocab, d)}
    shapes |= {f"model.layers.{n}.{name}": shape for n in range(layers) for name, shape in one.items()}
    made = {f"{name}.weight": draw.normal(*shape).float() for name, shape in shapes.items()}
    return fields, made | ({"lm_head.weight": made["model.embed_tokens.weight"]} if kind == "qwen3 tied" else {})


@part(10, points=6, excused=_USUAL, seconds=60.0)
def load(code, fields, tensors, ids):
    """A folder with a checkpoint, and its logits in the own model, at once and in pieces with caches."""
    import json
    import struct
    import tempfile
    from pathlib import Path

    header, data = {}, b""
    for name, tensor in tensors.items():
        raw = tensor.contiguous().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(fields))
        (Path(folder) / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
        try:
            model = code.load(folder)
        except ValueError as error:  # of the same mistake the same words
            raise ValueError(str(error).replace(folder, "FOLDER")) from None

    caches = [PlainCache() for _ in model.decoder.blocks]
    with torch.no_grad():
        pieces = [model(piece, caches) for piece in ids.split([3, 3, 1], dim=1)]
        logits = model(ids).float()
    return {"the logits": logits, "the logits in three pieces, with caches": torch.cat(pieces, dim=1).float(),
            "it is in training": model.training}  # fmt: skip


@load.cases
def _(draw):
    ids = draw.wholes(0, 12, 2, 7)
    kinds = ("llama", "llama of the first", "llama tied", "qwen3", "qwen3 tied", "gpt2", "gpt2 as released")
    given = {kind: _layout(draw, kind) for kind in kinds}
    for kind, (fields, tensors) in given.items():
        yield Case(f"a {kind}", (fields, tensors, ids), tolerance=1e-4)
    fields, tensors = given["llama"]
    yield Case("an unknown layout is refused", (fields | {"model_type": "mamba"}, tensors, ids), refuse=True)
    yield Case(
        "what the own model does not do is refused", (fields | {"hidden_act": "relu"}, tensors, ids), refuse=True
    )
    for other in ({"attention_bias": True}, {"mlp_bias": True}, {"use_sliding_window": True}):
        yield Case(f"{next(iter(other))} is refused", (fields | other, tensors, ids), refuse=True)
    old = {"rope_scaling": {"type": "linear", "factor": 2.0}}
    yield Case("stretched positions, as older files name them", (fields | old, tensors, ids), refuse=True)
    own, weights = given["gpt2"]
    for other in ({"activation_function": "relu"}, {"tie_word_embeddings": False}, {"scale_attn_weights": False},
                  {"scale_attn_by_inverse_layer_idx": True}):  # fmt: skip
        yield Case(f"a gpt2 with another {next(iter(other))} is refused", (own | other, weights, ids), refuse=True)
    stretched = {"rope_parameters": {"rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0}}
    yield Case("stretched positions are refused", (fields | stretched, tensors, ids), refuse=True)
    missing = {name: tensor for name, tensor in tensors.items() if "layers.1.mlp.up" not in name}
    yield Case("a missing tensor is refused", (fields, missing, ids), refuse=True)
    yield Case(
        "a tensor too many is refused", (fields, tensors | {"model.strange.weight": torch.ones(3)}, ids), refuse=True
    )
    yield Case(
        "a field that is missing is refused",
        ({k: v for k, v in fields.items() if k != "hidden_size"}, tensors, ids),
        refuse=True,
    )


load.mistake(
    "GPT-2's matrices are stored (in, out): transpose them",
    "            x = x.t()",
    "            x = x.reshape(x.shape[::-1])",
)
load.mistake(
    "the order in GPT-2's joined matrix is query, key, value", 'zip(("query", "key", "value"), x.chunk(3))',
    'zip(("key", "query", "value"), x.chunk(3))',
)  # fmt: skip
load.mistake(
    "gate and up are exchanged: up is your `inner`",
    '"mlp.gate_proj": "feed_forward.gate",\n    "mlp.up_proj": "feed_forward.inner"',
    '"mlp.gate_proj": "feed_forward.inner",\n    "mlp.up_proj": "feed_forward.gate"',
)
load.mistake("the two norms of a layer are exchanged: the second stands before the network", '"input_layernorm": "attention_norm"', '"input_layernorm": "feed_forward_norm"',
             '"post_attention_layernorm": "feed_forward_norm"', '"post_attention_layernorm": "attention_norm"')  # fmt: skip
load.mistake("the base of the positions is not read", 'intermediate_size"], base)', 'intermediate_size"])')
load.mistake("the eps of the norms is not read", "partial(RMSNorm, eps=eps)", "RMSNorm")
load.mistake(
    "an untied head is left out: the logits are made by the embedding",
    "(self.embedding if self.head is None else self.head).weight.T",
    "self.embedding.weight.T",
)
load.mistake(
    "GPT-2 has learned positions; yours are not added",
    "x = x + self.positions(places)",
    "x = x + 0 * self.positions(places)",
)
load.mistake(
    "GPT-2's learned positions are added, and its queries and keys are turned as well",
    "x, turn = self.embedding(ids), None",
    "x, turn = self.embedding(ids), partial(rotate, places=places, base=self.config.base)",
)
load.mistake(
    "unknown tensors are dropped in silence: load strictly",
    "model.load_state_dict(own)",
    "model.load_state_dict({n: x for n, x in own.items() if n in model.state_dict()})",
)
load.mistake(
    "missing tensors stay random in silence: load strictly",
    "model.load_state_dict(own)",
    "model.load_state_dict(own, strict=not (set(model.state_dict()) - set(own)))",
)
load.mistake(
    "stretched positions are read as if they were not",
    'if rotary.get("rope_type", rotary.get("type", "default")) != "default":',
    "if False:",
)
load.mistake(
    "an activation that your model does not have is ignored",
    '    take(fields, {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "use_sliding_window": False})\n',
    "",
)
load.mistake("Qwen 3's queries and keys are normed", 'normed=fields["model_type"] == "qwen3"', "normed=False",
             'return model, renamed(tensors, names)', 'return model, {n: x for n, x in renamed(tensors, names).items() if ".norm." not in n or "decoder.norm" in n}')  # fmt: skip
load.mistake(
    "with caches the places begin anew: go on at len(caches[0])", "torch.arange(seen, seen + new", "torch.arange(0, new"
)
load.mistake("GPT-2 files may hold their masks, `attn.bias`, and the head once more: leave them out",
             "            continue  # a mask that was stored, and the embedding once more\n", "            pass\n")  # fmt: skip
load.mistake(
    "GPT-2's names may begin with `transformer.`, and need not",
    'name.removeprefix("transformer.")',
    'name[len("transformer."):]',
)
load.mistake(
    "a missing `num_key_value_heads` means: each head has its own",
    'fields.get("num_key_value_heads") or heads',
    'fields["num_key_value_heads"]',
)
load.mistake("the model is left in training", "return model.eval()", "return model.train()")
load.variant(
    """
    def renamed(tensors, names):
        found = {}
        for name in tensors:
            what, kind = name.rsplit(".", 1)
            found[(names[what] if what in names else what) + "." + kind] = tensors[name]
        return found
    """
)
