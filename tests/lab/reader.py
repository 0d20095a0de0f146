"""A real JupyterLab, as after `make lab`, in a real browser: start the server, open notebooks, run cells, click."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Page

from companion_school.study import readers_copy

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
IDLE = f"#jp-main-statusbar >> text=/{readers_copy.KERNEL}.*Idle/"
PROMPTS = "[...document.querySelectorAll('.jp-Notebook .jp-CodeCell .jp-InputPrompt')].map(e => e.textContent.trim())"
# The execution counts of the open notebook's code cells; folded cells have no prompt that shows them.
COUNTS = """window.jupyterapp.shell.currentWidget.content.widgets
  .filter(cell => cell.model.type === 'code').map(cell => cell.model.executionCount)"""
CELLS = "[...document.querySelectorAll('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook .jp-Cell')]"
DRAWN = f"{CELLS}.length === window.jupyterapp.shell.currentWidget.content.model.cells.length"
SIZES = f"String({CELLS}.map(cell => [cell.offsetWidth, cell.offsetHeight]))"
LOG = "jupyterlab.log"
LONGEST_RUN = 300_000  # milliseconds
# Code consists of thousands of words, and axe would compare the colours of each. Words of one class in blocks of one
# kind have the same colours, so leave the longest visible one (axe does not judge single letters) and make the others
# plain.
PLAIN = """() => {
  const longest = new Map(), words = [...document.querySelectorAll('.highlight pre span:not(:has(*))')];
  for (const word of words.filter((word) => word.checkVisibility())) {
    const classes = [];
    for (let block = word; block; block = block.parentElement) classes.push(block.className);
    const kind = JSON.stringify(classes), before = longest.get(kind)?.textContent ?? "";
    if (word.textContent.length > before.length) longest.set(kind, word);
  }
  const left = new Set(longest.values());
  window.plain = words.filter((word) => !left.has(word)).map((word) => [new Text(word.textContent), word]);
  for (const [text, word] of window.plain) word.replaceWith(text);
}"""
AGAIN = "() => { for (const [text, word] of window.plain) text.replaceWith(word); }"


@dataclass(frozen=True)
class Lab:
    """A running server: its address and token, and its folder with the reader's copies of the notebooks."""

    address: str
    token: str
    root: Path

    @property
    def terminal(self) -> str:
        """Return the contents of the terminal in which `make lab` was started."""
        return (self.root.parent / LOG).read_text(encoding="utf-8")

    @property
    def mine(self) -> Path:
        return self.root / readers_copy.MINE

    @property
    def progress(self) -> Path:
        """Folder of the reader's progress."""
        return self.root.parent / "progress"

    def url(self, name: str = "") -> str:
        """Return the URL of a notebook in the reader's folder or, without a name, of the start page."""
        return f"{self.address}/{f'lab/tree/{readers_copy.MINE}/{name}?reset&' if name else '?'}token={self.token}"


@contextlib.contextmanager
def jupyterlab(folder: Path, *extra: Path) -> Iterator[Lab]:
    """Start what `make lab` starts, on a copy of the notebooks, with the course's settings and none of the user's.

    extra: notebooks to add to the lessons
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    root = folder / "course"
    shutil.copytree(NOTEBOOKS, root / "notebooks", ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    for notebook in extra:
        shutil.copy(notebook, root / "notebooks")
    private = {
        "COMPANION_HOME": "progress",
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTER_RUNTIME_DIR": "runtime",
    }
    environment = os.environ | {name: str(folder / place) for name, place in private.items()}
    prepare = [sys.executable, "-m", "companion_school.study.readers_copy", "--prepare"]
    subprocess.run(prepare, cwd=root, env=environment, check=True)
    token = secrets.token_hex(16)
    flags = ["--no-browser", "--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0"]
    command = [sys.executable, "-m", "companion_school.study.readers_copy", *flags, f"--IdentityProvider.token={token}"]
    log, here = folder / LOG, Lab(f"http://127.0.0.1:{port}", token, root)
    with log.open("w") as output:
        server = subprocess.Popen(command, cwd=root, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:
        for _ in range(480):
            assert server.poll() is None, f"JupyterLab did not start:\n{log.read_text()}"
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{here.address}/api")
                break
            time.sleep(0.25)
        else:
            raise TimeoutError(f"JupyterLab did not answer within two minutes:\n{log.read_text()}")
        yield here
    finally:
        server.terminate()
        server.wait(20)


def menu(page: Page, name: str, entry: str) -> None:
    """Click an entry of the menu bar, as a reader does."""
    page.click(f".lm-MenuBar-itemLabel:text-is('{name}')")
    page.click(f".lm-Menu-itemLabel:text-is('{entry}')")


def open_notebook(page: Page, url: str) -> None:
    """Open a notebook, and wait until its first cells are visible and its kernel is idle."""
    page.goto(url)
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    page.wait_for_selector(IDLE)


def wait_for_cells(page: Page, count: int) -> None:
    """Wait until JupyterLab has drawn all code cells; it draws those out of sight later."""
    page.wait_for_function(f"count => {PROMPTS}.length >= count", arg=count)


def wait_until_drawn(page: Page) -> None:
    """Wait until the open notebook has all cells and its final height, because JupyterLab draws some later."""
    page.wait_for_function(DRAWN)
    wait_until_still(page, 1_000)


def wait_until_still(page: Page, pause: int = 300) -> None:
    """Wait until the width of the open notebook and the heights of its cells no longer change.

    pause: milliseconds between two measurements
    """
    before, now = None, page.evaluate(SIZES)
    while now != before:
        page.wait_for_timeout(pause)
        before, now = now, page.evaluate(SIZES)


def run_all(page: Page) -> None:
    """Restart the kernel of the open notebook, run all cells, and wait until the last one has run or one has failed."""
    menu(page, "Kernel", "Restart Kernel and Run All Cells…")
    page.click(".jp-Dialog .jp-mod-accept")
    page.wait_for_function(f"{PROMPTS}.some(t => t == '[*]:')")
    page.wait_for_function(f"{PROMPTS}.every(t => t != '[*]:')", timeout=LONGEST_RUN)
    for _ in range(2):  # between two cells it is idle for a moment
        page.wait_for_selector(IDLE)
        page.wait_for_timeout(500)
    page.wait_for_selector(IDLE)


def static_page(lab: Lab, name: str, theme: str) -> Path:
    """Export a notebook as an HTML file in a folder of its own; the page has no kernel and uses no network."""
    from nbconvert import HTMLExporter

    elsewhere = {f"{what}_url": "" for what in ("mathjax", "require_js", "jquery", "mermaid_js")}
    text, _ = HTMLExporter(template_name="lab", theme=theme, **elsewhere).from_filename(str(lab.mine / f"{name}.ipynb"))
    file = lab.root.parent / "static" / theme / f"{Path(name).name}.html"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def save(page: Page) -> None:
    """Save the open notebook, and wait until it is saved."""
    menu(page, "File", "Save Notebook")
    page.wait_for_function("!window.jupyterapp.shell.currentWidget.context.model.dirty")
    page.wait_for_timeout(500)  # a notebook that is saved already is saved again


def axe(page: Page, selector: str, contrast: bool = True) -> list[str]:
    """Return the problems that axe finds in a part of the page, for WCAG 2.2 at level AA.

    contrast: also compare the colours, which takes most of the time
    """
    from axe_playwright_python.sync_playwright import Axe

    rules = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
    # "preload" would fetch style sheets, which is not allowed in a page opened from a folder.
    wanted = {"runOnly": rules, "preload": False, "resultTypes": ["violations"]}
    wanted["rules"] = {"color-contrast": {"enabled": contrast}}
    page.evaluate(PLAIN)
    found = Axe().run(page, context=selector, options=wanted).response["violations"]
    page.evaluate(AGAIN)
    return [
        f"axe: {rule['id']} x {len(rule['nodes'])}: {rule['nodes'][0]['html'][:160]} ({rule['help']})" for rule in found
    ]
