"""Chat templates: how a published model that answers expects a conversation to be written (lesson 13).

A model that was tuned on conversations read them in one form, with marks between the turns. Its folder holds a program
in the language Jinja that writes this form: `chat_template.jinja`, or a field of `tokenizer_config.json`. It is
somebody else's program, so it runs in Jinja's sandbox, which lets it read what it is given and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypedDict

from companion.ground.fields import shown, why
from companion.ground.reading import read_json, read_text
from companion.ground.time_limit import OutOfTime, at_most, within

if TYPE_CHECKING:
    from jinja2 import Template

TEMPLATE, SETTINGS, SPECIAL_MAP = "chat_template.jinja", "tokenizer_config.json", "special_tokens_map.json"
NEEDS = "a chat template needs jinja2 3.1.6 or newer; pip install 'executable-transformer[published]'"
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""The special tokens that a template may name."""


SECONDS, MEMORY, LONGEST = 10, 1 << 30, 20_000_000
"""What a template may take to write one conversation: seconds of the processor, bytes beside what is there, and the
characters that it writes."""


class Message(TypedDict):
    """A turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


def conversation(turns: Sequence[str], system: str | None = None) -> list[Message]:
    """The messages of turns that a user and an assistant take one after the other, the user the first and the last.

    Raises `ValueError` for an even number of turns.
    """
    if len(turns) % 2 == 0:
        raise ValueError(f"turns: expected an odd number, the user's first and last, got {len(turns)}")
    first: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    return first + [{"role": ("user", "assistant")[n % 2], "content": turn} for n, turn in enumerate(turns)]


@dataclass(frozen=True)
class ChatTemplate:
    """A model's way to write conversations.

    source:   the template, in Jinja.
    origin:   the file that it stands in, for messages.
    special:  the model's special tokens by name, as templates ask for them: `bos_token` and its kin.
    """

    source: str
    origin: Path
    special: Mapping[str, str] = field(default_factory=dict)

    def write(self, messages: Sequence[Message], *, answer: bool = True, **options: Any) -> str:
        """The conversation as its model read it in training; ready to be tokenized, special tokens and all.

        answer:   with what begins the assistant's next turn (the generation prompt).
        options:  further words that the template knows, such as `enable_thinking`.

        Raises `ValueError` for no messages, a template that is damaged or refuses these messages, takes longer than
        `SECONDS` or more memory than `MEMORY`, or writes more than `LONGEST` characters, and where jinja2 is missing or
        too old.
        """
        if not messages:
            raise ValueError("messages: expected at least one, got none")
        template = compiled(self.source, str(self.origin))
        from jinja2 import TemplateError

        given = {**self.special, **options}
        with _bounded(str(self.origin)):
            try:
                text = template.render(messages=[dict(one) for one in messages], add_generation_prompt=answer, **given)
            except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
                raise ValueError(f"{self.origin}: the template refuses this conversation: {error}") from None
        if len(text) > LONGEST:
            raise ValueError(f"{self.origin}: expected at most {LONGEST:,} characters, it wrote {len(text):,}")
        return text


def load_chat_template(folder: str | Path) -> ChatTemplate | None:
    """The chat template of a published model's folder; `None` where it has none.

    Of several in one file the one named "default" is taken.

    Raises `ValueError` for a file that is damaged, and several templates without a default.
    """
    folder = Path(folder)
    path = folder / SETTINGS
    settings = _settings(path) if path.is_file() else {}
    known = special_tokens(folder)
    if (folder / TEMPLATE).is_file():
        try:
            return ChatTemplate(read_text(folder / TEMPLATE), folder / TEMPLATE, known)
        except UnicodeError as error:
            raise ValueError(f"{folder / TEMPLATE}: expected text in UTF-8 ({why(error)})") from None
    given = settings.get("chat_template")
    if isinstance(given, Sequence) and not isinstance(given, str):
        named = {one["name"]: one["template"] for one in given if isinstance(one, Mapping) and {*one} >= _NAMED}
        if "default" not in named:
            raise ValueError(f"{path}: chat_template: expected one named 'default', got {', '.join(map(str, named))}")
        given = named["default"]
    if given is None:
        return None
    if not isinstance(given, str):
        raise ValueError(f"{path}: chat_template={shown(given)}: expected a template, as text")
    return ChatTemplate(given, path, known)


@contextmanager
def _bounded(origin: str) -> Iterator[None]:
    """Raise `ValueError` for a template that takes more in this block than it may."""
    try:
        with at_most(SECONDS), within(MEMORY):
            yield
    except OutOfTime:
        raise ValueError(f"{origin}: expected a template that ends, got none within {SECONDS} s") from None
    except MemoryError:
        raise ValueError(f"{origin}: expected a template that needs at most {MEMORY >> 20} MiB, got another") from None


_NAMED = {"name", "template"}


def special_tokens(folder: str | Path) -> dict[str, str]:
    """The special tokens that a folder's files name, by `SPECIAL`.

    Older folders have them in special_tokens_map.json, which is read where tokenizer_config.json does not list all
    added tokens, and then prevails, as in released code.
    """
    folder = Path(folder)
    settings = dict(_settings(folder / SETTINGS)) if (folder / SETTINGS).is_file() else {}
    if "added_tokens_decoder" not in settings and (folder / SPECIAL_MAP).is_file():
        settings |= _settings(folder / SPECIAL_MAP)
    special = {name: _spelled(settings.get(name)) for name in SPECIAL}
    return {name: text for name, text in special.items() if text is not None}


def _settings(path: Path) -> Mapping[str, Any]:
    settings = read_json(path)
    if not isinstance(settings, Mapping):
        raise ValueError(f"{path}: expected an object, got {shown(settings)}")
    return settings


def _spelled(token: object) -> str | None:
    """A special token, which files write as text or with its properties."""
    token = token.get("content") if isinstance(token, Mapping) else token
    return token if isinstance(token, str) else None


@cache
def compiled(source: str, origin: str) -> Template:
    """The template, with what released code lends to templates: `raise_exception`, `strftime_now`, `tojson` without
    HTML's escapes, `break` and `continue` in loops, and blocks of `generation`, which mark what a loss counts and write
    nothing.

    Raises `ValueError` for what is no template, and where jinja2 is missing or too old.
    """
    try:
        import jinja2
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise ValueError(NEEDS) from None
    if tuple(int(part) for part in jinja2.__version__.split(".")[:3]) < (3, 1, 6):
        raise ValueError(f"{NEEDS} (found {jinja2.__version__}, which templates can escape)")

    world = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_generation(), "jinja2.ext.loopcontrols"]
    )
    world.filters["tojson"] = _as_json
    world.globals.update(raise_exception=_refuse, strftime_now=lambda form: datetime.now().strftime(form))
    try:
        with _bounded(origin):  # what is constant in it is computed here
            return world.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(f"{origin}: expected a template in Jinja: line {error.lineno}: {error.message}") from None


def _generation() -> type:
    """Jinja's class of an extension that writes what stands in a block of `generation`, as if there were no block."""
    from jinja2.ext import Extension
    from jinja2.nodes import Node
    from jinja2.parser import Parser

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012  (as Jinja has it)

        def parse(self, parser: Parser) -> list[Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return Generation


def _refuse(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _as_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
