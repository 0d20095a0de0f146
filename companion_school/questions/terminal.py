"""Review of questions in the terminal, for `companion review`."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from datetime import date

from companion.ground.display import count, table
from companion_school.questions import spaced_repetition
from companion_school.questions.question import LETTERS, Question

WIDTH = 80
_SIGNS = {
    "cdot": "·", "times": "×", "le": "≤", "leq": "≤", "ge": "≥", "geq": "≥", "approx": "≈", "ne": "≠", "neq": "≠",
    "to": "→", "infty": "∞", "sum": "Σ", "dots": "...", "ldots": "...", "pm": "±", "in": "∈", "top": "T",
    "alpha": "α", "beta": "β", "gamma": "γ", "theta": "θ", "lambda": "λ", "mu": "μ", "pi": "π", "phi": "φ",
    "varphi": "φ",
    "sigma": "σ",
    "left": "", "right": "", "log": "log", "exp": "exp", "cos": "cos", "sin": "sin", "max": "max", "min": "min",
}  # fmt: skip


def review(
    waiting: Sequence[Question], read: Callable[[str], str] | None = None, write: Callable[[str], None] = print
) -> int:
    """Ask questions one by one, and store the answers.

    An empty line skips a question. End of input or Ctrl-C ends the review; earlier answers remain stored.

    Args:
        waiting: The questions to ask.
        read: Function that reads a line after showing a prompt (default: `input`).
        write: Function that prints a line.

    Returns:
        The number of questions answered.
    """
    answered, read = 0, read or _read
    for place, question in enumerate(waiting, 1):
        write(f"\n{place} of {len(waiting)}, lesson {question.lesson:02d}, question {question.id}")
        write(shown(question))
        try:
            answered += _asked(question, read, write)
        except (EOFError, KeyboardInterrupt):
            write("\nStopped. Your answers are saved.")
            break
    return answered


def _read(prompt: str) -> str:
    if sys.stdin is None:  # stdin is closed, so `input` would raise a RuntimeError
        raise EOFError
    return input(prompt)


def _asked(question: Question, read: Callable[[str], str], write: Callable[[str], None]) -> bool:
    prompt = {"choice": "your choice: ", "number": "your number: ", "predict": "what do you expect? "}[question.kind]
    while True:
        given = read(prompt).strip()
        if not given:
            write("skipped")
            return False
        try:
            verdict = question.judge(given)
            break
        except ValueError as error:
            write(str(error))
    right = verdict.right
    head = {True: "Right.", False: "Not right.", None: "What happens:"}[right]
    write(_wrapped(f"{head} {readable(verdict.why)}"))
    if right is False and question.right is not None:
        write(_wrapped(f"It is {named(question)}. {readable(question.right.why)}"))
    if right is None:
        right = read("did you expect that? [y/n] ").strip().lower().startswith("y")
    spaced_repetition.note_answer(question, right, text=given)
    state = spaced_repetition.state(spaced_repetition.read_answers()[question.key])
    days = (state.due - date.today()).days if state.due else None
    write("settled: it will not be asked again" if days is None else f"it will be asked again in {count(days, 'day')}")
    return True


def calendar(asked: Sequence[Question]) -> str:
    """Return a table that shows when each question is due again."""
    known = spaced_repetition.read_answers()
    rows = []
    for question in asked:
        state = spaced_repetition.state(known.get(question.key, []))
        when = "settled" if state.settled else "not answered yet" if state.due is None else f"again on {state.due}"
        times = f", answered {count(state.answers, 'time')}" if state.answers else ""
        rows.append((question.id, question.name, when + times))
    return table(rows, left=(0, 1, 2), indent=0) or "There are no questions."


def named(question: Question) -> str:
    """Return the right answer to a question that has one, including its letter if it is a choice."""
    assert question.right is not None
    if question.kind == "choice":
        at = question.answers.index(question.right)
        return f"{LETTERS[at]}: {readable(question.right.text)}"
    return question.right.text


def shown(question: Question) -> str:
    """Format a question and its choices for a terminal of 80 columns."""
    lines = [_wrapped(readable(question.text))]
    if question.kind == "choice":
        for letter, known in zip(LETTERS, question.answers, strict=False):
            lines.append(
                textwrap.fill(readable(known.text), WIDTH, initial_indent=f"  {letter}  ", subsequent_indent="     ")
            )
    return "\n".join(lines)


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.fill(part, WIDTH) for part in text.split("\n\n"))


def readable(markdown: str) -> str:
    """Convert Markdown to plain text: links are reduced to their text, and formulas become Unicode."""
    text = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", markdown)
    text = re.sub(r"\\(?:operatorname|mathrm|text|mathbf)\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\\sqrt\{(\w+)\}|\\sqrt\s*(\w)", lambda found: f"√{found[1] or found[2]}", text)
    text = re.sub(r"\\sqrt\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}", r"√(\1)", text)
    text = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"(\1)/(\2)", text)
    for name, sign in _SIGNS.items():
        text = re.sub(rf"\\{name}(?![A-Za-z])", sign, text)
    text = re.sub(r"\\[,;:! ]", " ", text)
    return re.sub(r"[${}]|\*\*", "", text)
