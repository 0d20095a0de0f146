"""The command `companion explore`, which writes or serves a page that shows the inside of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import Namespace

from companion.commands.chat import Talk
from companion.commands.parser import Parser
from companion.ground.number_limits import CountFromZero
from companion.ground.waiting import waiting

if TYPE_CHECKING:
    from companion.commands.writer import TextGenerator
    from companion_school.explorer.server import Asked

TEXT = "Once upon a time"


@dataclass(frozen=True)
class _Words:
    """Adapter that gives a published tokenizer the interface that the page requires."""

    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]


def parser() -> Parser:
    parser = Parser(
        description=(
            "Make a page that shows what happens inside a model: tokens, attention, the residual stream, experts, the "
            "cache and the next token. Any browser can open it, without a network connection. On the page you can "
            "type text, switch off heads and swap tokens. If you name no folder, the page shows the three models of "
            "the course.\n\n"
            "For a small model with a common architecture, the page is a file that runs the model itself. Other "
            "models run in Python: the command serves the page to this machine only, until you press Ctrl-C. With "
            "--out, the command also writes a file for such a model, which shows a single text (--text).\n\n"
            "For a model that answers in conversations (one with a chat template, or a run of companion tune), the "
            "command also serves a chat page. To serve a model to other people, export it for vLLM, SGLang or "
            "llama.cpp (see companion export --help)."
        ),
        epilog=(
            "examples:\n"
            "  companion explore            the course's models, in explorer.html\n"
            "  companion explore runs/one --out one.html\n"
            '  companion explore smollm2 --text "The cat sat on"\n'
            "  companion explore smollm2 --out cat.html     one text, in a file\n"
            "  companion explore runs/number-words --text einundzwanzig"
        ),
    )
    parser.add_argument(
        "folder",
        nargs="?",
        metavar="FOLDER",
        help="run or published model: a folder, a GGUF file, or a model name that companion get accepts",
    )
    parser.add_argument("--text", help=f'text to begin with (default: "{TEXT}")')
    parser.add_argument("--out", metavar="FILE", help="output file (default: explorer.html)")
    parser.add_argument(
        "--port", type=CountFromZero | None, help="port for a page that Python serves (default: a free one)"
    )
    return parser


def run(flags: Namespace) -> int:
    from companion_school.explorer.model_page import model_page
    from companion_school.explorer.page_files import SHIPPED, page, shipped_scripts

    if flags.folder is None:
        if flags.text is not None:
            raise ValueError("--text needs a FOLDER; on the page of the course's models, type your text into the page")
        return _write(flags, page(SHIPPED, shipped_scripts(), "Inside a model"))
    folder = Path(flags.folder)
    asked, text, writer = _asked(folder, flags.text)
    title = folder.resolve().name
    with waiting("reading the text"):
        made, runs = model_page(asked.model, asked.words, text, start=asked.start, stop=asked.stop, title=title)
    if runs or flags.out is not None:
        return _write(flags, made)
    talk = None
    if writer is not None and writer.chat is not None and writer.marked is not None:
        talk = Talk(writer, None, seed=0, title=title)
    return _serve(made, asked, flags.port or 0, talk)


def _write(flags: Namespace, made: str) -> int:
    from companion.ground.atomic import write_atomic

    if flags.port is not None:
        raise ValueError(
            f"--port {flags.port}: only allowed for a page that Python serves, but this page is written to a file"
        )
    out = flags.out or "explorer.html"
    write_atomic(Path(out), made)
    print(f"{out}: {len(made.encode()) / 1e6:.1f} MB; open it in a browser")
    return 0


def _serve(made: str, asked: Asked, port: int, talk: Talk | None) -> int:
    from companion_school.explorer.page_files import served
    from companion_school.explorer.server import Server

    with Server(served(made, "./"), asked, port, talk) as server:
        print(f"Open {server.address} in a browser on this machine. Press Ctrl-C to stop.", flush=True)
        if talk is not None:
            print(f"To chat with the model: {server.address}chat", flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0


def _asked(folder: Path, text: str | None) -> tuple[Asked, str, TextGenerator | None]:
    """Load a run or a published model. Return the model, the first text and, if the model can chat, its writer."""
    import torch

    from companion.commands.runs import run_folder
    from companion.commands.writer import from_checkpoint, from_run
    from companion.training.settings import NumberWordsSettings, TextSettings
    from companion.training.tasks.number_words import NumberWordsTask
    from companion_school.explorer.server import Asked

    cpu, single = torch.device("cpu"), torch.float32
    if not (folder / "run.json").is_file():
        writer = from_checkpoint(str(folder), cpu, dtype=single, flag="FOLDER")
    elif (run := run_folder(str(folder))).task == NumberWordsSettings.task:
        numbers = NumberWordsTask.of_record(run.record()).words
        return Asked(run.model().to(cpu).eval(), numbers), text or numbers.source.name(21_304), None
    elif run.task == TextSettings.task:
        return Asked(run.model().to(cpu, single).eval(), run.tokenizer()), text or TEXT, None
    else:
        writer = from_run(run, cpu, dtype=single)
    assert writer.spell is not None
    stop = min(writer.says.special.stop, default=None)
    start = writer.says.special.start if writer.translates else None
    return Asked(writer.model.eval(), _Words(writer.encode, writer.spell), start, stop), text or TEXT, writer
