"""Byte-level byte-pair encoding (Sennrich et al. 2016; on bytes: Radford et al. 2019).

Each of the 256 bytes is a token, so any text can be encoded and decoded exactly. Training adds tokens for the most
frequent pairs. Lesson 01 computes the merges by hand; here the `tokenizers` library computes them.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from companion.ground.atomic import write_atomic
from companion.ground.fields import why
from companion.ground.reading import read_text

SEPARATOR = "<|document|>"
"""The token that precedes every document. If a document contains the text "<|document|>", it is encoded as ordinary
text."""
SEPARATORS = (SEPARATOR, "<|endoftext|>", "<|end_of_text|>", "<|begin_of_text|>", "</s>", "<s>")
"""Names of the separator in published tokenizers; the first one that a tokenizer has is used."""
_PROBE = " The naïve\n\tcafé, 東京 1,234 \U0001f40d!  " + "".join(map(chr, range(32, 383)))
"""Test text with many kinds of characters. A tokenizer is unsuitable for a run if encoding and decoding change this
text."""
SMALLEST_VOCAB = 257
"""256 bytes and the separator."""
LONGEST_WORD = 10_000
"""Maximum word length in characters; training cuts longer words into pieces."""
_LONG = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")


class BytePairTokenizer:
    """A trained byte-level BPE. Use `train` or `load` to create a tokenizer.

    Attributes:
        vocab: number of token ids, which is at most the requested number; a short text does not have that many repeated
            pairs.
        separator: id of the token that precedes every document.

    Raises:
        ValueError: if the tokenizer is not byte-level, has no separator, or cannot restore every text from its ids.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        known = (tokenizer.token_to_id(name) for name in SEPARATORS)
        separator = next((id for id in known if id is not None), None)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        if separator is None or any(tokenizer.token_to_id(symbol) is None for symbol in alphabet):
            raise ValueError(
                f"tokenizer: expected a byte-level tokenizer with all 256 bytes and a token such as {SEPARATOR}"
            )
        tokenizer.encode_special_tokens = True  # not stored in the file; without this, a text could forge a separator
        self._tokenizer = tokenizer
        self.vocab: int = tokenizer.get_vocab_size()
        self.separator: int = separator
        if type(tokenizer.model) is not models.BPE:
            raise ValueError(f"tokenizer: expected byte-pair encoding, got {type(tokenizer.model).__name__}")
        try:
            whole = self.decode(self.encode(_PROBE)) == _PROBE
        except (ValueError, KeyError):
            whole = False
        if not whole:
            raise ValueError("tokenizer: expected a lossless tokenizer; decoding does not restore every text")

    @classmethod
    def train(cls, texts: Iterable[str], vocab: int = 1024) -> BytePairTokenizer:
        """Train a tokenizer with at most `vocab` tokens.

        The same texts give the same tokens, for any number of threads.

        Raises:
            ValueError: if `vocab` is too small for the 256 bytes and the separator.
        """
        if vocab < SMALLEST_VOCAB:
            raise ValueError(f"vocab={vocab!r}: expected at least {SMALLEST_VOCAB} (256 bytes and the separator)")
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab,
            min_frequency=2,
            special_tokens=[SEPARATOR],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        # Training time is quadratic in the longest word, so text without spaces is cut into pieces.
        pieces = (piece for text in texts for piece in _in_pieces(_checked(text)))
        tokenizer.train_from_iterator(pieces, trainer)
        return cls(tokenizer)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> BytePairTokenizer:
        """Load a tokenizer from a file that contains the result of `to_json`.

        Raises:
            ValueError: if the file is missing, truncated or not a file of this kind.
        """
        path = Path(path)
        try:
            return cls.from_json(read_text(path))
        except OSError as error:
            raise ValueError(f"{path}: the tokenizer cannot be read ({error.strerror})") from None
        except UnicodeError as error:
            said = f"{path}: expected the JSON of a tokenizer, got a file that is not text ({why(error)})"
            raise ValueError(said) from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @classmethod
    def from_json(cls, text: str) -> BytePairTokenizer:
        """Return the tokenizer whose `to_json` returns `text`.

        Raises:
            ValueError: if the text is not the JSON of a byte-level BPE tokenizer.
        """
        with library_faults("tokenizer: expected the JSON of a byte-level BPE"):
            tokenizer = Tokenizer.from_str(text)
        return cls(tokenizer)

    def to_json(self) -> str:
        """Return the tokenizer as JSON text, in the format of the `tokenizers` library."""
        return str(self._tokenizer.to_str(pretty=True)) + "\n"

    def to_published(self) -> str:
        """Return JSON for other libraries: `to_json` with a post-processor that makes them add the separator.

        These libraries also encode the text "<|document|>" as the separator, which `encode` never does.
        """
        other = Tokenizer.from_str(self.to_json())
        other.post_processor = processors.TemplateProcessing(
            single=f"{SEPARATOR} $A", special_tokens=[(SEPARATOR, self.separator)]
        )
        return str(other.to_str(pretty=True)) + "\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `to_json` to `path` atomically: if the program is interrupted, no incomplete file is left."""
        write_atomic(Path(path), self.to_json())

    def encode(self, text: str) -> list[int]:
        """Return the token ids of `text`, without a separator. Raises `ValueError` for text that is not valid UTF-8."""
        text = _checked(text)
        with library_faults("tokenizer: cannot encode this text"):
            return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`, without separators; `decode(encode(text)) == text` for every text.

        If the ids end inside a character, as a model's output may, that character becomes U+FFFD.
        """
        return b"".join(self.bytes_of(i) for i in ids).decode("utf-8", errors="replace")

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes of one token; the separator has none.

        Raises:
            ValueError: if the id is outside the vocabulary.
        """
        if not 0 <= token < self.vocab:
            raise ValueError(f"token={token!r}: expected an id from 0 to {self.vocab - 1}")
        return self._bytes[token]

    def lengths(self) -> Sequence[int]:
        """Return the number of bytes of each of the `vocab` tokens."""
        return [len(piece) for piece in self._bytes]

    def stream(self) -> StreamDecoder:
        """Return a decoder for tokens that arrive one at a time."""
        return StreamDecoder(self)

    @cached_property
    def _bytes(self) -> list[bytes]:
        byte_of = {symbol: byte for byte, symbol in byte_symbols().items()}
        added = self._tokenizer.get_added_tokens_decoder()  # their text is stored unchanged, not as byte symbols
        pieces = []
        for i in range(self.vocab):
            symbols = "" if i == self.separator else self._tokenizer.id_to_token(i) or ""
            pieces.append(symbols.encode() if i in added else bytes(byte_of[symbol] for symbol in symbols))
        return pieces


class StreamDecoder:
    """An incremental decoder that never returns half a character.

    If a token ends inside a character, that character waits for the next token.
    """

    def __init__(self, tokenizer: BytePairTokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """Return the characters that `token` completes, often several and sometimes none."""
        return self._decoder.decode(self._tokenizer.bytes_of(token))

    def finish(self) -> str:
        """Return the remaining text: U+FFFD for an incomplete character, otherwise nothing."""
        return self._decoder.decode(b"", final=True)


@contextmanager
def library_faults(sentence: str) -> Iterator[None]:
    """Convert an error of the `tokenizers` library to a `ValueError` with `sentence` and the library's message.

    The library raises bare `Exception`s. If its own code fails, it raises a `PanicException`, which is not an
    `Exception` and has no public name.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"{sentence} ({why(error)})") from None


def _checked(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"text: expected text that UTF-8 can encode, got a lone surrogate at index {error.start}"
        ) from None
    return text


def _in_pieces(text: str) -> Iterable[str]:
    end = 0
    for word in _LONG.finditer(text):
        for start in range(word.start(), word.end(), LONGEST_WORD):
            yield text[end:start]
            end = start
    yield text[end:]


def byte_symbols() -> dict[int, str]:
    """Return the printable character that represents each byte in byte-level BPE.

    Printable bytes represent themselves; the 68 others are represented, in order, by the characters from U+0100 on.
    """
    own = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in own]
    return {byte: chr(byte) if byte in own else chr(256 + others.index(byte)) for byte in range(256)}
