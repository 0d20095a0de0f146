"""Stage 10, published: wide attention, and the weights and logits of LLaMA and Qwen 3 checkpoints in a folder."""

import torch

from companion_school.build.checks import USUAL
from companion_school.build.isolated_modules import PlainCache, checkpoint, run_with
from companion_school.build.parts import part
from companion_school.checking.derived_cases import LARGE
from companion_school.checking.exercise import Case


@part(10, points=2, excused=USUAL)
def WideAttention(code, x, weights, heads, kv_heads, d_head, normed):
    """Heads may be wider or narrower than d_model / heads, and queries and keys may be normed."""
    return run_with(
        lambda: code.WideAttention(x.shape[-1], heads, kv_heads, d_head, normed=normed, eps=1e-3), weights, x
    )


@WideAttention.cases
def _(draw):
    for shows, d_head, normed in (
        ("heads wider than d_model / heads", 5, False),
        ("heads narrower than d_model / heads", 1, False),
        ("queries and keys of each head are normed", 3, True),
    ):
        rows = {"query": 4 * d_head, "key": 2 * d_head, "value": 2 * d_head, "output": 8}
        weights = {f"{name}.weight": draw.normal(n, 4 * d_head if name == "output" else 8) for name, n in rows.items()}
        weights |= {f"{name}.norm.weight": draw.normal(d_head) for name in ("query", "key") if normed}
        yield Case(shows, (draw.normal(2, 3, 8), weights, 4, 2, d_head, normed))
    yield Case(LARGE, (draw.normal(1, draw.whole(33, 40), 8), weights, 4, 2, d_head, normed))


WideAttention.mistake("the norms run over all heads together; apply them to each head by itself",
                      "return self.norm(super().forward(x).unflatten(-1, (-1, self.d_head))).flatten(-2)",
                      "y = super().forward(x)\n        gain = self.norm.weight.repeat(y.shape[-1] // self.d_head)\n        return y * (y.square().mean(-1, keepdim=True) + self.norm.eps).rsqrt() * gain")  # fmt: skip
WideAttention.mistake(
    "the norms are not used",
    "return self.norm(super().forward(x).unflatten(-1, (-1, self.d_head))).flatten(-2)",
    "return super().forward(x)",
)
WideAttention.mistake(
    "the norms do not use the model's eps", "Normed(d_model, n, d_head, eps)", "Normed(d_model, n, d_head, 1e-6)"
)
WideAttention.mistake("only the queries are normed: the keys need a norm, too", "self.query, self.key = (Normed(d_model, n, d_head, eps) for n in (heads, kv_heads))",
                      "self.query, self.key = (Normed(d_model, n, d_head, eps) for n in (heads, kv_heads))\n            self.key.forward = lambda x: nn.functional.linear(x, self.key.weight)")  # fmt: skip
WideAttention.mistake("`output` reads heads * d_head components; yours reads d_model", "nn.Linear(heads * d_head, d_model, bias=False)",
                      "nn.Linear(d_model, d_model, bias=False)")  # fmt: skip
WideAttention.mistake("the values' heads are d_model / heads wide; they must be `d_head` wide, like the others",
                      "nn.Linear(d_model, kv_heads * d_head, bias=False)", "nn.Linear(d_model, kv_heads * (d_model // heads), bias=False)")  # fmt: skip
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


def _layout(draw, kind, ff=12):
    """Return the config fields and tensors of a small random checkpoint, with the names used in released files."""
    d, heads, kv, vocab, layers, wide = 8, 4, 2, 13, 2, 4
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


@part(10, points=3, excused=USUAL, seconds=60.0)
def load_weights(code, fields, tensors, names):
    """Every tensor in a checkpoint folder becomes the right weight of your model."""
    with checkpoint(fields, tensors) as folder:
        own = code.load(folder).state_dict()
    return {name: own[name].float() if name in own else "there is no such weight" for name in names}


_ONCE = ("embedding.weight", "decoder.norm.weight")
_OWN = ("attention_norm", "attention.query", "attention.key", "attention.value", "attention.output",
        "feed_forward_norm", "feed_forward.gate", "feed_forward.inner", "feed_forward.outer")  # fmt: skip


@load_weights.cases
def _(draw):
    names = [f"decoder.blocks.{n}.{name}.weight" for n in range(2) for name in _OWN]
    yield Case("the weights of a tied llama", (*_layout(draw, "llama tied"), [*_ONCE, *names]))
    yield Case("the weights of a llama with a head", (*_layout(draw, "llama"), [*_ONCE, *names, "head.weight"]))
    norms = [f"decoder.blocks.{n}.attention.{name}.norm.weight" for n in range(2) for name in ("query", "key")]
    yield Case("the weights of a qwen3", (*_layout(draw, "qwen3"), [*_ONCE, *names, *norms, "head.weight"]))
    yield Case(LARGE, (*_layout(draw, "llama", draw.whole(33, 60)), [*_ONCE, *names, "head.weight"]))


load_weights.mistake(
    "gate and up are swapped: up is your `inner`",
    '"mlp.gate_proj": "feed_forward.gate",\n    "mlp.up_proj": "feed_forward.inner"',
    '"mlp.gate_proj": "feed_forward.inner",\n    "mlp.up_proj": "feed_forward.gate"',
)
load_weights.mistake("the two norms of a layer are swapped: the second comes before the network",
                     '"input_layernorm": "attention_norm"', '"input_layernorm": "feed_forward_norm"',
                     '"post_attention_layernorm": "feed_forward_norm"', '"post_attention_layernorm": "attention_norm"')  # fmt: skip
load_weights.mistake("keys and values are swapped", '"self_attn.k_proj": "attention.key"', '"self_attn.k_proj": "attention.value"',
                     '"self_attn.v_proj": "attention.value"', '"self_attn.v_proj": "attention.key"')  # fmt: skip
load_weights.mistake("the norms of queries and keys are swapped", '"self_attn.q_norm": "attention.query.norm"',
                     '"self_attn.q_norm": "attention.key.norm"', '"self_attn.k_norm": "attention.key.norm"',
                     '"self_attn.k_norm": "attention.query.norm"')  # fmt: skip
load_weights.mistake(
    "the layers are in reverse order",
    'f"decoder.blocks.{layer}.{new}" for old',
    'f"decoder.blocks.{layers - 1 - layer}.{new}" for old',
)
load_weights.mistake(
    "the tensors are never put into the model, so it still has its initial weights",
    "        model.load_state_dict(own)",
    "        pass",
)
load_weights.mistake(
    "matrices are transposed, but LLaMA's are (out, in), like yours",
    '        own[f"{names.get(what, what)}.{kind}"] = x',
    '        own[f"{names.get(what, what)}.{kind}"] = x.t() if x.ndim == 2 and x.shape[0] == x.shape[1] else x',
)
load_weights.variant(
    """
    def renamed(tensors, names):
        return {".".join([names.get(n.rsplit(".", 1)[0], n.rsplit(".", 1)[0]), n.rsplit(".", 1)[1]]): tensors[n] for n in tensors}
    """
)


@part(10, points=5, excused=USUAL, seconds=60.0)
def load(code, fields, tensors, ids):
    """Your model computes a checkpoint's logits, for a whole text and for its pieces with caches."""
    with checkpoint(fields, tensors) as folder:
        model = code.load(folder)
    caches = [PlainCache() for _ in model.decoder.blocks]
    with torch.no_grad():
        pieces = [model(piece, caches) for piece in ids.split([3, 3, 1], dim=1)]
        logits = model(ids).float()
    return {"the logits": logits, "the logits in three pieces, with caches": torch.cat(pieces, dim=1).float(),
            "the model is in training mode": model.training}  # fmt: skip


@load.cases
def _(draw):
    ids = draw.wholes(0, 12, 2, 7)
    kinds = ("llama", "llama of the first", "llama tied", "qwen3", "qwen3 tied")
    given = {kind: _layout(draw, kind) for kind in kinds}
    for kind, (fields, tensors) in given.items():
        yield Case(f"a {kind}", (fields, tensors, ids), tolerance=1e-4)
    fields, tensors = given["llama"]
    large = fields | {"rms_norm_eps": 1.0}
    yield Case("a large eps, in every norm", (large, tensors, ids), tolerance=1e-4)
    nested = {name: value for name, value in fields.items() if name != "rope_theta"}
    nested |= {"rope_parameters": {"rope_type": "default", "rope_theta": 20.0}}
    yield Case("the base in `rope_parameters`, as in newer files", (nested, tensors, ids), tolerance=1e-4)
    ids = draw.wholes(0, 12, draw.whole(33, 60), 7)
    yield Case(LARGE, (*given["qwen3"], ids), tolerance=1e-4)
    yield Case("an unknown layout is rejected", (fields | {"model_type": "mamba"}, tensors, ids), refuse=True)
    yield Case("an unsupported field is rejected", (fields | {"hidden_act": "relu"}, tensors, ids), refuse=True)
    for other in ({"attention_bias": True}, {"mlp_bias": True}, {"use_sliding_window": True}):
        yield Case(f"{next(iter(other))} is refused", (fields | other, tensors, ids), refuse=True)
    old = {"rope_scaling": {"type": "linear", "factor": 2.0}}
    yield Case("scaled rotary positions, as in older files", (fields | old, tensors, ids), refuse=True)
    stretched = {"rope_parameters": {"rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0}}
    yield Case("scaled rotary positions are rejected", (fields | stretched, tensors, ids), refuse=True)
    missing = {name: tensor for name, tensor in tensors.items() if "layers.1.mlp.up" not in name}
    yield Case("a missing tensor is rejected", (fields, missing, ids), refuse=True)
    yield Case(
        "an extra tensor is rejected", (fields, tensors | {"model.strange.weight": torch.ones(3)}, ids), refuse=True
    )
    yield Case(
        "a missing field is rejected",
        ({k: v for k, v in fields.items() if k != "hidden_size"}, tensors, ids),
        refuse=True,
    )


load.mistake("the base of the positions is not read", 'intermediate_size"], base)', 'intermediate_size"])')
load.mistake(
    "the eps of the norms is not read",
    "(RMSNorm(config.d_model, eps) for _ in range(2))",
    "(RMSNorm(config.d_model) for _ in range(2))",
    "self.decoder.norm = RMSNorm(config.d_model, eps)",
    "self.decoder.norm = RMSNorm(config.d_model)",
)
load.mistake(
    "an untied head is left out: the logits are computed with the embedding",
    "(self.embedding if self.head is None else self.head).weight.T",
    "self.embedding.weight.T",
)
load.mistake(
    "unknown tensors are silently dropped: load strictly",
    "model.load_state_dict(own)",
    "model.load_state_dict({n: x for n, x in own.items() if n in model.state_dict()})",
)
load.mistake(
    "missing tensors silently stay random: load strictly",
    "model.load_state_dict(own)",
    "model.load_state_dict(own, strict=not (set(model.state_dict()) - set(own)))",
)
load.mistake(
    "RoPE scaling in the config is ignored: raise a ValueError",
    'if rotary.get("rope_type", rotary.get("type", "default")) != "default":',
    "if False:",
)
load.mistake(
    "an activation that your model does not have is ignored",
    '    take(fields, {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "use_sliding_window": False})\n',
    "",
)
load.mistake("Qwen 3's queries and keys must be normed", 'normed=fields["model_type"] == "qwen3"', "normed=False",
             'return model, renamed(tensors, names)', 'return model, {n: x for n, x in renamed(tensors, names).items() if ".norm." not in n or "decoder.norm" in n}')  # fmt: skip
load.mistake(
    "with caches the positions restart at 0: continue at len(caches[0])",
    "torch.arange(seen, seen + new",
    "torch.arange(0, new",
)
load.mistake(
    "if `num_key_value_heads` is missing, each head has its own key and value",
    'fields.get("num_key_value_heads") or heads',
    'fields["num_key_value_heads"]',
)
load.mistake(
    "`head_dim` is not read: heads may be wider than d_model / heads",
    'fields.get("head_dim") or d_model // heads',
    "d_model // heads",
)
load.mistake(
    "if `tie_word_embeddings` is missing, the head is not tied",
    'fields.get("tie_word_embeddings", False)',
    'fields.get("tie_word_embeddings", True)',
)
load.mistake(
    "leave out a tied head that is stored again, because it is the embedding",
    "    if model.head is None:",
    "    if False:",
)
load.mistake("the last norm keeps its own eps: replace it, too, `decoder.norm`",
             "        self.decoder.norm = RMSNorm(config.d_model, eps)\n", "")  # fmt: skip
load.mistake("the norms of the blocks keep their own eps: replace them, too",
             "            block.attention_norm, block.feed_forward_norm = (RMSNorm(config.d_model, eps) for _ in range(2))\n", "")  # fmt: skip
load.mistake("newer files have the base in `rope_parameters`: look there first", 'rotary.get("rope_theta", fields.get("rope_theta", 10000.0))',
             'fields.get("rope_theta", 10000.0)')  # fmt: skip
load.mistake("a missing field raises a KeyError; raise a ValueError that names the field", "except KeyError as error:",
             "except ZeroDivisionError as error:")  # fmt: skip
load.mistake("the head has a bias; it must not have one", "nn.Linear(config.d_model, config.vocab, bias=False)",
             "nn.Linear(config.d_model, config.vocab)")  # fmt: skip
load.mistake("the model stays in training mode: call `eval()`", "return model.eval()", "return model.train()")
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
