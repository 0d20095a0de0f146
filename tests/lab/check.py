"""Open the course in a real JupyterLab and a real browser, as a reader has it, and look (`make lab-check`).

- **start**: the start page opens, its cell runs, and its links lead to lessons and to the section where the reader was.
  Headings in the table of contents lead to their cells and do not select a row of cells. Afterwards no file that git
  tracks has changed.
- **connection**: a notebook stays open for 100 seconds while a cell runs: the connection to its kernel stays the same
  one, the kernel's indicator says busy until the cell has ended, and the terminal shows no warning.
- **figures**: every handle of every moving figure is moved, by keyboard and mouse, in JupyterLab after its cell has
  run, when the saved notebook is opened again, and in a page opened from a folder, the latter in a light and a dark
  theme.
- **questions**: every question of a lesson is answered, by mouse and keyboard, in JupyterLab and in a page opened from
  a folder: each choice, right and wrong numbers, and guesses. The reason is shown, its links lead to their cells, and
  the answer is stored and still there when the notebook is opened again in a browser without any data. On that page the
  lesson's figures move too.
- **exercise**: a wrong and a right answer are typed into an exercise, and the check must say which is which. The
  exercises of each lesson are also run unchanged.
- **lessons**: each lesson, and its deeper notebook, is run from top to bottom. It fails when a cell fails or is not
  run, something is written to stderr, a formula does not render, a picture does not load or has no alternative text,
  LaTeX is left in the text, or a figure does not move. In lessons it also fails when an equation or a printed line is
  too wide for a window of 1280 or 900 pixels.

It also fails when axe finds a problem for users of screen readers, when something has too little contrast in the light
or in the dark theme, and when a page sends a request to another machine. Screenshots of figures and notebooks in both
themes are saved for inspection. Needs Chromium and the extra `dev`. Every step prints how long it took.

    make lab-check ONLY="start figures" FIGURES=FOLDER LESSON=02
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
import time
from datetime import date
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import answering
import exercising
import looking
import moving
import nbformat
from live_examples import EXAMPLES
from playwright.sync_api import Page, TimeoutError, sync_playwright
from reader import (
    COUNTS,
    IDLE,
    NOTEBOOKS,
    PROMPTS,
    Lab,
    axe,
    jupyterlab,
    open_notebook,
    run_all,
    save,
    static_page,
    wait_for_cells,
    wait_until_drawn,
)
from scripts import BROWSERS

from companion_school.questions.question import find_question
from companion_school.questions.spaced_repetition import FILE
from companion_school.study import progress_table, readers_copy

BROWSER_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PARTS = ("start", "connection", "figures", "exercise", "questions", "lessons")
FIGURES = "moving.ipynb"  # the notebook with all moving figures
FOLDED = "folded"  # the tag of folded cells, which lessons have and exercise notebooks do not
CONNECTED = 100  # seconds
RUNNING = "running.ipynb"  # a notebook whose only cell runs as long
STATUS = "window.jupyterapp.shell.currentWidget.sessionContext.kernelDisplayStatus"
# True if this notebook is in front and this cell, if one is named, is visible
SHOWS = """([path, id]) => {
  const panel = window.jupyterapp.shell.currentWidget;
  if (panel.context?.path !== path) return false;
  const box = panel.content.widgets.find(cell => !id || cell.model.id === id)?.node.getBoundingClientRect();
  return box && box.height && box.top >= 0 && box.top < innerHeight - 50;
}"""
DIRTY = "window.jupyterapp.shell.currentWidget.context.model.dirty"
CLICKED = 6  # number of headings in the contents that are clicked
OPEN = ".jp-NotebookPanel:not(.lm-mod-hidden)"
SELECTED = "document.querySelectorAll('.jp-Notebook .jp-Cell.jp-mod-selected').length"
# Positions of the headings with this text, in pixels below the window's upper edge, and whether one of them is visible
PLACES = f"""text => [...document.querySelectorAll('{OPEN} :is(h1, h2, h3, h4)')]
  .filter(heading => heading.innerText.trim().startsWith(text))
  .map(heading => heading.getBoundingClientRect()).map(box => [Math.round(box.top), Math.round(box.bottom)])"""
IN_SIGHT = f"text => ({PLACES})(text).some(([top, bottom]) => top > 0 && bottom < innerHeight)"


def start(page: Page, lab: Lab, screenshots: Path) -> list[str]:
    """Start as a reader does: the start page, its first cell, a lesson from its list, and the table of contents."""
    page.goto(lab.url())
    page.wait_for_selector(".ext-path")
    page.wait_for_selector(IDLE)
    faults = looking.in_both_themes(
        page, screenshots, "start", ".jp-Notebook .jp-RenderedMarkdown, .jp-Notebook .ext-path"
    )
    faults += looking.measure(page, screenshots, "start")
    if page.locator(".jp-Notification, .Toastify__toast").count():
        faults.append("a notice covers a part of the first screen")
    page.locator(".jp-Notebook .jp-CodeCell .cm-content").first.click()
    page.keyboard.press("Shift+Enter")
    page.wait_for_function(f"{PROMPTS}[0] === '[1]:'")
    page.wait_for_selector(IDLE)
    page.wait_for_selector(".ext-path")
    page.locator(".ext-path summary").click()
    page.locator(".ext-path a", has_text="02 Scaled").first.click()
    page.wait_for_selector(".jp-NotebookPanel:not(.lm-mod-hidden) h1:has-text('Scaled dot-product attention')")
    page.wait_for_selector(IDLE)
    wait_until_drawn(page)
    faults += _folded(page) + _contents(page) + looking.bars(page)
    page.screenshot(path=screenshots / "contents.png")
    faults += _link_to_a_cell(page, lab, screenshots)
    faults += _go_on(page, lab)
    page.wait_for_selector(IDLE)  # a page that is left while it still connects writes a traceback to the terminal
    return [f"start: {fault}" for fault in faults]


def _folded(page: Page) -> list[str]:
    """Check that an opened notebook looks saved, and that a click on its folded first cell's bar only selects it."""
    faults = ["looks unsaved as soon as it is opened"] if page.evaluate(DIRTY) else []
    bar = page.locator(f"{OPEN} .jp-CodeCell:has(.jp-InputPlaceholder)").first
    bar.scroll_into_view_if_needed()
    bar.locator(".jp-PlaceholderText").click(force=True)
    page.wait_for_timeout(300)
    if not bar.locator(".jp-InputPlaceholder").count() or "jp-mod-active" not in (bar.get_attribute("class") or ""):
        faults.append("a click on the bar of a folded cell does not select it, or opens it")
    bar.locator(".jp-MoreHorizIcon").click()
    page.wait_for_timeout(300)
    if not page.locator(f"{OPEN} .jp-CodeCell.jp-mod-active .cm-content").count():
        faults.append("a click on the dots of a folded cell does not open it")
    return [f"{page.title()}: {fault}" for fault in faults]


def _contents(page: Page) -> list[str]:
    """Click headings in the table of contents: each must become visible, and no more than one cell may be selected."""
    page.click(".lm-TabBar-tab[data-id='table-of-contents']")
    entries = page.locator(".jp-TableOfContents-tree .jp-tocItem-heading")
    entries.first.wait_for()
    total, faults = entries.count(), []
    for at in sorted({round(place * (total - 1) / (CLICKED - 1)) for place in range(CLICKED)}, reverse=True):
        entry = entries.nth(at)
        entry.scroll_into_view_if_needed()
        text = entry.inner_text().strip().splitlines()[-1]
        entry.click()
        try:
            page.wait_for_function(IN_SIGHT, arg=text[:30], timeout=15_000)
        except TimeoutError:
            faults.append(f"a click on {text!r} in the contents does not lead there")
        if (selected := page.evaluate(SELECTED)) > 2:
            faults.append(f"a click on {text!r} in the contents selects {selected} cells")
    return faults if total >= CLICKED else [*faults, f"the contents have {total} headings"]


def _link_to_a_cell(page: Page, lab: Lab, screenshots: Path) -> list[str]:
    """Click the last link to a deeper section: it must become visible, without selecting a row of cells."""
    link = page.locator(f"{OPEN} a[href*='deeper'][href*='cell-id=']").last
    id = (link.get_attribute("href") or "").split("cell-id=")[-1]
    deeper = next((lab.mine / "deeper").glob("02_*.ipynb"))
    [cell] = [cell for cell in nbformat.read(deeper, as_version=4).cells if cell.id == id]
    heading = cell.source.split("\n")[0].lstrip("# ").split("$")[0].strip()
    link.scroll_into_view_if_needed()
    link.click()
    try:
        page.wait_for_function(IN_SIGHT, arg=heading[:30])  # JupyterLab draws cell by cell down to this one
    except TimeoutError:
        places = page.evaluate(PLACES, heading[:30])
        page.screenshot(path=screenshots / "link.png")
        return [f"the link to the deeper section {heading!r} does not lead there: it is at {places}"]
    selected = page.locator(f"{OPEN} .jp-Cell.jp-mod-selected").count()
    return [f"the link to the deeper section {heading!r} selects {selected} cells"] if selected > 2 else []


def _go_on(page: Page, lab: Lab) -> list[str]:
    """Return after the first section of a lesson: the start page must lead to the second one."""
    first = nbformat.read(lab.mine / progress_table.FILE, as_version=4).metadata["path"][0]
    done, following = first["sittings"][:2]
    answers = {find_question(id).key: [[date.today().isoformat(), True]] for id in done["questions"]}
    lab.progress.mkdir(exist_ok=True)
    kept = lab.progress / FILE
    kept.write_text(json.dumps(answers), encoding="utf-8")
    open_notebook(page, lab.url(progress_table.FILE))
    page.locator(".jp-Notebook .jp-CodeCell .cm-content").first.click()
    page.keyboard.press("Shift+Enter")
    link = page.locator(".ext-path p a", has_text=following["title"])
    link.click()
    try:
        page.wait_for_function(IN_SIGHT, arg=following["title"][:30], timeout=60_000)
    except TimeoutError:
        return [f"the start page does not lead to {following['title']!r}"]
    finally:
        kept.unlink()
    return []


def connection(page: Page, lab: Lab, screenshots: Path) -> list[str]:
    """Keep a notebook open for 100 seconds with a running cell: one connection, a truthful indicator, a quiet terminal.

    The server checks every 30 seconds if the browser still responds, so three checks fit into this time.
    """
    opened: list[str] = []
    lost: list[str] = []
    before = lab.terminal
    page.on("websocket", lambda socket: opened.append(socket.url) if "/channels" in socket.url else None)
    page.on("console", lambda message: lost.append(message.text) if "onnection lost" in message.text else None)
    open_notebook(page, lab.url(RUNNING))
    sockets = len(opened)
    page.locator(".jp-Notebook .jp-CodeCell .cm-content").first.click()
    page.keyboard.press("Shift+Enter")
    faults, began, told = [], time.monotonic(), set()
    page.wait_for_function(f"{PROMPTS}[0] === '[*]:'")
    while page.evaluate(f"{PROMPTS}[0]") == "[*]:" and time.monotonic() - began < 2 * CONNECTED:
        page.wait_for_timeout(1_000)
        if page.evaluate(f"{PROMPTS}[0]") == "[*]:":  # it may have ended meanwhile
            told.add(page.evaluate(STATUS))
    ran = time.monotonic() - began
    page.wait_for_selector(IDLE)
    page.screenshot(path=screenshots / "connection.png")
    lines = page.locator(".jp-OutputArea-output pre").first.inner_text().split()
    if ran < CONNECTED or lines != [str(second) for second in range(CONNECTED)]:
        faults.append(f"a cell that prints {CONNECTED} lines ran {ran:.0f} s and shows {len(lines)}")
    if told != {"busy"}:
        faults.append(f"while the cell ran, the kernel's indicator said {', '.join(sorted(map(str, told)))}")
    if sockets != 1 or len(opened) != sockets:
        faults.append(f"the notebook opened {len(opened)} connections to its kernel, {sockets} of them to begin with")
    faults += [f"the browser says: {line}" for line in lost]
    said = [line for line in lab.terminal.removeprefix(before).splitlines() if line.strip()]
    faults += [f"the terminal says: {line}" for line in said]
    print(f"{CONNECTED} s: {len(opened)} connection, {len(lines)} lines, {len(said)} lines in the terminal")
    return [f"connection: {fault}" for fault in faults]


def figures(page: Page, lab: Lab, screenshots: Path) -> list[str]:
    """Move every handle of every moving figure, everywhere it must move."""
    open_notebook(page, lab.url(FIGURES))
    run_all(page)
    shown = page.locator("figure[data-live]")
    count, faults = moving.move_all(page, shown, "after running")
    faults += looking.in_both_themes(page, screenshots, "moving", ".jp-Notebook .jp-OutputArea")
    save(page)
    open_notebook(page, lab.url(FIGURES))
    page.wait_for_function(f"count => document.querySelectorAll('{moving.ALIVE}').length === count", arg=len(EXAMPLES))
    again, found = moving.move_all(page, shown, "opened again")
    faults += found
    bodies = [
        "".join(output.data["text/html"])
        for cell in nbformat.read(lab.mine / FIGURES, as_version=4).cells
        for output in cell.get("outputs", [])
    ]
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        page.goto(moving.start_page(lab.root.parent, bodies).as_uri())
        page.wait_for_selector(moving.ALIVE)
        if theme == "light":
            alone, found = moving.move_all(page, shown, "from a folder")
            faults += found
        faults += [*axe(page, "body"), *looking.contrast(shown)]
        page.screenshot(path=screenshots / f"folder-{theme}.png", full_page=True)
    page.emulate_media(color_scheme="light")
    print(f"{len(bodies)} moving figures: {count} handles after running, {again} opened again, {alone} from a folder")
    if not count == again == alone:
        faults.append(f"not the same handles everywhere: {count}, {again}, {alone}")
    return [f"figures: {fault}" for fault in faults]


def questions(page: Page, lab: Lab, screenshots: Path, name: str) -> list[str]:
    """Answer every question of a lesson, in JupyterLab, which stores the answers, and on a page of its own."""
    cells = nbformat.read(lab.mine / f"{name}.ipynb", as_version=4).cells
    asked = sum(cell.source.startswith("# question ") for cell in cells)
    if not asked:
        return []
    alive = f"count => document.querySelectorAll('{answering.ALIVE}').length === count"
    open_notebook(page, lab.url(f"{name}.ipynb"))
    page.wait_for_function(alive, arg=asked)
    wait_until_drawn(page)
    count, given, faults = answering.answer_all(page, "JupyterLab", answering.PROGRESS)
    faults += answering.not_kept(lab.progress, given)
    if page.locator(".jp-Notebook .jp-Cell").count() != len(cells):
        faults.append("answering with the keyboard has changed the notebook's cells")
    faults += looking.in_both_themes(page, screenshots, f"{name}-questions", ".jp-Notebook .ext-question")
    save(page)
    page.evaluate("localStorage.clear()")  # as after a restart at another port, or in another browser
    open_notebook(page, lab.url(f"{name}.ipynb"))
    page.wait_for_function(alive, arg=asked)
    faults += answering.forgotten(page, "opened again in another browser")
    faults += _links_of_reasons(page, lab, name)
    alone = 0
    for theme in ("light", "dark"):
        page.goto(static_page(lab, name, theme).as_uri())
        page.wait_for_function(alive, arg=asked)
        if theme == "light":
            handles, found = moving.move_all(page, page.locator("figure[data-live]"), "from a folder")
            faults += found
            alone, _, found = answering.answer_all(page, "from a folder", answering.BROWSER)
            faults += found
        faults += [*axe(page, ".ext-question, .ext-figure"), *looking.contrast(page.locator("figure[data-live]"))]
        page.locator(answering.ALIVE).first.scroll_into_view_if_needed()
        page.screenshot(path=screenshots / f"{name}-folder-{theme}.png")
    print(f"{name}: {asked} questions, {count} answers in JupyterLab, {alone} and {handles} handles from a folder")
    return [f"{name}: {fault}" for fault in faults]


def _links_of_reasons(page: Page, lab: Lab, name: str) -> list[str]:
    """Click every link in the responses to answers: the cell that it leads to must become visible, in any notebook."""
    faults, here = [], page.url
    for section in page.locator(answering.ALIVE).all():
        question = find_question(section.get_attribute("data-question") or "")
        for answer in answering.tries(question):
            if "](" not in answer.why:
                continue
            for at in range(answer.why.count("](")):
                answering.give(page, section, question, answer)
                link = section.locator("[role=status] a").nth(at)
                target, _, id = (link.get_attribute("href") or "").partition("#cell-id=")
                file = unquote(target).split("?")[0].split(f"/{readers_copy.MINE}/")[-1]
                link.click()
                try:
                    page.wait_for_function(SHOWS, arg=[f"{readers_copy.MINE}/{file}", id], timeout=60_000)
                except TimeoutError:
                    faults.append(
                        f"question {question.id}: {answer.given!r}: its link to {file}#{id} does not lead there"
                    )
                if file != f"{name}.ipynb":
                    open_notebook(page, here)
                    wait_until_drawn(page)
    return faults


def lesson(page: Page, lab: Lab, screenshots: Path, name: str) -> list[str]:
    """Run one lesson, save pictures of its figures, move the moving ones, and return the faults."""
    open_notebook(page, lab.url(f"{name}.ipynb"))
    cells = nbformat.read(lab.mine / f"{name}.ipynb", as_version=4).cells
    wait_for_cells(page, sum(cell.cell_type == "code" for cell in cells))
    run_all(page)
    shot = name.replace("/", "-")
    pictures = page.locator(".jp-OutputArea .ext-figure").all()
    for theme in ("Dark", "Light"):
        looking.theme(page, theme)
        looking.keep(pictures, screenshots / f"{shot}-{theme.lower()}")
    formulas = page.locator("mjx-container").count()
    handles, faults = moving.move_all(page, page.locator("figure[data-live]"), "after running")
    counts = f"{formulas} formulas, {len(pictures)} figures, {handles} handles"
    print(f"{name}: {len(page.evaluate(COUNTS))} code cells, {counts}", flush=True)
    faults += looking.bars(page) + looking.at_all(page) + ([] if formulas else ["no formula was rendered"])
    if any(FOLDED in cell.metadata.get("tags", []) for cell in cells):  # the notebook is a lesson
        faults += looking.measure(page, screenshots, shot)
    faults += looking.in_both_themes(page, screenshots, shot, ".jp-Notebook .jp-OutputArea")
    return [f"{name}: {fault}" for fault in faults]


def written(file: Path, cells: list[str]) -> Path:
    """Write a notebook of these code cells."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, file)
    return file


def all_figures(folder: Path) -> Path:
    """Write a notebook that shows every moving figure."""
    tests = Path(__file__).resolve().parents[1]
    cells = [f"import sys\n\nsys.path.insert(0, {str(tests)!r})\nfrom live_examples import EXAMPLES"]
    return written(folder / FIGURES, [*cells, *(f'EXAMPLES["{name}"]()' for name in EXAMPLES)])


def running(folder: Path) -> Path:
    """Write a notebook with a cell that prints a number every second."""
    cell = f"import time\n\nfor second in range({CONNECTED}):\n    print(second, flush=True)\n    time.sleep(1)"
    return written(folder / RUNNING, [cell])


def contents_of(folder: Path) -> str:
    """Return a digest of all files in a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(str(path).encode() + path.read_bytes() for path in files)).hexdigest()


def check(page: Page, lab: Lab, parts: set[str], names: list[str], screenshots: Path) -> list[str]:
    """Return the faults of the chosen parts."""
    faults, before = [], contents_of(lab.root / "notebooks")
    steps = [partial(part, page, lab, screenshots) for part in (start, connection, figures) if part.__name__ in parts]
    for name in names:
        steps += [partial(exercising.handed_out, page, lab, screenshots, name)] if "exercise" in parts else []
        steps += [partial(questions, page, lab, screenshots, name)] if "questions" in parts else []
        steps += [partial(lesson, page, lab, screenshots, name)] if "lessons" in parts else []
        deeper = f"deeper/{name[:2]}_deeper"
        if "lessons" in parts and (lab.mine / f"{deeper}.ipynb").exists():
            steps.append(partial(lesson, page, lab, screenshots, deeper))
    steps += [partial(exercising.exercise, page, lab, screenshots)] if "exercise" in parts else []
    for step in steps:
        began, what = time.monotonic(), " ".join([step.func.__name__, *step.args[3:]])
        try:
            found = step()
        except TimeoutError as error:  # the other steps are run all the same
            found = [f"{what}: {' '.join(str(error).split())[:400]}"]
        print(f"{what}: {len(found)} faults, {time.monotonic() - began:.0f} s", *found, sep="\n  ", flush=True)
        faults += found
    if contents_of(lab.root / "notebooks") != before:
        faults.append("reading and answering changed files that git knows")
        print(faults[-1])
    return faults


def add_browser(parser: argparse.ArgumentParser) -> None:
    """Add the flags for a browser and for its screenshots."""
    parser.add_argument(
        "--figures", type=Path, default=Path("lab-figures"), help="folder for screenshots (%(default)s)"
    )
    parser.add_argument("--chromium", default=next(filter(None, map(shutil.which, BROWSERS)), None), help="the browser")


def with_browser(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the flags. Exit with a sentence and code 2 if there is no browser."""
    options = parser.parse_args()
    if not options.chromium:
        parser.error(f"no browser found ({', '.join(BROWSERS)}); install one, on Debian: apt install chromium")
    if not shutil.which(options.chromium):
        parser.error(f"--chromium: expected a browser's command, got {options.chromium!r}")
    return options


def main() -> int:
    parser = argparse.ArgumentParser(description="Open the course in a real JupyterLab and browser, and look.")
    parser.add_argument("lessons", nargs="*", metavar="LESSON", help="number or beginning of the name (default: all)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to look at (default: all)")
    add_browser(parser)
    options = with_browser(parser)
    every = sorted(path.stem for path in NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
    names = [name for name in every if not options.lessons or name.startswith(tuple(options.lessons))]
    if not names:
        parser.error(f"no such lesson: {' '.join(options.lessons)}")
    options.figures.mkdir(parents=True, exist_ok=True)
    outside: list[str] = []
    # Chromium and the server may leave files behind for a moment, which is not a fault.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        with jupyterlab(folder, all_figures(folder), running(folder)) as lab, sync_playwright() as playwright:
            context = playwright.chromium.launch_persistent_context(
                folder / "browser",
                executable_path=options.chromium,
                headless=True,
                viewport={"width": 1280, "height": 900},
                args=BROWSER_FLAGS,
            )
            page = context.pages[0]
            page.set_default_timeout(180_000)
            local = (lab.address, lab.address.replace("http", "ws"), "data:", "blob:", "file:")
            page.on("request", lambda request: None if request.url.startswith(local) else outside.append(request.url))
            page.on("dialog", lambda dialog: dialog.accept())  # leave a notebook that was only read
            faults = check(page, lab, set(options.only), names, options.figures)
            context.close()
    asked = [f"asked of another machine: {url}" for url in outside]
    faults += asked
    print(*asked, sep="\n", end="\n" if asked else "")
    print(f"{', '.join(options.only)}: {len(faults)} faults; screenshots in {options.figures}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
