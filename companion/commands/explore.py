"""`companion explore`: one page, opened from a folder, on which a model can be looked into."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jsonargparse import Namespace

from companion.commands.parser import Parser

TEXT = "Once upon a time"


@dataclass(frozen=True)
class _Words:
    """A published tokenizer as a page asks it."""

    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]


def parser() -> Parser:
    parser = Parser(
        description=(
            "Write a page that shows the inside of a model, for any browser and without a network: tokens, attention, "
            "the stream, experts, the cache, and the next token. Without a folder, of the course's three models.\n\n"
            "A small plain model runs on the page itself: type, switch heads off, swap tokens. Of every other one "
            "Python computes the numbers of one text, --text, and the page shows them."
        ),
        epilog=(
            "examples:\n"
            "  companion explore            the course's models, in explorer.html\n"
            "  companion explore runs/one --out one.html\n"
            '  companion explore SmolLM2-135M/ --text "The cat sat on"\n'
            "  companion explore runs/number-words --text einundzwanzig"
        ),
    )
    parser.add_argument(
        "folder",
        type=str | None,
        nargs="?",
        default=None,
        metavar="FOLDER",
        help="a run, or a published model's folder",
    )
    parser.add_argument("--text", type=str | None, default=None, help=f'what is read first. Default: "{TEXT}"')
    parser.add_argument("--out", type=str, default="explorer.html", metavar="FILE", help="where the page is written")
    return parser


def run(flags: Namespace) -> int:
    from companion.ground.atomic import write_atomic
    from companion.school.explorer.files import SHIPPED, page, shipped_scripts

    if flags.folder is None:
        if flags.text is not None:
            raise ValueError("--text: expected a FOLDER with it; on the page of the course's models, type")
        made = page(SHIPPED, shipped_scripts(), "Inside a model")
    else:
        made = _page_of(Path(flags.folder), flags.text)
    write_atomic(Path(flags.out), made)
    print(f"{flags.out}: {len(made.encode()) / 1e6:.1f} MB; open it in a browser")
    return 0


def _page_of(folder: Path, text: str | None) -> str:
    """The page of a run, or of a published model."""
    import torch

    from companion.commands.runs import run_folder
    from companion.commands.writer import from_checkpoint, from_run
    from companion.school.explorer.recording import model_page
    from companion.training.settings import NumberWordsSettings, TextSettings
    from companion.training.tasks.number_words import NumberWordsTask

    cpu, single = torch.device("cpu"), torch.float32
    if not folder.is_dir():
        raise ValueError(f"FOLDER {folder}: expected the folder of a run, or of a published model, found none")
    if not (folder / "run.json").is_file():
        try:
            writer = from_checkpoint(str(folder), cpu, dtype=single)
        except ValueError as error:
            raise ValueError(str(error).replace("--checkpoint", "FOLDER")) from None
    elif (run := run_folder(str(folder))).task == NumberWordsSettings.task:
        numbers = NumberWordsTask.of_record(run.record()).words
        return model_page(run.model().to(cpu), numbers, text or numbers.source.name(21_304), title=folder.name)
    elif run.task == TextSettings.task:
        return model_page(run.model().to(cpu, single), run.tokenizer(), text or TEXT, title=folder.name)
    else:
        writer = from_run(run, cpu, dtype=single)
    assert writer.spell is not None
    stop = min(writer.says.special.stop, default=None)
    words = _Words(writer.encode, writer.spell)
    start = writer.says.special.start if writer.translates else None
    return model_page(writer.model, words, text or TEXT, start=start, stop=stop, title=folder.name)
