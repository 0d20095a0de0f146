"""Tokenizers of published checkpoints, loaded from the model's own folder (lessons 01 and 13).

Three formats are in use: `tokenizer.json`, which the `tokenizers` library writes; the original format of GPT-2 and
Qwen, `vocab.json` with `merges.txt`; and Marian's format, two SentencePiece models (`source.spm`, `target.spm`) with
one table of ids (`vocab.json`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from companion.data.chat_template import SETTINGS, read_object, special_tokens
from companion.data.tokenizer import library_faults
from companion.files.gguf.tokenizers import UNREADABLE
from companion.ground.fields import shown, why
from companion.ground.reading import read_json, read_text


@runtime_checkable
class PublishedTokenizer(Protocol):
    """Interface of every published tokenizer.

    Attributes:
        vocab: one more than the largest id. A model's embedding table may have more rows than this, and some smaller
            ids may not be tokens.
    """

    vocab: int

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`, including the special tokens that the model expects around it.

        Raises:
            ValueError: if the text cannot be encoded.
        """

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids` without special tokens."""

    def spell(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`, including special tokens; ids outside the tokenizer's vocabulary add nothing."""


def load_tokenizer(folder: str | Path) -> PublishedTokenizer:
    """Load the tokenizer in a published checkpoint's folder, in any of the formats.

    Raises:
        ValueError: if there is no tokenizer, if a file is missing or damaged, or if Marian's format is used without the
            package `sentencepiece`, which the extra `published` installs.
    """
    folder = Path(folder)
    if (folder / UNREADABLE).is_file():
        raise ValueError(read_text(folder / UNREADABLE))
    if (folder / "source.spm").is_file():
        return MarianTokenizer(folder)
    if (folder / "tokenizer.json").is_file():
        return JsonTokenizer(_from_json(folder / "tokenizer.json"))
    if (folder / "merges.txt").is_file():
        return JsonTokenizer(_from_merges(folder))
    raise ValueError(f"{folder}: expected tokenizer.json, vocab.json with merges.txt, or source.spm; found none")


class JsonTokenizer:
    """A tokenizer from the `tokenizers` library, with the published normalization, special tokens and decoder."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()  # a file may contain padding and truncation settings, but a text must not be cut
        self._tokenizer = tokenizer
        self.vocab: int = max(tokenizer.get_vocab().values(), default=-1) + 1

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Encode `text`.

        With `special=False`, no special tokens are added, because a text written by a chat template already contains
        them.
        """
        with library_faults("tokenizer: cannot encode this text"):
            return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Iterable[int]) -> str:
        known = _checked(ids, self.vocab)
        with library_faults("tokenizer: cannot decode these ids"):
            return str(self._tokenizer.decode(known, skip_special_tokens=True))

    def spell(self, ids: Iterable[int]) -> str:
        with library_faults("tokenizer: cannot decode these ids"):
            return str(self._tokenizer.decode([i for i in ids if i < self.vocab], skip_special_tokens=False))


class MarianTokenizer:
    """Marian's tokenizer.

    SentencePiece splits the text, and a table shared by both languages gives the ids of the pieces.

    A text may begin with a language code such as ">>fra<<". `encode` adds the end token, as in the model's training.
    """

    def __init__(self, folder: str | Path) -> None:
        folder = Path(folder)
        try:
            import sentencepiece
        except ImportError:
            raise ValueError(
                f"{folder}: this tokenizer needs sentencepiece; pip install 'executable-transformer[published]'"
            ) from None
        self._source, self._target = sentencepiece.SentencePieceProcessor(), sentencepiece.SentencePieceProcessor()
        for model, name in ((self._source, "source.spm"), (self._target, "target.spm")):
            path = folder / name
            if not path.is_file():
                raise ValueError(f"{path}: expected a SentencePiece model, found no such file")
            try:
                model.Load(str(path))
            except (RuntimeError, OSError) as error:
                raise ValueError(
                    f"{path}: expected a SentencePiece model, but the file is damaged ({why(error)})"
                ) from None
        if (folder / "target_vocab.json").is_file():
            raise ValueError(f"{folder / 'target_vocab.json'}: expected one table for both languages, found two")
        self._ids = _table(folder / "vocab.json")
        self._pieces = {i: piece for piece, i in self._ids.items()}
        missing = [token for token in ("<unk>", "</s>", "<pad>") if token not in self._ids]
        if missing:
            raise ValueError(f"{folder / 'vocab.json'}: expected the token {missing[0]}, found none")
        self.vocab = max(self._pieces) + 1
        self.stop, self.pad = self._ids["</s>"], self._ids["<pad>"]

    def encode(self, text: str) -> list[int]:
        """Return the ids of a source text, ended by `</s>`; a piece without an id becomes `<unk>`."""
        pieces = []
        end = text.find("<<")
        if text.startswith(">>") and end >= 0:
            pieces, text = [text[: end + 2]], text[end + 2 :]
        pieces += self._source.EncodeAsPieces(text)
        return [self._ids.get(piece, self._ids["<unk>"]) for piece in pieces] + [self.stop]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the target text of `ids`, leaving out end tokens, padding and unknown pieces."""
        special = {self.stop, self.pad, self._ids["<unk>"]}
        pieces = [self._pieces[i] for i in _checked(ids, self.vocab) if i not in special and i in self._pieces]
        text = self._target.DecodePieces(pieces)
        return str(text).replace("▁", " ").strip()

    def spell(self, ids: Iterable[int]) -> str:
        return "".join(self._pieces[i] for i in ids if i in self._pieces).replace("▁", " ").lstrip(" ")


KEPT = 16
"""Minimum number of tokens that a stream decodes again with each new one. It is enough because no tokenizer looks back
further than one word.
"""


class TextStream:
    """Incremental decoder for any tokenizer: `push` returns the text that a token adds, `finish` the remaining text.

    The text of a token can depend on earlier tokens, so at least the last `KEPT` tokens are decoded again, and only the
    new text is returned. A character is held back until all of its bytes have arrived. Ids outside the tokenizer's
    vocabulary add nothing.

    Args:
        tokenizer: the tokenizer that decodes the ids.
        before: ids of the preceding text, which is not returned.
    """

    def __init__(self, tokenizer: PublishedTokenizer, before: Iterable[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._ids = list(before)
        self._shown = tokenizer.decode(self._ids)
        self._let_go(self._shown)

    def push(self, token: int) -> str:
        if token >= self._tokenizer.vocab:
            return ""
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        new = self._take(text.rstrip("\ufffd")) if text.startswith(self._shown) else ""
        if len(self._ids) >= 2 * KEPT:
            self._let_go(text)
        return new

    def _let_go(self, text: str) -> None:
        """If decoding only the last few tokens gives the end of `text` (the text of all tokens), drop the tokens before
        them."""
        for kept in range(KEPT, min(len(self._ids), KEPT + 4)):  # a character has at most four tokens
            last = self._tokenizer.decode(self._ids[-kept:])
            if last and text == self._shown and text.endswith(last) and "\ufffd" not in last:
                self._ids, self._shown = self._ids[-kept:], last
                return

    def finish(self) -> str:
        return self._take(self._tokenizer.decode(self._ids))

    def _take(self, text: str) -> str:
        new, self._shown = text[len(self._shown) :], max(text, self._shown, key=len)
        return new


def _checked(ids: Iterable[int], vocab: int) -> list[int]:
    ids = list(ids)
    for i in ids:
        if not 0 <= i < vocab:
            raise ValueError(f"ids: {i!r} is not a token; expected ids from 0 to {vocab - 1}")
    return ids


def _from_json(path: Path) -> Tokenizer:
    with library_faults(f"{path}: expected a tokenizer of the tokenizers library; it is damaged"):
        return Tokenizer.from_str(read_text(path))


def _from_merges(folder: Path) -> Tokenizer:
    """Build a byte-level BPE from vocab.json and merges.txt.

    The result follows the rules of the family that tokenizer_config.json names: GPT-2's, or Qwen's, which normalizes
    and splits a text differently. The special tokens are those that the other files name.
    """
    _table(folder / "vocab.json")
    settings = read_object(folder / SETTINGS)
    kind = str(settings.get("tokenizer_class") or "GPT2Tokenizer").removesuffix("Fast")
    if kind not in ("GPT2Tokenizer", "Qwen2Tokenizer"):
        raise ValueError(
            f"{folder / SETTINGS}: tokenizer_class={shown(settings['tokenizer_class'])}: expected GPT2Tokenizer or "
            "Qwen2Tokenizer; any other class needs a tokenizer.json, because vocab.json and merges.txt do not say how "
            "text is split"
        )
    with library_faults(f"{folder / 'merges.txt'}: expected the merges of vocab.json"):
        tokenizer = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    space = settings.get("add_prefix_space") is True
    if kind == "Qwen2Tokenizer":
        tokenizer.normalizer = normalizers.NFC()
        words = pre_tokenizers.Split(Regex(_QWEN_WORDS), behavior="isolated")
        bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, bytes_])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    tokenizer.decoder = decoders.ByteLevel()
    for token in _added(folder, settings):
        tokenizer.add_tokens([token])
    return tokenizer


_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Word pattern of Qwen's tokenizers (Qwen2Tokenizer of the released code)."""


def _added(folder: Path, settings: Mapping[str, Any]) -> list[AddedToken]:
    """Return the tokens that are not produced by a merge, in the order of their ids.

    The result contains the tokens listed in tokenizer_config.json or, in older folders, in added_tokens.json, and the
    special tokens named in a file.
    """
    listed = settings.get("added_tokens_decoder")
    with library_faults(f"{folder / SETTINGS}: expected added_tokens_decoder, from ids to tokens"):
        if listed:
            rows = sorted((int(id), dict(token)) for id, token in listed.items())
            return [AddedToken(**token) for _, token in rows]
    names = special_tokens(folder).values()
    special = [AddedToken(name, normalized=False, special=True) for name in dict.fromkeys(("<|endoftext|>", *names))]
    known = _table(folder / "vocab.json") | (added := read_object(folder / "added_tokens.json"))
    others = [
        AddedToken(name, normalized=True)
        for name in sorted(added, key=lambda name: added[name])
        if name not in set(names)
    ]
    return sorted((one for one in [*others, *special] if one.content in known), key=lambda one: known[one.content])


def _table(path: Path) -> dict[str, int]:
    """Return a table from pieces to ids. Raises `ValueError` if the file is missing, damaged, or does not contain such
    a table."""
    if not path.is_file():
        raise ValueError(f"{path}: expected a file that maps tokens to ids, found none")
    table = read_json(path)
    whole = isinstance(table, dict) and table and all(type(i) is int and i >= 0 for i in table.values())
    if not whole:
        raise ValueError(f"{path}: expected an object that maps tokens to ids, got {shown(table)}")
    return table
