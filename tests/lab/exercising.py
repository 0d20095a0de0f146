"""The exercise notebooks, unchanged, and with a wrong and a right answer in one of them."""

from __future__ import annotations

from pathlib import Path

import looking
import nbformat
from playwright.sync_api import Page, TimeoutError
from reader import Lab, open_notebook, run_all, save, wait_for_cells

EXERCISES = "exercises/02_exercises.ipynb"
# Answers to exercise 2.1 as typed (JupyterLab indents by itself), each with the message that its check must print
ANSWERS = {
    "wrong": (
        "def weight_of_cat():\nreturn torch.softmax(torch.tensor([4.0, 4.0, 0.0]) / 4, dim=0)[0].item()",
        "your scores are divided by d_k, not by its square root",
    ),
    "right": (
        "def weight_of_cat():\nreturn torch.softmax(torch.tensor([4.0, 4.0, 0.0]) / 4**0.5, dim=0)[0].item()",
        "2.1 One weight with a pencil: right. 1 point.",
    ),
}
NOT_YET = "not written yet"  # the message of a check for a stub


def exercise(page: Page, lab: Lab, screenshots: Path) -> list[str]:
    """Type each of `ANSWERS` into the exercise notebook, run its check, and return the missing messages."""
    open_notebook(page, lab.url(EXERCISES))
    cells = page.locator(".jp-Notebook .jp-CodeCell")
    cells.first.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")  # run the cell with the imports
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


def handed_out(page: Page, lab: Lab, screenshots: Path, name: str) -> list[str]:
    """Run a lesson's exercises unchanged: each check must say that nothing is written, and nothing else may fail."""
    name = f"exercises/{name[:2]}_exercises"
    cells = [cell for cell in nbformat.read(lab.mine / f"{name}.ipynb", as_version=4).cells if cell.cell_type == "code"]
    checks = [cell.source for cell in cells if cell.source.startswith("check(")]
    open_notebook(page, lab.url(f"{name}.ipynb"))
    wait_for_cells(page, len(cells))
    run_all(page)
    said = page.locator("[data-mime-type='application/vnd.jupyter.stderr']").all_inner_texts()
    faults = [f"to a stub, expected {NOT_YET!r}, read {text.strip()[:200]!r}" for text in said if NOT_YET not in text]
    if len(said) != len(checks) or not checks:
        faults.append(f"{len(checks)} checks of stubs, and {len(said)} that say how they stand")
    faults += looking.at_all(page, outputs=("error",))
    shot = name.replace("/", "-")
    faults += looking.measure(page, screenshots, shot)
    text = ".jp-Notebook .jp-RenderedMarkdown, .jp-Notebook .jp-OutputArea"
    faults += looking.in_both_themes(page, screenshots, shot, text)
    print(f"{name}: {len(checks)} checks of stubs", flush=True)
    return [f"{name}: {fault}" for fault in faults]
