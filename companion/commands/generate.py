"""`companion generate`: continue prompts with a model, or translate them.

Prompts become ids, a model writes, ids become text. A `Writer` is a model and its tokenizer, of a run (`from_run`) or
of a published checkpoint (`from_checkpoint`). A decoder continues a prompt; an encoder-decoder translates it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from jsonargparse import Namespace

from companion.commands.parser import Parser, add_run
from companion.commands.runs import run_folder
from companion.quantities import NonNegativeInt, NonNegativeNumber, PositiveInt
from companion.training.settings import TextSettings

if TYPE_CHECKING:
    import torch

    from companion.files.published.writing import SpecialTokens
    from companion.generation.decoding import Rules
    from companion.generation.sampling import Sampling
    from companion.generation.weights import Weights
    from companion.training.folder import RunFolder
    from companion.transformer import Transformer


def parser() -> Parser:
    parser = Parser(
        description=(
            "Continue a prompt with a model you trained or a published one (GPT-2, LLaMA, Mixtral), token by token as "
            "they come; a published Marian translates it."
        ),
        epilog=(
            "examples:\n"
            '  companion generate --prompt "The "\n'
            '  companion generate --prompt "The " --prompt "Attention" --tokens 50\n'
            "      two at once\n"
            '  companion generate --prompt "The " --temperature 0\n'
            "      always the most probable token\n"
            "  companion generate --checkpoint openai-community/gpt2 --download \\\n"
            '      --prompt "The "\n'
            '  companion generate --checkpoint opus-mt-de-en/ --prompt "Guten Tag" --beams 4'
        ),
    )
    parser.add_argument("--prompt", action="append", type=str, default=[], help="text to continue; may be repeated")
    parser.add_argument(
        "--prompt-ids", action="append", type=str, default=[], metavar="IDS", help='token ids instead, as "5 17 3"'
    )
    add_run(parser, best=True)
    parser.add_argument(
        "--checkpoint", type=str | None, default=None, metavar="FOLDER", help="a published model's folder, not a run"
    )
    parser.add_argument(
        "--download", action="store_true", help="--checkpoint may be the name that the Hugging Face hub has for it"
    )
    parser.add_argument("--tokens", type=PositiveInt, default=200, help="most tokens to write for each prompt")
    parser.add_argument(
        "--temperature",
        type=NonNegativeNumber | None,
        default=None,
        help="0: the most probable token; 1: the model's own. Default: 0.8, for a translator 0",
    )
    parser.add_argument(
        "--top-k", type=PositiveInt | None, default=None, help="draw from the k most probable tokens only"
    )
    parser.add_argument(
        "--top-p", type=float | None, default=None, help="draw from the fewest tokens that hold this much probability"
    )
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="the same seed writes the same text")
    parser.add_argument(
        "--beams",
        type=PositiveInt | None,
        default=None,
        help="search for the most probable text with this many candidates",
    )
    parser.add_argument(
        "--length-penalty",
        type=float | None,
        default=None,
        help="beams: divide a text's log-probability by its length to this power. Default: 1",
    )
    parser.add_device()
    parser.add_argument("--compile", action="store_true", help="compile the decode step: pays for long texts on a GPU")
    parser.add_weights()
    return parser


def run(flags: Namespace) -> int:
    _check(flags)
    from companion.device import find_device
    from companion.generation.sampling import Sampling

    by_ids = bool(flags.prompt_ids)
    for prompt in flags.prompt_ids:
        read_ids(prompt)
    temperature = 1.0 if flags.temperature is None else flags.temperature
    sampling = Sampling(temperature, flags.top_k, flags.top_p)
    device = find_device(flags.device)
    if flags.checkpoint is None:
        writer = from_run(run_folder(flags.run, TextSettings), device, ids=by_ids, best=flags.best)
    else:
        writer = from_checkpoint(flags.checkpoint, device, download=flags.download, ids=by_ids)
    if flags.temperature is None:
        sampling = replace(sampling, temperature=0.0 if writer.translates else 0.8)
    search = None
    if flags.beams is not None:
        search = Search(flags.beams, 1.0 if flags.length_penalty is None else flags.length_penalty)
    write(
        writer,
        flags.prompt_ids or flags.prompt,
        tokens=flags.tokens,
        sampling=sampling,
        search=search,
        seed=flags.seed,
        compile=flags.compile,
        weights=flags.weights,
    )
    return 0


def _check(flags: Namespace) -> None:
    """What can be wrong between two flags."""
    if flags.prompt and flags.prompt_ids:
        raise ValueError("--prompt-ids: expected no --prompt beside it, got both")
    if not flags.prompt and not flags.prompt_ids:
        raise ValueError('--prompt: expected text to continue, got none; for example --prompt "The "')
    if "" in flags.prompt:
        raise ValueError("--prompt '': expected at least one character, got an empty prompt")
    if flags.checkpoint is not None and flags.run is not None:
        raise ValueError("--checkpoint: expected no --run beside it, got both")
    if flags.checkpoint is not None and flags.best:
        raise ValueError("--best: expected no --checkpoint beside it; only a run has a best one")
    if flags.download and flags.checkpoint is None:
        raise ValueError("--download: expected a --checkpoint to fetch, got none")
    if flags.beams is None:
        if flags.length_penalty is not None:
            raise ValueError("--length-penalty: expected --beams with it, got none")
        return
    for name in ("temperature", "top_k", "top_p"):
        if flags[name] is not None:
            raise ValueError(f"--{name.replace('_', '-')}: expected no --beams beside it; a beam search draws nothing")
    if flags.compile:
        raise ValueError("--compile: expected no --beams beside it; a beam search is not compiled")
    if flags.weights is not None:
        raise ValueError("--weights: expected no --beams beside it; a beam search reads the weights as they are")


class Parts(Protocol):
    """The text of tokens as they arrive: `push` gives what each one adds, `finish` what is left."""

    def push(self, token: int) -> str: ...

    def finish(self) -> str: ...


class _Numbers:
    """Tokens as their ids, with spaces between them and after those `before`."""

    def __init__(self, before: Sequence[int]) -> None:
        self._started = len(before) > 0

    def push(self, token: int) -> str:
        started, self._started = self._started, True
        return f" {token}" if started else str(token)

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
        from companion.generation.decoding import check_ids

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
    from companion.files.published.writing import SpecialTokens

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
    from companion.data.published_tokenizers import TextStream, load_tokenizer
    from companion.files.models import read_config
    from companion.files.published.writing import special_tokens
    from companion.files.published.pretrained import load_pretrained, pretrained_folder

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
    """A text in quotes, for a message: at most 40 of its characters."""
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
    weights: Weights | None = None,
) -> None:
    """Print each prompt's continuation after it, or its translation alone.

    One text that is drawn appears token by token; several, or those of a beam search, when all are finished, behind a
    progress bar.

    tokens:  how many at most for each; a translation, and what a beam search finds, end at the model's context.

    Raises `ValueError`, before anything is printed, for a prompt that `Writer.read` refuses.
    """
    from tqdm.auto import tqdm

    context, translates = writer.model.config.context, writer.translates
    rows = [writer.read(prompt, context if translates or search is None else context - 1) for prompt in prompts]
    before: list[Sequence[int]] = [() if translates else ids for ids in rows]
    parts = [writer.parts(ids) for ids in before]
    texts = ["" if translates else prompt for prompt in prompts]
    if search is None:
        steps = _steps(writer, rows, tokens, sampling, {"seed": seed, "compile": compile, "weights": weights})
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
    from companion.generation.decoding import Rules

    return Rules(never=writer.special.never, last=writer.special.last)


def _steps(
    writer: Writer, rows: Sequence[Sequence[int]], tokens: int, sampling: Sampling, options: dict[str, Any]
) -> Iterator[list[int | None]]:
    from companion.generation.generate import generate, generate_long

    special, rules = writer.special, _rules(writer)
    if not writer.translates:
        return generate_long(
            writer.model,
            rows,
            max_new_tokens=tokens,
            sampling=sampling,
            stop=special.stop,
            rules=rules,
            **options,
        )
    return generate(
        writer.model,
        source=rows,
        start=special.start,
        max_new_tokens=min(tokens, writer.model.config.context - 1),
        sampling=sampling,
        stop=special.stop,
        rules=rules,
        **options,
    )


def _best(writer: Writer, ids: Sequence[int], tokens: int, search: Search) -> Iterable[int]:
    from companion.costs.account import cache_bytes
    from companion.generation.beam import beam_search
    from companion.room import check_room

    translates = writer.translates
    room = writer.model.config.context - (1 if translates else len(ids))
    most = cache_bytes(writer.model.config, room + len(ids), batch=min(search.width, 10**18))
    check_room(f"--beams {search.width}", "the cache of its beams", most, writer.model.embedding.weight.device)
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
