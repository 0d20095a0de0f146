"""Stage 10, published.py: a checkpoint that others have trained, in your own model (lesson 13).

A published model is yours but for a few parts, and here they are: a norm with a mean and a bias, a network without a
gate, queries and keys that are normed, heads of a width of their own, biases, learned positions, a head of its own.
Three layouts go in: `gpt2`, `llama` and `qwen3`, as their `config.json` names them.
"""

import json
import math
from functools import partial
from pathlib import Path

import torch
from attention import Attention, causal
from layers import RMSNorm
from model import Config, Transformer
from positions import rotate
from torch import Tensor, nn

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "BOOL": torch.bool}
"""Of the dtypes that a safetensors file names, those that weights have."""


def read_safetensors(path: Path) -> dict[str, Tensor]:  # given
    """All tensors of a file: eight bytes say how long the header is, the header where each tensor lies behind it.

    Raises `ValueError` for a file that is cut short or of another format.
    """
    data = bytearray(path.read_bytes())
    try:
        end = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:end])
        tensors = {}
        for name, entry in header.items():
            if name != "__metadata__":
                dtype, (begin, stop) = DTYPES[entry["dtype"]], entry["data_offsets"]
                count = math.prod(entry["shape"])
                if stop - begin != count * dtype.itemsize or end + stop > len(data):
                    raise ValueError(f"{name} does not lie where the header says")
                flat = torch.frombuffer(data, dtype=dtype, count=count, offset=end + begin) if count else torch.empty(0)
                tensors[name] = flat.view(entry["shape"])
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{path}: expected a complete safetensors file ({error})") from None
    return tensors


def read_folder(folder: str | Path) -> tuple[dict, dict[str, Tensor]]:  # given
    """The fields of `config.json`, and the tensors of all safetensors files, in float32.

    Raises `ValueError` where one of them is missing or damaged.
    """
    folder = Path(folder)
    try:
        fields = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder}: expected a folder with a config.json ({error})") from None
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder}: expected weights in safetensors files, found none")
    return fields, {name: x.float() for path in files for name, x in read_safetensors(path).items()}


def fetch(name: str) -> Path:  # given
    """The folder of a model from the Hugging Face hub, such as "HuggingFaceTB/SmolLM2-135M". Needs a network, once."""
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors"]))


def take(fields: dict, expected: dict) -> None:  # given
    """Raises `ValueError` for a field that says what your model does not do: of `expected`, each has the one value."""
    for name, value in expected.items():
        if fields.get(name, value) != value:
            raise ValueError(f"config.json: {name} is {fields[name]!r}, and this model can only do {value!r}")


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis; `weight` and `bias` are (d_model)."""

    def __init__(self, d_model: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight, self.bias = nn.Parameter(torch.ones(d_model)), nn.Parameter(torch.zeros(d_model))

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight + self.bias


def gelu(x: Tensor) -> Tensor:
    """GPT-2's, with a tanh in place of the integral: x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))."""
    return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


class PlainFeedForward(nn.Module):
    """outer(gelu(inner(x))): two linear layers with biases, and no gate."""

    def __init__(self, d_model: int, d_ff: int):
        super().__init__()
        self.inner, self.outer = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(gelu(self.inner(x)))


class Normed(nn.Linear):
    """A linear layer without bias, each head of whose result is normed: `norm` has one gain for all heads, (d_head)."""

    def __init__(self, d_model: int, heads: int, d_head: int, eps: float):
        super().__init__(d_model, heads * d_head, bias=False)
        self.d_head, self.norm = d_head, RMSNorm(d_head, eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(super().forward(x).unflatten(-1, (-1, self.d_head))).flatten(-2)


class WideAttention(Attention):
    """Your attention, with heads of the width `d_head`, biases where `bias` says so, and normed queries and keys where
    `normed` does. Its `forward` is yours."""

    def __init__(
        self, d_model: int, heads: int, kv_heads: int, d_head: int, bias=False, normed=False, eps: float = 1e-6
    ):
        super().__init__(d_model, heads, kv_heads)
        if normed:
            self.query, self.key = (Normed(d_model, n, d_head, eps) for n in (heads, kv_heads))
        else:
            self.query, self.key = (nn.Linear(d_model, n * d_head, bias) for n in (heads, kv_heads))
        self.value = nn.Linear(d_model, kv_heads * d_head, bias)
        self.output = nn.Linear(heads * d_head, d_model, bias)


class Published(Transformer):
    """Your decoder with the parts that another layout asks for.

    norm:     makes a norm of the stream, from d_model.
    network:  makes a feed-forward network, from d_model and d_ff; `None`: your own.
    places:   how many learned positions are added to the embedding, `positions`; `None`: queries and keys are turned.
    tied:     whether the head is the embedding; else it is `head`, without bias.
    others:   of `WideAttention`.
    """

    def __init__(self, config: Config, d_head: int, norm, network=None, places=None, tied=True, **others):
        super().__init__(config)
        for block in self.decoder.blocks:
            block.attention = WideAttention(config.d_model, config.heads, config.kv_heads, d_head, **others)
            block.attention_norm, block.feed_forward_norm = norm(config.d_model), norm(config.d_model)
            if network is not None:
                block.feed_forward = network(config.d_model, config.d_ff)
        self.decoder.norm = norm(config.d_model)
        self.positions = None if places is None else nn.Embedding(places, config.d_model)
        self.head = None if tied else nn.Linear(config.d_model, config.vocab, bias=False)

    def forward(self, ids: Tensor, caches=None) -> Tensor:
        """(batch, token) -> (batch, token, vocab), as your own does it."""
        seen, new = len(caches[0]) if caches else 0, ids.shape[1]
        places = torch.arange(seen, seen + new, device=ids.device)
        x, turn = self.embedding(ids), None
        if self.positions is None:
            turn = partial(rotate, places=places, base=self.config.base)
        elif seen + new > self.positions.num_embeddings:
            raise ValueError(f"{seen + new} tokens: this model has {self.positions.num_embeddings} learned positions")
        else:
            x = x + self.positions(places)
        x = self.decoder(x, caches, mask=causal(new, seen + new).to(ids.device), turn=turn)
        return x @ (self.embedding if self.head is None else self.head).weight.T


LLAMA = {"model.embed_tokens": "embedding", "model.norm": "decoder.norm", "lm_head": "head"}
LLAMA_LAYER = {
    "input_layernorm": "attention_norm",
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.o_proj": "attention.output",
    "self_attn.q_norm": "attention.query.norm",
    "self_attn.k_norm": "attention.key.norm",
    "post_attention_layernorm": "feed_forward_norm",
    "mlp.gate_proj": "feed_forward.gate",
    "mlp.up_proj": "feed_forward.inner",
    "mlp.down_proj": "feed_forward.outer",
}
GPT2 = {"wte": "embedding", "wpe": "positions", "ln_f": "decoder.norm"}
GPT2_LAYER = {
    "ln_1": "attention_norm",
    "attn.c_proj": "attention.output",
    "ln_2": "feed_forward_norm",
    "mlp.c_fc": "feed_forward.inner",
    "mlp.c_proj": "feed_forward.outer",
}
"""Their names and yours: of what stands once, and of what stands in each layer."""


def llama(fields: dict, tensors: dict[str, Tensor]) -> tuple[Published, dict[str, Tensor]]:
    """A LLaMA or a Qwen 3: an empty model of its sizes, and its tensors by your names."""
    take(fields, {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "use_sliding_window": False})
    rotary = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    if rotary.get("rope_type", rotary.get("type", "default")) != "default":
        raise ValueError(f"config.json: rotary positions are stretched ({rotary}), and this model's are not")
    base = rotary.get("rope_theta", fields.get("rope_theta", 10000.0))
    d_model, heads, layers = (fields[f"{name}"] for name in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    kv_heads, eps = fields.get("num_key_value_heads") or heads, fields["rms_norm_eps"]
    config = Config(fields["vocab_size"], d_model, layers, heads, kv_heads, fields["intermediate_size"], base)
    model = Published(
        config,
        fields.get("head_dim") or d_model // heads,
        partial(RMSNorm, eps=eps),
        tied=fields.get("tie_word_embeddings", False),
        normed=fields["model_type"] == "qwen3",
        eps=eps,
    )
    names = dict(LLAMA)
    for layer in range(layers):
        names |= {f"model.layers.{layer}.{old}": f"decoder.blocks.{layer}.{new}" for old, new in LLAMA_LAYER.items()}
    if model.head is None:
        tensors = {name: x for name, x in tensors.items() if name != "lm_head.weight"}  # the embedding once more
    return model, renamed(tensors, names)


def gpt2(fields: dict, tensors: dict[str, Tensor]) -> tuple[Published, dict[str, Tensor]]:
    """A GPT-2. Its matrices are stored (in, out), the transpose of yours, and queries, keys and values are one."""
    take(fields, {"activation_function": "gelu_new", "tie_word_embeddings": True, "scale_attn_weights": True})
    take(fields, {"scale_attn_by_inverse_layer_idx": False})
    d_model, heads, layers = fields["n_embd"], fields["n_head"], fields["n_layer"]
    config = Config(fields["vocab_size"], d_model, layers, heads, heads, fields.get("n_inner") or 4 * d_model)
    model = Published(
        config,
        d_model // heads,
        partial(LayerNorm, eps=fields["layer_norm_epsilon"]),
        PlainFeedForward,
        places=fields["n_positions"],
        bias=True,
    )
    names = dict(GPT2)
    for layer in range(layers):
        names |= {f"h.{layer}.{old}": f"decoder.blocks.{layer}.{new}" for old, new in GPT2_LAYER.items()}
        names |= {f"h.{layer}.{name}": f"decoder.blocks.{layer}.attention.{name}" for name in ("query", "key", "value")}
    own = {}
    for name, x in tensors.items():
        name = name.removeprefix("transformer.")
        if name.endswith((".attn.bias", ".attn.masked_bias")) or name == "lm_head.weight":
            continue  # a mask that was stored, and the embedding once more
        if ".c_" in name:
            x = x.t()
        if ".attn.c_attn." in name:
            own |= {name.replace("attn.c_attn", to): y for to, y in zip(("query", "key", "value"), x.chunk(3))}  # noqa: B905
        else:
            own[name] = x
    return model, renamed(own, names)


def renamed(tensors: dict[str, Tensor], names: dict[str, str]) -> dict[str, Tensor]:
    """The tensors with `names[what]` for `what`, where a name is `what.weight` or `what.bias`; others keep theirs."""
    own = {}
    for name, x in tensors.items():
        what, _, kind = name.rpartition(".")
        own[f"{names.get(what, what)}.{kind}"] = x
    return own


LAYOUTS = {"gpt2": gpt2, "llama": llama, "qwen3": llama}
"""By the `model_type` of `config.json`."""


def load(folder: str | Path) -> Published:
    """The model of a folder, in float32, ready to write.

    Raises `ValueError` for a layout that is not known, a field that is missing or says what your model does not do, and
    a tensor that is missing, left over or of another shape: each is named.
    """
    fields, tensors = read_folder(folder)
    kind = fields.get("model_type")
    if kind not in LAYOUTS:
        raise ValueError(f"config.json: model_type is {kind!r}, expected one of {', '.join(LAYOUTS)}")
    try:
        model, own = LAYOUTS[kind](fields, tensors)
    except KeyError as error:
        raise ValueError(f"config.json: the field {error} is missing") from None
    try:
        model.load_state_dict(own)
    except RuntimeError as error:
        raise ValueError(f"{folder}: the tensors are not those of the model. {error}") from None
    return model.eval()
