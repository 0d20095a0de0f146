"""The directive `{question}` in the sources, which contains a question, its answers, and the reason for each answer.

    ```{question} size
    :kind: choice

    The question, as Markdown.

    - [ ] a wrong choice | why it is wrong
    - [x] the right one | why it is right
    ```

A question of kind `number` contains `= 1.414 ± 0.01 | why`, known mistakes such as `~ 2 | why` and, optionally, `* |
the reason for any other number`.

A question of kind `predict` has `> what happens`. It can also be graded if it has choices `- [ ] it stays | why not`
and reasons `+ [x] squares add up | why`. With `:alone: 1`, the right choice with a wrong reason earns one of the two
points. The lesson does not show the choices or the reasons. An indented line continues the line above it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from companion_school.old_ids import letters
from companion_school.questions.numbers import read_number
from companion_school.questions.question import KINDS, Answer, Question
from companion_school.questions.terminal import readable

_MARKDOWN = MarkdownIt("commonmark", {"html": False})
_MATHS = re.compile(r"\$[^$\n]+\$")
_ANSWER = re.compile(r"^([-+] \[[ xX]\]|=|~|\*|>)(?:\s+(.*))?$")
_MARKS = {
    "choice": ("- [ ]", "- [x]"),
    "number": ("=", "~", "*"),
    "predict": (">", "- [ ]", "- [x]", "+ [ ]", "+ [x]"),
}


class SourceError(Exception):
    """Raised if a source cannot be built into a notebook. The message names the file, the line and the reason."""

    def __init__(self, path: Path, line: int, what: str) -> None:
        super().__init__(f"{path.name}, line {line}: {what}")


@dataclass(frozen=True)
class Draft:
    """A question whose texts may still contain unresolved roles.

    Attributes:
        question: The question.
        line: Line of the source, counted from 1.
    """

    question: Question
    line: int

    @property
    def name(self) -> str:
        return self.question.name

    @property
    def code(self) -> str:
        """The code of the cell that asks the question."""
        return cell_of(self.question)

    def finished(self, resolve: Callable[[str], str]) -> Question:
        """Return the question with its HTML, after resolving the roles in its texts."""
        texts = vars(self.question)
        changed: dict[str, Any] = {}
        for name in ("answers", "choices", "reasons"):
            changed[name] = tuple(replace(one, text=resolve(one.text), why=resolve(one.why)) for one in texts[name])
        changed |= {name: resolve(texts[name]) for name in ("text", "otherwise", "outcome")}
        question = replace(self.question, **changed)
        return replace(question, html=as_html(question))


def cell_of(question: Question) -> str:
    """Return the code of the cell that asks a question."""
    return f'# question {question.id}\nfrom companion_school.questions import ask\n\nask("{question.id}")'


def read_question(body: list[str], path: Path, line: int, lesson: int, before: int) -> Draft:
    """Parse a question.

    Args:
        body: The question's name and the lines of the directive.
        path: The source.
        line: Line of the source, counted from 1.
        lesson: Number of the lesson.
        before: Number of questions before it in the lesson.

    Raises:
        SourceError: If the question is not valid.
    """

    def fault(what: str, row: int = 0) -> SourceError:
        return SourceError(path, line + row, what)

    name = body[0].strip()
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
        raise fault(f"question {name!r}: expected a name of lower-case letters, digits and -, as in {{question}} size")
    ids = letters(lesson)
    if before >= len(ids):
        raise fault(f"question {name}: a lesson has at most {len(ids)} questions")
    kind, text, found, alone = "", [], [], 0
    for row, words in enumerate(body[1:], 1):
        option, mark = re.match(r"^:(\w+):\s*(.*)$", words), _ANSWER.match(words)
        if option and not text and not found and option[1] == "alone" and kind == "predict":
            if option[2] not in ("0", "1"):
                raise fault(f"question {name}: expected `:alone:` with 0 or 1, got {words!r}", row)
            alone = int(option[2])
        elif option and not text and not found:
            if option[1] != "kind" or option[2] not in KINDS:
                raise fault(f"question {name}: expected `:kind:` with one of {', '.join(KINDS)}, got {words!r}", row)
            kind = option[2]
        elif mark and kind:
            if mark[1].lower() not in _MARKS[kind]:
                raise fault(f"question {name}: a {kind} has lines with {' or '.join(_MARKS[kind])}, got {words!r}", row)
            found.append((row, mark[1].lower(), mark[2] or ""))
        elif found and words.startswith("  "):
            found[-1] = (*found[-1][:2], f"{found[-1][2]} {words.strip()}")
        elif found and words.strip():
            raise fault(f"question {name}: {words!r} is not an answer; a continuation line must be indented", row)
        elif not found:
            text.append(words)
    if not kind:
        raise fault(f"question {name}: expected a line `:kind:` with one of {', '.join(KINDS)}")
    asked = "\n".join(text).strip()
    if not asked:
        raise fault(f"question {name}: the question has no text")
    id = ids[before]
    if kind == "predict":
        outcome = "\n\n".join(words for _, mark, words in found if mark == ">")
        if not outcome.strip():
            raise fault(f"question {name}: expected a line that says what happens, as in `> the weights collapse`")
        offered = {
            list: [(row, mark[2:] == "[x]", *_halves(words)) for row, mark, words in found if mark[0] == sign]
            for list, sign in (("choices", "-"), ("reasons", "+"))
        }
        lists = {}
        for list, rows in offered.items():
            for row, _, shown, why in rows:
                if not shown or not why:
                    raise fault(f"question {name}: expected `- [ ] what may happen | why not`", row)
            texts, right = [shown for _, _, shown, _ in rows], [known for _, known, _, _ in rows if known]
            if any(offered.values()) and (len(set(texts)) != len(texts) or len(texts) < 2 or len(right) != 1):
                raise fault(f"question {name}: {list}: expected two or more that differ, one of them right")
            lists[list] = tuple(Answer(shown, known, why) for _, known, shown, why in rows)
        return Draft(Question(id, name, "predict", asked, outcome=outcome, alone=alone, **lists), line)
    answers, otherwise = [], ""
    for row, mark, words in found:
        shown, why = _halves(words)
        if not why:
            raise fault(f"question {name}: {words!r} has no reason; expected `answer | why`", row)
        if mark == "*":
            otherwise = why
            continue
        if not shown:
            raise fault(f"question {name}: an answer has no text", row)
        if kind == "choice":
            answers.append(Answer(shown, mark == "- [x]", why))
        else:
            value, _, away = (part.strip() for part in shown.partition("±"))
            tolerance = read_number(away) if away else 0.0
            if read_number(value) is None or tolerance is None:
                raise fault(f"question {name}: {shown!r}: expected a number, as in `= 1.414 ± 0.01 | why`", row)
            answers.append(Answer(value, mark == "=", why, tolerance))
    right = [answer for answer in answers if answer.right]
    if len(right) != 1:
        how = "`- [x]`" if kind == "choice" else "`=`"
        raise fault(f"question {name}: expected one right answer, marked {how}; got {len(right)}")
    if kind == "choice" and len(answers) < 2:
        raise fault(f"question {name}: expected at least two choices")
    if len({answer.text for answer in answers}) < len(answers):
        raise fault(f"question {name}: two answers are the same")
    draft = Question(id, name, kind, asked, tuple(answers), otherwise)  # type: ignore[arg-type]
    for answer in answers:
        if kind == "number" and draft.judge(answer.text).why != answer.why:
            raise fault(f"question {name}: {answer.text} is within the tolerance of another answer")
    return Draft(draft, line)


def _halves(words: str) -> tuple[str, str]:
    """Split a line into answer and reason at the first ` | ` that is not in a formula."""
    for found in re.finditer(r"(?:^|\s)\|(?:\s|$)", words):
        if words.count("$", 0, found.start()) % 2 == 0:
            return words[: found.start()].strip(), words[found.end() :].strip()
    return words.strip(), ""


# --- HTML


def as_html(question: Question) -> str:
    """Return the question's HTML for a page without scripts. Clicking on a choice shows why it is right or wrong."""
    name, id = html.escape(question.name), html.escape(question.id)
    head = f'<section class="ext-question" data-question="{id}" data-name="{name}"'
    head += f' data-lesson="{question.key.split("/")[0]}" data-kind="{question.kind}" aria-label="Question {id}">'
    asked = f'<div class="ext-ask"><strong>Question {id}.</strong> {_html(question.text, _MARKDOWN.render)}</div>'
    items = []
    if question.kind == "choice":
        for answer in question.answers:
            word = "Yes." if answer.right else "Not quite."
            data = ["data-right"] * answer.right
            if "$" in answer.text:  # screen readers cannot read a formula aloud as the name of a choice
                data.append(f'data-words="{html.escape(readable(answer.text))}"')
            items.append(_item(" ".join(data), _html(answer.text), word, answer.why))
        tag, kind = "ol", ' type="a"'
    elif question.kind == "number":
        for answer in question.answers:
            data = f'data-value="{read_number(answer.text)!r}" data-tolerance="{answer.tolerance!r}"'
            data += " data-right" * answer.right
            items.append(_item(data, f"{_html(answer.text)}?", "Yes." if answer.right else "Not that.", answer.why))
        if question.otherwise:
            items.append(_item("data-otherwise", "another number?", "Not that.", question.otherwise))
        tag, kind = "ul", ""
    else:
        items.append(
            _item("", "Write down what you expect. Then open this.", "", question.outcome.replace("\n\n", " "))
        )
        tag, kind = "ul", ""
    return f'{head}{asked}<{tag}{kind} class="ext-answers">{"".join(items)}</{tag}></section>'


def _item(data: str, shown: str, word: str, why: str) -> str:
    reason = f'{word} <span class="ext-why">{_html(why)}</span>'.strip()
    return f"<li{' ' * bool(data)}{data}><details><summary>{shown}</summary>{reason}</details></li>"


def _html(markdown: str, render: Callable[[str], str] = _MARKDOWN.renderInline) -> str:
    """Render Markdown as a single line of HTML, leaving formulas to MathJax."""
    formulas = _MATHS.findall(markdown)
    numbers = iter(range(len(formulas)))
    made = render(_MATHS.sub(lambda _: f"MATHS{next(numbers)}X", markdown))
    made = re.sub(r"MATHS(\d+)X", lambda found: html.escape(formulas[int(found[1])], quote=False), made)
    return made.replace("\n", " ").strip()
