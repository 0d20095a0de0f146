"""What a published checkpoint's folder holds: the fields of its configuration, its tensors, its special tokens.

Nothing here knows a layout; the files beside this one do. Every field is taken, allowed one value, known to be
neutral or refused by name, and every tensor must find its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from companion.config import ModelConfig
from companion.fields import parse_json
from companion.files.models import CONFIG, WEIGHTS, load_tensors, raise_faults, read_config

# fmt: off
NEUTRAL = frozenset({
    "_name_or_path", "architectures", "model_type", "transformers_version", "torch_dtype", "dtype", "use_cache",
    "initializer_range", "init_std", "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id",
    "decoder_start_token_id", "name_or_path", "id2label", "label2id", "num_labels", "problem_type",
    "finetuning_task", "task_specific_params", "summary_activation", "summary_first_dropout",
    "summary_proj_to_labels", "summary_type", "summary_use_proj", "output_attentions", "output_hidden_states",
    "output_router_logits", "router_aux_loss_coef", "return_dict", "return_dict_in_generate", "output_scores",
    "chunk_size_feed_forward", "do_sample", "max_length", "max_new_tokens", "min_length", "temperature", "top_k",
    "top_p", "num_beams", "length_penalty", "early_stopping", "bad_words_ids", "forced_eos_token_id",
    "forced_bos_token_id", "gradient_checkpointing", "classifier_dropout", "classif_dropout", "directionality",
    "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type",
})
# fmt: on
"""Fields of a published configuration that say nothing about the function from tokens to logits."""
ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""Published names of activations, and ours."""


class Fields:
    """A published config.json whose every field is taken, allowed one value, known to be neutral, or refused."""

    def __init__(self, folder: Path, kind: str, *, encoder_decoder: bool = False) -> None:
        self.path = folder / CONFIG
        self.left = read_config(folder)
        if self.left.get("model_type") != kind:
            raise self.refuse("model_type", self.left.get("model_type"), repr(kind))
        self.only("is_encoder_decoder", encoder_decoder, default=encoder_decoder)

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

    def alike(self, *names: str) -> Any:
        """The one value of fields that could differ, but not in a model of one configuration."""
        value = self.take(names[0])
        for name in names[1:]:
            self.only(name, value, default=value)
        return value

    def activation(self, name: str, default: str) -> Any:
        """Our name of the activation that the field names."""
        value = self.take(name, default)
        if value not in ACTIVATIONS:
            raise self.refuse(name, value, "one of " + ", ".join(map(repr, ACTIVATIONS)))
        return ACTIVATIONS[value]

    def finish(self, build: Callable[[], ModelConfig]) -> ModelConfig:
        """The configuration, once nothing is left over that might matter."""
        try:
            config = build()
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.path}: {str(error).removeprefix(f'{self.path}: ')}") from None
        unknown = [name for name, value in self.left.items() if name not in NEUTRAL and value is not None]
        if unknown:
            raise self.refuse(unknown[0], self.left[unknown[0]], "a field this reader knows; it may change the model")
        return config


class Places:
    """Published tensors on their way to our names; each is moved exactly once."""

    def __init__(self, given: dict[str, Tensor], folder: Path) -> None:
        self.given, self.folder = given, folder
        self.moved: dict[str, Tensor] = {}
        self.missing: list[str] = []

    def move(self, old: str, *new: str, transpose: bool = False) -> None:
        """`old` becomes `new`; with several, its rows are dealt out in equal parts."""
        if old not in self.given:
            self._absent(old)
            return
        tensor = self.given.pop(old)
        self._deal(old, tensor, new, (1, 0) if transpose and tensor.ndim == 2 else tuple(range(tensor.ndim)))

    def pairs(self, old: str, new: str, parts: Iterable[str] = ("weight", "bias")) -> None:
        """`move` for each of a layer's parameters."""
        for part in parts:
            self.move(f"{old}.{part}", f"{new}.{part}")

    def experts(self, old: str, *new: str) -> None:
        """One tensor (expert, out, in) becomes `new`, each (expert, in, out); with several, `out` is dealt out."""
        if old not in self.given:
            self._absent(old)
            return
        tensor = self.given.pop(old)
        if tensor.ndim != 3:
            raise ValueError(f"{self.folder}: {old} is {tuple(tensor.shape)}: expected (expert, out, in)")
        self._deal(old, tensor, new, (0, 2, 1), axis=2)

    def stack(self, old: Sequence[str], new: str) -> None:
        """One matrix (out, in) for each expert becomes one tensor (expert, in, out)."""
        absent = [name for name in old if name not in self.given]
        for name in absent:
            self._absent(name)
        if absent:
            return
        tensors = [self.given.pop(name) for name in old]
        for name, tensor in zip(old, tensors, strict=True):
            if tensor.ndim != 2 or tensor.shape != tensors[0].shape:
                raise ValueError(
                    f"{self.folder}: {name} is {tuple(tensor.shape)}: expected {tuple(tensors[0].shape)}, "
                    "as the first expert's"
                )
        self.moved[new] = torch.stack([tensor.T for tensor in tensors])

    def same(self, names: Sequence[str], new: str) -> None:
        """One tensor that the file may hold under any of `names`, or under several if they are all equal."""
        found = {name: self.given.pop(name) for name in names if name in self.given}
        if not found:
            self._absent(names[0])
            return
        (first, tensor), *others = found.items()
        for name, other in others:
            if not torch.equal(tensor, other):
                raise ValueError(f"{self.folder}: {name} differs from {first}: expected one tied table")
        self.moved[new] = tensor

    def vocabulary(self, old: str, *, tied: bool) -> None:
        """The table of tokens, `old`, and the head, which a tied model may store twice."""
        if tied:
            self.same([old, "lm_head.weight"], "embedding.weight")
        else:
            self.move(old, "embedding.weight")
            self.move("lm_head.weight", "unembedding.weight")

    def drop(self, computed: Callable[[str], bool]) -> None:
        """Leave out the tensors whose names `computed` accepts: they are made here, not learned."""
        self.given = {name: tensor for name, tensor in self.given.items() if not computed(name)}

    def finish(self) -> dict[str, Tensor]:
        """The tensors by our names. Raises `ValueError` with those that are missing and those that were left over."""
        faults = [f"missing {name}" for name in self.missing]
        faults += [f"unexpected {name} {tuple(tensor.shape)}" for name, tensor in self.given.items()]
        raise_faults(self.folder, faults)
        return self.moved

    def _absent(self, name: str) -> None:
        """Note that a tensor is missing; of a thousand the configuration's number of layers is wrong, not the file."""
        self.missing.append(name)
        if len(self.missing) >= 1000:
            self.finish()

    def _deal(self, old: str, tensor: Tensor, new: Sequence[str], order: tuple[int, ...], axis: int = 0) -> None:
        """Bring the axes into `order`, then deal `axis` out to the `new` names."""
        if len(new) > 1 and (tensor.ndim == 0 or tensor.shape[order[axis]] % len(new)):
            raise ValueError(
                f"{self.folder}: {old} is {tuple(tensor.shape)}: expected a multiple of {len(new)} in one axis, "
                f"to become {', '.join(new)}"
            )
        parts = tensor.permute(order).chunk(len(new), dim=axis) if len(new) > 1 else [tensor.permute(order)]
        for name, part in zip(new, parts, strict=True):
            self.moved[name] = part.contiguous()


def load_published(folder: Path, device: torch.device | str | None) -> dict[str, Tensor]:
    """The tensors of model.safetensors, or of all the files that its index names.

    Raises `ValueError` for a missing or damaged file, and for an index that promises what is not there.
    """
    index = folder / f"{WEIGHTS}.index.json"
    if (folder / WEIGHTS).is_file() or not index.is_file():
        return load_tensors(folder / WEIGHTS, device=device)
    try:
        home = parse_json(index.read_text(encoding="utf-8"))["weight_map"]
        files = sorted(set(home.values()))
        if not all(isinstance(name, str) for name in files):
            raise TypeError("a file's name is text")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{index}: expected an object with a weight_map from tensors to files ({error!r})") from None
    tensors: dict[str, Tensor] = {}
    for name in files:
        if Path(name).name != name:
            raise ValueError(f"{index}: weight_map names {name!r}: expected a file in the same folder")
        tensors |= load_tensors(folder / name, device=device)
    raise_faults(folder, [f"missing {name}, which the index promises" for name in home if name not in tensors])
    return tensors


@dataclass(frozen=True)
class SpecialTokens:
    """The ids with a meaning of their own in generation.

    start:  what the decoder begins with: an encoder-decoder's start token, or a decoder's; `None` if there is none.
    stop:   what ends a text.
    pad:    what fills up a batch.
    never:  what must not be written.
    last:   what the last permitted token must be if the text has not ended by then; `None`: anything.
    """

    start: int | None = None
    stop: frozenset[int] = frozenset()
    pad: int | None = None
    never: frozenset[int] = frozenset()
    last: int | None = None


_UNKNOWN_RULES: dict[str, Any] = {
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "suppress_tokens": [],
    "begin_suppress_tokens": [],
    "forced_bos_token_id": None,
}
"""Rules of a published generation_config.json that are not followed here, and the value that makes each do nothing."""


def special_tokens(folder: str | Path) -> SpecialTokens:
    """What a published folder's generation_config.json says of its special tokens, or else its config.json.

    Raises `ValueError` for a damaged file, an id that is not a whole number, a forbidden phrase of several tokens, and
    a rule of generation that nothing here follows: ignoring it would write another text without a word.
    """
    folder = Path(folder)
    data = {name: value for name, value in read_config(folder).items() if value is not None}
    if (folder / "generation_config.json").is_file():
        more = read_config(folder, "generation_config.json")
        data |= {name: value for name, value in more.items() if value is not None}
    start = data.get("decoder_start_token_id") if data.get("is_encoder_decoder") else data.get("bos_token_id")
    stop = data.get("eos_token_id", [])
    phrases = data.get("bad_words_ids", [])
    if any(not isinstance(phrase, list) or len(phrase) != 1 for phrase in phrases):
        raise ValueError(f"{folder}: bad_words_ids={phrases!r}: expected single tokens")
    for name, harmless in _UNKNOWN_RULES.items():
        if data.get(name, harmless) != harmless:
            raise ValueError(
                f"{folder}: {name}={data[name]!r}: expected {harmless!r}, a rule that nothing here follows"
            )
    stop = stop if isinstance(stop, list) else [stop]
    for name, value in (
        ("eos_token_id", stop),
        ("bos_token_id", [start]),
        ("pad_token_id", [data.get("pad_token_id")]),
    ):
        if any(not isinstance(token, int) and token is not None for token in value):
            raise ValueError(f"{folder}: {name}={value!r}: expected token ids")
    return SpecialTokens(
        start=start,
        stop=frozenset(stop),
        pad=data.get("pad_token_id"),
        never=frozenset(phrase[0] for phrase in phrases),
        last=data.get("forced_eos_token_id"),
    )
