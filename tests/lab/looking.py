"""What is seen of an open notebook: nothing wider than its place, lines that can be read, colours that can be told."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Locator, Page

WINDOWS = (1280, 900)  # widths of a window, in pixels; in the narrow one the list of files is shut
EQUATION, LINE = 760, 95  # an equation in pixels; a line of prose in characters, on average
_MEASURE, _CONTRAST = (
    Path(__file__).with_name(name).read_text(encoding="utf-8").split("\n", 1)[1]  # under the comment stands a function
    for name in ("measure.js", "contrast.js")
)


def measure(page: Page, screenshots: Path, name: str) -> list[str]:
    """What is too wide in the open notebook, in a window of each width; each is kept as a screenshot."""
    faults, before = [], page.viewport_size
    for width in WINDOWS:
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate(f"window.jupyterapp.shell.{'collapseLeft' if width == min(WINDOWS) else 'expandLeft'}()")
        page.wait_for_timeout(1_500)  # the panels settle
        page.screenshot(path=screenshots / f"{name}-{width}.png")
        found, letters = page.evaluate(_MEASURE, EQUATION)
        faults += [f"at {width} pixels: {fault}" for fault in found]
        if letters > LINE:
            faults.append(f"at {width} pixels: a line of prose has {letters} characters, at most {LINE}")
    page.set_viewport_size(before)
    page.evaluate("window.jupyterapp.shell.expandLeft()")
    return faults


def contrast(figures: Locator) -> list[str]:
    """Print and lines of moving figures that can hardly be seen."""
    faults = []
    for figure in figures.all():
        figure.scroll_into_view_if_needed()
        name = figure.get_attribute("data-live")
        faults += [f"moving figure {name}: {fault}" for fault in figure.evaluate(_CONTRAST)[:3]]
    return faults


def theme(page: Page, name: str) -> None:
    """JupyterLab's theme: "Light" or "Dark"."""
    page.evaluate(f"window.jupyterapp.commands.execute('apputils:change-theme', {{theme: 'JupyterLab {name}'}})")
    page.wait_for_selector(f"body[data-jp-theme-light={str(name == 'Light').lower()}]", state="attached")
    page.wait_for_timeout(1_000)
