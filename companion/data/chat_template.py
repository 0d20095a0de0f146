"""Chat templates, which format a conversation as a published chat model expects it (lesson 13).

A model that was fine-tuned on conversations has seen them in a single format, with markers between the turns. The
model's folder contains a Jinja program that writes this format: `chat_template.jinja`, or a field of
`tokenizer_config.json`. Because this is untrusted code, it runs in Jinja's sandbox, where it can only read its inputs.
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
"""Special tokens that a template may name."""


SECONDS, MEMORY, LONGEST = 10, 1 << 30, 20_000_000
"""Limits for writing one conversation with a template: seconds of CPU time, additional bytes of memory, and
characters of output.
"""


class Message(TypedDict):
    """A turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


def conversation(turns: Sequence[str], system: str | None = None) -> list[Message]:
    """Return messages for alternating user and assistant turns. The first and the last turn are the user's.

    Raises:
        ValueError: if the number of turns is even.
    """
    if len(turns) % 2 == 0:
        raise ValueError(f"turns: expected an odd number (the user has the first and the last), got {len(turns)}")
    first: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    return first + [{"role": ("user", "assistant")[n % 2], "content": turn} for n, turn in enumerate(turns)]


@dataclass(frozen=True)
class ChatTemplate:
    """A model's format for conversations.

    Attributes:
        source: the template, in Jinja.
        origin: the file that contains it, for error messages.
        special: the model's special tokens, keyed by the names that templates use, such as `bos_token`.
    """

    source: str
    origin: Path
    special: Mapping[str, str] = field(default_factory=dict)

    def write(self, messages: Sequence[Message], *, answer: bool = True, **options: Any) -> str:
        """Format a conversation the way the model saw conversations in training.

        The result contains special tokens and is ready to tokenize.

        Args:
            messages: the conversation.
            answer: whether to add the beginning of the assistant's next turn (the generation prompt).
            options: additional template variables, such as `enable_thinking`.

        Raises:
            ValueError: if there are no messages; if the template is damaged, rejects these messages, exceeds the limits
                `SECONDS` or `MEMORY`, or writes more than `LONGEST` characters; or if jinja2 is missing or too old.
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
                raise ValueError(f"{self.origin}: the template rejects this conversation: {error}") from None
        if len(text) > LONGEST:
            raise ValueError(
                f"{self.origin}: expected at most {LONGEST:,} characters, but the template produced {len(text):,}"
            )
        return text


def load_chat_template(folder: str | Path) -> ChatTemplate | None:
    """Load the chat template from a published model's folder, or return `None` if the folder has none.

    If a file contains several templates, the one named "default" is used.

    Raises:
        ValueError: if a file is damaged, or if there are several templates but no default.
    """
    folder = Path(folder)
    path = folder / SETTINGS
    settings = read_object(path)
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
        raise ValueError(f"{path}: chat_template={shown(given)}: expected the text of a template")
    return ChatTemplate(given, path, known)


@contextmanager
def _bounded(origin: str) -> Iterator[None]:
    try:
        with at_most(SECONDS), within(MEMORY):
            yield
    except OutOfTime:
        raise ValueError(f"{origin}: the template did not finish within {SECONDS} s") from None
    except MemoryError:
        raise ValueError(f"{origin}: the template needs more than {MEMORY >> 20} MiB") from None


_NAMED = {"name", "template"}


def special_tokens(folder: str | Path) -> dict[str, str]:
    """Return the special tokens that a folder's files define, under the names in `SPECIAL`.

    Older folders list them in special_tokens_map.json. If tokenizer_config.json does not list the added tokens,
    special_tokens_map.json takes precedence, as in the released code.
    """
    folder = Path(folder)
    settings = read_object(folder / SETTINGS)
    if "added_tokens_decoder" not in settings:
        settings |= read_object(folder / SPECIAL_MAP)
    special = {name: _spelled(settings.get(name)) for name in SPECIAL}
    return {name: text for name, text in special.items() if text is not None}


def read_object(path: Path) -> dict[str, Any]:
    """Return the fields of an optional JSON file. Raises `ValueError` if the file is damaged or is not an object."""
    found = read_json(path) if path.is_file() else {}
    if not isinstance(found, dict):
        raise ValueError(f"{path}: expected an object, got {shown(found)}")
    return found


def _spelled(token: object) -> str | None:
    """Return the text of a special token, which a file stores either as text or as an object with its properties."""
    token = token.get("content") if isinstance(token, Mapping) else token
    return token if isinstance(token, str) else None


@cache
def compiled(source: str, origin: str) -> Template:
    """Compile a template, with the same extensions as the released code.

    The extensions are `raise_exception`, `strftime_now`, `tojson` without HTML escapes, `break` and `continue` in
    loops, and `generation` blocks, which mark the tokens that count in a loss and write nothing themselves.

    Raises:
        ValueError: if the template is invalid, or if jinja2 is missing or too old.
    """
    try:
        import jinja2
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise ValueError(NEEDS) from None
    if tuple(int(part) for part in jinja2.__version__.split(".")[:3]) < (3, 1, 6):
        raise ValueError(f"{NEEDS} (found {jinja2.__version__}; templates can escape from its sandbox)")

    world = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_generation(), "jinja2.ext.loopcontrols"]
    )
    world.filters["tojson"] = _as_json
    world.globals.update(raise_exception=_refuse, strftime_now=lambda form: datetime.now().strftime(form))
    try:
        with _bounded(origin):  # compiling a template evaluates its constant expressions
            return world.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(f"{origin}: expected a Jinja template (line {error.lineno}: {error.message})") from None


def _generation() -> type:
    """Return a Jinja extension class that writes the contents of a `generation` block as if there were no block."""
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
