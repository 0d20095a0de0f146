"""The pages beside the lessons are complete and up to date, and their links lead somewhere."""

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest
from course import built_lessons
from PIL import Image

from authoring import imports
from authoring.lesson import NOTEBOOKS, ROOT, Lesson, LessonError
from authoring.markdown import without_code
from authoring.notation import atoms, meanings, plain, second_meanings
from authoring.pages import __main__ as command
from authoring.pages import drawing, front, glossary, map, notation, readme, start, where_texts_differ

LESSONS = built_lessons()
MARKDOWN = [page.path for page in command.PAGES if page.path.suffix == ".md"]
PICTURES = [page.path for page in command.PAGES if page.path.suffix in (".png", ".svg")]


@pytest.fixture
def lesson(tmp_path):
    """Return a function that makes a lesson from the texts of its cells; those that begin with `#%` are code."""

    def make(*cells, name="02_small", needs="nothing."):
        parts = [
            f"```{{code-cell}}\n{cell[3:]}\n```" if cell.startswith("#%\n") else f"+++\n\n{cell}" for cell in cells
        ]
        front = f"---\nable: see.\nneeds: >\n  {' '.join(needs.split())}\n---\n\n"
        (tmp_path / f"{name}.md").write_text(front + "\n\n".join(parts), encoding="utf-8")
        return Lesson(tmp_path / f"{name}.md", tmp_path / f"{name}.ipynb")

    return make


OPENING = "# Small\n\n**Why\nso small?**\n\n{{ head }}"


@pytest.mark.parametrize("page", command.PAGES, ids=lambda page: Path(page.file).name)
def test_page_is_up_to_date(page):
    assert page.fresh(LESSONS), f"{page.file} is not what the lessons give. Run: make notebooks"


def links(path):
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)\s]+)", text) if "://" not in link]


@pytest.mark.parametrize("path", [*MARKDOWN, ROOT / "CONTRIBUTING.md"], ids=lambda path: path.name)
def test_links_lead_to_files_and_cells_that_exist(path):
    ids, missing = {}, []
    for link in links(path):
        file, _, anchor = link.partition("#")
        target = path.parent / unquote(file) if file else path
        if not target.exists():
            missing.append(link)
        elif anchor.startswith("cell-id="):
            if target not in ids:
                ids[target] = {cell.id for cell in nbformat.read(target, as_version=4).cells}
            missing += [] if anchor.removeprefix("cell-id=") in ids[target] else [link]
        elif re.fullmatch(r"L\d+", anchor):
            missing += [] if int(anchor[1:]) <= len(target.read_text(encoding="utf-8").splitlines()) else [link]
        elif anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}
            missing += [] if anchor in slugs else [link]
    assert not missing, missing


# --- a lesson, as the pages read it


@pytest.mark.parametrize(
    "need, needs, touches",
    [
        ("matrix multiplication. Nothing about attention, and no other lesson.", (), ()),
        ("algebra. No earlier lesson: lesson 00 shows where it sits (lesson 01 says why).", (), ()),
        ("lesson 00, which shows a whole model once; algebra.", (0,), ()),
        ("lessons 02 (scores), 03 (heads)\nand 04 (the matrix $M_k$). A little $i^2 = -1$.", (2, 3, 4), ()),
        ("lesson 01 (tokens) and lesson 02. Lesson 03's heads are mentioned and not needed.", (1, 2), ()),
        ("lesson 00 and lesson 02 for variances. From lesson 03 only that heads exist.", (0, 2), (3,)),
        ("lessons 02 (masks) and 08. Embeddings are from lesson 01, waves from lesson 04.", (2, 8), (1, 4)),
    ],
)
def test_needs_are_read_from_the_front_matter(lesson, need, needs, touches):
    words = "word " * 600
    small = lesson(OPENING, f"## Sitting 1: Why?\n\n{words}", name="09_small", needs=need)
    assert (small.needs, small.touches) == (needs, touches)
    assert (small.title, small.question, small.minutes) == ("Small", "Why so small?", 6)


def test_cells_are_found_under_their_headings_and_by_their_claims(lesson):
    small = lesson(
        OPENING + "\n\n## Where texts differ", "#%\n:claims: S0-04\nassert x", "### More\n\ntext\n\n## Next",
        "#%\n:claims: S0-04, S1-02\ny = 1\nassert y\nprint('S1-03')  # S1-03",
    )  # fmt: skip
    assert [heading.text for heading in small.above(2)] == ["Small", "Where texts differ"]
    assert [heading.text for heading in small.above(4)] == ["Small", "Next"]
    assert small.claims == {"S0-04": [2, 4], "S1-02": [4]}
    assert small.heading("More").cell == small.cells[3].id
    with pytest.raises(LessonError, match="no heading 'Less'"):
        small.heading("Less")


def test_modules_are_found_behind_every_form_of_import(lesson):
    code = "import companion\nfrom companion import attend, account\nfrom companion.layers import masks\n"
    code += "import companion.data.number_words as nw\nfrom companion.layers.moe import MoE\n"
    code += "import math\ncompanion.RMSNorm(3)\nfrom companion_school.study import figures"
    found = lesson("# T", "#%\n" + code).imports
    assert found == {
        "companion/layers/attention",
        "companion/costs/account",
        "companion/layers/masks",
        "companion/data/number_words",
        "companion/layers/moe",
        "companion/layers/norms",
        "companion_school/study/figures",
    }
    assert found <= set(imports.modules())


@pytest.mark.parametrize(
    "cell, symbols",
    [
        ("$n$, $d$", ["$n$", "$d$"]),
        ("$W_q, W_k, W_v$", ["$W_q$", "$W_k$", "$W_v$"]),
        ("$L$; $l = 1, \\dots, L$", ["$L$", "$l$"]),
        ("$h$; $d_k = d_v = d/h$", ["$h$", "$d_k$", "$d_v$"]),
        ("$W_{q,i}$, entry $z_{ij}$", ["$W_{q,i}$", "$z_{ij}$"]),
        ("$f(x, m)$", ["$f(x, m)$"]),
        ("$\\langle x, y \\rangle$", ["$\\langle x, y \\rangle$"]),
        ("$a_e = \\operatorname{FFN}_e(x)$", ["$a_e$"]),
    ],
)
def test_symbols_of_a_row_are_told_apart(cell, symbols):
    assert atoms(cell) == symbols


# --- where two texts differ


def test_every_claim_that_is_corrected_is_listed_once():
    listed = Counter(claim for entry in where_texts_differ.entries() for claim in entry["claims"])
    assert {claim for claim, count in listed.items() if count > 1} == set()
    assert where_texts_differ.due() <= set(listed), (
        f"not in {where_texts_differ.SOURCE.name}: {sorted(where_texts_differ.due() - set(listed))}"
    )
    assert set(listed) <= set(where_texts_differ.ledger())


def test_what_cannot_be_decided_is_listed_once():
    undecided = [claim for entry in where_texts_differ.entries("undecided") for claim in entry["claims"]]
    assert sorted(undecided) == sorted(
        claim for claim, verdict in where_texts_differ.ledger().items() if verdict == "N"
    )


def test_every_correction_of_a_taught_claim_leads_to_a_cell_or_a_test():
    rows = [line for line in where_texts_differ.render(LESSONS).splitlines() if line.startswith("| ")]
    for entry in where_texts_differ.entries():
        places = [
            where_texts_differ.mapped()[claim] for claim in entry["claims"] if claim in where_texts_differ.mapped()
        ]
        if any("test" in place or place.get("cell") in {x.name for x in LESSONS} for place in places):
            [row] = [row for row in rows if row.startswith(f"| {entry['often']} |")]
            assert re.search(r"\]\([^)]+(#cell-id=\w+|\.py)\)", row.rpartition(" | ")[2]), entry["claims"]


def test_page_names_no_row_of_the_ledger():
    assert re.findall(r"\bS\d-\d\d\b", where_texts_differ.render(LESSONS)) == []


# --- notation, glossary, map, README


def test_every_letter_of_the_law_and_every_borrowed_one_is_on_the_page():
    page = notation.render(LESSONS)
    shown = {(m.symbol, number) for _, meanings in notation.sections(LESSONS) for m in meanings for number in m.lessons}
    assert {(symbol, x.number) for symbol, of in meanings().items() for x in LESSONS if x.number in of} == {
        (plain(symbol), number) for symbol, number in shown
    }
    borrowing = [x.deeper for x in LESSONS if x.deeper and x.deeper.borrows]
    assert borrowing
    for part in borrowing:
        assert f"deeper/{part.label}_deeper.ipynb#cell-id={part.cells[0].id}) | {' '.join(part.borrows)} |" in page


def test_no_letter_has_two_meanings():
    assert second_meanings(meanings()) == {}
    assert second_meanings({"v": {2: "a value", 3: "a value", 13: "tokens"}, "k": {2: "a key"}}) == {
        "v": {2: "a value", 3: "a value", 13: "tokens"}
    }


def test_glossary_has_a_line_for_each_term_and_no_term_twice():
    found = glossary.terms(LESSONS)
    assert len(found) > 80
    assert max(Counter(term.lower() for term, *_ in found).values()) == 1
    assert all(len(line) < 140 and not line.endswith(".") for _, line, *_ in found)


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_each_term_stands_in_bold_in_the_lesson_that_explains_it(lesson):
    own = [term for term, _, where, _ in glossary.terms(LESSONS) if where.label == lesson.label]
    cells = [without_code(cell.source) for cell in lesson.written if cell.cell_type == "markdown"]
    marked = [span for text in cells for span in re.findall(r"\*\*((?:[^*]|\*(?!\*))+)\*\*", text)]
    bold = {" ".join(span.lower().split()) for span in marked} - {lesson.question.lower()}
    words = {term: rf"(?<![\w-]){re.escape(term.lower())}(?:s|es)?(?![\w-])" for term in own}
    assert own and [term for term, word in words.items() if not any(re.search(word, span) for span in bold)] == []


def test_arrows_keep_every_need_and_draw_none_that_follows():
    graph = map.Graph.of(LESSONS)
    reached = {x.number: set() for x in LESSONS}
    for number in reached:
        for begin, end in graph.arrows:
            reached[number] |= {begin, *reached[begin]} if end == number else set()
    for x in LESSONS:
        assert set(x.needs) <= reached[x.number], x.name
    for begin, end in graph.arrows:
        others = {a for a, b in graph.arrows if b == end} - {begin}
        assert not any(begin in reached[other] for other in others), (begin, end)


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_picture_is_small_and_stands_on_white(path):
    assert path.stat().st_size < 400_000
    if path.suffix == ".svg":
        root = ElementTree.parse(path).getroot()
        background = root.find(".//{*}g[@id='patch_1']/{*}path")
        assert "#ffffff" in background.get("style") and "opacity: 0" not in background.get("style")
        assert root.findall(".//{*}text") == []  # letters are outlines: no font is needed
    else:
        picture = Image.open(path).convert("RGBA")
        assert picture.getpixel((0, 0)) == (255, 255, 255, 255)


def test_pictures_have_the_words_that_the_pages_give_them():
    assert f"![{front.ALT}](notebooks/{front.FILE})" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"![{map.COURSE_ALT}]({map.COURSE})" in (NOTEBOOKS / map.FILE).read_text(encoding="utf-8")


def test_same_lessons_give_the_same_picture():
    first = map.draw_course(LESSONS)
    assert first == map.draw_course(LESSONS)
    assert drawing.digest_in(first) == map.course_inputs(LESSONS) != map.course_inputs(LESSONS[:-1])


def test_pages_promise_sittings_as_long_as_they_are():
    minutes = [part.minutes for lesson in LESSONS for part in lesson.sittings]
    promised = f"takes {round(sum(minutes) / len(minutes))} minutes on average and at most {max(minutes)}"
    for text in ("README.md", "authoring/pages/start.md", "authoring/site/index.md"):
        assert promised in (ROOT / text).read_text(encoding="utf-8")


def test_readme_has_title_question_and_minutes_of_every_lesson():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for lesson in LESSONS:
        [row] = [line for line in text.splitlines() if f"](notebooks/{lesson.name}.ipynb) |" in line]
        assert row.startswith(f"| [{lesson.label} {lesson.title}](") and row.endswith(f" | {lesson.minutes} |")
        assert f"| {lesson.question} |" in row


def test_readme_without_its_marks_is_refused(tmp_path, monkeypatch):
    (tmp_path / "README.md").write_text("# Nothing\n")
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    with pytest.raises(LessonError, match="one of these marks is missing"):
        readme.render(LESSONS)


def test_command_writes_what_is_stale_and_then_finds_nothing_to_do(tmp_path, monkeypatch, capsys):
    page = command.Page("new.md", lambda lessons: f"{len(lessons)} lessons\n")
    monkeypatch.setattr(command, "PAGES", (page,))
    monkeypatch.setattr(command, "NOTEBOOKS", tmp_path)
    assert command.main(["--check"]) == 1 and not page.path.exists()
    assert "new.md: STALE" in capsys.readouterr().out
    assert command.main([]) == 0 and page.path.read_text() == f"{len(LESSONS)} lessons\n"
    assert command.main(["--check"]) == 0


def test_the_start_page_says_whom_to_tell_of_a_mistake():
    assert start.whom_to_tell("https://github.com/o/n") == "[open an issue](https://github.com/o/n/issues)"
    page = start.render(LESSONS)
    assert "{tell}" not in page and start.whom_to_tell("") in page
