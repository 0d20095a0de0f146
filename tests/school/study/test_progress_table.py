"""The start page shows the path with the reader's progress, and where to go on."""

import re
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest

from companion_school.build.stages import STAGES
from companion_school.study import progress_table
from companion_school.study.progress_table import Done, table

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"
LESSONS = [
    {
        "number": "02",
        "title": "Attention",
        "file": "02_attention.ipynb",
        "question": "Why <divide>?",
        "minutes": 31,
        "sittings": [
            {"title": "Sitting 1: A score", "cell": "aaaa0001", "minutes": 17, "questions": ["2.a", "2.b"]},
            {"title": "Sitting 2: A weight", "cell": "aaaa0002", "minutes": 14, "questions": ["2.c"]},
        ],
        "exercises": ["2.1", "2.2"],
        "exercise_file": "exercises/02_exercises.ipynb",
    },
    {
        "number": "03",
        "title": "Heads",
        "file": "03_heads.ipynb",
        "question": "Why many?",
        "minutes": 60,
        "sittings": [],
        "exercises": ["3.1"],
        "exercise_file": "exercises/03_exercises.ipynb",
    },
]
ALL = Done(frozenset({"2.1", "2.2", "3.1"}), frozenset({"2.a", "2.b", "2.c"}))


def text(html):
    return " ".join(re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*?</style>", "", html)).split())


def test_a_reader_who_begins_is_sent_to_the_first_lesson():
    page = table(LESSONS, Done())
    assert "Begin with 02 Attention ." in text(page) and '<a href="02_attention.ipynb">' in page
    assert (
        "Why &lt;divide&gt;?" in page and "17 + 14" in page and "All 2 lessons, and what you have done: 2 hours" in page
    )
    assert "Your first cell" in page and page.index("Begin with") < page.index("<details><summary>") < page.index(
        "<table>"
    )
    assert "0 of 2 sittings 0 of 3 questions 0 of 2 exercises" in text(page)


def test_the_own_transformer_stands_beside_the_lessons():
    page = table(LESSONS, Done(stages=frozenset({1, 2})))
    assert "2 of 19 stages of your own transformer. Next: stage 3, Positions , with lessons 04 and 05." in text(page)
    assert '<a href="build/03_positions.ipynb">' in page
    assert "All of it stands." in text(table(LESSONS, Done(stages=frozenset(STAGES))))


def test_a_sitting_is_read_when_all_its_questions_are_answered():
    begun = Done(questions=frozenset({"2.a"}))
    assert "first cell" not in table(LESSONS, begun)
    assert "Go on with 02 Attention, Sitting 1: A score (1 of its 2 questions answered)" in text(table(LESSONS, begun))
    page = table(LESSONS, replace(begun, questions=frozenset({"2.a", "2.b"})))
    assert "Go on with 02 Attention, Sitting 2: A weight 0 of 19 stages" in text(page)
    assert '<a href="02_attention.ipynb#cell-id=aaaa0002">Sitting 2: A weight</a>' in page
    assert "1 of 2 sittings 2 of 3 questions" in text(page) and "width:50%" in page


@pytest.mark.parametrize(
    "reader, said",
    [
        (replace(ALL, exercises=frozenset()), "Go on with 03 Heads ."),
        (replace(ALL, exercises=frozenset({"3.1"})), "You have read every lesson. Continue with the exercises of 02"),
        (ALL, "You have read every lesson and done every exercise."),
    ],
)
def test_it_says_where_to_go_on(reader, said):
    assert said in text(table(LESSONS, reader))


def test_a_page_is_filled_as_if_it_had_just_been_run(tmp_path, monkeypatch):
    cell = nbformat.v4.new_code_cell("progress_table.show()", metadata={"name": progress_table.CELL})
    page = tmp_path / progress_table.FILE
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata={"path": LESSONS}), page)
    monkeypatch.setattr(progress_table, "done", lambda: ALL)
    progress_table.fill(page)
    [filled] = nbformat.read(page, as_version=4).cells
    assert filled.outputs[0].data["text/html"] == table(LESSONS, ALL)


def test_what_is_no_start_page_is_told(tmp_path):
    nbformat.write(nbformat.v4.new_notebook(), tmp_path / "other.ipynb")
    for name in ("other.ipynb", "missing.ipynb"):
        with pytest.raises(ValueError, match=f"{name}: expected the start page of the course"):
            progress_table.read(tmp_path / name)


def test_a_start_page_without_its_file_shows_the_whole_course(tmp_path, monkeypatch):
    """In Colab a notebook is opened without its folder, and only the wheel is installed."""
    monkeypatch.chdir(tmp_path)
    shown = []
    monkeypatch.setattr(progress_table, "display", lambda html: shown.append(html.data))
    monkeypatch.setattr(progress_table, "done", lambda: Done())
    progress_table.show()
    assert shown == [table(progress_table.read(NOTEBOOKS / progress_table.FILE), Done())]
    nbformat.write(nbformat.v4.new_notebook(metadata={"path": LESSONS}), tmp_path / progress_table.FILE)
    progress_table.show()
    assert shown[1] == table(LESSONS, Done())


def test_what_the_reader_did_is_read_from_the_progress(tmp_path, monkeypatch):
    from companion_school.exercises.progress import note_check

    monkeypatch.setenv("COMPANION_HOME", str(tmp_path))
    note_check("2.1", True)
    note_check("2.2", False)
    assert progress_table.done() == Done(frozenset({"2.1"}), frozenset())


def test_the_courses_start_page_has_every_lesson_and_links_that_lead_somewhere():
    known = progress_table.read(NOTEBOOKS / progress_table.FILE)
    assert [lesson["file"] for lesson in known] == [file.name for file in sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))]
    notebook = nbformat.read(NOTEBOOKS / progress_table.FILE, as_version=4)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    links = [file for lesson in known for file in (lesson["file"], lesson["exercise_file"])]
    links += re.findall(r"\]\(([^)#]+)\)", text)
    assert [link for link in links if not (NOTEBOOKS / link).exists()] == []
    for told in ("Shift+Enter", "Run > Run All Above Selected Cell", "**Ctrl-C**", "git pull", "hint("):
        assert told in text


def test_the_first_cell_of_the_course_runs_and_shows_the_path(tmp_path, monkeypatch):
    """The file is there, as in JupyterLab, and nothing else was run before."""
    monkeypatch.chdir(NOTEBOOKS)
    monkeypatch.setenv("COMPANION_HOME", str(tmp_path))
    shown = []
    monkeypatch.setattr(progress_table, "display", lambda html: shown.append(html.data))
    [cell] = [cell for cell in nbformat.read(progress_table.FILE, as_version=4).cells if cell.cell_type == "code"]
    exec(cell.source, {})
    assert shown == [cell.outputs[0].data["text/html"]]
