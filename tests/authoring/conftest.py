"""A small, correct lesson, built once, for the tests of the builder and of the contract."""

import shutil
from pathlib import Path

import pytest

from authoring import build
from authoring.lesson import Lesson


@pytest.fixture(scope="session")
def small_lesson(tmp_path_factory):
    folder = tmp_path_factory.mktemp("course with a space, é")
    (folder / "lessons").mkdir()
    shutil.copy(Path(__file__).with_name("02_small.md"), folder / "lessons")
    lesson = Lesson(folder / "lessons" / "02_small.md", folder / "02_small.ipynb")
    build.build(lesson)
    return lesson


@pytest.fixture
def copied(small_lesson, tmp_path):
    """The same lesson in a folder of its own, to be changed."""
    shutil.copytree(small_lesson.notebook.parent, tmp_path / "course")
    return Lesson(tmp_path / "course" / "lessons" / "02_small.md", tmp_path / "course" / "02_small.ipynb")
