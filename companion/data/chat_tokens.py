"""Convert conversations to a model's token ids with its template and tokenizer, and mark the answers (lesson 20)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from companion.data.chat_template import SETTINGS, TEMPLATE, ChatTemplate, Message, load_chat_template
from companion.data.published_tokenizers import JsonTokenizer, load_tokenizer
from companion.data.tokenizer import SEPARATOR, BytePairTokenizer
from companion.files.models import CONFIG, read_config
from companion.files.published.generation_config import GENERATION, IDS
from companion.ground.fields import shown, why
from companion.ground.reading import read_text

PLAIN = """\
{{- bos_token -}}
{%- for message in messages -%}
    {%- if message.role == 'assistant' -%}
        {{- 'Assistant: ' + message.content | trim + eos_token -}}
    {%- else -%}
        {{- message.role | capitalize + ': ' + message.content | trim + '\\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- 'Assistant:' -}}
{%- endif -%}
"""
"""Template for a model whose folder has none. It labels the turns in plain words and ends each answer with the
end-of-text token."""
TEXT_FILES = (
    "tokenizer.json", SETTINGS, "special_tokens_map.json", GENERATION, TEMPLATE, "vocab.json", "merges.txt",
    "added_tokens.json",
)  # fmt: skip
"""Text files of a folder that define how its model reads text and conversations."""


@dataclass(frozen=True)
class Row:
    """A conversation as token ids, and whether each id is scored.

    The ids of answers are scored, including the token that ends each answer.
    """

    ids: list[int]
    scored: list[bool]


@dataclass(frozen=True)
class Dialect:
    """A model's conversation format.

    Attributes:
        template: formats conversations as text.
        tokenizer: encodes the text, including special tokens.
        stop: ids that end an answer.
    """

    template: ChatTemplate
    tokenizer: JsonTokenizer
    stop: frozenset[int]

    @classmethod
    def of(cls, folder: str | Path) -> Dialect:
        """Load the conversation format from the `TEXT_FILES` in the folder of a published model or a fine-tuning run.

        Raises:
            ValueError: if the template or the tokenizer of a decoder is missing or damaged, or if no file defines the
                token that ends a text.
        """
        folder = Path(folder)
        template, tokenizer = load_chat_template(folder), load_tokenizer(folder)
        if template is None:
            raise ValueError(f"{folder}: expected a chat template, {TEMPLATE} or in {SETTINGS}, found none")
        if not isinstance(tokenizer, JsonTokenizer):
            raise ValueError(
                f"{folder}: expected the tokenizer of a model that continues texts, got one for translation"
            )
        if not (stop := _stop_ids(folder)):
            raise ValueError(f"{folder}: expected eos_token_id, the token that ends an answer, in {GENERATION}")
        return cls(template, tokenizer, stop)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text that already contains special tokens."""
        return self.tokenizer.encode(text, special=False)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of the prompt, which the model reads before it answers. Raises `ValueError` in the same cases
        as `ChatTemplate.write`."""
        return self.encode(self.template.write(messages))

    def answer(self, ids: Iterable[int]) -> str:
        """Return the text of an answer's ids, without special tokens and without whitespace at its beginning and end.

        Special tokens are those that the tokenizer marks as special, such as the one that ends an answer. Text after
        that token is not cut off. Ids beyond the tokenizer's vocabulary, which a model with a larger embedding table
        may generate, add nothing.

        Raises:
            ValueError: if an id is negative.
        """
        return self.tokenizer.decode(id for id in ids if id < self.tokenizer.vocab).strip()

    def rows(self, messages: Sequence[Message]) -> list[Row]:
        """Convert a conversation to training rows.

        The result is one row, or one row per answer if the template formats earlier turns differently when later turns
        follow. The ids before an answer equal the ids that `prompt` returns, and all ids together equal the ids of the
        whole text, unless the tokenizer would merge an answer's first characters with its prompt.

        Raises:
            ValueError: if there is no answer or nothing precedes the first answer, or if the template produces an
                answer that does not continue its prompt or does not end with a stop token.
        """
        rows: list[Row] = []
        done = None
        for turn, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            if turn == 0:
                raise ValueError("expected a user turn before the first assistant turn, got none")
            before = self.template.write(messages[:turn])
            after = self.template.write(messages[: turn + 1], answer=False)
            if not after.startswith(before):
                raise ValueError(
                    f"{self.template.origin}: expected the formatted answer to continue the formatted prompt"
                )
            if done is None or not before.startswith(done):
                rows, done = [*rows, Row([], [])], ""
            new, answer = self._added(done, before), self._added(before, after)
            end = next((place for place, token in enumerate(answer, 1) if token in self.stop), None)
            if end is None:
                raise ValueError(
                    f"{self.template.origin}: expected an answer to end with one of the end-of-text tokens "
                    f"({', '.join(map(str, sorted(self.stop)))}), got one that does not"
                )
            rows[-1].ids.extend([*new, *answer])
            rows[-1].scored.extend([False] * len(new) + [True] * end + [False] * (len(answer) - end))
            done = after
        if not rows:
            raise ValueError("expected at least one assistant turn to learn from, got none")
        return rows

    def _added(self, before: str, text: str) -> list[int]:
        """Return the ids that `text` adds to the ids of its beginning, `before`.

        Some tokenizers add a space at the beginning of every text. Therefore the rest of a text is encoded separately
        only if the ids of the whole text do not begin with those of `before`.
        """
        known, whole = self.encode(before), self.encode(text)
        return whole[len(known) :] if whole[: len(known)] == known else self.encode(text[len(before) :])


def dialect_files(folder: str | Path) -> dict[str, str]:
    """Return the `TEXT_FILES` of a published model or a fine-tuning run, to be written to another folder.

    The returned generation_config.json always contains the ids that end a text, even if the folder has them only in
    config.json. Without a chat template, `PLAIN` is added, and tokenizer_config.json gets the tokens that it needs.

    Raises:
        ValueError: if the folder has no tokenizer, no file has a valid `eos_token_id`, or a file is not text.
    """
    folder = Path(folder)
    files = {}
    for name in TEXT_FILES:
        if (folder / name).is_file():
            try:
                files[name] = read_text(folder / name)
            except UnicodeError as error:
                raise ValueError(f"{folder / name}: expected text in UTF-8 ({why(error)})") from None
    if "tokenizer.json" not in files and "merges.txt" not in files:
        raise ValueError(f"{folder}: expected tokenizer.json, or vocab.json with merges.txt, found none")
    if not (stop := _stop_ids(folder)):
        raise ValueError(f"{folder}: expected eos_token_id, the token that ends an answer, in {GENERATION} or {CONFIG}")
    said = json.loads(files.get(GENERATION, "{}"))
    files[GENERATION] = json.dumps({**said, "eos_token_id": sorted(stop)}, indent=2) + "\n"
    if load_chat_template(folder) is None:
        files[TEMPLATE] = PLAIN
        tokenizer, about = load_tokenizer(folder), json.loads(files.get(SETTINGS, "{}"))
        marks = {"bos_token": "", "eos_token": tokenizer.spell([min(stop)])}
        files[SETTINGS] = json.dumps({**marks, **{k: v for k, v in about.items() if v is not None}}, indent=2) + "\n"
    return files


def files_of_run(tokenizer: BytePairTokenizer, context: int) -> dict[str, str]:
    """Return the `TEXT_FILES` of a text run: its tokenizer in the published format, and the template `PLAIN`."""
    marks = dict.fromkeys(("bos_token", "eos_token", "pad_token"), SEPARATOR)
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": context, **marks}
    return {
        "tokenizer.json": tokenizer.to_published(),
        SETTINGS: json.dumps(about, indent=2) + "\n",
        GENERATION: json.dumps(dict.fromkeys(_END, tokenizer.separator), indent=2) + "\n",
        TEMPLATE: PLAIN,
    }


_END = ("bos_token_id", "eos_token_id", "pad_token_id")


def dialect_in(files: Mapping[str, str]) -> Dialect:
    """Return the conversation format that the contents of `TEXT_FILES` define, before they are written to a folder.
    Raises the same errors as `Dialect.of`."""
    with TemporaryDirectory() as folder:
        for name, text in files.items():
            Path(folder, name).write_text(text, "utf-8")
        try:
            return Dialect.of(folder)
        except ValueError as error:
            raise ValueError(str(error).replace(f"{folder}/", "").removeprefix(f"{folder}: ")) from None


def _stop_ids(folder: Path) -> frozenset[int]:
    """Return the ids that end a text according to the folder's files; the result is empty if no file defines any."""
    for name in (GENERATION, CONFIG):
        if (folder / name).is_file():
            given = read_config(folder, name).get(IDS[2])
            ids = given if isinstance(given, list) else [given]
            if all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in ids) and ids:
                return frozenset(ids)
            if given is not None:
                raise ValueError(f"{folder / name}: eos_token_id={shown(given)}: expected token ids")
    return frozenset()
