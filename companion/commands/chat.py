"""`companion chat`: talk to a chat model in the terminal or through a pipe."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace

from companion.commands.parser import Parser, add_checkpoint, add_run, add_tokens, exclude
from companion.commands.runs import run_folder
from companion.generation.sampling import Sampling
from companion.ground.display import printable
from companion.ground.number_limits import CountFromZero
from companion.ground.waiting import started
from companion.training.settings import TuneSettings

if TYPE_CHECKING:
    from companion.commands.writer import TextGenerator
    from companion.data.chat_template import Message
    from companion.generation.request import Options

TOKENS = 512
"""Default maximum number of tokens per answer."""
HELP = """\
/reset          forget the conversation
/system TEXT    set the system message; without TEXT, remove it
/undo           remove the last question and its answer
/save FILE      write the conversation to a file for companion tune
/help           show these commands
/bye            quit; the end of the input (Ctrl-D) quits too
Ctrl-C stops an answer."""


def parser() -> Parser:
    parser = Parser(
        description=(
            "Chat with a model that companion tune has trained, or with a published model whose folder has a chat "
            "template. Answers are printed as they are generated, and the whole conversation is remembered. Questions "
            "can also come from a file or a pipe, one per line.\n\n"
            "Answers are sampled as in companion generate: at temperature 0.8 for a run, and with the settings in the "
            "model's folder for a published model."
        ),
        epilog=(
            "examples:\n"
            "  companion chat\n"
            "      the newest tuned run\n"
            "  companion chat --run runs/sums-grpo --temperature 0\n"
            '  companion chat --checkpoint smollm2 --system "Answer in one sentence."\n'
            '  echo "4 7 + 3 8" | companion chat --run runs/sums-sft\n'
            "while you talk:\n" + "\n".join(f"  {line}" for line in HELP.splitlines())
        ),
    )
    add_run(parser, "folder of a tuned run (default: the newest in runs/)", best=True)
    add_checkpoint(parser, download=True)
    parser.add_argument("--system", metavar="TEXT", help="system message")
    add_tokens(parser, "maximum tokens per answer (default: what fits, at most 512)")
    parser.add_fields(Sampling)
    parser.add_argument(
        "--seed", type=CountFromZero, default=0, help="random seed; the same seed gives the same answers"
    )
    parser.add_dtype()
    parser.add_device()
    return parser


def run(flags: Namespace) -> int:
    exclude(flags, "checkpoint", "run", "best")
    if flags.download and flags.checkpoint is None:
        raise ValueError("--download: expected a --checkpoint to fetch, got none")
    from companion.commands.generate import dtype_called, told
    from companion.commands.writer import from_checkpoint, from_run
    from companion.ground.device import find_device

    device, dtype = find_device(flags.device), dtype_called(flags.dtype)
    if flags.checkpoint is None:
        writer = from_run(run_folder(flags.run, TuneSettings), device, best=flags.best, dtype=dtype)
    else:
        writer = from_checkpoint(flags.checkpoint, device, download=flags.download, dtype=dtype)
    if writer.chat is None or writer.marked is None:
        raise ValueError(
            f"--checkpoint {flags.checkpoint}: expected a model whose folder has a chat template, found none; "
            "companion generate continues texts, and companion tune gives a model a template"
        )
    talk = Talk(told(writer, flags), flags.tokens, flags.seed, system=flags.system)
    if sys.stdin.isatty():
        with suppress(ImportError):  # imported for line editing and history
            import readline  # noqa: F401
        print("Ask something. /help lists the commands; Ctrl-D quits.", file=sys.stderr)
    for line in _lines():
        if not _said(talk, line):
            break
    return 0


@dataclass
class Talk:
    """A conversation with a model.

    Attributes:
        writer: The model, with its tokenizer and settings.
        tokens: Maximum tokens per answer (default: as many as fit, up to `TOKENS`).
        seed: The random seed.
        system: The system message.
        turns: The messages of the user and of the assistant, alternating.
        answers: The number of answers so far. Each answer has its own random stream.
        cut: A sentence that says why the last answer was cut off, or an empty string if it was complete.
        title: The name of the model.
    """

    writer: TextGenerator
    tokens: int | None
    seed: int
    system: str | None = None
    turns: list[str] = field(default_factory=list)
    answers: int = 0
    cut: str = ""
    title: str = ""

    @property
    def messages(self) -> list[Message]:
        """The conversation so far, including the system message."""
        from companion.data.chat_template import Message

        first = [] if self.system is None else [Message(role="system", content=self.system)]
        roles: Any = ("user", "assistant")
        return first + [Message(role=roles[n % 2], content=turn) for n, turn in enumerate(self.turns)]

    def ask(self, question: str) -> Iterator[str]:
        """Yield the answer to a question, piece by piece, as it is generated.

        The answer is added to the conversation, even if it is incomplete because the caller stops early.

        Raises:
            ValueError: If the conversation leaves no room for an answer, or the template rejects the conversation. In
                either case, the question is not added.
        """
        self.turns.append(question)
        try:
            ids, most = self._prompt()
        except ValueError:
            self.turns.pop()
            raise
        parts, text = self.writer.parts(ids), ""
        try:
            for piece in self._pieces(ids, most, parts):
                shown = piece if text else piece.lstrip()
                text += shown
                yield shown
        finally:
            self.turns.append(text.strip())
            self.answers += 1

    def _pieces(self, ids: list[int], most: int, parts: Any) -> Iterator[str]:
        from companion.generation.generate import generate

        writer, count, token = self.writer, 0, None
        stop, context = writer.says.special.stop, writer.model.config.context
        random: Options = {"sampling": writer.sampling, "seed": self.seed, "generators": [self.answers]}
        options: Options = {**writer.options([ids]), **random}
        for (token,) in generate(writer.model, [ids], max_new_tokens=most, **options):
            count += 1
            if token is not None and token not in stop:
                yield parts.push(token)
        yield parts.finish()
        self.cut = ""
        if count == most and token not in stop:
            full = f"the answer did not end within the context of {context:,} tokens; /reset clears the conversation"
            self.cut = full if len(ids) + most == context else f"the answer is cut off after {most:,} tokens (--tokens)"

    def _prompt(self) -> tuple[list[int], int]:
        """Return the ids of the conversation, and the maximum number of tokens to generate after them."""
        writer = self.writer
        assert writer.chat is not None and writer.marked is not None
        ids = writer.marked(writer.chat.write(self.messages))
        context = writer.model.config.context
        if len(ids) >= context:
            raise ValueError(
                f"with this question, the conversation has {len(ids):,} tokens, which leave no room for an answer in "
                f"the model's context of {context:,}; /reset clears the conversation, /undo removes the last question"
            )
        return ids, min(self.tokens or TOKENS, context - len(ids))


def _lines() -> Iterator[str]:
    """Yield the lines of standard input, typed or piped, until it ends. Ctrl-C discards the current line."""
    while True:
        try:
            yield input("> " if sys.stdin.isatty() else "")
        except EOFError:
            if sys.stdin.isatty():
                print()
            return
        except UnicodeDecodeError:
            raise ValueError("standard input: expected text in UTF-8, got something else") from None
        except KeyboardInterrupt:
            print()


def _said(talk: Talk, line: str) -> bool:
    """Answer a question or execute a command, and return whether to continue."""
    if not (line := line.strip()):
        return True
    if line.startswith("/"):
        return _commanded(talk, *line[1:].split(None, 1))

    try:
        with _stopped_alone() as stopped:
            for piece in started(talk.ask(line), "reading"):
                print(printable(piece), end="", flush=True)
                if stopped:
                    break
    except ValueError as error:
        print(str(error), file=sys.stderr)
        return True
    print(" (stopped)" if stopped else "")
    if talk.cut and not stopped:
        print(talk.cut, file=sys.stderr)
    if not talk.turns[-1]:
        talk.turns = talk.turns[:-2]  # an empty answer is dropped together with its question
    return True


@contextmanager
def _stopped_alone() -> Iterator[list[int]]:
    """Within the `with` block, make Ctrl-C append to the yielded list instead of raising `KeyboardInterrupt`."""
    stopped: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: stopped.append(number))
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)


def _commanded(talk: Talk, name: str = "", rest: str = "") -> bool:
    match name:
        case "bye" | "quit" | "exit":
            return False
        case "reset":
            talk.turns = []
            print("The conversation is cleared.", file=sys.stderr)
        case "system":
            talk.system = rest or None
            print("The system message is set." if rest else "The system message is removed.", file=sys.stderr)
        case "undo":
            print("The last question is removed." if talk.turns else "There is no question yet.", file=sys.stderr)
            talk.turns = talk.turns[:-2]
        case "save":
            _save(talk, rest)
        case "help":
            print(HELP, file=sys.stderr)
        case _:
            print(f"/{name}: expected one of /reset, /system, /undo, /save, /help, /bye", file=sys.stderr)
    return True


def _save(talk: Talk, name: str) -> None:
    if not name or not talk.turns:
        print("/save: expected the name of a file" if not name else "There is no conversation yet.", file=sys.stderr)
        return
    try:
        with open(Path(name).expanduser(), "a", encoding="utf-8") as file:
            file.write(json.dumps({"messages": talk.messages}, ensure_ascii=False) + "\n")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        print(f"/save {shlex.quote(name)}: could not be written ({why})", file=sys.stderr)
        return
    print(f"saved: {name}", file=sys.stderr)
