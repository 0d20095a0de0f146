"""Read the special tokens and the generation settings of a published folder (lessons 10 and 13).

The policy for each field is in the table `WRITING` of `companion.files.published.config_fields`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from companion.files.models import CONFIG, read_config
from companion.files.published.checkpoint_folder import Became, became_by
from companion.files.published.config_fields import WRITING
from companion.generation.beam import Search
from companion.generation.logit_rules import Rules
from companion.generation.sampling import Sampling, released
from companion.ground.fields import is_number, shown
from companion.ground.number_limits import require_limits

GENERATION = "generation_config.json"
IDS = ("bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id")
"""Fields that are read from config.json if generation_config.json leaves them out."""
UNSAID = 20
"""The default `max_length` of `transformers`, which version 4 wrote to files although no one had chosen it. It is the
only default that is ignored here, because a prompt of 20 tokens would leave no room for an answer."""


@dataclass(frozen=True)
class SpecialTokens:
    """The ids that have a special meaning in generation.

    Attributes:
        start: The id that the decoder begins with, or `None` if there is none.
        stop: The ids that end a text.
        pad: The padding id.
    """

    start: int | None = None
    stop: frozenset[int] = frozenset()
    pad: int | None = None


@dataclass(frozen=True)
class Writing:
    """A model's default settings for generation, from its folder or else from the released code (`transformers`).

    Attributes:
        special: The special tokens.
        draws: Whether tokens are sampled. If not, the most probable token is chosen.
        sampling: The distribution that tokens are sampled from.
        rules: The tokens that are allowed at each step.
        search: Settings for beam search, which is used if its width is more than 1.
        most: The maximum number of new tokens, or `None` if it is not set.
        longest: The maximum length in tokens including the prompt, or `None` if it is not set.
        stop_strings: Strings that end a text.
    """

    special: SpecialTokens = SpecialTokens()
    draws: bool = False
    sampling: Sampling = field(default_factory=released)
    rules: Rules = field(default_factory=Rules)
    search: Search = field(default_factory=lambda: Search(1))
    most: int | None = None
    longest: int | None = None
    stop_strings: tuple[str, ...] = ()


def special_tokens(folder: str | Path) -> SpecialTokens:
    """Return the special tokens of a published folder. Raises `ValueError` in the same cases as `read_writing`."""
    return read_writing(folder).special


def said_of_writing(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the path of the file that contains the generation settings, and the settings keyed by field.

    The file is generation_config.json, or config.json if there is no such file. Ids that generation_config.json leaves
    out are taken from config.json.

    Raises:
        ValueError: If a file is damaged.
    """
    config = read_config(folder)
    if not (folder / GENERATION).is_file():
        return folder / CONFIG, {name: value for name, value in config.items() if name in WRITING}
    said = read_config(folder, GENERATION)
    ids = {name: config[name] for name in IDS if name in config and said.get(name) is None}
    return folder / GENERATION, {**said, **ids}


def left_out(folder: Path) -> dict[str, Any]:
    """Return the released code's defaults for settings that affect a text and are left out of a folder."""
    _, said = said_of_writing(folder)
    used = (policy for name, policy in WRITING.items() if policy.kind == "used" and name != "max_length")
    return {one.name: one.default for one in used if said.get(one.name) is None and one.default is not None}


def became_writing(folder: Path) -> list[Became]:
    """Return the result for each field that holds a generation setting. Raises `ValueError` if a file is damaged."""
    path, said = said_of_writing(folder)
    found = []
    for name, value in said.items():
        end = became_by(path, name, value, WRITING.get(name), "it may change the generated text")
        if end.refused is None and value is not None and (name in _CHECKS or name in _OF_SAMPLING):
            try:
                _checked(path, name, value)
            except ValueError as error:
                end = Became(name, value, end.words, str(error))
        found.append(end)
    return found


def read_writing(folder: str | Path, vocab: int | None = None) -> Writing:
    """Read the generation settings of a published folder.

    Args:
        folder: The published folder.
        vocab: The size of the vocabulary, for checking ids (default: ids are not checked).

    Raises:
        ValueError: If a file is damaged, a value is invalid, an id is not in the vocabulary, or a field is not
            supported, because ignoring it would silently change the text.
    """
    folder = Path(folder)
    for end in became_writing(folder):
        if end.refused is not None:
            raise ValueError(end.refused)
    path, said = said_of_writing(folder)

    def take(name: str) -> Any:
        value = said.get(name)
        return WRITING[name].default if value is None else _checked(path, name, value)

    translates = bool(read_config(folder).get("is_encoder_decoder"))
    start = "decoder_start_token_id" if translates else "bos_token_id"
    least, shortest = take("min_new_tokens") or 0, take("min_length")
    if shortest and not translates:
        raise ValueError(
            f"{path}: min_length={shortest}: expected 0 or min_new_tokens, because min_length also counts the tokens "
            "of the prompt"
        )
    stop, last = take("eos_token_id") or [], take("forced_eos_token_id")
    never = {phrase[0] for phrase in take("bad_words_ids") or []} | set(take("suppress_tokens") or [])
    for name, ids in (
        ("eos_token_id", stop),
        ("bad_words_ids or suppress_tokens", never),
        ("forced_eos_token_id", last or []),
        (start, [take(start)] if take(start) is not None and translates else []),
    ):
        if wrong := [token for token in ids if vocab is not None and token >= vocab]:
            raise ValueError(f"{path}: {name}: {wrong[0]}: expected a token id from 0 to {vocab - 1}")  # type: ignore[operator]
    longest = take("max_length")
    return Writing(
        SpecialTokens(start=take(start), stop=frozenset(stop), pad=take("pad_token_id")),
        draws=take("do_sample"),
        sampling=Sampling(**{rule.name: take(rule.name) for rule in fields(Sampling)}),
        rules=Rules(
            never=never,
            min_new_tokens=max(least, shortest - 1),
            last=last[0] if last else None,
            repetition_penalty=take("repetition_penalty"),
            no_repeat=take("no_repeat_ngram_size"),
            renormalised=take("renormalize_logits"),
        ),
        search=Search(take("num_beams"), take("length_penalty"), take("early_stopping")),
        most=take("max_new_tokens"),
        longest=None if longest == UNSAID else longest,
        stop_strings=tuple(take("stop_strings") or ()),
    )


def _is_whole(value: object, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_id(value: object) -> bool:
    return _is_whole(value) and value < 2**31  # type: ignore[operator]


def _are_ids(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_id, value))


def _one_or_several(value: object) -> bool:
    return _is_id(value) or _are_ids(value)


def _phrases(value: object) -> bool:
    return isinstance(value, list) and all(_are_ids(phrase) and len(phrase) == 1 for phrase in value)


def _texts(value: object) -> bool:
    texts = [value] if isinstance(value, str) else value
    return isinstance(texts, list) and all(isinstance(text, str) and text != "" for text in texts)


def _between(least: float, most: float) -> Callable[[object], bool]:
    return lambda value: is_number(value) and least <= value <= most


_CHECKS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "bos_token_id": (_one_or_several, "a token id"),
    "decoder_start_token_id": (_is_id, "a token id"),
    "eos_token_id": (_one_or_several, "token ids"),
    "pad_token_id": (lambda value: isinstance(value, int) and not isinstance(value, bool), "a whole number"),
    "do_sample": (lambda value: isinstance(value, bool), "true or false"),
    "num_beams": (lambda value: _is_whole(value, 1), "a whole number >= 1"),
    "length_penalty": (is_number, "a finite number"),
    "early_stopping": (lambda value: isinstance(value, bool) or value == "never", "true, false or 'never'"),
    "max_new_tokens": (lambda value: _is_whole(value, 1), "a whole number >= 1"),
    "max_length": (lambda value: _is_whole(value, 1), "a whole number >= 1"),
    "min_new_tokens": (_is_whole, "a whole number >= 0"),
    "min_length": (_is_whole, "a whole number >= 0"),
    "repetition_penalty": (_between(0.001, 1000), "a number from 0.001 to 1000"),
    "no_repeat_ngram_size": (_is_whole, "a whole number >= 0"),
    "bad_words_ids": (_phrases, "single tokens, each as a list with one id"),
    "suppress_tokens": (_are_ids, "a list of token ids"),
    "forced_eos_token_id": (_one_or_several, "a token id"),
    "renormalize_logits": (lambda value: isinstance(value, bool), "true or false"),
    "stop_strings": (_texts, "a text, or a list of texts, none of them empty"),
}
"""A check of each field's value, and a description of valid values. `Sampling` has the limits of its own fields."""
_OF_SAMPLING = get_type_hints(Sampling, include_extras=True)


def _checked(path: Path, name: str, value: Any) -> Any:
    """Return the value of a field in its usual form. Raises `ValueError` if the value is invalid.

    A field that may have one or several values becomes a list; a `bos_token_id` list with a single id becomes an int.
    """
    if name in _OF_SAMPLING:
        try:
            require_limits(name, value, _OF_SAMPLING[name])
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        return value
    fits, expected = _CHECKS[name]
    single = name in ("bos_token_id", "forced_eos_token_id") and isinstance(value, list) and len(value) != 1
    if not fits(value) or single:
        raise ValueError(f"{path}: {name}={shown(value)}: expected {expected}")
    if name in ("eos_token_id", "forced_eos_token_id", "stop_strings"):
        return value if isinstance(value, list) else [value]
    return value[0] if name == "bos_token_id" and isinstance(value, list) else value
