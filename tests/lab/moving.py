"""Move every handle of every moving figure by keyboard and mouse: the picture and its numbers must change."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Locator, Page, TimeoutError

ALIVE = "figure[data-live][data-alive]"
SETTLES = 600  # maximum milliseconds from a key press to the new picture
# The state of a figure: its picture, its sentence, and which of its buttons are pressed
STATE = """figure => JSON.stringify([
  figure.querySelector('.ext-box svg')?.outerHTML, figure.querySelector('[role=status]')?.textContent,
  [...figure.querySelectorAll('button')].map(button => button.ariaPressed)
])"""
# A figure's sentence says "1 hashes", or "1 of them are", where one of something has the form of many.
MANY = (
    r"(?<![\d.,\u2212-])1 (?:(?!is\b|was\b|has\b|its\b|times\b|meets\b)[a-z-]*[a-rt-z]s\b"
    r"|of (?:them|these|\d+) (?:are|were|have|become|need|take|get|go|stay|fit)\b)"
)
# Such words in the sentences of a figure, with each of its handles at each of its positions
PLURALS = f"""figure => {{
  const found = new Set(), look = () => {{
    const words = figure.querySelector('[role=status]')?.textContent.match(/{MANY}/);
    if (words) found.add(words[0]);
  }};
  look();
  for (const handle of figure.querySelectorAll('input[type=range]')) {{
    const start = handle.value, put = (value) => {{ handle.value = value; handle.dispatchEvent(new Event('input')); }};
    for (let at = Number(handle.min); at <= Number(handle.max); at += 1) {{ put(at); look(); }}
    put(start);
  }}
  return [...found];
}}"""
NUMBERS = "figure => figure.querySelector('.ext-numbers')?.textContent"
SEEN = """(element) => {
  const box = element.getBoundingClientRect();
  return box.top > -1 && box.bottom < innerHeight + 1 && box.width > 0; // a browser scrolls by whole pixels
}"""


def start_page(folder: Path, bodies: list[str]) -> Path:
    """Write a page that contains only these outputs, in an empty folder."""
    page = folder / "figures.html"
    body = "\n".join(bodies)
    page.write_text(
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Figures</title><body>{body}", encoding="utf-8"
    )
    return page


def move_all(page: Page, figures: Locator, name: str) -> tuple[int, list[str]]:
    """Move every handle of these figures; return their number, and those that did not follow."""
    faults, count = [], 0
    for number, figure in enumerate(figures.all(), 1):
        which = f"{name}: moving figure {number} ({figure.get_attribute('data-live')})"
        if figure.get_attribute("data-alive") is None:
            faults.append(f"{which} does not move: its script did not run")
            continue
        handles = figure.locator("input[type=range]").all()
        buttons = figure.locator("button").all()
        lists = figure.locator("select").all()
        count += len(handles) + len(buttons) + len(lists)
        seen, plurals = {figure.evaluate(NUMBERS)}, {*figure.evaluate(PLURALS)}
        for handle in handles:
            faults += [f"{which}: {fault}" for fault in _move(page, figure, handle)]
        for choices in lists:
            faults += [f"{which}: {fault}" for fault in _choose(page, figure, choices)]
        seen.add(figure.evaluate(NUMBERS))
        pressed = []
        for how in ("click", "keyboard"):
            for button in buttons:
                pressed.append(_press(page, figure, button, how))
                seen.add(figure.evaluate(NUMBERS))
                plurals |= {*figure.evaluate(PLURALS)}
        faults += [f"{which}: its sentence says {words!r}" for words in sorted(plurals)]
        if None in seen or (not handles and len(seen) < 2):  # `_move` checks the handles
            faults.append(f"{which}: the numbers behind it stay when it moves")
        if buttons and sum(pressed) < len(buttons):  # a button that is pressed already changes nothing
            faults.append(
                f"{which}: {len(pressed) - sum(pressed)} of {len(pressed)} presses of a button change nothing"
            )
        if not handles and not buttons and not lists:
            faults.append(f"{which} has no handle")
    return count, faults


def _move(page: Page, figure: Locator, handle: Locator) -> list[str]:
    label = handle.get_attribute("aria-valuetext") or "a handle without a label"
    faults = []
    handle.scroll_into_view_if_needed()
    handle.focus()
    place = page.evaluate("[scrollX, scrollY]")
    numbers = {figure.evaluate(NUMBERS)}
    for key in ("Home", "ArrowRight", "End", "ArrowLeft"):
        before, value = figure.evaluate(STATE), handle.input_value()
        handle.press(key)
        # The handle may be there already
        there = key == "Home" or (key == "End" and value == handle.get_attribute("max"))
        if handle.input_value() == value and not there:
            faults.append(f"{label!r} does not move with the key {key}")
        elif handle.input_value() != value and not _changes(page, figure, before):
            faults.append(f"{label!r} went from {value} to {handle.input_value()}, and the picture stayed")
        numbers.add(figure.evaluate(NUMBERS))
    if len(numbers) < 2:
        faults.append(f"{label!r} moves the picture, and the numbers behind it stay")
    page.wait_for_timeout(SETTLES / 2)  # a page that scrolls would have moved by now
    if not handle.evaluate("element => element === document.activeElement"):
        faults.append(f"{label!r} loses the focus when it is moved with the keyboard")
    if page.evaluate("[scrollX, scrollY]") != place or not handle.evaluate(SEEN):
        faults.append(f"{label!r}: the page moves with the arrow keys")
    box = handle.bounding_box()
    before, value = figure.evaluate(STATE), handle.input_value()
    share = 0.1 if int(value) else 0.9  # click where the handle is not
    page.mouse.click(box["x"] + box["width"] * share, box["y"] + box["height"] / 2)
    if not _changes(page, figure, before) or handle.input_value() == value:
        faults.append(f"{label!r} does not move with the mouse")
    return faults


def _choose(page: Page, figure: Locator, choices: Locator) -> list[str]:
    """Choose from a list with the keyboard: the picture and the numbers behind it must follow."""
    label = choices.evaluate("element => element.closest('label').textContent")
    before, numbers, value = figure.evaluate(STATE), figure.evaluate(NUMBERS), choices.input_value()
    choices.focus()
    choices.press("ArrowDown" if value == "0" else "ArrowUp")
    if choices.input_value() == value or not _changes(page, figure, before):
        return [f"{label!r} does not move with the keyboard"]
    return [f"{label!r}: the numbers stay"] if figure.evaluate(NUMBERS) == numbers else []


def _changes(page: Page, figure: Locator, before: str) -> bool:
    """Return True if the figure changes within the time limit."""
    changed = f"([figure, before]) => ({STATE})(figure) !== before"
    try:
        page.wait_for_function(changed, arg=[figure.element_handle(), before], timeout=SETTLES)
    except TimeoutError:
        return False
    return True


def _press(page: Page, figure: Locator, button: Locator, how: str) -> bool:
    """Return True if pressing a button changed the picture or the button's state."""
    before = figure.evaluate(STATE)
    if how == "click":
        button.click()
    else:
        button.focus()
        button.press("Space")
    return _changes(page, figure, before)
