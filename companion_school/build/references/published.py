"""Stage 10, published.py: a published checkpoint in your own model (lesson 13).

A LLaMA is your model except for a few parts: its attention heads may have another width, its output head may differ
from the embedding, and in Qwen 3, queries and keys are normed. This file loads two layouts, which `config.json` calls
`llama` and `qwen3`. Stage 13 adds `gpt2`, which differs in more parts.
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
"""The dtypes of weights, by their names in safetensors files."""


def read_safetensors(path: Path) -> dict[str, Tensor]:  # given
    """Return all tensors in a file. Its first eight bytes give the length of the header, and the header gives the
    position of each tensor after it.

    Raises `ValueError` if the file is truncated or has another format.
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
                    raise ValueError(f"{name} is not at the position that the header gives")
                flat = torch.frombuffer(data, dtype=dtype, count=count, offset=end + begin) if count else torch.empty(0)
                tensors[name] = flat.view(entry["shape"])
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{path}: expected a complete safetensors file ({error})") from None
    return tensors


def read_folder(folder: str | Path) -> tuple[dict, dict[str, Tensor]]:  # given
    """Return the fields of `config.json`, and the tensors of all safetensors files in float32.

    Raises `ValueError` if one of these files is missing or damaged.
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
    """Return the folder of a model from the Hugging Face hub, such as "HuggingFaceTB/SmolLM2-135M". The first call
    needs a network."""
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors"]))


def take(fields: dict, expected: dict) -> None:  # given
    """Raise `ValueError` for a field with a value that your model does not support; `expected` gives the only supported
    value of each field."""
    for name, value in expected.items():
        if fields.get(name, value) != value:
            raise ValueError(f"config.json: {name} is {fields[name]!r}, but this model supports only {value!r}")


class Normed(nn.Linear):
    """A linear layer without bias, followed by a norm for each head. `norm` has one gain, (d_head), for all heads."""

    def __init__(self, d_model: int, heads: int, d_head: int, eps: float):
        super().__init__(d_model, heads * d_head, bias=False)
        self.d_head, self.norm = d_head, RMSNorm(d_head, eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(super().forward(x).unflatten(-1, (-1, self.d_head))).flatten(-2)


class WideAttention(Attention):
    """Your attention with heads of width `d_head`, and with normed queries and keys if `normed` is true. It uses your
    `forward`."""

    def __init__(self, d_model: int, heads: int, kv_heads: int, d_head: int, normed=False, eps: float = 1e-6):
        super().__init__(d_model, heads, kv_heads)
        if normed:
            self.query, self.key = (Normed(d_model, n, d_head, eps) for n in (heads, kv_heads))
        else:
            self.query, self.key = (nn.Linear(d_model, n * d_head, bias=False) for n in (heads, kv_heads))
        self.value = nn.Linear(d_model, kv_heads * d_head, bias=False)
        self.output = nn.Linear(heads * d_head, d_model, bias=False)


class Published(Transformer):
    """Your decoder with heads of width `d_head`, and with a different `eps` in its norms.

    tied:    if true, the embedding is also the head, as in your model; otherwise `head` is a linear layer without bias.
    normed:  if true, queries and keys are normed.
    """

    def __init__(self, config: Config, d_head: int, eps: float, tied=True, normed=False):
        super().__init__(config)
        for block in self.decoder.blocks:
            block.attention = WideAttention(config.d_model, config.heads, config.kv_heads, d_head, normed, eps)
            block.attention_norm, block.feed_forward_norm = (RMSNorm(config.d_model, eps) for _ in range(2))
        self.decoder.norm = RMSNorm(config.d_model, eps)
        self.head = None if tied else nn.Linear(config.d_model, config.vocab, bias=False)

    def forward(self, ids: Tensor, caches=None) -> Tensor:
        """(batch, token) -> (batch, token, vocab), as in your own model."""
        seen, new = len(caches[0]) if caches else 0, ids.shape[1]
        places = torch.arange(seen, seen + new, device=ids.device)
        turn = partial(rotate, places=places, base=self.config.base)
        x = self.decoder(self.embedding(ids), caches, mask=causal(new, seen + new).to(ids.device), turn=turn)
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
"""Their names and yours, first for the tensors that occur once, then for those in each layer."""


def llama(fields: dict, tensors: dict[str, Tensor]) -> tuple[Published, dict[str, Tensor]]:
    """Return an empty model with the sizes of a LLaMA or a Qwen 3, and its tensors with your names."""
    take(fields, {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "use_sliding_window": False})
    rotary = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    if rotary.get("rope_type", rotary.get("type", "default")) != "default":
        raise ValueError(f"config.json: RoPE scaling ({rotary}) is not supported by this model")
    base = rotary.get("rope_theta", fields.get("rope_theta", 10000.0))
    d_model, heads, layers = (fields[name] for name in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    kv_heads, eps = fields.get("num_key_value_heads") or heads, fields["rms_norm_eps"]
    config = Config(fields["vocab_size"], d_model, layers, heads, kv_heads, fields["intermediate_size"], base)
    d_head, tied = fields.get("head_dim") or d_model // heads, fields.get("tie_word_embeddings", False)
    model = Published(config, d_head, eps, tied, normed=fields["model_type"] == "qwen3")
    names = dict(LLAMA)
    for layer in range(layers):
        names |= {f"model.layers.{layer}.{old}": f"decoder.blocks.{layer}.{new}" for old, new in LLAMA_LAYER.items()}
    if model.head is None:
        tensors = {name: x for name, x in tensors.items() if name != "lm_head.weight"}  # the embedding once more
    return model, renamed(tensors, names)


def renamed(tensors: dict[str, Tensor], names: dict[str, str]) -> dict[str, Tensor]:
    """Return the tensors with `names[what]` in place of `what` in names of the form `what.weight` or `what.bias`; other
    names do not change."""
    own = {}
    for name, x in tensors.items():
        what, _, kind = name.rpartition(".")
        own[f"{names.get(what, what)}.{kind}"] = x
    return own


LAYOUTS = {"llama": llama, "qwen3": llama}
"""The function for each `model_type` in `config.json`. Stage 13 adds its own."""


def load(folder: str | Path) -> Published:
    """Return the model in a folder, in float32 and ready to generate text.

    Raises a `ValueError` with the name of any unknown layout, of any field that is missing or not supported by your
    model, and of any tensor that is missing, unused or has another shape.
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
        raise ValueError(f"{folder}: the tensors do not match the model. {error}") from None
    return model.eval()
