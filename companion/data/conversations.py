"""Files of conversations in the usual published format, one JSON object per line (lesson 20).

    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
    {"prompt": [{"role": "user", "content": "..."}], "chosen": "...", "rejected": "..."}

The second form, a preference between two answers, is the same as in trl. A prompt may also be a single user message,
given as text, and an answer may be a list with a single message. Without a prompt, `chosen` and `rejected` are whole
conversations that differ in their last turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

from companion.data.chat_template import Message
from companion.ground.fields import parse_json, plain, shown, why
from companion.ground.reading import lines_of, read_text

ROLES: tuple[str, ...] = get_args(get_type_hints(Message)["role"])
Entry = TypeVar("Entry")


class Conversation(NamedTuple):
    """Turns of a conversation, and the file and line that they come from, for error messages."""

    messages: list[Message]
    where: str


class Preference(NamedTuple):
    """Turns of a conversation, a better and a worse answer to them, and the file and line that they come from."""

    prompt: list[Message]
    chosen: str
    rejected: str
    where: str


def read_conversations(paths: Sequence[str | Path]) -> list[Conversation]:
    """Read the conversations in files, in order.

    Raises:
        ValueError: if a file cannot be read or is empty, or if a line is not a conversation or has no assistant turn.
            The message names the file and the line.
    """
    return _read(paths, _conversation)


def read_preferences(paths: Sequence[str | Path]) -> list[Preference]:
    """Read the preferences in files, in order. Raises `ValueError` in the same cases as `read_conversations`."""
    return _read(paths, _preference)


def _read(paths: Sequence[str | Path], make: Callable[[Mapping[str, Any], str], Entry]) -> list[Entry]:
    found = [make(said, where) for path in paths for said, where in _objects(Path(path))]
    if not found:
        raise ValueError("--data: expected at least one conversation, got none")
    return found


def _objects(path: Path) -> Iterator[tuple[Mapping[str, Any], str]]:
    name = f"--data {plain(str(path))}"
    try:
        lines = lines_of(read_text(path))
    except OSError as error:
        raise ValueError(f"{name}: cannot be read ({error.strerror})") from None
    except ValueError as error:  # the file is not text, or its name is invalid
        raise ValueError(f"{name}: expected a text file in UTF-8, got something else ({why(error)})") from None
    if not any(line.strip() for line in lines):
        raise ValueError(f"{name}: expected one conversation per line, but the file is empty")
    for number, line in enumerate(lines, 1):
        where = f"{name}: line {number}"
        if not line.strip():
            continue
        try:
            said = parse_json(line)
        except ValueError as error:
            raise ValueError(f"{where}: expected a JSON object, got other text ({why(error)})") from None
        if not isinstance(said, dict):
            raise ValueError(f"{where}: expected a JSON object, got {shown(said)}")
        yield said, where


def _conversation(said: Mapping[str, Any], where: str) -> Conversation:
    if "messages" not in said:
        other = "; a file of preferences is for --method dpo" if {"chosen", "rejected"} & set(said) else ""
        raise ValueError(f'{where}: expected "messages", got {_keys(said)}{other}')
    messages = _messages(said["messages"], f"{where}: messages")
    if not any(message["role"] == "assistant" for message in messages):
        raise ValueError(f"{where}: messages: expected at least one assistant turn to learn from, got none")
    if messages[0]["role"] == "assistant":
        raise ValueError(f"{where}: messages[0]: expected a user or system turn first, got an assistant turn")
    return Conversation(messages, where)


def _preference(said: Mapping[str, Any], where: str) -> Preference:
    for name in ("chosen", "rejected"):
        if name not in said:
            raise ValueError(f'{where}: expected "prompt", "chosen" and "rejected", got {_keys(said)}')
    chosen, rejected = (_answer(said[name], f"{where}: {name}") for name in ("chosen", "rejected"))
    if "prompt" in said:
        given = said["prompt"]
        prompt = [_message("user", given, f"{where}: prompt")] if isinstance(given, str) else given
        before = _messages(prompt, f"{where}: prompt")
    else:
        before = chosen[:-1]
        if not before or before != rejected[:-1]:
            raise ValueError(f'{where}: expected a "prompt", or "chosen" and "rejected" that differ in their last turn')
    if before[-1]["role"] == "assistant":
        raise ValueError(f"{where}: prompt: expected the last turn to be the user's, got the assistant's")
    texts = [answer[-1]["content"] for answer in (chosen, rejected)]
    if texts[0] == texts[1]:
        raise ValueError(f"{where}: expected two different answers, got the same one twice")
    return Preference(before, texts[0], texts[1], where)


def _answer(given: Any, where: str) -> list[Message]:
    messages = [_message("assistant", given, where)] if isinstance(given, str) else _messages(given, where)
    if messages[-1]["role"] != "assistant":
        raise ValueError(f"{where}: expected the last turn to be the assistant's, got the {messages[-1]['role']}'s")
    return messages


def _messages(given: Any, where: str) -> list[Message]:
    if not isinstance(given, list) or not given:
        raise ValueError(f"{where}: expected a list of turns, got {shown(given)}")
    return [_turn(turn, f"{where}[{place}]") for place, turn in enumerate(given)]


def _turn(given: Any, where: str) -> Message:
    if not isinstance(given, dict) or not {"role", "content"} <= set(given):
        raise ValueError(f'{where}: expected an object with "role" and "content", got {shown(given)}')
    return _message(given["role"], given["content"], where)


def _message(role: Any, content: Any, where: str) -> Message:
    if role not in ROLES:
        raise ValueError(f"{where}: role={shown(role)}: expected one of {', '.join(ROLES)}")
    if not isinstance(content, str) or not content.strip():
        raise ValueError(f"{where}: content={shown(content)}: expected a non-empty string")
    return {"role": role, "content": content}


def _keys(said: Mapping[str, Any]) -> str:
    return ", ".join(map(shown, said)) or "an object without fields"
