"""Answer every question of a lesson with the mouse and with the keyboard, and check the responses against its source.

All choices are tried. A number question gets the right number, each known mistake, another number and a text. A
prediction gets a guess, once as expected and once not. An empty answer is tried first and must not count.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Locator, Page, TimeoutError

from companion_school.questions.question import LETTERS, Question, find_question

HEADS = {
    "choice": {True: "Yes.", False: "Not quite."},
    "number": {True: "Yes.", False: "Not that."},
    "predict": {True: "What happens:", False: "What happens:"},
}
OTHER, NO_NUMBER, GUESS = "123456.789", "many", "one of them takes it all"
AGAIN = "You answered this before."
PROGRESS, BROWSER = "Saved in your progress.", "Saved in this browser."
ALIVE = "section.ext-question[data-alive]"
PATIENCE = 20_000  # milliseconds until an answer is stored
READABLE = (
    """question => [...question.querySelectorAll('.ext-why')].filter(why => why.getClientRects().length).length"""
)
LETTERED = "list => getComputedStyle(list).listStyleType === 'lower-alpha'"
FOCUSED = "button => button === document.activeElement"


@dataclass(frozen=True)
class Try:
    """One answer (for a prediction, also whether it came as expected), and the expected response."""

    given: str
    right: bool
    head: str
    why: str


def tries(question: Question) -> list[Try]:
    """Return every answer with a response of its own; the right one comes last, as for a reader."""
    heads = HEADS[question.kind]
    if question.kind == "predict":
        return [Try(GUESS, right, heads[right], question.outcome) for right in (False, True)]
    given = LETTERS if question.kind == "choice" else [answer.text for answer in question.answers]
    found = [
        Try(text, answer.right, heads[answer.right], answer.why)
        for text, answer in zip(given, question.answers, strict=False)
    ]
    if question.kind == "number":
        found.append(Try(OTHER, False, heads[False], question.otherwise))
    return sorted(found, key=lambda answer: answer.right)


def words(markdown: str) -> str:
    """Return the longest run of words that the page shows unchanged, between formulas and marks."""
    text = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", markdown)
    return max((" ".join(part.split()) for part in re.split(r"\$[^$]*\$|[*`]", text)), key=len)


def answer_all(page: Page, name: str, kept: str) -> tuple[int, dict[str, list[bool]], list[str]]:
    """Answer all questions of the page.

    kept: the message that must appear when an answer is stored. Returns the number of answers, whether each was right
    by the question's key, and the faults.
    """
    count, given, faults = 0, {}, []
    for section in page.locator("section.ext-question").all():
        id = section.get_attribute("data-question") or ""
        if section.get_attribute("data-alive") is None:
            faults.append(f"{name}: question {id} does not answer: its script did not run")
            continue
        question = find_question(id)
        given[question.key] = []
        section.scroll_into_view_if_needed()
        if readable := section.evaluate(READABLE):
            faults.append(f"{name}: question {id}: {readable} reasons can be read before it is answered")
        section.locator("button[type=submit]").click()
        if "Answer first" not in section.locator("[role=status]").inner_text():
            faults.append(f"{name}: question {id} takes nothing for an answer")
        if question.kind == "choice" and not section.locator("ol").last.evaluate(LETTERED):
            faults.append(f"{name}: question {id}: its choices are not a, b, c, as everywhere else")
        if question.kind == "number":
            _give_number(page, section, NO_NUMBER, "keyboard")
            if "Enter a number" not in section.locator("[role=status]").inner_text():
                faults.append(f"{name}: question {id} takes {NO_NUMBER!r} for a number")
        if question.right is not None:
            faults += [f"{name}: question {id}: {fault}" for fault in _way_out(page, section, question, kept)]
            given[question.key] += [False, False]
            count += 2
        for how in ("mouse", "keyboard"):
            for answer in tries(question):
                fault = _answer(page, section, question, answer, how, kept)
                faults += [f"{name}: question {id}, {answer.given!r} with the {how}: {fault}"] if fault else []
                given[question.key].append(answer.right)
                count += 1
    return count, given, faults


def _way_out(page: Page, section: Locator, question: Question, kept: str) -> list[str]:
    """Give two wrong answers; a button must then show the answer and its reason, and a hint must not reveal it."""
    wrong = next(answer for answer in tries(question) if not answer.right)
    faults, button = [], section.get_by_role("button", name="Show the answer")
    for so_far in range(2):
        if button.count():
            faults.append(f"the answer is offered after {so_far} wrong answers")
        if fault := _answer(page, section, question, wrong, "mouse", kept):
            faults.append(fault)
    if not button.count():
        return [*faults, "after two wrong answers there is no way to the answer"]
    hint = question.hint([wrong.given])
    if " ".join(f"A hint. {hint}".split()) not in section.inner_text() if hint else "A hint." in section.inner_text():
        faults.append(f"expected the hint {hint!r}, read {section.inner_text()[-300:]!r}")
    button.click()
    said = " ".join(section.locator("[role=status]").inner_text().split())
    if "The answer:" not in said or words(question.right.why) not in said:
        faults.append(f"expected the answer with {words(question.right.why)!r}, read {said[-300:]!r}")
    if not section.evaluate("section => section.contains(document.activeElement)"):
        faults.append("the focus leaves the question when its answer is shown")
    return faults


def _answer(page: Page, section: Locator, question: Question, answer: Try, how: str, kept: str) -> str:
    """Give one answer and return the fault, or an empty string."""
    section.locator(".ext-kept").evaluate_all("all => all.forEach(note => note.textContent = '')")
    give = {"choice": _choose, "number": _give_number, "predict": _predict}[question.kind]
    if fault := give(page, section, answer.given, how):
        return fault
    said = " ".join(section.locator("[role=status]").inner_text().split())
    if not said.startswith(answer.head) or words(answer.why) not in said:
        return f"expected {answer.head!r} and {words(answer.why)!r}, read {said[:200]!r}"
    if question.kind == "predict" and (fault := _judge(page, section, answer.right, how)):
        return fault
    try:
        section.locator(".ext-kept", has_text=kept).wait_for(timeout=PATIENCE)
    except TimeoutError:
        return f"expected {kept!r}, read {section.locator('.ext-kept').all_inner_texts()}"
    inside = section.evaluate("section => section.contains(document.activeElement)")
    return "" if inside else "the focus leaves the question: whoever works with the keyboard has lost the place"


def give(page: Page, section: Locator, question: Question, answer: Try) -> None:
    """Give one answer with the mouse, and wait for the response."""
    {"choice": _choose, "number": _give_number, "predict": _predict}[question.kind](
        page, section, answer.given, "mouse"
    )
    section.locator("[role=status]", has_text=answer.head).wait_for()


def _submit(page: Page, section: Locator, how: str) -> str:
    button = section.locator("button[type=submit]")
    if how == "mouse":
        button.click()
        return ""
    page.keyboard.press("Tab")
    if not button.evaluate(FOCUSED):
        return "Tab does not lead to the button"
    page.keyboard.press("Space")
    return ""


def _choose(page: Page, section: Locator, letter: str, how: str) -> str:
    radio = f"input[type=radio][value={letter}]"
    wanted = section.locator(radio)
    if how == "mouse":
        section.locator("label").filter(has=page.locator(radio)).click()
        return _submit(page, section, how)
    checked = section.locator("input[type=radio]:checked")
    (checked if checked.count() else section.locator("input[type=radio]")).first.focus()
    for _ in LETTERS:
        if wanted.is_checked():
            return _submit(page, section, how)
        page.keyboard.press("ArrowDown")
    return "the arrow keys do not reach it"


def _give_number(page: Page, section: Locator, text: str, how: str) -> str:
    field = section.locator("input[type=text]")
    _type(page, field, text, how)
    if how == "mouse":
        return _submit(page, section, how)
    page.keyboard.press("Enter")
    return ""


def _predict(page: Page, section: Locator, text: str, how: str) -> str:
    _type(page, section.locator("textarea"), text, how)
    return _submit(page, section, how)


def _type(page: Page, field: Locator, text: str, how: str) -> None:
    if how == "mouse":
        field.click()
    else:
        field.focus()
    page.keyboard.press("Control+A")
    page.keyboard.type(text)


def _judge(page: Page, section: Locator, expected: bool, how: str) -> str:
    """Check that the outcome is marked as expected or not."""
    button = section.locator("[role=status] button", has_text="Yes" if expected else "No")
    if how == "mouse":
        button.click()
        return ""
    for _ in range(6):  # the response may contain links
        page.keyboard.press("Tab")
        if button.evaluate(FOCUSED):
            page.keyboard.press("Space")
            return ""
    return "Tab does not lead to the buttons Yes and No"


def forgotten(page: Page, name: str) -> list[str]:
    """Return the questions that do not show the earlier answer and its response when the notebook is opened again."""
    faults = []
    for section in page.locator(ALIVE).all():
        question = find_question(section.get_attribute("data-question") or "")
        answer = tries(question)[-1]
        last, expected = answer.given, " As you expected." if question.kind == "predict" else ""
        field = "input[type=radio]:checked" if question.kind == "choice" else "input[type=text], textarea"
        with contextlib.suppress(TimeoutError):
            section.locator("[role=status]", has_text=AGAIN).wait_for(timeout=PATIENCE)
        there = section.locator(field)
        shown = there.input_value() if there.count() else None
        if shown != last:
            faults.append(f"{name}: question {question.id} was answered {last!r}, and shows {shown!r}")
        said = " ".join(section.locator("[role=status]").inner_text().split())
        if not (said.startswith(answer.head) and words(answer.why) in said and f"{expected} {AGAIN}" in said):
            faults.append(f"{name}: question {question.id} was answered {last!r}, and says again {said[:200]!r}")
        if "$" in said and "$" not in section.locator(".ext-why").first.inner_text():
            faults.append(f"{name}: question {question.id}: what it says again has formulas that are not set: {said!r}")
    return faults


def not_kept(folder: Path, given: dict[str, list[bool]]) -> list[str]:
    """Return the answers that are missing from the reader's progress."""
    file = folder / "questions.json"
    known = json.loads(file.read_text("utf-8")) if file.exists() else {}
    rows = {key: [right for _, right, *_ in known.get(key, [])] for key in given}
    return [
        f"question {key}: gave {given[key]}, the progress has {rows[key]}" for key in given if given[key] != rows[key]
    ]
