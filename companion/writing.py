"""What `companion generate` does once its flags are read: prompts become ids, a model writes, ids become text.

A `Writer` is a model and its tokenizer, of a run (`from_run`) or of a published checkpoint (`from_checkpoint`). A
decoder continues a prompt; an encoder-decoder translates it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from tqdm.auto import tqdm

from companion.data.published_tokenizers import TextStream, load_tokenizer
from companion.files.models import read_config
from companion.files.published import load_pretrained, pretrained_folder
from companion.files.published_folder import SpecialTokens, special_tokens
from companion.generation.beam import beam_search
from companion.generation.decoding import Rules, check_ids
from companion.generation.generate import generate, generate_long
from companion.generation.sampling import Sampling
from companion.training.folder import RunFolder
from companion.transformer import Transformer


class Parts(Protocol):
    """The text of tokens as they arrive: `push` gives what each one adds, `finish` what is left."""

    def push(self, token: int) -> str: ...

    def finish(self) -> str: ...


class _Numbers:
    """Tokens as their ids, with spaces between them and after those `before`."""

    def __init__(self, before: Sequence[int]) -> None:
        self._begun = len(before) > 0

    def push(self, token: int) -> str:
        begun, self._begun = self._begun, True
        return f" {token}" if begun else str(token)

    def finish(self) -> str:
        return ""


@dataclass(frozen=True)
class Search:
    """Beam search in place of drawing: `beam_search`'s `width` and `length_penalty`."""

    width: int
    length_penalty: float = 1.0


@dataclass(frozen=True)
class Writer:
    """A model that writes.

    special:  which ids begin, end and may not be in what it writes.
    encode:   the ids of a prompt, as the model expects to begin from them.
    parts:    given the ids that a text goes on from: what turns new ones into text.
    flag:     where prompts come from, for messages.
    """

    model: Transformer
    special: SpecialTokens
    encode: Callable[[str], list[int]]
    parts: Callable[[Sequence[int]], Parts]
    flag: str = "--prompt"

    @property
    def translates(self) -> bool:
        return self.model.config.stack == "encoder_decoder"

    def read(self, prompt: str, most: int) -> list[int]:
        """The ids of `prompt`. Raises `ValueError` for none, more than `most`, or one that the model does not have."""
        ids, name = self.encode(prompt), f"{self.flag} {shortened(prompt)}"
        if not ids:
            raise ValueError(f"{name}: expected text that the tokenizer has tokens for, got none")
        if len(ids) > most:
            context = self.model.config.context
            why = "the model's context" if most == context else f"so that one can follow in a context of {context:,}"
            raise ValueError(
                f"{name}: {len(ids):,} tokens with those that begin and end a text; expected at most {most:,}, {why}"
            )
        check_ids(name, ids, self.model.config.vocab)
        return ids


def from_run(folder: RunFolder, device: torch.device, *, ids: bool = False, best: bool = False) -> Writer:
    """The model that a run has trained so far, or with `best` the one that was measured best on the way.

    ids: prompts and texts are token ids. Raises `ValueError` as `RunFolder.model` does.
    """
    tokenizer = folder.tokenizer()
    separator = tokenizer.separator
    writer = Writer(
        folder.model(best=best).to(device),
        SpecialTokens(start=separator, stop=frozenset({separator})),
        lambda prompt: [separator, *tokenizer.encode(prompt)],
        lambda before: tokenizer.stream(),
    )
    return _by_ids(writer) if ids else writer


def from_checkpoint(name: str, device: torch.device, *, download: bool = False, ids: bool = False) -> Writer:
    """The model in a published folder, or, to be fetched, of a hub's name. `ids`: it needs no tokenizer.

    Raises `ValueError` for a folder that is missing, damaged or without a tokenizer, and a model that writes no text.
    """
    if not download and not Path(name).is_dir():
        raise ValueError(
            f"--checkpoint {name}: expected a folder with config.json and model.safetensors, found none; a model that "
            "a hub has under this name is fetched only with --download"
        )
    folder = pretrained_folder(name, download=download)
    if read_config(folder).get("model_type") == "bert":  # before its weights are read
        raise ValueError(f"--checkpoint {name}: expected a model that writes text; a BERT only reads it")
    special = special_tokens(folder)
    tokenizer = None
    if not ids:
        try:
            tokenizer = load_tokenizer(folder)
        except ValueError as error:
            raise ValueError(f"{error}; without a tokenizer, --prompt-ids takes token ids and gives them") from None
    model = load_pretrained(folder, device=device)
    if model.config.stack == "encoder_decoder" and special.start is None:
        raise ValueError(f"{folder}: expected decoder_start_token_id, which begins every translation, found none")
    table = range(model.config.vocab)  # an id that the model does not have can neither end a text nor be forbidden
    special = replace(
        special,
        stop=frozenset(i for i in special.stop if i in table),
        never=frozenset(i for i in special.never if i in table),
    )
    if tokenizer is None:
        return _by_ids(Writer(model, special, read_ids, _Numbers))
    known = tokenizer
    return Writer(model, special, known.encode, lambda before: TextStream(known, before))


def _by_ids(writer: Writer) -> Writer:
    return replace(writer, encode=read_ids, parts=_Numbers, flag="--prompt-ids")


def read_ids(text: str) -> list[int]:
    """Token ids out of "5 17 3". Raises `ValueError` for anything else."""
    words = text.replace(",", " ").split()
    if not words or not all(word.isascii() and word.isdigit() for word in words):
        raise ValueError(f'--prompt-ids {shortened(text)}: expected token ids such as "5 17 3"')
    return [int(word) for word in words]


def shortened(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


def write(
    writer: Writer,
    prompts: Sequence[str],
    *,
    tokens: int,
    sampling: Sampling,
    search: Search | None = None,
    seed: int = 0,
    compile: bool = False,
) -> None:
    """Print each prompt's continuation after it, or its translation alone.

    One text that is drawn appears token by token; several, or those of a beam search, when all are finished, behind a
    progress bar.

    tokens:  how many at most for each; a translation, and what a beam search finds, end at the model's context.

    Raises `ValueError`, before anything is printed, for a prompt that `Writer.read` refuses.
    """
    context, translates = writer.model.config.context, writer.translates
    rows = [writer.read(prompt, context if translates or search is None else context - 1) for prompt in prompts]
    before: list[Sequence[int]] = [() if translates else ids for ids in rows]
    parts = [writer.parts(ids) for ids in before]
    texts = ["" if translates else prompt for prompt in prompts]
    if search is None:
        steps = _steps(writer, rows, tokens, sampling, seed, compile)
        if len(rows) == 1:
            print(texts[0], end="", flush=True)
            for (token,) in steps:
                print("" if token is None else parts[0].push(token), end="", flush=True)
            print(parts[0].finish())
            return
        for step in tqdm(steps, total=tokens, unit="token", disable=None, leave=False):
            for row, token in enumerate(step):
                if token is not None:
                    texts[row] += parts[row].push(token)
    else:
        for row, ids in enumerate(tqdm(rows, unit="prompt", disable=None, leave=False)):
            texts[row] += "".join(map(parts[row].push, _best(writer, ids, tokens, search)))
    for row, text in enumerate(texts):
        mark = f"{'' if row == 0 else chr(10)}[{row + 1}] " if len(rows) > 1 else ""
        print(f"{mark}{text}{parts[row].finish()}")


def _rules(writer: Writer) -> Rules:
    return Rules(never=writer.special.never, last=writer.special.last)


def _steps(
    writer: Writer, rows: Sequence[Sequence[int]], tokens: int, sampling: Sampling, seed: int, compile: bool
) -> Iterator[list[int | None]]:
    special, rules = writer.special, _rules(writer)
    if not writer.translates:
        return generate_long(
            writer.model,
            rows,
            max_new_tokens=tokens,
            sampling=sampling,
            stop=special.stop,
            rules=rules,
            seed=seed,
            compile=compile,
        )
    return generate(
        writer.model,
        source=rows,
        start=special.start,
        max_new_tokens=min(tokens, writer.model.config.context - 1),
        sampling=sampling,
        stop=special.stop,
        rules=rules,
        seed=seed,
        compile=compile,
    )


def _best(writer: Writer, ids: Sequence[int], tokens: int, search: Search) -> Iterable[int]:
    translates = writer.translates
    room = writer.model.config.context - (1 if translates else len(ids))
    ((best, *_),) = beam_search(
        writer.model,
        None if translates else [ids],
        source=[ids] if translates else None,
        start=writer.special.start if translates else None,
        width=search.width,
        max_new_tokens=min(tokens, room),
        stop=writer.special.stop,
        rules=_rules(writer),
        length_penalty=search.length_penalty,
    )
    return best.tokens
