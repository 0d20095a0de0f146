"""Functions that a reader calls in a notebook: `ask("2.a")`, `answer("2.a", "c")` and `review()`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from companion_school.questions import spaced_repetition
from companion_school.questions.question import LETTERS, Question, Verdict, find_question, questions
from companion_school.questions.terminal import named, readable
from companion_school.study.assets import asset

if TYPE_CHECKING:
    from IPython.display import JSON

_WRONG: dict[str, list[str]] = {}
"""Wrong answers in this session, by the question's key. `answer` uses them to decide between a hint and the answer."""


class Shown:
    """A question, which notebooks display as an interactive form and other environments as text.

    Args:
        question: The question.
        anew: Whether to show the question as if it had never been answered. Otherwise the answer given earlier in this
            browser is shown with its explanation.
    """

    def __init__(self, question: Question, anew: bool = False) -> None:
        self.question, self.anew = question, anew

    def _repr_html_(self) -> str:
        style, script = (asset(__package__, name) for name in ("question.css", "question.js"))
        section = self.question.html.replace("<section", "<section data-anew", 1) if self.anew else self.question.html
        return f'<style>{style}</style>{section}<script type="module">\n{script}</script>'

    def __repr__(self) -> str:
        return f"Question {self.question.id}: {self.question.text}"


def ask(id: str) -> Shown:
    """Show a question that can be answered in the notebook.

    The browser stores the answer. If JupyterLab was started with `make lab`, it is also recorded in your progress, so
    that `companion review` asks the question again. In other editors, call `answer("2.a", "c")` instead.

    Args:
        id: Number of the question, as in "2.a".

    Raises:
        ValueError: There is no such question.
    """
    return Shown(find_question(id))


def answer(id: str, given: object, as_expected: bool | None = None) -> None:
    """Answer a question, print whether the answer is right and why, and store it.

    After the second wrong answer to a question, print a hint; after the third, print the answer. If no hint is
    possible, print the answer after the second.

    Args:
        id: Number of the question, as in "2.a".
        given: The letter of a choice, a number, or a prediction in words.
        as_expected: For a prediction, True if the outcome is what you expected.

    Raises:
        ValueError: There is no such question, or the answer has the wrong form for this question.
    """
    question = find_question(id)
    verdict = keep(id, given, as_expected)
    head = {True: "right.", False: "not right.", None: "what happens:"}[verdict.right]
    print(f"Question {question.id}: {head} {readable(verdict.why)}".rstrip())
    wrong = _WRONG.setdefault(question.key, [])
    if verdict.right is False and question.right is not None:
        wrong.append(str(given).strip().lower())
        help = question.hint(wrong)
        if len(wrong) == 2 and help:
            print(f"A hint. {help}")
        elif len(wrong) >= 2:
            print(f"The answer: {readable(named(question))}. {readable(question.right.why)}")
    if verdict.right is None and as_expected is None:
        call = f"answer({question.id!r}, ..., as_expected=True)"
        print(f"Did you expect that? To save your prediction, call {call}, or the same with False.")


def keep(id: str, given: object, as_expected: bool | None = None) -> Verdict:
    """Grade an answer and store it. A prediction is stored only if `as_expected` is given."""
    question = find_question(id)
    verdict = question.judge(str(given))
    right = as_expected if verdict.right is None else verdict.right
    if right is not None:
        spaced_repetition.note_answer(question, right, text=str(given).strip())
    return verdict


def given() -> JSON:
    """Return the latest answer to each question in the reader's progress, for question.js.

    The result is keyed by the questions' keys. Each value is a list of two items: the reader's text and, for a
    prediction, whether the outcome was as expected (otherwise None). If choices were reordered after a right answer,
    the letter is updated to that of the right choice; a wrong answer is left out if its letter now belongs to the right
    choice.
    """
    from IPython.display import JSON

    asked = {question.key: question for question in questions().values()}
    found: dict[str, list[object]] = {}
    for key, (text, right) in spaced_repetition.latest_answers().items():
        question = asked.get(key)
        if question is not None and question.kind == "choice" and question.right is not None:
            letter = LETTERS[question.answers.index(question.right)]
            if not right and text.lower() == letter:
                continue
            text = letter if right else text
        found[key] = [text, right if question is not None and question.kind == "predict" else None]
    return JSON(found)


def review() -> None:
    """Show the questions that are due today. `companion review` does the same in the terminal."""
    from IPython.display import display

    waiting = spaced_repetition.due(questions().values())
    if not waiting:
        print("No question is due today.")
    for question in waiting:
        display(Shown(question, anew=True))
