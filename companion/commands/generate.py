"""`companion generate`: continue prompts with a model, or translate them.

The generation settings in a published model's folder apply unless a flag overrides them.
"""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace

from companion.commands.calibrating import calibrated, check_calibrate
from companion.commands.many_prompts import BATCH_SIZE, add_prompts, read_prompts, write_many
from companion.commands.parser import Parser, add_checkpoint, add_run, add_tokens, exclude, need
from companion.commands.runs import run_folder
from companion.commands.writer import answering, from_checkpoint, from_run, read_ids, write
from companion.generation.sampling import Sampling
from companion.ground.number_limits import Count, CountFromZero, Number
from companion.training.settings import NumberWordsSettings, TextSettings, TuneSettings

if TYPE_CHECKING:
    import torch

    from companion.commands.writer import TextGenerator
    from companion.generation.beam import Search
    from companion.generation.draft import Draft

DRAWING = tuple(rule.name for rule in fields(Sampling))
"""Names of the sampling flags."""


def parser() -> Parser:
    parser = Parser(
        description=(
            "Continue a prompt with a model you have trained or a published one (GPT-2, LLaMA and its relatives), and "
            "print tokens as they are generated. A published Marian model translates the prompt. companion inspect "
            "shows what a folder contains and which generation settings it has.\n\n"
            "A model from a run is sampled at temperature 0.8. A published model uses the settings in its folder. If "
            "there are none, it behaves like its released code: it samples from the 50 most probable tokens if "
            "do_sample is set or a flag below asks for sampling, and otherwise takes the most probable token."
        ),
        epilog=(
            "examples:\n"
            '  companion generate --prompt "The "\n'
            '  companion generate --prompt "The " --prompt "Attention" --tokens 50\n'
            "      two prompts at once\n"
            '  companion generate --prompt "The " --temperature 0\n'
            "      always the most probable token\n"
            "  companion generate --prompts prompts.txt > texts.jsonl\n"
            "      many prompts, one per line\n"
            '  companion generate --weights int4 --calibrate notes/ --prompt "The "\n'
            "      an eighth of the bytes, rounded so that outputs on your text change\n"
            "      as little as possible\n"
            "  companion generate --checkpoint openai-community/gpt2 --download \\\n"
            '      --prompt "The "\n'
            '  companion generate --checkpoint smollm2 --chat --prompt "Who are you?"\n'
            "      a model that companion get has fetched; model.gguf works too\n"
            '  companion generate --checkpoint opus-mt-de-en/ --prompt "Guten Tag" --beams 4'
        ),
    )
    parser.add_argument("--prompt", action="append", type=str, default=[], help="text to continue; may be repeated")
    parser.add_argument(
        "--prompt-ids",
        action="append",
        type=str,
        default=[],
        metavar="IDS",
        help='token ids instead of text, such as "5 17 3"',
    )
    add_prompts(parser)
    parser.add_argument(
        "--chat",
        action="store_true",
        help="answer in a conversation: the prompts are its turns, formatted with the checkpoint's chat template; "
        "turns alternate between user and model, beginning and ending with the user",
    )
    parser.add_argument("--system", metavar="TEXT", help="chat: system message")
    add_run(parser, best=True)
    add_checkpoint(parser, download=True)
    parser.add_dtype("as stored; on a GPU, the precision in which a run was trained")
    add_tokens(parser, "maximum number of new tokens per prompt (default: the checkpoint's setting, otherwise 200)")
    parser.add_fields(Sampling)
    parser.add_argument(
        "--repetition-penalty",
        type=Number | None,
        help="values above 1 lower the probability of tokens that the text already contains",
    )
    parser.add_argument(
        "--stop", action="append", type=str, default=[], help="string that ends the text; may be repeated"
    )
    parser.add_argument("--seed", type=CountFromZero, default=0, help="random seed; the same seed gives the same text")
    parser.add_argument("--beams", type=Count | None, help="beam search with this many beams")
    parser.add_argument(
        "--length-penalty",
        type=Number | None,
        help="beams: divide the log-probability of each text by its length raised to this power (default: 1)",
    )
    parser.add_device()
    parser.add_argument(
        "--compile",
        action="store_true",
        help="compile the decoding step; this is worthwhile for long texts, and for any text from the second run on, "
        "because compiled programs are cached in .companion/compiled",
    )
    parser.add_weights(writes=True)
    parser.add_argument(
        "--draft",
        metavar="ngram|medusa|FOLDER",
        help="speculative decoding, which changes neither the text nor its distribution; ngram: propose what followed "
        "the same tokens earlier in the text; medusa: the model's multi-token-prediction heads; FOLDER: a run or "
        "checkpoint of a smaller model with the same tokenizer",
    )
    return parser


def run(flags: Namespace) -> int:
    _check(flags)
    from companion.generation.compiled_steps import keep_programs
    from companion.generation.logit_rules import Rules
    from companion.ground.device import find_device

    asked = None if flags.prompts is None else read_prompts(flags.prompts)
    for prompt in flags.prompt_ids:
        read_ids(prompt)
    Sampling(**_given(flags))
    if flags.repetition_penalty is not None:
        Rules(repetition_penalty=flags.repetition_penalty)
    device = find_device(flags.device)
    writer = told(_writer(flags, device), flags)
    options: dict[str, Any] = {
        "tokens": flags.tokens,
        "seed": flags.seed,
        "weights": {None: "fast", "none": None}.get(flags.weights, flags.weights),
    }
    if chosen := calibrated(writer.model, flags, writer.encode):
        print(f"int4: {chosen}.", file=sys.stderr)
    search = _search(writer, flags)
    if asked is not None:
        if writer.translates or search is not None:
            what = "translates" if writer.translates else "uses beam search (--temperature selects sampling)"
            raise ValueError(f"--prompts: expected a model that continues texts by sampling, got one that {what}")
        write_many(writer, asked, batch_size=flags.batch_size or BATCH_SIZE, **options)
        return 0
    writer, prompts = _prompted(writer, flags)
    draft = _draft(writer, flags, device)
    if flags.compile:
        keep_programs()
    write(writer, prompts, search=search, compile=flags.compile, draft=draft, **options)
    if draft is not None:
        print(draft.report(), file=sys.stderr)
    return 0


def _writer(flags: Namespace, device: torch.device) -> TextGenerator:
    by_ids, dtype = bool(flags.prompt_ids), dtype_called(flags.dtype)
    if flags.checkpoint is None:
        kind = TuneSettings if flags.chat else None if flags.run is not None else TextSettings
        folder = run_folder(flags.run, kind)
        if folder.task == NumberWordsSettings.task:
            folder = run_folder(flags.run, TextSettings)  # raises an error, because the run has a different task
        return from_run(folder, device, ids=by_ids, best=flags.best, dtype=dtype)
    return from_checkpoint(flags.checkpoint, device, download=flags.download, ids=by_ids, dtype=dtype, stop=flags.stop)


def _prompted(writer: TextGenerator, flags: Namespace) -> tuple[TextGenerator, list[str]]:
    """Return the writer and its prompts; with `--chat`, the only prompt is the whole conversation."""
    if flags.chat:
        writer, text = answering(writer, flags.prompt, flags.system)
        return writer, [text]
    if writer.chat is not None:
        print("This model was trained on conversations and has a chat template: use --chat.", file=sys.stderr)
    return writer, flags.prompt_ids or flags.prompt


def told(writer: TextGenerator, flags: Namespace) -> TextGenerator:
    """Return the writer, with its settings overridden by the flags."""
    says = writer.says
    if flags.get("repetition_penalty") is not None:
        says = replace(says, rules=replace(says.rules, repetition_penalty=flags.repetition_penalty))
    if flags.checkpoint is None and flags.get("stop"):
        says = replace(says, stop_strings=tuple(flags.stop))
    if given := _given(flags):
        says = replace(says, draws=True, sampling=replace(says.sampling, **given))
    return replace(writer, says=says)


def _given(flags: Namespace) -> dict[str, Any]:
    return {name: flags[name] for name in DRAWING if flags[name] is not None}


def _search(writer: TextGenerator, flags: Namespace) -> Search | None:
    """Return the beam search set by the flags or, failing that, by the model's folder; `None` if there is neither."""
    from companion.generation.beam import Search

    search = writer.says.search
    penalty = search.length_penalty if flags.length_penalty is None else flags.length_penalty
    if flags.beams is not None:
        return Search(flags.beams, penalty, search.early_stopping)
    if search.width == 1 or _given(flags) or flags.compile or flags.weights or flags.draft:
        return None
    if writer.says.draws:
        raise ValueError(
            f"--checkpoint {flags.checkpoint}: num_beams={search.width} with do_sample=True (beam sampling) "
            f"is not supported; use --beams {search.width}, or --temperature for sampling"
        )
    return search


def _draft(writer: TextGenerator, flags: Namespace, device: torch.device) -> Draft | None:
    from companion.families.pretrained import pretrained_folder
    from companion.files.published.fetching import how_to_get
    from companion.generation.draft import Draft

    name, by_ids = flags.draft, bool(flags.prompt_ids)
    if name in (None, "ngram", "medusa"):
        return None if name is None else Draft(name)
    if (Path(name) / "run.json").is_file():
        small = from_run(run_folder(name, TextSettings), device, ids=by_ids)
    else:
        try:
            pretrained_folder(name)
        except ValueError:
            expected = f"{name}: expected ngram, medusa, or the folder of a run or a published model"
            raise ValueError(f"--draft {how_to_get(name) or expected}") from None
        small = from_checkpoint(name, device, ids=by_ids, dtype=dtype_called(flags.dtype), flag="--draft")
    ours, theirs = (_vocabulary(one) for one in (writer, small))
    if None not in (ours, theirs) and ours != theirs:
        raise ValueError(
            f"--draft {name}: expected a model with the same tokenizer, got one whose token ids have different meanings"
        )
    return Draft(small.model)


def _vocabulary(writer: TextGenerator) -> list[str | None] | None:
    """Return the text of every token id (`None` for an id without text), or `None` if there is no tokenizer."""

    def text(token: int) -> str | None:
        assert writer.spell is not None
        try:
            return writer.spell([token])
        except ValueError:
            return None

    return None if writer.spell is None else [text(token) for token in range(writer.model.config.vocab)]


def _check(flags: Namespace) -> None:
    _check_prompts(flags)
    check_calibrate(flags)
    exclude(flags, "checkpoint", "run")
    exclude(flags, "best", "checkpoint", why="only a run has a best checkpoint")
    if flags.download and flags.checkpoint is None:
        raise ValueError("--download: expected a --checkpoint to fetch, got none")
    exclude(flags, "chat", "prompt_ids", "beams")
    need(flags, "system", "chat")
    if "" in flags.stop:
        raise ValueError("--stop '': expected at least one character, got an empty string")
    exclude(flags, "draft", "compile", "beams")
    need(flags, "length_penalty", "beams")
    for name in DRAWING:
        exclude(flags, name, "beams", why="beam search does not sample")
    exclude(flags, "compile", "beams", why="a beam search is not compiled")
    exclude(flags, "weights", "beams", why="beam search uses the weights as stored")


def _check_prompts(flags: Namespace) -> None:
    exclude(flags, "prompt_ids", "prompt")
    exclude(flags, "prompts", "prompt", "prompt_ids", "chat", "beams", "compile", "draft")
    need(flags, "batch_size", "prompts")
    if flags.prompts is None and not flags.prompt and not flags.prompt_ids:
        raise ValueError('--prompt: expected text to continue, got none; for example --prompt "The "')
    if "" in flags.prompt:
        raise ValueError("--prompt '': expected at least one character, got an empty prompt")


def dtype_called(name: str | None) -> torch.dtype | None:
    """Return the dtype that `--dtype` names, or `None` if the flag is not given."""
    import torch

    return {None: None, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[name]
