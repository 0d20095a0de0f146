"""An exercise as a reader has it, answered wrongly and rightly."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, TimeoutError
from reader import Lab, open_notebook, save

EXERCISES = "exercises/02_exercises.ipynb"
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


def exercise(page: Page, lab: Lab, screenshots: Path) -> list[str]:
    """Type each of `ANSWERS` into the exercise notebook, run its check, and return what it did not say."""
    open_notebook(page, lab.url(EXERCISES))
    cells = page.locator(".jp-Notebook .jp-CodeCell")
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
            faults.append(f"exercise: to the {kind} answer, expected {says!r}, read {shown[:500]!r}")
        page.screenshot(path=screenshots / f"exercise-{kind}.png")
    save(page)
    if ANSWERS["right"][0].split("\n")[0] not in (lab.mine / EXERCISES).read_text(encoding="utf-8"):
        faults.append("exercise: the answer is not kept")
    return faults
