"""The table of a lesson's exercises says what the exercises say, though it is read without running them."""

import re
from dataclasses import asdict

import build
import catalogue
import nbformat
import pytest

from companion.checking.exercise import DIFFICULTIES
from companion.exercises.catalogue import exercises

LESSONS = build.lessons()


def test_the_list_is_that_of_the_exercises():
    listed = [asdict(one) for number in range(100) for one in catalogue.listed(number, build.PACKAGE)]
    assert listed == [{key: getattr(one, key) for key in listed[0]} for one in exercises().values()]


def test_difficulties_have_their_names():
    assert catalogue.difficulties(build.PACKAGE) == DIFFICULTIES


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_links_of_the_table_lead_to_the_notebook_of_the_exercises(lesson):
    table = catalogue.table(lesson.name, build.PACKAGE)
    links = re.findall(r"\]\(([^)]+)\)", table)
    assert links == [f"exercises/{lesson.name}.ipynb"]
    linked = nbformat.read(lesson.notebook.parent / links[0], as_version=4)
    text = "\n".join(cell.source for cell in linked.cells)
    for one in catalogue.listed(int(lesson.name[:2]), build.PACKAGE):
        assert f"## {one.id} {one.title}\n" in text
        assert f"| {one.id} | {one.title} | {one.task} | {one.difficulty} (" in table


def test_a_lesson_without_exercises_has_no_table():
    assert catalogue.table("98_none", build.PACKAGE) is None


@pytest.mark.parametrize(
    "call",
    [
        'exercise("2.1", "A title", points=1, difficulty=1, minutes=5)',
        'exercise("2.1", "A title", task="Do it", points=POINTS, difficulty=1, minutes=5)',
    ],
)
def test_what_cannot_be_listed_is_refused_with_its_place(tmp_path, call):
    path = catalogue.file_of(2, tmp_path)
    path.parent.mkdir(parents=True)
    path.write_text(f"\n\n@{call}\ndef one(): ...\n")
    with pytest.raises(ValueError, match=r"lesson_02\.py, line 3: .*expected id, title, task, points"):
        catalogue.listed(2, tmp_path)
