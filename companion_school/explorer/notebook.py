"""The explorer in a notebook: a cell's page, and Python behind it where the page needs that."""

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
"""Cells that Python answers at once; each holds a copy of its model. The pages of older ones keep their text."""
_open: deque[Server] = deque()


class Explorer:
    """The page in a notebook: what a cell shows whose last line this is.

    page:     as a file, which shows the text that it was made with.
    height:   of the frame, in pixels.
    address:  where Python answers the page; empty: nowhere.
    """

    def __init__(self, page: str, height: int, address: str = "") -> None:
        self.page, self.height, self.address = page, height, address

    def _repr_html_(self) -> str:
        frame = 'style="border:0;width:100%" title="The explorer"'
        shown = served(self.page, self.address) if self.address else self.page
        return f'<iframe {frame} height="{self.height}" srcdoc="{html.escape(shown)}"></iframe>'

    def save(self, path: str | Path) -> None:
        """Write the page as a file."""
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

    A model that the page does not compute is computed by this Python: a copy of it as it is now, on the CPU, which a
    server on this machine asks (`server`). Where the browser does not reach it, as on another machine, or when the
    notebook has been closed, the page shows `text` alone.

    height: of the frame, in pixels; `model_page` says what the rest is, and what is refused.
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
