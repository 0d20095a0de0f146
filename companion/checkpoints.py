"""Models on disk: safetensors for the numbers, JSON for the configuration (lessons 10 and 13).

A model is a folder with `model.safetensors` and `config.json`. Nothing here reads a pickle. Every file is written
beside its final name, flushed to the disk and renamed, so that whoever reads it sees the old one or the new one, whole.

`load_model` reads what `save_model` wrote; `load_gpt2` and `load_llama` read the folders that Hugging Face's
`save_pretrained` writes, and `load_pretrained` takes either kind. A field of a foreign configuration that changes what
the model computes is translated or refused by name, and every tensor must find its place.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from companion.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    ModelConfig,
    NormConfig,
    PositionConfig,
)
from companion.transformer import Transformer

WEIGHTS, CONFIG = "model.safetensors", "config.json"


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A path to write to in the folder of `path`; renamed to `path` if the block succeeds, removed if it does not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield draft
        with open(draft, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def write_atomic(path: str | Path, data: bytes | str) -> None:
    """Write `data` (text as UTF-8) to `path` so that a reader, or a crash, never meets half of it.

    Missing folders are made. An error leaves what was there before, and no draft behind.
    """
    with _replacing(Path(path)) as draft:
        draft.write_bytes(data.encode() if isinstance(data, str) else data)


def save_tensors(path: str | Path, tensors: Mapping[str, Tensor]) -> None:
    """Write named tensors to one safetensors file, as atomically as `write_atomic`. They may live on any device."""
    with _replacing(Path(path)) as draft:
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, draft)


def load_tensors(path: str | Path, *, device: torch.device | str | None = None) -> dict[str, Tensor]:
    """Read what `save_tensors` wrote. Raises `ValueError` if the file is missing, cut short or not safetensors."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: expected a safetensors file, found none")
    try:
        return load_file(path, device=str(device or "cpu"))
    except SafetensorError as error:
        raise ValueError(
            f"{path}: expected a whole safetensors file, got {path.stat().st_size} bytes that are not one; "
            f"it is damaged or was cut short ({error})"
        ) from None


def save_model(folder: str | Path, model: Transformer) -> None:
    """Write `model.safetensors` and `config.json` into `folder`, which is made if it is missing.

    A tied output head is the embedding table and is stored once. Both files are complete on the disk before the first
    takes its name.
    """
    folder = Path(folder)
    with ExitStack() as drafts:  # entered second = renamed first: the weights, then the configuration
        drafts.enter_context(_replacing(folder / CONFIG)).write_text(model.config.to_json(), encoding="utf-8")
        draft = drafts.enter_context(_replacing(folder / WEIGHTS))
        save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, draft)


def load_model(
    folder: str | Path, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Transformer:
    """The model that `save_model` wrote, in evaluation mode.

    dtype:   `None`: as stored.
    device:  `None`: the CPU.

    Raises `ValueError` if the folder or a file is missing or damaged, if it holds another kind of model, or if the
    configuration does not fit the weights (naming every tensor that is missing, unexpected or of another shape).
    """
    folder = Path(folder)
    data = _read_config(folder)
    if "model_type" in data:
        raise ValueError(
            f"{folder / CONFIG}: expected a configuration of companion, got model_type={data['model_type']!r}, "
            "a Hugging Face one; read it with load_pretrained"
        )
    try:
        config = ModelConfig.from_json(json.dumps(data))
    except ValueError as error:
        raise ValueError(f"{folder / CONFIG}: {error}") from None
    return _assemble(config, load_tensors(folder / WEIGHTS, device=device), folder, dtype)


def load_pretrained(
    folder: str | Path, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Transformer:
    """A model from any layout known here: companion's own, or the one that `model_type` in config.json names.

    Raises `ValueError` as `load_model`, `load_gpt2` and `load_llama` do, and for an unknown `model_type`.
    """
    kind = _read_config(Path(folder)).get("model_type")
    if kind is None:
        return load_model(folder, dtype=dtype, device=device)
    loaders = {"gpt2": load_gpt2, "llama": load_llama}
    if kind not in loaders:
        raise ValueError(f"{Path(folder) / CONFIG}: model_type={kind!r}: expected one of {', '.join(loaders)}, or none")
    return loaders[kind](folder, dtype=dtype, device=device)


def load_gpt2(
    folder: str | Path, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Transformer:
    """A GPT-2 (Radford et al. 2019) in Hugging Face's layout, in evaluation mode.

    There, matrices are stored (in, out), the transpose of `nn.Linear`'s, and query, key and value are one.
    Raises `ValueError` for a field it cannot honour, a tensor without a place, and what `load_model` raises.
    """
    folder = Path(folder)
    fields = _Fields(folder, "gpt2")
    for name in ("reorder_and_upcast_attn", "scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        fields.only(name, False, default=False)
    fields.only("scale_attn_weights", True, default=True)
    context = fields.take("n_positions")
    fields.only("n_ctx", context, default=context)  # an older name for the same number
    d_model, activation = fields.take("n_embd"), fields.take("activation_function", "gelu_new")
    dropout = fields.take("resid_pdrop", 0.1)
    for name in ("embd_pdrop", "attn_pdrop"):
        fields.only(name, dropout, default=0.1)
    config = fields.finish(
        lambda: ModelConfig(
            vocab=fields.take("vocab_size"),
            d_model=d_model,
            layers=fields.take("n_layer"),
            context=context,
            attention=AttentionConfig(heads=fields.take("n_head"), bias=True),
            feed_forward=FeedForwardConfig(
                d_ff=fields.take("n_inner", None) or 4 * d_model,
                activation=fields.translate("activation_function", activation, _ACTIVATIONS),
                bias=True,
            ),
            positions=PositionConfig("learned"),
            norm=NormConfig("layer", eps=fields.take("layer_norm_epsilon", 1e-5)),
            embedding=EmbeddingConfig(tied=fields.take("tie_word_embeddings", True)),
            dropout=dropout,
        )
    )
    # The first release has neither the prefix nor a head, and keeps its causal mask as a tensor.
    given = {name.removeprefix("transformer."): tensor for name, tensor in _load_published(folder, device).items()}
    given = {name: t for name, t in given.items() if not name.endswith((".attn.bias", ".attn.masked_bias"))}
    places = _Places(given, folder)
    places.move("wte.weight", "embedding.weight")
    places.move("wpe.weight", "positions.weight")
    for layer in range(config.layers):
        old, new = f"h.{layer}", f"decoder.blocks.{layer}"
        for part in ("weight", "bias"):
            places.move(f"{old}.ln_1.{part}", f"{new}.attention_norm.{part}")
            places.move(f"{old}.ln_2.{part}", f"{new}.feed_forward_norm.{part}")
            names = [f"{new}.attention.{name}.{part}" for name in ("query", "key", "value")]
            places.move(f"{old}.attn.c_attn.{part}", *names, transpose=True)
            places.move(f"{old}.attn.c_proj.{part}", f"{new}.attention.output.{part}", transpose=True)
            places.move(f"{old}.mlp.c_fc.{part}", f"{new}.feed_forward.inner.{part}", transpose=True)
            places.move(f"{old}.mlp.c_proj.{part}", f"{new}.feed_forward.outer.{part}", transpose=True)
    for part in ("weight", "bias"):
        places.move(f"ln_f.{part}", f"decoder.norm.{part}")
    places.head("wte.weight", config.embedding.tied)
    return _assemble(config, places.finish(), folder, dtype)


def load_llama(
    folder: str | Path, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Transformer:
    """A LLaMA (Touvron et al. 2023) in Hugging Face's layout, in evaluation mode: rotary positions in halves, grouped
    key-value heads, SwiGLU, RMS norms.

    Raises `ValueError` for a field it cannot honour (scaled rotary positions, say), a tensor without a place, and what
    `load_model` raises.
    """
    folder = Path(folder)
    fields = _Fields(folder, "llama")
    fields.only("hidden_act", "silu", default="silu")
    fields.only("attention_dropout", 0.0, default=0.0)  # ours would also drop embeddings and sub-layer outputs
    fields.only("pretraining_tp", 1, default=1)
    fields.only("rope_scaling", None, default=None)
    base = fields.take("rope_theta", 10000.0)
    rotary = fields.take("rope_parameters", None) or {}  # from transformers 5 on, base and scaling sit here
    for name, value in rotary.items():
        if name == "rope_theta":
            base = value
        elif (name, value) not in (("rope_type", "default"), ("partial_rotary_factor", 1.0)):
            raise fields.refuse(f"rope_parameters.{name}", value, "rotary positions that are not scaled")
    config = fields.finish(
        lambda: ModelConfig(
            vocab=fields.take("vocab_size"),
            d_model=fields.take("hidden_size"),
            layers=fields.take("num_hidden_layers"),
            context=fields.take("max_position_embeddings"),
            attention=AttentionConfig(
                heads=fields.take("num_attention_heads"),
                kv_heads=fields.take("num_key_value_heads", None),
                d_head=fields.take("head_dim", None),
                bias=fields.take("attention_bias", False),
            ),
            feed_forward=FeedForwardConfig(d_ff=fields.take("intermediate_size"), bias=fields.take("mlp_bias", False)),
            positions=PositionConfig("rotary", base=base, layout="half"),
            norm=NormConfig("rms", eps=fields.take("rms_norm_eps", 1e-6)),
            embedding=EmbeddingConfig(tied=fields.take("tie_word_embeddings", False)),
        )
    )
    given = _load_published(folder, device)
    given = {name: t for name, t in given.items() if not name.endswith(".rotary_emb.inv_freq")}  # computed here
    places = _Places(given, folder)
    places.move("model.embed_tokens.weight", "embedding.weight")
    for layer in range(config.layers):
        old, new = f"model.layers.{layer}", f"decoder.blocks.{layer}"
        places.move(f"{old}.input_layernorm.weight", f"{new}.attention_norm.weight")
        places.move(f"{old}.post_attention_layernorm.weight", f"{new}.feed_forward_norm.weight")
        for part in ("weight", "bias") if config.attention.bias else ("weight",):
            for short, name in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "output")):
                places.move(f"{old}.self_attn.{short}_proj.{part}", f"{new}.attention.{name}.{part}")
        for part in ("weight", "bias") if config.feed_forward.bias else ("weight",):
            for short, name in (("gate", "gate"), ("up", "inner"), ("down", "outer")):
                places.move(f"{old}.mlp.{short}_proj.{part}", f"{new}.feed_forward.{name}.{part}")
    places.move("model.norm.weight", "decoder.norm.weight")
    places.head("model.embed_tokens.weight", config.embedding.tied)
    return _assemble(config, places.finish(), folder, dtype)


_ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "relu": "relu"}

# fmt: off
_NEUTRAL = frozenset({
    "_name_or_path", "architectures", "model_type", "transformers_version", "torch_dtype", "dtype", "use_cache",
    "initializer_range", "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id",
    "decoder_start_token_id", "name_or_path", "id2label", "label2id", "num_labels", "problem_type",
    "finetuning_task", "task_specific_params", "summary_activation", "summary_first_dropout",
    "summary_proj_to_labels", "summary_type", "summary_use_proj", "output_attentions", "output_hidden_states",
    "return_dict", "return_dict_in_generate", "output_scores", "chunk_size_feed_forward", "do_sample", "max_length",
    "max_new_tokens", "temperature", "top_k", "top_p", "gradient_checkpointing",
})
# fmt: on
"""Fields of a published configuration that say nothing about the function from tokens to logits."""


class _Fields:
    """A published config.json whose every field is taken, allowed one value, known to be neutral, or refused."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.path = folder / CONFIG
        self.left = _read_config(folder)
        if self.left.get("model_type") != kind:
            raise self.refuse("model_type", self.left.get("model_type"), repr(kind))
        self.only("is_encoder_decoder", False, default=False)

    def refuse(self, name: str, value: Any, expected: str) -> ValueError:
        return ValueError(f"{self.path}: {name}={value!r}: expected {expected}")

    def take(self, name: str, *default: Any) -> Any:
        """The field's value, or its published default; without a default it must be there."""
        if name not in self.left and not default:
            raise ValueError(f"{self.path}: the field {name} is missing")
        return self.left.pop(name, *default)

    def only(self, name: str, value: Any, *, default: Any) -> None:
        """Refuse every value but one: the others would make another function."""
        got = self.take(name, default)
        if got != value:
            raise self.refuse(name, got, f"{value!r}, the only value this reader knows how to honour")

    def translate(self, name: str, value: Any, names: Mapping[str, Any]) -> Any:
        if value not in names:
            raise self.refuse(name, value, "one of " + ", ".join(map(repr, names)))
        return names[value]

    def finish(self, build: Callable[[], ModelConfig]) -> ModelConfig:
        """The configuration, once nothing is left over that might matter."""
        try:
            config = build()
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.path}: {str(error).removeprefix(f'{self.path}: ')}") from None
        unknown = [name for name, value in self.left.items() if name not in _NEUTRAL and value is not None]
        if unknown:
            raise self.refuse(unknown[0], self.left[unknown[0]], "a field this reader knows; it may change the model")
        return config


class _Places:
    """Published tensors on their way to our names; each is moved exactly once."""

    def __init__(self, given: dict[str, Tensor], folder: Path) -> None:
        self.given, self.folder = given, folder
        self.moved: dict[str, Tensor] = {}
        self.missing: list[str] = []

    def move(self, old: str, *new: str, transpose: bool = False) -> None:
        """`old` becomes `new`; with several, its rows are dealt out in equal parts."""
        if old not in self.given:
            self.missing.append(old)
            return
        tensor = self.given.pop(old)
        tensor = tensor.T if transpose and tensor.ndim == 2 else tensor
        for name, part in zip(new, tensor.chunk(len(new)), strict=True):
            self.moved[name] = part.contiguous()

    def head(self, embedding: str, tied: bool) -> None:
        """The output head, which a tied model may store or leave out."""
        if not tied:
            self.move("lm_head.weight", "unembedding.weight")
        elif "lm_head.weight" in self.given:
            table = self.moved.get("embedding.weight")
            if table is not None and not torch.equal(self.given.pop("lm_head.weight"), table):
                raise ValueError(f"{self.folder}: lm_head.weight differs from {embedding}: expected one tied table")

    def finish(self) -> dict[str, Tensor]:
        faults = [f"missing {name}" for name in self.missing]
        faults += [f"unexpected {name} {tuple(tensor.shape)}" for name, tensor in self.given.items()]
        _raise_faults(self.folder, faults)
        return self.moved


def _load_published(folder: Path, device: torch.device | str | None) -> dict[str, Tensor]:
    """The tensors of model.safetensors, or of all the files that its index names."""
    index = folder / f"{WEIGHTS}.index.json"
    if (folder / WEIGHTS).is_file() or not index.is_file():
        return load_tensors(folder / WEIGHTS, device=device)
    try:
        home = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = sorted(set(home.values()))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{index}: expected an object with a weight_map from tensors to files ({error!r})") from None
    tensors: dict[str, Tensor] = {}
    for name in files:
        if Path(name).name != name:
            raise ValueError(f"{index}: weight_map names {name!r}: expected a file in the same folder")
        tensors |= load_tensors(folder / name, device=device)
    _raise_faults(folder, [f"missing {name}, which the index promises" for name in home if name not in tensors])
    return tensors


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not folder.is_dir():
        raise ValueError(f"{folder}: expected a folder with {CONFIG} and {WEIGHTS}, found none")
    if not path.is_file():
        raise ValueError(f"{path}: expected the model's configuration, found no such file")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: expected JSON; it is damaged or was cut short ({error})") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path}: expected a JSON object, got {data!r:.80}")
    return data


def _assemble(config: ModelConfig, tensors: dict[str, Tensor], folder: Path, dtype: torch.dtype | None) -> Transformer:
    """The model of `config` around `tensors`, which must be exactly its parameters."""
    with torch.device("meta"):  # shapes only: nothing is allocated or drawn at random, then thrown away
        model = Transformer(config)
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    got = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    shared = [name for name in wanted if name in got and got[name] != wanted[name]]
    faults = [f"{name} is {got[name]}, expected {wanted[name]}" for name in shared]
    faults += [f"missing {name} {wanted[name]}" for name in wanted if name not in got]
    faults += [f"unexpected {name} {got[name]}" for name in got if name not in wanted]
    _raise_faults(folder, faults)
    if dtype is not None:
        tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    model.load_state_dict(tensors, assign=True)
    return model.eval()


def _raise_faults(folder: Path, faults: list[str]) -> None:
    if faults:
        shown = "; ".join(faults[:12]) + (f"; and {len(faults) - 12} more" if len(faults) > 12 else "")
        raise ValueError(f"{folder}: the configuration does not fit the weights: {shown}")
