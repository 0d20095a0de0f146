"""Text generation with a model, its tokenizer and its settings: from prompts to token ids, and back to text.

`from_run` builds a `TextGenerator` from a run, and `from_checkpoint` builds one from a published model. A decoder
continues a prompt; an encoder-decoder translates it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from companion.ground.display import printable
from companion.ground.waiting import counted, started

if TYPE_CHECKING:
    import torch

    from companion.data.chat_template import ChatTemplate
    from companion.files.published.generation_config import Writing
    from companion.generation.beam import Search
    from companion.generation.draft import Draft
    from companion.generation.logit_rules import StoppingCriterion
    from companion.generation.request import Options
    from companion.generation.sampling import Sampling
    from companion.quantization.weights import Weights
    from companion.training.run_folder import RunFolder
    from companion.transformer import Transformer

TOKENS = 200
"""Default maximum number of new tokens."""
WARM = 0.8
"""Default temperature for runs; small models write better at a temperature slightly below 1."""


class Parts(Protocol):
    """Incremental decoder: `push` returns the text that a token adds, and `finish` returns the remaining text."""

    def push(self, token: int) -> str: ...

    def finish(self) -> str: ...


class _Numbers:
    """Incremental decoder that writes token ids, with spaces between them and after any ids that came `before`."""

    def __init__(self, before: Sequence[int]) -> None:
        self._started = len(before) > 0

    def push(self, token: int) -> str:
        started, self._started = self._started, True
        return f" {token}" if started else str(token)

    def finish(self) -> str:
        return ""


@dataclass(frozen=True)
class TextGenerator:
    """A model with its tokenizer and its generation settings.

    Attributes:
        model: The model that generates text.
        says: The generation settings: special tokens, sampling, logit rules and stopping.
        encode: Function from a prompt to token ids, including the special tokens that the model expects.
        parts: Function that takes the ids before a text and returns an incremental decoder for the text.
        spell: Function from ids to text, including special tokens, or `None` without a tokenizer.
        flag: The flag that supplies the prompts, for messages.
        chat: The chat template, if the model has one.
        marked: Function that encodes a text that already contains special tokens, such as a conversation, or `None` if
            the tokenizer cannot do this.
        answers: Whether to print only the generated text, without the prompt.
    """

    model: Transformer
    says: Writing
    encode: Callable[[str], list[int]]
    parts: Callable[[Sequence[int]], Parts]
    spell: Callable[[Sequence[int]], str] | None = None
    flag: str = "--prompt"
    chat: ChatTemplate | None = None
    marked: Callable[[str], list[int]] | None = None
    answers: bool = False

    @property
    def translates(self) -> bool:
        return self.model.config.stack == "encoder_decoder"

    def read(self, prompt: str, most: int) -> list[int]:
        """Return the token ids of `prompt`.

        Raises:
            ValueError: If there are no ids or more than `most`, or if an id is outside the model's vocabulary.
        """
        from companion.generation.logit_rules import check_ids

        ids, name = self.encode(prompt), f"{self.flag} {shortened(prompt)}"
        if not ids:
            raise ValueError(f"{name}: expected text that the tokenizer can encode, got no tokens")
        if len(ids) > most:
            context = self.model.config.context
            why = "the model's context" if most == context else f"so that another one fits in a context of {context:,}"
            raise ValueError(
                f"{name}: {len(ids):,} tokens including the begin and end tokens; expected at most {most:,}, {why}"
            )
        check_ids(name, ids, self.model.config.vocab)
        return ids

    def most(self, rows: Sequence[Sequence[int]], tokens: int | None) -> int:
        """Return the maximum number of new tokens: `tokens` if given, otherwise the folder's setting or `TOKENS`.

        Raises:
            ValueError: If a prompt is already as long as the folder allows a whole text to be.
        """
        if tokens is not None:
            return tokens
        if self.says.most is not None or self.says.longest is None:
            return self.says.most or TOKENS
        before = 1 if self.translates else max(map(len, rows))
        if before >= self.says.longest:
            raise ValueError(
                f"{self.flag}: expected fewer tokens than the {self.says.longest:,} that the checkpoint's max_length "
                f"allows, got {before:,}; --tokens overrides this limit"
            )
        return self.says.longest - before

    @property
    def sampling(self) -> Sampling:
        """The sampling settings, with temperature 0 for a model whose settings turn sampling off."""
        from companion.generation.sampling import Sampling

        return self.says.sampling if self.says.draws else Sampling(temperature=0)

    def options(self, rows: Sequence[Sequence[int]]) -> Options:
        """Return the model's settings for texts that follow these prompts, as keyword arguments of `generate`.

        For a translation model, the prompts are passed as `source`.
        """
        special = self.says.special
        options: Options = {"stop": special.stop, "rules": self.says.rules, "until": self._until(rows)}
        return {**options, "source": rows, "start": special.start} if self.translates else options

    def _until(self, rows: Sequence[Sequence[int]]) -> StoppingCriterion | None:
        """Return the stopping criterion for the stop strings, or `None` if there are no stop strings.

        A text ends when its last token completes one of the strings. `rows` are the ids of the prompts.
        """
        strings, spell = self.says.stop_strings, self.spell
        if not strings:
            return None
        assert spell is not None
        # A token with text has at least one byte, so this many tokens hold the longest string; 16 more may have no
        # text.
        reach = max(len(text.encode()) for text in strings) + 16
        prompts: list[Sequence[int]] = [() if self.translates else ids[-reach:] for ids in rows]

        def ended(row: int, new: Sequence[int]) -> bool:
            ids = [*prompts[row], *new][-reach:]
            text, before = spell(ids), spell(ids[:-1]).rstrip("\ufffd")
            return any(text.find(one, max(0, len(before) - len(one) + 1)) >= 0 for one in strings)

        return ended


def own_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Return the dtype in which a run generates text: bf16 on a GPU if the run was trained in bf16, otherwise fp32."""
    import torch

    return torch.bfloat16 if precision == "bf16" and device.type == "cuda" else torch.float32


def from_run(
    folder: RunFolder, device: torch.device, *, ids: bool = False, best: bool = False, dtype: torch.dtype | None = None
) -> TextGenerator:
    """Return a writer for a run. For a fine-tuned run, the adapters are merged and the writer has a chat template.

    Args:
        folder: The folder of the run.
        device: The device of the model.
        ids: Whether prompts and generated texts are token ids.
        best: Whether to use the checkpoint with the best held-out score instead of the last checkpoint.
        dtype: Dtype of the weights (default: the result of `own_dtype`).

    Raises:
        ValueError: In the same cases as `RunFolder.model`.
    """
    from companion.data.chat_tokens import dialect_in
    from companion.data.published_tokenizers import TextStream
    from companion.families.adapters import merged_model
    from companion.files.published.generation_config import SpecialTokens, Writing
    from companion.generation.sampling import Sampling
    from companion.training.settings import TuneSettings

    if dtype is None:
        dtype = own_dtype(folder.record().get("precision", "fp32"), device)
    model = folder.model(best=best)
    if folder.task == TuneSettings.task:
        dialect = dialect_in(folder.texts())
        known = dialect.tokenizer
        says = Writing(SpecialTokens(stop=dialect.stop), draws=True, sampling=Sampling(WARM))
        writer = TextGenerator(
            merged_model(model), says, known.encode, lambda before: TextStream(known, before), known.spell
        )
        writer = replace(writer, chat=dialect.template, marked=dialect.encode)
    else:
        tokenizer = folder.tokenizer()
        special = SpecialTokens(start=tokenizer.separator, stop=frozenset({tokenizer.separator}))
        says = Writing(special, draws=True, sampling=Sampling(WARM))
        writer = TextGenerator(
            model,
            says,
            lambda prompt: [tokenizer.separator, *tokenizer.encode(prompt)],
            lambda before: tokenizer.stream(),
            tokenizer.decode,
        )
    writer.model.to(device, dtype)
    return _by_ids(writer) if ids else writer


def checkpoint_folder(name: str, *, download: bool = False, flag: str = "--checkpoint") -> Path:
    """Return the folder of the model that a flag names.

    Args:
        name: A folder, a GGUF file, or the name of a model that was fetched before.
        download: Whether to fetch the model if it has not been fetched yet.
        flag: The flag, for messages.

    Raises:
        ValueError: In the same cases as `pretrained_folder`; the message begins with the flag.
    """
    from companion.families.pretrained import pretrained_folder

    try:
        return pretrained_folder(name, download=download)
    except ValueError as error:
        raise ValueError(f"{flag} {error}") from None


def from_checkpoint(
    name: str,
    device: torch.device,
    *,
    download: bool = False,
    ids: bool = False,
    dtype: torch.dtype | None = None,
    stop: Sequence[str] = (),
    flag: str = "--checkpoint",
) -> TextGenerator:
    """Return a writer with a published model.

    Args:
        name: A folder, a GGUF file, or the name of a model that was fetched before.
        device: The device of the model.
        download: Whether to fetch the model if it has not been fetched yet.
        ids: Read prompts as token ids, and write ids; this needs no tokenizer unless there are stop strings.
        dtype: Dtype of the weights (default: as stored).
        stop: Stop strings, in addition to those in the folder.
        flag: The flag that names the model, for messages.

    Raises:
        ValueError: If the folder is missing, damaged or without a tokenizer, if its generation settings are not
            supported here, or if the model does not generate text.
    """
    from companion.data.chat_template import load_chat_template
    from companion.data.published_tokenizers import JsonTokenizer, TextStream, load_tokenizer
    from companion.families.pretrained import family_of, load_pretrained
    from companion.files.published.generation_config import GENERATION, read_writing

    folder = checkpoint_folder(name, download=download, flag=flag)
    family = family_of(folder)
    if family is not None and not family.writes:  # check before reading the weights
        raise ValueError(f"{flag} {name}: expected a model that generates text, got one of type {family.kind}")
    says = read_writing(folder)
    says = replace(says, stop_strings=(*says.stop_strings, *stop))
    tokenizer = None
    if not ids or says.stop_strings:
        try:
            tokenizer = load_tokenizer(folder)
        except ValueError as error:
            if ids:
                what = "--stop" if stop else f"{GENERATION}: stop_strings"
                raise ValueError(
                    f"{what}: expected a tokenizer, which is needed to find texts in the token ids ({error})"
                ) from None
            raise ValueError(
                f"{error}; without a tokenizer, use --prompt-ids, which reads and prints token ids"
            ) from None
    model = load_pretrained(folder, device=device, dtype=dtype)
    if model.config.stack == "encoder_decoder" and says.special.start is None:
        raise ValueError(f"{folder}: expected decoder_start_token_id, which begins every translation, found none")
    read_writing(folder, model.config.vocab)  # check special token ids against the vocabulary
    if tokenizer is None:
        return _by_ids(TextGenerator(model, says, read_ids, _Numbers))
    known = tokenizer
    writer = TextGenerator(model, says, known.encode, lambda before: TextStream(known, before), known.spell)
    if ids:
        return _by_ids(writer)
    marked = partial(known.encode, special=False) if isinstance(known, JsonTokenizer) else None
    return replace(writer, chat=load_chat_template(folder), marked=marked)


def answering(writer: TextGenerator, turns: Sequence[str], system: str | None = None) -> tuple[TextGenerator, str]:
    """Return a writer that prints only answers, and the conversation formatted with the model's chat template.

    Args:
        writer: The writer of the model that answers.
        turns: The messages of the user and of the model, alternating; the first and the last are the user's.
        system: The system message.

    Raises:
        ValueError: If the number of turns is even, if there is no chat template, or if the template rejects the
            conversation.
    """
    from companion.data.chat_template import conversation

    if writer.chat is None:
        raise ValueError("--chat: expected a model whose folder has a chat template, found none; omit --chat")
    if writer.marked is None:
        raise ValueError("--chat: expected a model that continues texts, got one that translates")
    if len(turns) % 2 == 0:
        raise ValueError(
            f"--chat: expected an odd number of --prompt flags (the user has the first and the last), got {len(turns)}"
        )
    text = writer.chat.write(conversation(turns, system))
    return replace(writer, encode=writer.marked, answers=True), text


def _by_ids(writer: TextGenerator) -> TextGenerator:
    return replace(writer, encode=read_ids, parts=_Numbers, flag="--prompt-ids")


def read_ids(text: str) -> list[int]:
    """Return the token ids in a text like "5 17 3". Raises `ValueError` if the text has a different form."""
    words = text.replace(",", " ").split()
    if not words or not all(word.isascii() and word.isdigit() and len(word) < 19 for word in words):
        raise ValueError(f'--prompt-ids {shortened(text)}: expected token ids such as "5 17 3"')
    return [int(word) for word in words]


def shortened(text: str) -> str:
    """Return a text in quotes, shortened to 40 characters, for use in a message."""
    return repr(text if len(text) <= 40 else text[:37] + "...")


def write(
    writer: TextGenerator,
    prompts: Sequence[str],
    *,
    tokens: int | None,
    search: Search | None = None,
    seed: int = 0,
    compile: bool = False,
    weights: Weights | None = None,
    draft: Draft | None = None,
) -> None:
    """Print each prompt followed by its continuation, or only its translation.

    A single text is printed token by token as it is generated. Several texts, or the results of beam search, are
    printed when all of them are finished; until then, there is a progress bar.

    Args:
        writer: The model, with its tokenizer and settings.
        prompts: The prompts as text.
        tokens: Maximum number of new tokens per text, as in `TextGenerator.most`. Translations and texts from beam
            search also end when the model's context is full.
        search: The beam search, if any.
        seed: The random seed.
        compile: Compile the decoding step.
        weights: The weight format.
        draft: The draft for speculative decoding, if any.

    Raises:
        ValueError: If `TextGenerator.read` rejects a prompt. Nothing is printed then.
    """
    context, translates = writer.model.config.context, writer.translates
    rows = [writer.read(prompt, context if translates or search is None else context - 1) for prompt in prompts]
    before: list[Sequence[int]] = [() if translates else ids for ids in rows]
    parts = [writer.parts(ids) for ids in before]
    texts = ["" if translates or writer.answers else prompt for prompt in prompts]
    most = writer.most(rows, tokens)
    if search is None:
        if weights == "fast":
            _say_form(
                writer.model, most, len(rows) * (1 if draft is None else 1 + draft.num_draft_tokens), compile=compile
            )
        options: Options = {"seed": seed, "compile": compile, "weights": weights, "draft": draft}
        steps = _steps(writer, rows, most, options)
        if len(rows) == 1:
            steps = started(steps, "reading the prompt")  # a bar would overwrite a printed prompt
            print(printable(texts[0]), end="", flush=True)
            for (token,) in steps:
                print("" if token is None else printable(parts[0].push(token)), end="", flush=True)
            print(printable(parts[0].finish()))
            return
        for step in counted(steps, total=most, unit="token"):
            for row, token in enumerate(step):
                if token is not None:
                    texts[row] += parts[row].push(token)
    else:
        for row, ids in enumerate(counted(rows, unit="prompt")):
            texts[row] += "".join(map(parts[row].push, _best(writer, ids, most, search)))
    for row, text in enumerate(texts):
        mark = f"{'' if row == 0 else chr(10)}[{row + 1}] " if len(rows) > 1 else ""
        print(f"{mark}{printable(text + parts[row].finish())}")


def _say_form(model: Transformer, most: int, tokens: int, *, compile: bool) -> None:
    from companion.ground.display import readable_bytes
    from companion.quantization.weights import fast_form, form_bytes

    form = fast_form(model, most - 1, tokens, compile=compile)
    if form is not None:
        size = readable_bytes(form_bytes(model))
        print(f"weights: a copy in {form}, laid out for decoding, {size}; --weights none avoids it", file=sys.stderr)


def _steps(
    writer: TextGenerator, rows: Sequence[Sequence[int]], tokens: int, options: Options
) -> Iterator[list[int | None]]:
    from companion.generation.generate import generate, generate_long

    options = {**options, **writer.options(rows), "sampling": writer.sampling}
    if not writer.translates:
        return generate_long(writer.model, rows, max_new_tokens=tokens, **options)
    return generate(writer.model, max_new_tokens=min(tokens, writer.model.config.context - 1), **options)


def _best(writer: TextGenerator, ids: Sequence[int], tokens: int, search: Search) -> Iterable[int]:
    from companion.costs.account import cache_bytes
    from companion.generation.beam import beam_search
    from companion.ground.memory import check_room

    translates, options = writer.translates, {**asdict(search), **writer.options([ids])}
    room = writer.model.config.context - (1 if translates else len(ids))
    most = cache_bytes(writer.model.config, room + len(ids), batch=min(search.width, 10**18))
    check_room(f"--beams {search.width}", "the cache of its beams", most, writer.model.embedding.weight.device)
    (found,) = beam_search(writer.model, None if translates else [ids], max_new_tokens=min(tokens, room), **options)
    if not found:
        raise ValueError("the generation rules exclude every token; expected at least one allowed token")
    return found[0].tokens
