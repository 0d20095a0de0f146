"""Open every lesson in a real JupyterLab and a real browser, restart, run all cells, and look (`make lab-check`).

It fails when a cell fails or is not run, something is written to stderr, a formula does not render, a picture does not
load, LaTeX is left in the text, a slider does not change its picture when it is moved with the keyboard, or anything is
asked of another machine. Every figure is kept as a screenshot, to be looked at. Needs Chromium and the extra `dev`.

Then it does an exercise as a reader would: types a wrong answer and a right one into the exercise notebook of lesson
02, and fails unless the check names the mistake in the one and accepts the other.

    python tests/lab/check.py [--figures FOLDER] [--chromium PATH] [LESSON ...]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Page, TimeoutError, sync_playwright

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},  # keeps every cell in the page, also those out of sight
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}
BROWSER_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PROMPTS = "[...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')].map(e => e.textContent.trim())"
IDLE = "#jp-main-statusbar >> text=/Python 3.*Idle/"
LONGEST_RUN = 300_000  # milliseconds
SLIDER_SETTLES = 2_000  # milliseconds from a key press to the new picture
EXERCISES = "exercises/02_exercises"
ANSWERS = {  # to exercise 2.1, as typed (JupyterLab indents by itself), and what its check must say
    "wrong": (
        "def weight_of_cat():\nreturn torch.softmax(torch.tensor([4.0, 4.0, 0.0]) / 4, dim=0)[0].item()",
        "your scores are divided by d_k, not by its square root",
    ),
    "right": (
        "def weight_of_cat():\nreturn torch.softmax(torch.tensor([4.0, 4.0, 0.0]) / 4**0.5, dim=0)[0].item()",
        "2.1 One weight with a pencil: right. 1 point.",
    ),
}


@contextlib.contextmanager
def jupyterlab(folder: Path) -> Iterator[tuple[str, str]]:
    """A server on a copy of the notebooks, without the user's own settings; its address and token."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for plugin, value in SETTINGS.items():
        file = folder / "settings" / "@jupyterlab" / f"{plugin}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(value))
    shutil.copytree(NOTEBOOKS, folder / "notebooks", ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    address, token = f"http://127.0.0.1:{port}", secrets.token_hex(16)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}"]
    command += ["--ServerApp.port_retries=0", f"--IdentityProvider.token={token}"]
    command += [f"--ServerApp.root_dir={folder / 'notebooks'}"]
    command += ['--ServerApp.jpserver_extensions={"jupyterlab_jupytext": False}']
    environment = os.environ | {
        "COMPANION_HOME": f"{folder}/progress",
        "JUPYTER_CONFIG_DIR": f"{folder}/config",
        "JUPYTERLAB_WORKSPACES_DIR": f"{folder}/workspaces",
        "JUPYTERLAB_SETTINGS_DIR": f"{folder}/settings",
        "JUPYTER_RUNTIME_DIR": f"{folder}/runtime",
    }
    log = folder / "jupyterlab.log"
    with log.open("w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:
        for _ in range(240):
            assert server.poll() is None, f"JupyterLab did not start:\n{log.read_text()}"
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{address}/api")
                break
            time.sleep(0.25)
        yield address, token
    finally:
        server.terminate()
        server.wait(20)


def run_all(page: Page, url: str) -> None:
    """Open a notebook, restart its kernel, run all cells, and wait until the last has run or one has failed."""
    page.goto(url)
    page.wait_for_selector(".jp-Notebook .jp-CodeCell")
    page.wait_for_selector(IDLE)
    page.click(".lm-MenuBar-itemLabel:text-is('Kernel')")
    page.click(".lm-Menu-itemLabel:text-is('Restart Kernel and Run All Cells…')")
    page.click(".jp-Dialog .jp-mod-accept")
    page.wait_for_function(f"{PROMPTS}.some(t => t == '[*]:')")
    page.wait_for_function(f"{PROMPTS}.every(t => t != '[*]:')", timeout=LONGEST_RUN)
    page.wait_for_selector(IDLE)


def look(page: Page) -> list[str]:
    """What is wrong with the notebook on the page, after it was run."""
    faults = []
    for kind in ("error", "stderr"):
        texts = page.locator(f"[data-mime-type='application/vnd.jupyter.{kind}']").all_inner_texts()
        faults += [f"{kind}: {text.strip()[:300]}" for text in texts]
    prompts = page.evaluate(PROMPTS)
    expected = [f"[{number}]:" for number in range(1, len(prompts) + 1)]
    if prompts != expected:
        wrong = next(index for index, pair in enumerate(zip(prompts, expected, strict=True), 1) if pair[0] != pair[1])
        faults.append(f"code cell {wrong} of {len(prompts)} was not run in order: {prompts[wrong - 1]!r}")
    bad = page.locator("[data-mml-node='merror']").all_inner_texts()
    faults += [f"formula does not render: {text.strip()[:120]}" for text in bad]
    rendered = page.locator(".jp-RenderedMarkdown").all_inner_texts()
    faults += [f"raw LaTeX in the text: {t[max(0, t.find('$$') - 40) :][:120]!r}" for t in rendered if "$$" in t]
    unloaded = page.evaluate(
        "[...document.images].filter(i => i.complete && i.naturalWidth == 0).map(i => i.src.slice(0, 80))"
    )
    faults += [f"picture does not load: {source}" for source in unloaded]
    return faults


def move_sliders(page: Page) -> tuple[int, list[str]]:
    """Move every slider with the keyboard: how many there are, and which of them did not change their picture."""
    faults = []
    sliders = page.locator(".widget-slider").all()
    for number, slider in enumerate(sliders, 1):
        picture = page.locator(".jp-OutputArea-output").filter(has=slider).locator("img").first
        before = picture.get_attribute("src"), slider.locator(".widget-readout").inner_text()
        slider.locator(".noUi-handle").first.focus()
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        page.wait_for_timeout(SLIDER_SETTLES)
        page.wait_for_selector(IDLE)
        after = picture.get_attribute("src"), slider.locator(".widget-readout").inner_text()
        if after[1] == before[1]:
            faults.append(f"slider {number} of {len(sliders)} does not move with the arrow keys: {before[1]!r}")
        elif after[0] == before[0]:
            faults.append(
                f"slider {number} of {len(sliders)} went from {before[1]} to {after[1]}, and its picture stayed"
            )
    return len(sliders), faults


def check(page: Page, address: str, token: str, name: str, figures: Path) -> list[str]:
    """Run one lesson, keep its figures, and return its faults."""
    run_all(page, f"{address}/lab/tree/{name}.ipynb?reset&token={token}")
    pictures = page.locator(".jp-OutputArea img").all()
    for number, picture in enumerate(pictures, 1):
        picture.scroll_into_view_if_needed()
        picture.screenshot(path=figures / f"{name}-{number:02}.png")
    formulas = page.locator("mjx-container").count()
    sliders, faults = move_sliders(page)
    counts = (
        f"{len(page.evaluate(PROMPTS))} code cells, {formulas} formulas, {len(pictures)} figures, {sliders} sliders"
    )
    print(f"{name}: {counts}", flush=True)
    return look(page) + faults + ([] if formulas else ["no formula was rendered"])


def answer_an_exercise(page: Page, address: str, token: str, figures: Path) -> list[str]:
    """Type each of `ANSWERS` into the exercise notebook, run its check, and return what it did not say."""
    page.goto(f"{address}/lab/tree/{EXERCISES}.ipynb?reset&token={token}")
    cells = page.locator(".jp-Notebook .jp-CodeCell")
    cells.first.wait_for()
    page.wait_for_selector(IDLE)
    cells.first.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")  # the imports
    faults = []
    for kind, (typed, says) in ANSWERS.items():
        cells.nth(1).locator(".cm-content").click()
        page.keyboard.press("Control+A")
        page.keyboard.type(typed)
        page.keyboard.press("Control+Enter")
        cells.nth(2).locator(".cm-content").click()
        page.keyboard.press("Control+Enter")
        output = cells.nth(2).locator(".jp-OutputArea-output").filter(has_text=says).first
        try:
            output.wait_for()
        except TimeoutError:
            shown = cells.nth(2).locator(".jp-OutputArea").inner_text()
            faults.append(f"{EXERCISES}: to the {kind} answer, expected {says!r}, read {shown[:500]!r}")
        page.screenshot(path=figures / f"exercise-{kind}.png")
    print(f"{EXERCISES}: {len(ANSWERS)} answers typed", flush=True)
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description="Run every lesson in a real JupyterLab and browser.")
    parser.add_argument("lessons", nargs="*", metavar="LESSON", help="number or beginning of the name (default: all)")
    parser.add_argument(
        "--figures", type=Path, default=Path("lab-figures"), help="folder for screenshots (%(default)s)"
    )
    parser.add_argument("--chromium", default=next(filter(None, map(shutil.which, BROWSERS)), None), help="the browser")
    options = parser.parse_args()
    if not options.chromium:
        parser.error(f"no browser found ({', '.join(BROWSERS)}); install one, on Debian: apt install chromium")
    every = sorted(path.stem for path in NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
    names = [name for name in every if not options.lessons or name.startswith(tuple(options.lessons))]
    if not names:
        parser.error(f"no such lesson: {' '.join(options.lessons)}")
    options.figures.mkdir(parents=True, exist_ok=True)
    outside: list[str] = []
    faults: list[str] = []
    # Chromium and the server leave files behind for a moment; that is no reason to fail.
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        jupyterlab(Path(folder)) as (address, token),
        sync_playwright() as playwright,
    ):
        context = playwright.chromium.launch_persistent_context(
            Path(folder) / "browser",
            executable_path=options.chromium,
            headless=True,
            viewport={"width": 1200, "height": 1300},
            args=BROWSER_FLAGS,
        )
        page = context.pages[0]
        page.set_default_timeout(90_000)
        local = (address, address.replace("http", "ws"), "data:", "blob:")
        page.on("request", lambda request: None if request.url.startswith(local) else outside.append(request.url))
        for name in names:
            faults += [f"{name}: {fault}" for fault in check(page, address, token, name, options.figures)]
        faults += answer_an_exercise(page, address, token, options.figures)
        context.close()
    faults += [f"asked of another machine: {url}" for url in outside]
    print(*faults, sep="\n", end="\n" if faults else "")
    print(f"{len(names)} lessons, {len(faults)} faults; figures in {options.figures}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
