"""A lesson's table of exercises agrees with the exercises."""

import re

import nbformat
import pytest
from course import lessons

from authoring import exercises
from authoring.lesson import ROOT

LESSONS = lessons()


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_links_of_the_table_lead_to_the_notebook_of_the_exercises(lesson):
    table = exercises.table(lesson.name)
    links = re.findall(r"\]\(([^)]+)\)", table)
    assert links == [f"exercises/{lesson.label}_exercises.ipynb"]
    linked = nbformat.read(lesson.notebook.parent / links[0], as_version=4)
    text = "\n".join(cell.source for cell in linked.cells)
    assert exercises.of_lesson(lesson.number)
    for exercise in exercises.of_lesson(lesson.number):
        assert f"## {exercise.id} {exercise.title}\n" in text
        assert f"| {exercise.id} | {exercise.title} | {exercise.task} | {exercise.difficulty} (" in table


def test_a_lesson_without_exercises_has_no_table():
    assert exercises.table("98_none") is None


def test_exercises_are_written_where_the_contract_says_so():
    for lesson in LESSONS:
        assert (ROOT / exercises.file_of(lesson.number)).exists()
