"""What a reader calls in a notebook: `ask("2.a")`, `answer("2.a", "c")`, `review()`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from companion_school.questions import spaced_repetition
from companion_school.questions.question import Question, Verdict, find_question, questions
from companion_school.questions.terminal import named, readable
from companion_school.study.assets import asset

if TYPE_CHECKING:
    from IPython.display import JSON

_WRONG: dict[str, list[str]] = {}
"""The wrong answers of this session, by the question's key: after two a reader is helped, after three told."""


class Shown:
    """A question as a notebook shows it; elsewhere its text.

    anew:  ask as if it had never been answered; else it shows what was answered in this browser, and why.
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
    """The question of this number, to be answered where it stands.

    The answer is kept in the browser. In JupyterLab, started by `make lab`, it is also kept in your progress, from
    which `companion review` asks it again. In another editor, give it yourself: `answer("2.a", "c")`.
    """
    return Shown(find_question(id))


def answer(id: str, given: object, as_expected: bool | None = None) -> None:
    """Answer a question by its number, hear whether it is right and why, and keep that you did. After two wrong answers
    there is a hint, after three the answer.

    given:        a choice's letter, a number, or in words what you expect.
    as_expected:  after a prediction: whether what happens is what you expected.

    Raises `ValueError` if there is no such question, or the answer is not of its kind.
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
        print(f"Did you expect that? Keep it: answer({question.id!r}, ..., as_expected=True), or False.")


def keep(id: str, given: object, as_expected: bool | None = None) -> Verdict:
    """Judge an answer and keep that it was given; a prediction, once it is known whether it came as expected."""
    question = find_question(id)
    verdict = question.judge(str(given))
    right = as_expected if verdict.right is None else verdict.right
    if right is not None:
        spaced_repetition.note_answer(question, right, text=str(given).strip())
    return verdict


def given() -> JSON:
    """Return the latest answer to each question from the reader's progress, for the script of the questions.

    The keys are those of the questions. Each value is what was written and, for a prediction, whether it came as
    expected.
    """
    from IPython.display import JSON

    kinds = {question.key: question.kind for question in questions().values()}
    latest = spaced_repetition.latest_answers().items()
    return JSON({key: [text, right if kinds.get(key) == "predict" else None] for key, (text, right) in latest})


def review() -> None:
    """Show the questions that are to be asked again today. In the terminal: `companion review`."""
    from IPython.display import display

    waiting = spaced_repetition.due(questions().values())
    if not waiting:
        print("No question is waiting today.")
    for question in waiting:
        display(Shown(question, anew=True))
