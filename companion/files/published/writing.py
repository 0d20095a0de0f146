"""What a published folder says of writing: its special tokens, and its settings of generation (lessons 10 and 13)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from companion.files.models import read_config


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
