"""Slides of a lesson: one idea each, the answer after its question, and nothing fetched where reveal.js is at hand."""

import re
from pathlib import Path

import nbformat
import pytest

from companion.commands.main import main
from companion_school.course import slides
from companion_school.questions.question import questions

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"


@pytest.fixture(scope="module")
def lesson():
    return nbformat.read(slides.read_lesson("05", NOTEBOOKS), as_version=4)


@pytest.fixture
def package(tmp_path):
    """A folder with the names of reveal.js's files; the notes hold what a page must not read as its own."""
    for name in slides.NEEDED:
        file = tmp_path / "reveal" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"/* {name} */ a = '<!-- <script></script>'", encoding="utf-8")
    return tmp_path / "reveal"


def test_every_figure_equation_and_question_of_the_lesson_has_a_slide_of_its_own(lesson):
    made = slides.slides_of(lesson)
    drawn = sum("ext-figure" in str(cell.get("outputs")) for cell in lesson.cells)
    figures = [sum("shown" in cell.metadata.get("tags", ()) for cell in slide.cells) for slide in made]
    assert drawn >= 5 and sum(figures) == drawn and max(figures) == 1
    text = "\n".join(cell.source for cell in lesson.cells if cell.cell_type == "markdown")
    for number in re.findall(r"\\tag\{(.+?)\}", text):
        [slide] = [s for s in made if any(f">({number})<" in cell.source for cell in s.cells)]
        assert "<math" in slide.cells[-1].source
    asked = [s.cells[0].source for s in made if s.cells[0].source.startswith("### Question")]
    assert len(asked) == sum(question.lesson == 5 for question in questions().values())


def test_an_answer_comes_with_the_step_after_its_question(lesson):
    [slide] = [s for s in slides.slides_of(lesson) if s.cells[0].source.startswith("### Question 5.c")]
    made = slides.as_notebook([slide]).cells
    assert [cell.metadata.slideshow.slide_type for cell in made[:2]] == ["subslide", "fragment"]
    assert "**13**" in made[1].source and "13" not in made[0].source


def test_prose_goes_to_the_speaker(lesson):
    made = slides.as_notebook(slides.slides_of(lesson)).cells
    notes = "\n".join(cell.source for cell in made if cell.metadata.slideshow.slide_type == "notes")
    assert "Not the values." in notes and "](" not in notes
    assert "You can stop here" not in "\n".join(cell.source for cell in made)


def test_with_the_package_at_hand_a_page_fetches_nothing(lesson, package):
    page = slides.page(lesson, "five", str(package))
    for name in slides.NEEDED:
        assert page.count(f"/* {name} */") == 1
    assert not re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"(?!data:)[^\"]+\"", page)
    assert "\\x3C!-- \\x3Cscript>\\x3C/script>" in page and "MathJax" not in page


@pytest.mark.parametrize("place", sorted(NOTEBOOKS.glob("[0-9]*.ipynb")), ids=lambda place: place.name[:2])
def test_every_lesson_can_be_shown(place):
    made = slides.slides_of(nbformat.read(place, as_version=4))
    shown = "\n".join(cell.source for slide in made for cell in slide.cells if cell.cell_type == "markdown")
    assert len(made) > 20 and sum(slide.top for slide in made) >= 4
    assert "$$" not in shown and "\\tag" not in shown


def test_the_command_says_where_reveal_comes_from_and_refuses_what_is_none(tmp_path, capsys):
    where = ["--notebooks", str(NOTEBOOKS), "--out", str(tmp_path)]
    assert main(["course", "slides", "05", *where]) == 0
    assert (tmp_path / "05_rotary_positions.html").is_file()
    assert "take reveal.js from https://unpkg.com/reveal.js@4" in capsys.readouterr().out
    assert main(["course", "slides", "05", *where, "--reveal", str(tmp_path)]) == 2
    assert "has no dist/reveal.css" in capsys.readouterr().err
    assert main(["course", "slides", "77", *where]) == 2


def test_the_lessons_are_found_from_any_folder_or_it_is_said_that_there_are_none(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert slides.lessons_folder(None) == NOTEBOOKS.resolve()
    assert main(["course", "slides", "05", "--notebooks", str(tmp_path)]) == 2
    assert "--notebooks " in capsys.readouterr().err and not list(tmp_path.iterdir())
    monkeypatch.setattr("companion.__file__", str(tmp_path / "site-packages" / "companion" / "__init__.py"))
    assert main(["course", "slides", "05"]) == 2
    assert "which come with the course and not with the package" in " ".join(capsys.readouterr().err.split())


def test_a_browser_that_prints_too_early_is_asked_again_with_more_time(tmp_path):
    program, page, pdf = tmp_path / "browser", tmp_path / "slides.html", tmp_path / "slides.pdf"
    program.write_text(
        "#!/bin/sh\nfor flag; do case $flag in --virtual*) time=${flag#*=};; --print*) pdf=${flag#*=};; esac; done\n"
        "echo '/Type /Page' > \"$pdf\"\n[ $time -lt 100000 ] || echo '/Type /Page' >> \"$pdf\"\n"
    )
    program.chmod(0o755)
    slides.print_pdf(page, pdf, str(program))
    assert slides.pages(pdf) == 2
    program.write_text(program.read_text().replace("100000", "1000000"))
    with pytest.raises(ValueError, match=r"printed 1 page of slides\.html, which has 2 slides: did the page"):
        slides.print_pdf(page, pdf, str(program))
    assert not pdf.exists()
    with pytest.raises(ValueError, match="printed 2 pages of slides.html, which has 40 slides"):
        program.write_text(program.read_text().replace("1000000", "0"))
        slides.print_pdf(page, pdf, str(program), least=40)
