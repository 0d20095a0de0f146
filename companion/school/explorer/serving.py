"""A page whose passes Python makes: a small server on this machine alone, asked by the page at every change.

It listens on 127.0.0.1, and answers only who knows its address, which holds a random word; no page of another site can
guess that. What it is asked is JSON: `read` gives a pass, as `recording.record` writes it, `carried` what single states
do in the place of others.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from torch import nn

from companion.ground.fields import require, require_whole
from companion.school.explorer.inside import inside, patched
from companion.school.explorer.recording import Reading, Tokens, read_ids, reading, record

HOST = "127.0.0.1"
LONGEST = 1_000_000
"""Bytes of a request at most."""


@dataclass(frozen=True)
class Asked:
    """What a page asks of a model, in evaluation and on the CPU. `words`, `start` and `stop`: as of `model_page`."""

    model: nn.Module
    words: Tokens | Any
    start: int | None = None
    stop: int | None = None

    def read(self, *, text: str | None = None, off: Sequence[str] = (), **ids: Any) -> bytes:
        """A pass over a text, or over `tokens` and `source`, with what is in `off` switched off.

        Raises `ValueError` as `recording.reading` and `inside.switched_off` do.
        """
        if text is None:
            given = self._ids(**ids)
        else:
            given = reading(self.model, self.words, text, start=self.start, stop=self.stop, off=off)
        return record(self.model, given, off=off, words=self.words)

    def carried(
        self,
        *,
        other: dict[str, Any],
        off: Collection[str],
        layer: int,
        first: int,
        end: int,
        pair: list[int],
        **ids: Any,
    ) -> bytes:
        """Each state of `other` after a layer, at the places `first` to `end`, put alone into the pass over `tokens`
        and `source`: of each the logits of the two tokens `pair` at `end`, as JSON."""
        for name, value in (("layer", layer), ("first", first), ("end", end)):
            require_whole(name, value, 0)
        given, beside = self._ids(**ids), self._ids(**other)
        count = min(len(given.tokens), len(beside.tokens))
        require(first <= end < count, "first", first, f"at most end, {end}, and that below {count}")
        states = inside(self.model, beside.tokens, beside.source, off)
        name = f"decoder.blocks.{layer - 1}" if layer else "decoder.embedding"
        require(name in states, "layer", layer, "the number of a layer of this model")
        rows = torch.stack(states[name][first : end + 1])
        logits = patched(
            self.model, given.tokens[: end + 1], given.source, rows, layer=layer, first=first, off=off
        )  # fmt: skip
        return json.dumps(logits[:, end, self._known("pair", pair)].tolist()).encode()

    def _ids(self, *, tokens: list[int], source: Sequence[int] = ()) -> Reading:
        """A reading of ids that a page sends. Raises `ValueError` for ids that the model has not, or too many."""
        return read_ids(self.model, self.words, self._known("tokens", tokens), self._known("source", source))

    def _known(self, name: str, ids: Sequence[int]) -> Sequence[int]:
        rows = self.model.get_submodule("embedding").weight.shape[0]  # type: ignore[index]
        wrong = next((id for id in ids if type(id) is not int or not 0 <= id < rows), None)
        require(wrong is None, name, wrong, f"ids from 0 to {rows - 1}")
        return ids


class Server(ThreadingHTTPServer):
    """Serves a page, and what it asks. `address` is where; `serve_forever` begins, `shutdown` ends it.

    page:   the HTML, which asks at "./", the place where it stands.
    asked:  what is asked.
    port:   0: any that is free.

    Raises `ValueError` for a port that is taken.
    """

    daemon_threads = True

    def __init__(self, page: str, asked: Asked, port: int = 0) -> None:
        try:
            super().__init__((HOST, port), _Answer)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise ValueError(f"port={port}: expected one that is free on {HOST}, got: {why}") from None
        self.address = f"http://{HOST}:{self.server_port}/{secrets.token_urlsafe(16)}/"
        self.answers: dict[str, Callable[..., bytes]] = {"read": asked.read, "carried": asked.carried}
        self.page = page


class _Answer(BaseHTTPRequestHandler):
    """One request. `server`: the `Server` that it came to."""

    server: Server

    def do_GET(self) -> None:
        known = self._asks("") is not None
        self._answer(200 if known else 404, self.server.page.encode() if known else b"", "text/html")

    def do_POST(self) -> None:
        name = next((name for name in self.server.answers if self._asks(name) is not None), None)
        size = int(self.headers.get("Content-Length") or 0)
        if name is None or size > LONGEST:
            self._answer(404 if name is None else 413, b"The request is too long" if name else b"")
            return
        try:
            given = json.loads(self.rfile.read(size))
            self._answer(200, self.server.answers[name](**given), "application/octet-stream")
        except (ValueError, TypeError) as error:
            self._answer(400, str(error).encode())
        except Exception as error:  # of a model of the reader's own: whatever it raises is told on the page
            self._answer(500, f"The model raises {type(error).__name__}: {error}".encode())

    def _asks(self, name: str) -> str | None:
        """The path, if it is that of the address and the name, asked of this machine by its own name."""
        right = f"{self.server.address}{name}"
        host = f"{HOST}:{self.server.server_port}"
        same = secrets.compare_digest(f"http://{self.headers.get('Host')}{self.path}".encode(), right.encode())
        return self.path if same and self.headers.get("Host") == host else None

    def _answer(self, status: int, body: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8" if kind.startswith("text") else kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Access-Control-Allow-Origin", "*")  # a notebook's frame has the notebook's origin
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing: the terminal is the reader's."""
