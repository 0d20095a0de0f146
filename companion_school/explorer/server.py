"""A small local server that computes passes for the explorer's page.

It listens on 127.0.0.1 and answers only requests from local pages to its own address, which contains a random token
that other sites' pages cannot guess. The size of a request and the time that it may take to arrive are limited.
Requests are JSON. `read` returns a pass in the format of `model_page.record`. `carried` patches single states into a
pass, and `without` switches off one head at a time; both return one line of JSON per step.
"""

from __future__ import annotations

import html
import json
import secrets
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from companion.ground.fields import require, require_whole
from companion_school.explorer.activations import ONE, inside, logits_of, memory_of, patched, switched_off
from companion_school.explorer.model_page import Reading, Tokens, read_ids, reading, record

if TYPE_CHECKING:
    from companion.commands.chat import Talk

HOST = "127.0.0.1"
LONGEST = 1_000_000
"""Maximum size of a request's body, in bytes. `http.server` limits the headers."""
PATIENCE = 30
"""Seconds without a byte after which a connection is closed."""
LOCAL = {HOST, "localhost", "[::1]"}
"""Hosts whose pages may send requests. So may pages without a host: files, frames (`null`) and editors' notebooks."""


@dataclass(frozen=True)
class Asked:
    """Handlers for a page's requests.

    Attributes:
        model: The model, in evaluation mode and on the CPU.
        words: The tokenizer.
        start: First id, as in `model_page`.
        stop: Id that ends the output of an encoder-decoder, as in `model_page`.
    """

    model: nn.Module
    words: Tokens | Any
    start: int | None = None
    stop: int | None = None

    def read(self, *, text: str | None = None, off: Sequence[str] = (), **ids: Any) -> bytes:
        """Record a pass over a text or over the ids `tokens` and `source`.

        Args:
            text: The text; if it is `None`, the ids are used.
            off: Heads and experts to switch off.
            ids: `tokens` and `source`.

        Raises:
            ValueError: As raised by `model_page.reading` or `activations.switched_off`.
        """
        if text is None:
            given = self._ids(**ids)
        else:
            given = reading(self.model, self.words, text, start=self.start, stop=self.stop, off=off)
        return record(self.model, given, off=off, words=self.words)

    def carried(
        self, *, other: dict[str, Any], off: Collection[str], first: int, end: int, pair: list[int], **ids: Any
    ) -> Iterator[Any]:
        """Patch states from another pass into the pass over `tokens` and `source`, one at a time.

        Args:
            other: Ids of the other pass: `tokens` and `source`.
            off: Heads and experts that are off in both passes.
            first: First patched position.
            end: Last patched position, where the logits are read.
            pair: Ids of the two tokens to compare.
            ids: `tokens` and `source`.

        Yields:
            For the embedding and then for each block, a list with the logits of both tokens at `end` for each patched
            position.

        Raises:
            ValueError: A position or an id is out of range.
        """
        for name, value in (("first", first), ("end", end)):
            require_whole(name, value, 0)
        given, beside = self._ids(**ids), self._ids(**other)
        count = min(len(given.tokens), len(beside.tokens))
        require(first <= end < count, "first", first, f"at most end, {end}, and that below {count}")
        states = inside(self.model, beside.tokens, beside.source, off)
        wanted, tokens = self._known("pair", pair), given.tokens[: end + 1]
        for layer, name in enumerate(["decoder.embedding", *(f"decoder.blocks.{i}" for i in range(len(states)))]):
            if name not in states:
                return
            rows = torch.stack(states[name][first : end + 1])
            logits = patched(self.model, tokens, given.source, rows, layer=layer, first=first, off=off)
            yield logits[:, end, wanted].tolist()

    @torch.no_grad()
    def without(self, *, off: Collection[str], end: int, token: int, **ids: Any) -> Iterator[Any]:
        """Compute the probability of a token after position `end` with one more head switched off.

        Args:
            off: Heads and experts that are off in every pass.
            end: The position.
            token: Id of the token.
            ids: `tokens` and `source`.

        Yields:
            For each attention layer, in the order of the pass, one probability per head that is switched off.

        Raises:
            ValueError: The position or an id is out of range.
        """
        given = self._ids(**ids)
        require_whole("end", end, 0)
        require(end < len(given.tokens), "end", end, f"a place below {len(given.tokens)}")
        (wanted,), tokens = self._known("token", [token]), torch.tensor([given.tokens[: end + 1]])
        rows = inside(self.model, given.tokens[: end + 1], given.source, off)
        for name in [name.removesuffix(".scores") for name in rows if name.endswith(".scores")]:
            chances = []
            for head in range(rows[f"{name}.scores"][0].numel() // _keys(name, given)):
                with switched_off(self.model, {*off, f"{name}.{head}"}):
                    logits = logits_of(self.model, tokens, memory_of(self.model, given.source))[0, end]
                chances.append(float(logits.float().softmax(-1)[wanted]))
            yield chances

    def _ids(self, *, tokens: list[int], source: Sequence[int] = ()) -> Reading:
        """Raise `ValueError` if a page sends unknown ids or too many ids."""
        return read_ids(self.model, self.words, self._known("tokens", tokens), self._known("source", source))

    def _known(self, name: str, ids: Sequence[int]) -> Sequence[int]:
        rows = self.model.get_submodule("embedding").weight.shape[0]  # type: ignore[index]
        wrong = next((id for id in ids if type(id) is not int or not 0 <= id < rows), None)
        require(wrong is None, name, wrong, f"ids from 0 to {rows - 1}")
        return ids


def _keys(name: str, given: Reading) -> int:
    """Return the number of keys to which the first query of an attention layer can attend."""
    return len(given.source) if name.startswith("encoder") or name.endswith("cross") else 1


def said(talk: Talk, *, turns: Sequence[str]) -> Iterator[dict[str, str]]:
    """Answer the last turn in a conversation.

    Args:
        talk: The conversation's model and settings.
        turns: Alternating texts of the user and the model; the first and the last are the user's.

    Yields:
        Pieces of the answer, followed by a note that gives the reason if the answer ended early.

    Raises:
        ValueError: The turns do not form a conversation, or leave no room for an answer.
    """
    good = isinstance(turns, list) and len(turns) % 2 == 1 and all(isinstance(turn, str) and turn for turn in turns)
    require(good, "turns", turns, "texts of the user and the model in turn, the user's first and last")
    mine = replace(talk, turns=list(turns[:-1]), answers=len(turns) // 2)
    for piece in mine.ask(turns[-1]):
        yield {"text": piece}
    yield {"note": mine.cut} if mine.cut else {}


class Server(ThreadingHTTPServer):
    """HTTP server for a page and its requests. `serve_forever` starts it, and `shutdown` stops it.

    Args:
        page: The HTML, which sends requests to "./".
        asked: Request handlers.
        port: Port to listen on; 0 for any free port.
        talk: A conversation with the model; if given, a chat page is served at `address` + "chat".

    Attributes:
        address: URL of the page.

    Raises:
        ValueError: The port is not free.
    """

    daemon_threads = True

    def __init__(self, page: str, asked: Asked, port: int = 0, talk: Talk | None = None) -> None:
        try:
            super().__init__((HOST, port), _Answer)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise ValueError(f"port={port}: expected a free port on {HOST} ({why})") from None
        self.address = f"http://{HOST}:{self.server_port}/{secrets.token_urlsafe(16)}/"
        self.answers: dict[str, Callable[..., bytes | Iterator[Any]]] = {
            "read": asked.read,
            "carried": asked.carried,
            "without": asked.without,
        }
        self.pages = {"": page}
        if talk is not None:
            chat = files(__package__).joinpath("chat.html").read_text("utf-8")
            self.pages["chat"] = chat.replace("{title}", html.escape(talk.title))
            self.answers["say"] = partial(said, talk)

    def handle_error(self, request: Any, address: Any) -> None:
        """Ignore closed connections and report all other errors as usual."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, address)


class _Answer(BaseHTTPRequestHandler):
    server: Server
    timeout = PATIENCE

    def do_GET(self) -> None:
        page = next((page for name, page in self.server.pages.items() if self._asks(name)), None)
        self._answer(404 if page is None else 200, (page or "").encode(), "text/html")

    def do_POST(self) -> None:
        name = next((name for name in self.server.answers if self._asks(name)), None)
        length = self.headers.get("Content-Length", "")
        if name is None:
            self._answer(404, b"")
            return
        if not (length.isascii() and length.isdigit()):
            self._answer(411, b"Content-Length must be the number of bytes of the request")
            return
        if len(length) > len(str(LONGEST)) or int(length) > LONGEST:
            self._answer(413, f"The request must have at most {LONGEST} bytes, got {length[:20]}".encode())
            return
        body = self.rfile.read(int(length))
        try:
            given = json.loads(body)
            if not isinstance(given, dict):
                raise ValueError(f"the request must be a JSON object, got {type(given).__name__}")
            with ONE:  # the chat page and the explorer use the same model
                self._reply(self.server.answers[name](**given))
        except (ValueError, TypeError, RecursionError) as error:
            self._answer(400, str(error).encode())
        except Exception as error:  # readers' own models may raise any exception, which the page shows
            self._answer(500, f"The model raises {type(error).__name__}: {error}".encode())

    def _reply(self, made: bytes | Iterator[Any]) -> None:
        """Send bytes unchanged, or each item of an iterator as a line of JSON as soon as it is computed.

        An error in the first item is raised before anything is sent. A later error is sent as a note in the last line.
        """
        if isinstance(made, bytes):
            self._answer(200, made, "application/octet-stream")
            return
        made = chain([next(made)], made)
        with suppress(ConnectionError):
            self._head(200, "application/jsonl")
            try:
                for row in made:
                    self.wfile.write(json.dumps(row).encode() + b"\n")
            except ConnectionError:
                raise
            except Exception as error:  # readers' own models may raise any exception
                note = {"note": f"The model raises {type(error).__name__}: {error}"}
                self.wfile.write(json.dumps(note).encode() + b"\n")

    def _asks(self, name: str) -> bool:
        """Return True if the request has the secret path for this name and comes from a page on this machine."""
        right = f"{self.server.address}{name}"
        host = f"{HOST}:{self.server.server_port}"
        same = secrets.compare_digest(f"http://{self.headers.get('Host')}{self.path}".encode(), right.encode())
        return same and self.headers.get("Host") == host and self._is_local()

    def _is_local(self) -> bool:
        scheme, _, rest = self.headers.get("Origin", "null").partition("://")
        host = rest.partition("]")[0] + "]" if rest.startswith("[") else rest.partition(":")[0]
        return scheme not in ("http", "https") or host in LOCAL

    def _answer(self, status: int, body: bytes, kind: str = "text/plain") -> None:
        with suppress(ConnectionError):
            self._head(status, kind, len(body))
            self.wfile.write(body)

    def _head(self, status: int, kind: str, size: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8" if kind.startswith("text") else kind)
        if size is not None:  # without a length, the body ends when the connection closes
            self.send_header("Content-Length", str(size))
        self.send_header("Access-Control-Allow-Origin", "*")  # a page in a notebook's frame has the notebook's origin
        self.send_header("Cache-Control", "no-store")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Do nothing, to keep the reader's terminal clean."""
