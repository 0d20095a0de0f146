"""Examination papers and their marking key. Both are determined by the instructor's secret.

FOLDER/release/NAME/NAME_A.html  printable page for students, one for each version, with questions only
FOLDER/release/NAME/NAME_A.md    the same in Markdown, to edit or to convert with pandoc
FOLDER/NAME_key.md               marking key: correct numbers, their derivations, and full answers
"""

from __future__ import annotations

import html
import importlib
import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

from companion.ground.atomic import write_atomic
from companion.ground.display import count
from companion.ground.fields import shown
from companion_school.course.exam.exam_question import ASKED, KINDS, Asked, Question
from companion_school.course.hidden_seeds import keyed

VERSIONS = "ABCDEFGH"


def chosen(lessons: Sequence[int], each: int, secret: bytes) -> list[Question]:
    """Draw up to `each` questions per lesson, with the secret as seed, and return them in course order."""
    made = []
    for lesson in lessons:
        of_lesson = [question for question in exam_questions().values() if question.lesson == lesson]
        taken = Random(keyed(secret, "exam", str(lesson))).sample(of_lesson, min(each, len(of_lesson)))
        made += [question for question in of_lesson if question in taken]
    return made


def lessons_in(text: str, what: str = "--lessons") -> list[int]:
    """Parse a list of lessons such as "0-4", "2,3,5-7" or "all".

    Args:
        text: The list.
        what: Start of the error message.

    Raises:
        ValueError: The text is not a list of lessons, or it names a lesson without questions.
    """
    there = {question.lesson for question in exam_questions().values()}
    if text.strip() == "all":
        return sorted(there)
    found: set[int] = set()
    for part in text.split(","):
        ends = re.fullmatch(r"(\d{1,2})(?:-(\d{1,2}))?", part.strip())
        named = set(range(int(ends[1]), int(ends[2] or ends[1]) + 1)) if ends else set()
        if not named or named - there:
            raise ValueError(f"{what} {shown(text)}: expected lessons from {min(there)} to {max(there)}, as in 0-4")
        found |= named
    return sorted(found)


def asked(question: Question, secret: bytes, version: str) -> Asked:
    """Return a question with the numbers for one version of the paper.

    The numbers differ from those of all earlier versions, unless 50 draws yield no new numbers.
    """
    made: list[Asked] = []
    for letter in VERSIONS[: VERSIONS.index(version) + 1]:
        draws = (question.make(Random(keyed(secret, "exam", question.id, letter, str(at)))) for at in range(50))
        first, *others = itertools.islice(draws, 1 if question.kind != "number" else 50)
        made.append(next((one for one in (first, *others) if one.text not in {each.text for each in made}), first))
    return made[-1]


def ordered(questions: Sequence[Question], secret: bytes, version: str) -> list[Question]:
    """Return the questions in the order for one version: course order for version A, shuffled order for the others."""
    order = list(questions)
    if version != VERSIONS[0]:
        Random(keyed(secret, "exam order", version)).shuffle(order)
    return order


def paper(name: str, questions: Sequence[Question], secret: bytes, version: str) -> str:
    """Return one version of the paper in Markdown."""
    return "\n\n".join(_pieces(name, questions, secret, version)) + "\n"


def _pieces(name: str, questions: Sequence[Question], secret: bytes, version: str) -> list[str]:
    points, minutes = sum(one.points for one in questions), sum(one.minutes for one in questions)
    pieces = [
        f"# {name}, version {version}\n\nName:\n\n{count(len(questions), 'question')}, {count(points, 'point')}, "
        f"{minutes} minutes. Show how you found each number, because a wrong number with a right derivation earns "
        "part of the points. Give numbers to three digits. Whole numbers may be left as a product."
    ]
    for place, question in enumerate(ordered(questions, secret, version), 1):
        made = asked(question, secret, version)
        code = f"\n\n```python\n{made.code}\n```" if made.code else ""
        pieces.append(f"**{place}.** ({count(question.points, 'point')}) {made.text}{code}")
    return pieces


_FORMULA = re.compile(r"(?<![\\\w$])\$([^$\n]+?)\$")
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 12pt/1.5 serif; max-width: 42rem; margin: 2rem auto }} section {{ break-inside: avoid }}
pre {{ font-size: 10pt; background: #f3f3f3; padding: .5rem }}
</style></head><body>
{body}
</body></html>
"""


def printable(name: str, questions: Sequence[Question], secret: bytes, version: str) -> str:
    """Return the paper as a printable HTML page with about two lines of answer space per point."""
    rooms = [3 * question.points for question in ordered(questions, secret, version)]
    return as_page(name, _pieces(name, questions, secret, version), rooms)


def as_page(title: str, pieces: Sequence[str], rooms: Sequence[int] = ()) -> str:
    """Return a printable HTML page.

    Args:
        title: Title of the page.
        pieces: Markdown texts; the first is the header.
        rooms: Height of the blank space below each of the other texts, in em. Missing entries mean none.
    """
    from latex2mathml.converter import convert
    from nbconvert.filters import markdown2html

    texts = (_FORMULA.sub(lambda found: convert(found[1]), piece) for piece in pieces)
    head, *made = (re.sub(r'<a class="anchor-link".*?</a>', "", markdown2html(text)) for text in texts)
    body = [f"<section>{piece}<div style='height: {room}em'></div></section>"
            for piece, room in itertools.zip_longest(made, rooms, fillvalue=0)]  # fmt: skip
    return _PAGE.format(title=html.escape(title), body="\n".join([head, *body]))


def key(name: str, questions: Sequence[Question], secret: bytes, versions: str) -> str:
    """Return the marking key for all versions in Markdown."""
    lines = [
        f"# {name}: the marking key",
        "Only for the marker. A number may be off by one percent. A right derivation with a slip in the arithmetic "
        "loses a point, and a number without a derivation earns half. For broken code, half of the points are for "
        "saying what is wrong and how to notice it, and half for the corrected line. Other correct lines count as "
        "well.",
    ]
    orders = {version: ordered(questions, secret, version) for version in versions}
    for question in questions:
        places = ", ".join(f"{version} {order.index(question) + 1}" for version, order in orders.items())
        head = f"## {places}: {question.id}, {KINDS[question.kind]}, {count(question.points, 'point')}"
        lines.append(head)
        made = {version: asked(question, secret, version) for version in versions}
        if question.kind == "number":
            for version, one in made.items():
                lines.append(f"**{version}: {figure(one.answer or 0.0)}.** {one.key}")
        else:
            one = made[versions[0]]
            lines.append(one.key)
            if one.mended:
                lines.append(f"```python\n{one.mended}\n```")
    return "\n\n".join(lines) + "\n"


def figure(value: float) -> str:
    """Format a number for the key: whole numbers in full, others to four significant digits."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"


def write(name: str, questions: Sequence[Question], secret: bytes, out: Path, versions: int) -> tuple[list[Path], Path]:
    """Write all versions of the paper and the marking key.

    Returns:
        The files of the exam papers and of the answer key.

    Raises:
        ValueError: `out` already contains an examination with this name.
    """
    letters = VERSIONS[:versions]
    folder, file = out / "release" / name, out / f"{name}_key.md"
    must_be_free(out, (folder, file))
    papers = [folder / f"{name}_{letter}.md" for letter in letters]
    for path, letter in zip(papers, letters, strict=True):
        write_atomic(path, paper(name, questions, secret, letter))
        write_atomic(path.with_suffix(".html"), printable(name, questions, secret, letter))
    write_atomic(file, key(name, questions, secret, letters))
    return [each for path in papers for each in (path, path.with_suffix(".html"))], file


def must_be_free(out: Path, places: Iterable[Path]) -> None:
    """Raise `ValueError` if one of these files and folders in `out` already exists."""
    for place in places:
        if place.exists():
            what = f"{place.relative_to(out)} already exists there; move it elsewhere or choose another name"
            raise ValueError(f"--out {out}: {what}")


def exam_questions() -> dict[str, Question]:
    """Return all examination questions, keyed by id, in course order."""
    for file in sorted(Path(__file__).parent.glob("lesson*.py")):
        importlib.import_module(f"{__package__}.{file.stem}")  # importing these modules registers their questions
    return dict(sorted(ASKED.items(), key=lambda pair: pair[1].lesson))
