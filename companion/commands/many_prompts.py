"""Continue many prompts from a file in batches, and print one line of JSON for each prompt (lesson 18)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from companion.commands.parser import Parser
from companion.generation.sampling import Sampling
from companion.ground.fields import parse_json, plain, shown, why
from companion.ground.number_limits import Count, CountFromZero, require_limits
from companion.ground.reading import lines_of, read_text
from companion.ground.waiting import counted

if TYPE_CHECKING:
    from companion.commands.writer import TextGenerator
    from companion.generation.serving import Handle
    from companion.quantization.weights import Weights

BATCH_SIZE = 32
"""Default batch size."""
_SETTINGS = {"tokens": Count, "seed": CountFromZero}
_SAMPLING = {rule.name for rule in fields(Sampling)}


@dataclass(frozen=True)
class Asked:
    """One request, from a line of the file.

    Attributes:
        prompt: The text to continue.
        given: The settings in the request: tokens, seed, stop, and fields of `Sampling`.
    """

    prompt: str
    given: Mapping[str, Any]


def add_prompts(parser: Parser) -> None:
    """Add `--prompts` and `--batch-size` to a parser."""
    parser.add_argument(
        "--prompts",
        metavar="FILE",
        help="file with many prompts, one per line, which are continued in batches; one line of JSON is printed for "
        "each prompt. A .jsonl file contains objects with a prompt and, optionally, tokens, seed, stop, temperature "
        "and other settings",
    )
    parser.add_argument("--batch-size", type=Count | None, help="prompts: batch size (default: 32)")


def read_prompts(name: str) -> list[Asked]:
    """Read prompts from a file that has one text per line or, if its name ends in .jsonl, one JSON object per line.

    Raises:
        ValueError: If the file cannot be read or has no prompt, or an object has an unknown key or an invalid value.
    """
    try:
        lines = lines_of(read_text(name))
    except OSError as error:
        raise ValueError(f"--prompts {plain(name)}: cannot be read ({error.strerror})") from None
    except ValueError as error:  # the file is not text, or its name is not a path
        raise ValueError(f"--prompts {plain(name)}: expected a text file, got something else ({why(error)})") from None
    objects, where = name.endswith(".jsonl"), f"--prompts {plain(name)}: line"
    numbered = [(i, line) for i, line in enumerate(lines, 1) if line.strip()]
    found = [_of_json(line, f"{where} {i}") if objects else Asked(line, {}) for i, line in numbered]
    if not found:
        raise ValueError(f"--prompts {plain(name)}: expected one prompt per line, found none")
    return found


def _of_json(line: str, where: str) -> Asked:
    try:
        said = parse_json(line)
    except ValueError as error:
        raise ValueError(f"{where}: expected a JSON object, got other text ({why(error)})") from None
    if not isinstance(said, dict) or not isinstance(prompt := said.pop("prompt", None), str) or not prompt:
        raise ValueError(f'{where}: expected an object with a non-empty "prompt"')
    for key, value in said.items():
        known = ["stop", *_SETTINGS, *sorted(_SAMPLING)]
        if key not in known:
            raise ValueError(f"{where}: {shown(key)}: expected one of prompt, {', '.join(known)}")
        if key == "stop" and not (isinstance(value, list) and all(isinstance(text, str) and text for text in value)):
            raise ValueError(f"{where}: stop={shown(value)}: expected a list of texts")
        try:
            if key in _SETTINGS:
                require_limits(key, value, _SETTINGS[key])
            elif key != "stop":
                Sampling(**{key: value})
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
    return Asked(prompt, said)


def write_many(
    writer: TextGenerator,
    asked: Sequence[Asked],
    *,
    batch_size: int,
    tokens: int | None,
    seed: int,
    weights: Weights | None,
) -> None:
    """Continue all prompts, and print one JSON object per line, in the order of the file.

    Each object contains the prompt and either the text that follows it or an error. Each object is printed as soon as
    its text and all earlier ones are finished. A prompt that fails does not affect the others.

    Args:
        writer: The model, with its tokenizer and settings, which a request may override.
        asked: The requests.
        batch_size: The batch size.
        tokens: Maximum tokens per text, as in `TextGenerator.most`, for requests that do not set it themselves.
        seed: Random seed that a request may override. Request number r uses random generator r of its seed, just like
            prompts that are given as flags.
        weights: The weight format.
    """
    from companion.generation.serving import BLOCK, BUDGET, Server

    requests = [_request(writer, row, one, tokens, seed) for row, one in enumerate(asked)]
    needs = [len(one["prompt"]) + one["max_new_tokens"] + BLOCK for one in requests if not isinstance(one, ValueError)]
    rows = min(batch_size, max(len(needs), 1))
    room = sum(sorted(needs)[-rows:]) or BLOCK
    server = Server(writer.model, rows=rows, tokens=room, budget=max(BUDGET, rows), weights=weights)
    handles = [one if isinstance(one, ValueError) else server.submit(**one) for one in requests]
    for one, handle in zip(asked, counted(handles, unit="text"), strict=True):
        told = {"prompt": one.prompt}
        try:
            if isinstance(handle, ValueError):
                raise handle
            told["text"] = _text(writer, handle)
        except ValueError as error:  # includes `NotFinite`
            told["error"] = str(error)
        line = json.dumps(told, ensure_ascii=False)  # JSON does not escape control characters above \x7e
        print(_COMMANDS.sub(lambda found: f"\\u{ord(found.group()):04x}", line), flush=True)


_COMMANDS = re.compile(r"[\x7f-\x9f]")


def _request(writer: TextGenerator, row: int, one: Asked, tokens: int | None, seed: int) -> dict[str, Any] | ValueError:
    """Return the arguments of `Server.submit` for a request, or the error that makes the request invalid."""
    given, context = one.given, writer.model.config.context
    stop = (*writer.says.stop_strings, *given.get("stop", ()))
    writer = replace(writer, says=replace(writer.says, stop_strings=stop))
    try:
        ids = writer.read(one.prompt, context - 1)
        most = min(writer.most([ids], given.get("tokens", tokens)), context - len(ids))
        options = writer.options([ids])
    except ValueError as error:
        return error
    ended = options["until"]
    return {
        **options,
        "prompt": ids,
        "max_new_tokens": most,
        "sampling": replace(writer.sampling, **{name: given[name] for name in _SAMPLING & given.keys()}),
        "until": None if ended is None else lambda _, new: ended(0, new),
        "seed": given.get("seed", seed),
        "generator": row,
    }


def _text(writer: TextGenerator, handle: Handle) -> str:
    parts = writer.parts(handle.prompt)
    return "".join(map(parts.push, handle.result())) + parts.finish()
