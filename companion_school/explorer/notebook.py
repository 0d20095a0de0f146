"""The explorer in a notebook cell, with a local server if the page needs Python."""

from __future__ import annotations

import copy
import html
import threading
from collections import deque
from pathlib import Path

import torch
from torch import nn

from companion.data.number_words import NumberWords
from companion.ground.atomic import write_atomic
from companion_school.explorer.model_page import Tokens, model_page
from companion_school.explorer.page_files import served
from companion_school.explorer.server import Asked, Server

NEWEST = 4
"""Maximum number of cells with a running server, which stores a copy of the model. Pages in older cells still show
their text."""
_open: deque[Server] = deque()


class Explorer:
    """The explorer's page as the output of a notebook cell.

    Args:
        page: The page's HTML, which shows the text that it was generated for.
        height: Height of the frame in pixels.
        address: Address of the server that the page sends requests to; empty for a page without a server.
    """

    def __init__(self, page: str, height: int, address: str = "") -> None:
        self.page, self.height, self.address = page, height, address

    def _repr_html_(self) -> str:
        frame = 'style="border:0;width:100%" title="The explorer"'
        shown = served(self.page, self.address) if self.address else self.page
        return f'<iframe {frame} height="{self.height}" srcdoc="{html.escape(shown)}"></iframe>'

    def save(self, path: str | Path) -> None:
        """Write the page to a file."""
        write_atomic(path, self.page)


def explore(
    model: nn.Module,
    words: Tokens | NumberWords,
    text: str,
    *,
    start: int | None = None,
    stop: int | None = None,
    height: int = 900,
) -> Explorer:
    """Look inside a model in a notebook: `explore(model, tokenizer, "Once upon a time")`.

    If the page cannot run the model itself, a local server (`server`) runs a copy of the model in its current state, on
    the CPU. If the browser cannot reach the server, for example because the server is on another machine or the
    notebook has been closed, the page shows only `text`.

    Args:
        model: A model, as in `model_page`.
        words: The tokenizer.
        text: The text that the model reads.
        start: First id, as in `model_page`.
        stop: Id that ends the output of an encoder-decoder.
        height: Height of the frame in pixels.

    Raises:
        ValueError: As raised by `model_page`.
    """
    mine = copy.deepcopy(model).to("cpu", torch.float32).eval()
    page, runs = model_page(mine, words, text, start=start, stop=stop)
    if runs:
        return Explorer(page, height)
    server = Server(served(page, "./"), Asked(mine, words, start, stop))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    _open.append(server)
    while len(_open) > NEWEST:
        oldest = _open.popleft()
        oldest.shutdown()
        oldest.server_close()
    return Explorer(page, height, server.address)
