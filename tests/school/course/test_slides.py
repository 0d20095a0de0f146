"""Slides: each heading starts one, questions are shown, and navigation and exercises are left out."""

from pathlib import Path

import nbformat
import pytest

from companion.commands.main import main
from companion_school.course.slides import with_slides

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"


def kinds(notebook):
    return [cell.metadata["slideshow"]["slide_type"] for cell in with_slides(notebook).cells]


def test_headings_begin_slides_and_what_is_below_is_a_step_down():
    markdown, code = nbformat.v4.new_markdown_cell, nbformat.v4.new_code_cell
    cells = [markdown("links", metadata={"tags": ["navigation"]}), markdown("# A"), markdown("text"), code("1"),
             markdown("## Exercises"), markdown("a table"), code('ask("2.a")')]  # fmt: skip
    made = nbformat.v4.new_notebook(cells=cells)
    assert kinds(made) == ["skip", "slide", "subslide", "subslide", "skip", "skip", "subslide"]
    assert made.cells[-1].metadata["tags"] == ["shown"]


def test_a_lesson_becomes_a_page_that_scrolls_and_shows_its_questions(tmp_path):
    assert main(["course", "slides", "0", "--notebooks", str(NOTEBOOKS), "--out", str(tmp_path)]) == 0
    [file] = tmp_path.glob("00_*.html")
    text = file.read_text("utf-8")
    assert text.count("<section") > 20 and "setScrollingSlide" in text and "unpkg.com/reveal.js@4.6.1" in text


@pytest.mark.parametrize("lesson", ["99", "x", "../2"])
def test_a_lesson_that_is_not_there_is_told_and_nothing_is_written(lesson, tmp_path, capsys):
    out = tmp_path / "slides"
    assert main(["course", "slides", lesson, "--notebooks", str(NOTEBOOKS), "--out", str(out)]) == 2
    assert "expected the number of a notebook" in capsys.readouterr().err and not out.exists()
