"""Convert the tokenizer in a GGUF file's metadata to a tokenizer.json, and back (lesson 01).

Two kinds are supported: byte-level BPE with a named pre-tokenizer ("gpt2"), and SentencePiece's BPE, whose merges are
determined by the scores of its pieces ("llama"). The names of pre-tokenizers are those of llama.cpp, as are the tokens
that each one adds before a text by default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from companion.ground.fields import shown

if TYPE_CHECKING:
    from companion.files.gguf.container import GGUFFile

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
"""The types of tokens in GGUF files."""
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT4O = _TEKKEN.replace(r"]+|[", r"]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[").replace(
    r"]*|\p{N}|", r"]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|"
)


def _split(pattern: str) -> dict[str, Any]:
    """Return a pre-tokenizer that splits a text by a regular expression and maps bytes to byte-level characters."""
    parts = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
    ]
    return {"type": "Sequence", "pretokenizers": parts}


_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_DIGITS = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, _BYTES]}
PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "jina-es", "jina-de", "olmo"), _BYTES),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "dbrx", "smaug-bpe"), _split(_LLAMA3)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), _split(_QWEN2)),
    "tekken": _split(_TEKKEN),
    **dict.fromkeys(("gpt-4o", "llama4"), _split(_GPT4O)),
}
"""Pre-tokenizers of tokenizer.json, which split a text before merging, keyed by the names in `tokenizer.ggml.pre`."""
_WHOLE_WORDS = {"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "tekken"}
"""Pre-tokenizers whose words are not split if they are tokens, and whose texts begin with a BOS token by default."""
_ENDS = (
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endoftext|>",
)
"""Control tokens that end a text if the vocabulary has them, as in llama.cpp."""
SPACE = "\u2581"
UNREADABLE = "tokenizer.unreadable"
"""The file that says why a tokenizer could not be converted, in the folder made for a GGUF file."""


class Vocabulary:
    """The tokens in a GGUF file, and the ids of special tokens.

    Raises:
        ValueError: If the tokenizer is of an unsupported kind, the pre-tokenizer is unknown, or the lists in the
            metadata do not match.
    """

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.kind = file.take("tokenizer.ggml.model", str)
        if self.kind not in ("gpt2", "llama"):
            raise self._refuse("model", self.kind, "'gpt2' (byte-level BPE) or 'llama' (SentencePiece's BPE)")
        self.tokens: list[str] = self._list("tokens", str)
        self.types: list[int] = self._list("token_type", int) or [NORMAL] * len(self.tokens)
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            twice = next(token for i, token in enumerate(self.tokens) if self.ids[token] != i)
            raise self._refuse("tokens", twice, "every token once")
        self.pre = file.take("tokenizer.ggml.pre", str, "default") if self.kind == "gpt2" else ""
        if self.kind == "gpt2" and self.pre not in PRE_TOKENIZERS:
            raise self._refuse("pre", self.pre, f"one of {', '.join(PRE_TOKENIZERS)}")

    @property
    def stops(self) -> list[int]:
        """The ids that end a text, beginning with those that the file's keys name."""
        named = [self.special(f"{one}_token_id") for one in ("eos", "eot", "eom")]
        names = [one for one in _ENDS if one in self.ids and self.types[self.ids[one]] in (CONTROL, USER)]
        if {"<|return|>", "<|call|>"} <= {*names} and "<|end|>" in names:
            names.remove("<|end|>")  # in gpt-oss, this token ends a message, but the model continues
        found = [one for one in named if one is not None] + [self.ids[one] for one in names]
        return list(dict.fromkeys(found))

    def ids_with_a_meaning(self) -> dict[str, Any]:
        """Return the fields of config.json that name special tokens."""
        stops = self.stops
        return {
            "bos_token_id": self.special("bos_token_id"),
            "eos_token_id": stops[0] if len(stops) == 1 else stops or None,
            "pad_token_id": self.special("padding_token_id"),
        }

    def special(self, name: str) -> int | None:
        """Return the id in a key such as `bos_token_id`, or `None` if the file has no such key."""
        value = self.file.take(f"tokenizer.ggml.{name}", int, None)
        if value is not None and not 0 <= value < len(self.tokens):
            raise self._refuse(name, value, f"an id from 0 to {len(self.tokens) - 1}")
        return value

    def files(self) -> dict[str, str]:
        """Return the tokenizer and the chat template as the files of a published folder, keyed by name."""
        named = {
            "bos_token": self.special("bos_token_id"),
            "eos_token": self.special("eos_token_id"),
            "unk_token": self.special("unknown_token_id"),
            "pad_token": self.special("padding_token_id"),
        }
        settings: dict[str, Any] = {name: self.tokens[i] for name, i in named.items() if i is not None}
        settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        settings["model_max_length"] = self.file.take(
            f"{self.file.take('general.architecture', str)}.context_length", int
        )
        files = {
            "tokenizer.json": json.dumps(self._json(), ensure_ascii=False),
            "tokenizer_config.json": json.dumps(settings, ensure_ascii=False, indent=2) + "\n",
        }
        template = self.file.take("tokenizer.chat_template", str, None)
        return files if template is None else {**files, "chat_template.jinja": template}

    def _json(self) -> dict[str, Any]:
        if self.kind == "gpt2":
            return self._whole(self._byte_level(), None, PRE_TOKENIZERS[self.pre], _BYTES)
        prefix = self.file.take("tokenizer.ggml.add_space_prefix", bool, True)
        before: list[dict[str, Any]] = [{"type": "Prepend", "prepend": SPACE}] if prefix else []
        spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
        after: list[dict[str, Any]] = [
            {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ]
        after += [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
        normalizer = {"type": "Sequence", "normalizers": [*before, spaces]}
        return self._whole(self._pieces(), normalizer, None, {"type": "Sequence", "decoders": after})

    def _whole(
        self, model: dict[str, Any], normalizer: Any, pre_tokenizer: Any, decoder: Mapping[str, Any]
    ) -> dict[str, Any]:
        added = [
            {
                "id": i,
                "content": token,
                "special": kind != USER,
                **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
            }
            for i, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind in (CONTROL, USER) and not self._spaces(i) and token
        ]
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer,
            "post_processor": self._around(),
            "decoder": decoder,
            "model": model,
        }

    def _byte_level(self) -> dict[str, Any]:
        merges = [self._merge(one) for one in self._list("merges", str)]
        return _bpe(self.ids, merges, ignore_merges=self.pre in _WHOLE_WORDS)

    def _merge(self, text: str) -> tuple[str, str]:
        left, _, right = text.partition(" ")
        if not left or not right or not {left, right, left + right} <= self.ids.keys():
            raise self._refuse("merges", text, "two tokens that merge into a third")
        return left, right

    def _pieces(self) -> dict[str, Any]:
        """Return SentencePiece's BPE, which always merges the pair that forms the piece with the highest score."""
        scores = self._list("scores", float)
        if self.file.take("general.architecture", str).startswith("gemma"):  # ranked by id rather than by score
            scores = [-float(i) for i in range(len(self.tokens))]
        unknown = self.special("unknown_token_id")
        normal = {
            SPACE * len(token) if self._spaces(i) else token: (-scores[i], i)
            for i, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind == NORMAL or self._spaces(i)
        }
        ranked = [
            (*rank, token[:cut], token[cut:])
            for token, rank in normal.items()
            for cut in range(1, len(token))
            if token[:cut] in normal and token[cut:] in normal
        ]
        vocab = {SPACE * len(token) if self._spaces(i) else token: i for token, i in self.ids.items()}
        name = None if unknown is None else self.tokens[unknown]
        merges = [(left, right) for _, _, left, right in sorted(ranked)]
        return _bpe(vocab, merges, unk_token=name, fuse_unk=True, byte_fallback=True)

    def _spaces(self, i: int) -> bool:
        """Return whether a piece consists of spaces, which a file may store as " " instead of `SPACE`."""
        token = self.tokens[i]
        return self.kind == "llama" and self.types[i] == USER and token != "" and not token.strip(f" {SPACE}")

    def _around(self) -> dict[str, Any] | None:
        """Return the post-processor that adds BOS and EOS tokens to a text, or `None` if it adds none."""
        usual = self.kind == "llama" or self.pre in _WHOLE_WORDS
        wanted = {
            "bos": self.file.take("tokenizer.ggml.add_bos_token", bool, usual),
            "eos": self.file.take("tokenizer.ggml.add_eos_token", bool, False),
        }
        known = {name: self.special(f"{name}_token_id") for name, wants in wanted.items() if wants}
        ids = {name: i for name, i in known.items() if i is not None}
        if not ids:
            return None
        marks = {name: {"SpecialToken": {"id": self.tokens[i], "type_id": 0}} for name, i in ids.items()}
        one, two = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}

        def marked(part: dict[str, Any]) -> list[Any]:
            return [*([marks["bos"]] if "bos" in marks else []), part, *([marks["eos"]] if "eos" in marks else [])]

        tokens = {self.tokens[i]: {"id": self.tokens[i], "ids": [i], "tokens": [self.tokens[i]]} for i in ids.values()}
        pair = [*marked(one), *marked(two)]
        return {"type": "TemplateProcessing", "single": marked(one), "pair": pair, "special_tokens": tokens}

    def _list(self, name: str, kind: type) -> list[Any]:
        found = self.file.take(f"tokenizer.ggml.{name}", list, *([[]] if name in ("token_type", "merges") else []))
        if not all(isinstance(one, kind) for one in found):
            raise self._refuse(name, next(one for one in found if not isinstance(one, kind)), f"{kind.__name__}s only")
        if name in ("token_type", "scores") and found and len(found) != len(self.tokens):
            raise self._refuse(name, len(found), f"one for each of the {len(self.tokens)} tokens")
        return found

    def _refuse(self, name: str, value: Any, expected: str) -> ValueError:
        return ValueError(f"{self.file.path}: tokenizer.ggml.{name}={shown(value)}: expected {expected}")


def _bpe(vocab: Mapping[str, int], merges: Sequence[tuple[str, str]], **further: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
    }
    usual |= {"fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    return {"type": "BPE", **usual, **further, "vocab": dict(vocab), "merges": [list(one) for one in merges]}


# From tokenizer.json to GGUF


def tokenizer_metadata(text: str, vocab: int) -> dict[str, Any]:
    """Return the keys of `tokenizer.ggml` that represent a tokenizer.json.

    Args:
        text: The contents of the file.
        vocab: The size of the model's vocabulary.

    Raises:
        ValueError: If llama.cpp has no name for the tokenizer, or an id is outside the vocabulary.
    """
    data = json.loads(text)
    model = data.get("model") or {}
    if model.get("type") != "BPE":
        raise ValueError(
            f"tokenizer.json: model.type={shown(model.get('type'))}: expected 'BPE', which llama.cpp supports"
        )
    tokens = [f"[PAD{i}]" for i in range(vocab)]
    types = [UNUSED] * vocab
    added = {one["id"]: one for one in data.get("added_tokens") or ()}
    for token, i in [*model["vocab"].items(), *((one["content"], i) for i, one in added.items())]:
        if i >= vocab:
            raise ValueError(
                f"tokenizer.json: {token!r} has the id {i}: expected ids below {vocab}, the model's vocabulary size"
            )
        tokens[i], types[i] = token, NORMAL
    for i, one in added.items():
        types[i] = CONTROL if one.get("special") else USER
    merges = [one.split(" ", 1) if isinstance(one, str) else one for one in model["merges"]]
    found: dict[str, Any] = {"tokens": tokens, "token_type": types, **_around_of(data, added)}
    if not model.get("byte_fallback"):
        return found | {"model": "gpt2", "pre": _pre_of(data), "merges": [" ".join(one) for one in merges]}
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(merges):
        ranks.setdefault(left + right, rank)
    scores = [-float(ranks.get(token, len(merges))) for token in tokens]
    for i, token in enumerate(tokens):
        if len(token) == 6 and token.startswith("<0x"):
            types[i] = BYTE
        elif token == model.get("unk_token"):
            types[i], found["unknown_token_id"] = UNKNOWN, i
    prefix = SPACE in json.dumps(data.get("normalizer"), ensure_ascii=False).partition('"Replace"')[0] or any(
        part.get("type") == "Metaspace" and part.get("prepend_scheme") != "never"
        for part in _parts(data, "pre_tokenizer")
    )
    return found | {"model": "llama", "scores": scores, "add_space_prefix": prefix}


def _parts(data: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Return a processing step in a tokenizer.json as a list of its parts."""
    step = data.get(name)
    if step is None:
        return []
    return step.get("pretokenizers") or step.get("normalizers") or step.get("processors") or [step]


def _pre_of(data: Mapping[str, Any]) -> str:
    def plain(step: Any) -> Any:
        return [{key: value for key, value in part.items() if key != "trim_offsets"} for part in _parts(step, "step")]

    given = plain({"step": data.get("pre_tokenizer")})
    for name, step in PRE_TOKENIZERS.items():
        whole = (name in _WHOLE_WORDS) == bool(data["model"].get("ignore_merges"))
        if plain({"step": step}) == given and (whole or name not in _WHOLE_WORDS) and not data.get("normalizer"):
            return name
    raise ValueError(
        "tokenizer.json: pre_tokenizer: expected one that llama.cpp supports, such as GPT-2's, SmolLM's, Llama "
        "3's or Qwen 2's"
    )


def _around_of(data: Mapping[str, Any], added: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the keys for the special tokens that are added at the beginning and the end of a text."""
    ids = {one["content"]: i for i, one in added.items()}
    for part in _parts(data, "post_processor"):
        if part.get("type") == "TemplateProcessing":
            single = part["single"]
            names = [one["SpecialToken"]["id"] if "SpecialToken" in one else None for one in single]
            middle = names.index(None)
            first, last = names[:middle], names[middle + 1 :]
            found: dict[str, Any] = {"add_bos_token": bool(first), "add_eos_token": bool(last)}
            found |= {"bos_token_id": ids[first[0]]} if first and first[0] in ids else {}
            return found | ({"eos_token_id": ids[last[0]]} if last and last[0] in ids else {})
    return {"add_bos_token": False, "add_eos_token": False}
