"""The look of an open notebook: it must be complete, fit its window and be readable in both themes."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Locator, Page
from reader import COUNTS, axe, wait_until_still

WINDOWS = (1280, 900)  # widths of a window, in pixels; in the narrow one the file browser is closed
EQUATION, LINE = 760, 95  # limits: an equation in pixels, and a line of prose in characters, on average
# Bars of folded cells directly below that of an empty cell, or above a question or a figure
_BARS = """() => [...document.querySelectorAll('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-PlaceholderText')]
  .filter(text => text.getClientRects().length).filter(text => {
    const cell = text.closest('.jp-Cell'), before = cell.previousElementSibling, folded = '.jp-InputPlaceholder';
    return cell.querySelector('.ext-question, .ext-figure') ||
      [cell, before].every(one => one?.matches('.jp-mod-noOutputs') && one.querySelector(folded));
  }).map(text => text.textContent)"""
_MEASURE, _CONTRAST = (
    Path(__file__).with_name(name).read_text(encoding="utf-8").split("\n", 1)[1]  # a function follows the comment
    for name in ("measure.js", "contrast.js")
)


def measure(page: Page, screenshots: Path, name: str) -> list[str]:
    """Return what is too wide in the open notebook at each window width, and save a screenshot of each."""
    faults, before = [], page.viewport_size
    for width in WINDOWS:
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate(f"window.jupyterapp.shell.{'collapseLeft' if width == min(WINDOWS) else 'expandLeft'}()")
        wait_until_still(page)  # wait for the panels to settle
        page.screenshot(path=screenshots / f"{name}-{width}.png")
        found, letters = page.evaluate(_MEASURE, EQUATION)
        faults += [f"at {width} pixels: {fault}" for fault in found]
        if letters > LINE:
            faults.append(f"at {width} pixels: a line of prose has {letters} characters, at most {LINE}")
    page.set_viewport_size(before)
    page.evaluate("window.jupyterapp.shell.expandLeft()")
    return faults


def bars(page: Page) -> list[str]:
    """Return the places where folded cells put a bar directly below another one, or above a question or a figure."""
    return [f"a folded cell has a bar where one is enough: {text!r}" for text in page.evaluate(_BARS)]


def at_all(page: Page, outputs: tuple[str, ...] = ("error", "stderr")) -> list[str]:
    """Return the faults of the notebook on the page after it was run.

    outputs: kinds of output that no cell should have
    """
    faults = []
    for kind in outputs:
        texts = page.locator(f"[data-mime-type='application/vnd.jupyter.{kind}']").all_inner_texts()
        faults += [f"{kind}: {text.strip()[:300]}" for text in texts]
    counts = page.evaluate(COUNTS)
    for number, count in enumerate(counts, 1):
        if count != number:
            faults.append(f"code cell {number} of {len(counts)} was not run in order: {count}")
            break
    bad = page.locator("[data-mml-node='merror']").all_inner_texts()
    faults += [f"formula does not render: {text.strip()[:120]}" for text in bad]
    rendered = page.locator(".jp-RenderedMarkdown").all_inner_texts()
    faults += [f"raw LaTeX in the text: {t[max(0, t.find('$$') - 40) :][:120]!r}" for t in rendered if "$$" in t]
    pictures = page.evaluate(
        "[...document.images].map(i => [i.src.slice(0, 80), i.complete && i.naturalWidth == 0, i.alt.trim().length])"
    )
    faults += [f"picture does not load: {source}" for source, missing, _ in pictures if missing]
    faults += [f"picture without words: {source}" for source, _, words in pictures if not words]
    return faults


def in_both_themes(page: Page, screenshots: Path, name: str, selector: str) -> list[str]:
    """Return what axe finds in a part of the open notebook, and what has too little contrast, in both themes."""
    faults = []
    for shade in ("Dark", "Light"):
        theme(page, shade)
        found = [*axe(page, selector), *contrast(page.locator("figure[data-live]"))]
        faults += [f"{shade.lower()} theme: {fault}" for fault in found]
        page.locator(selector).first.scroll_into_view_if_needed()
        page.screenshot(path=screenshots / f"{name}-{shade.lower()}.png")
    return faults


def contrast(figures: Locator) -> list[str]:
    """Return text and lines of moving figures with too little contrast."""
    faults = []
    for figure in figures.all():
        figure.scroll_into_view_if_needed()
        name = figure.get_attribute("data-live")
        faults += [f"moving figure {name}: {fault}" for fault in figure.evaluate(_CONTRAST)[:3]]
    return faults


def keep(pictures: list[Locator], place: Path) -> None:
    """Save a numbered screenshot of each picture; `place` is the beginning of the file names."""
    for number, picture in enumerate(pictures, 1):
        picture.scroll_into_view_if_needed()
        picture.screenshot(path=place.with_name(f"{place.name}-{number:02}.png"))


def theme(page: Page, name: str) -> None:
    """Set JupyterLab's theme: "Light" or "Dark"."""
    page.evaluate(f"window.jupyterapp.commands.execute('apputils:change-theme', {{theme: 'JupyterLab {name}'}})")
    page.wait_for_selector(f"body[data-jp-theme-light={str(name == 'Light').lower()}]", state="attached")
    page.wait_for_timeout(300)  # wait until colours have faded
