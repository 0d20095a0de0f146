"""Small, correct lessons of both editions, for the tests of the builder and of the contract."""

import contextlib
import io
import shutil
from pathlib import Path

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_output

from authoring import build
from authoring.lesson import Lesson
from companion.questions.reader import Shown

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def small_lesson(tmp_path_factory):
    """Of the first edition, built once by a kernel."""
    folder = tmp_path_factory.mktemp("course with a space, é")
    (folder / "lessons").mkdir()
    shutil.copy(HERE / "02_small.md", folder / "lessons")
    lesson = Lesson(folder / "lessons" / "02_small.md", folder / "02_small.ipynb")
    build.build(lesson)
    return lesson


@pytest.fixture
def copied(small_lesson, tmp_path):
    """The same lesson in a folder of its own, to be changed."""
    shutil.copytree(small_lesson.notebook.parent, tmp_path / "course")
    return Lesson(tmp_path / "course" / "lessons" / "02_small.md", tmp_path / "course" / "02_small.ipynb")


def run_here(lesson):
    """What executes the cells in this process: for lessons that print and nothing else."""
    names, asked = {}, {question.id: question for question in lesson.questions}
    cells = [NotebookNode(cell) for cell in lesson.cells]
    for count, cell in enumerate((cell for cell in cells if cell.cell_type == "code"), 1):
        cell.execution_count, cell.outputs = count, []
        if cell.source.startswith("# question "):
            shown = Shown(asked[cell.source.split('"')[1]])
            data = {"text/html": shown._repr_html_(), "text/plain": repr(shown)}
            cell.outputs = [new_output("execute_result", data=data, execution_count=count)]
            continue
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(cell.source, names)
        cell.outputs = [new_output("stream", text=said.getvalue())] if said.getvalue() else []
    return cells


@pytest.fixture
def second(tmp_path, monkeypatch):
    """Makes a lesson of the second edition after replacements in its source and its deeper one, and builds both."""
    monkeypatch.setattr(build, "execute", run_here)

    def make(old="", new="", *, deeper=("", ""), built=True):
        shutil.copytree(HERE / "second", tmp_path / "authoring", dirs_exist_ok=True)
        for folder, (before, after) in (("lessons", (old, new)), ("deeper", deeper)):
            path = tmp_path / "authoring" / folder / "02_second.md"
            text = path.read_text(encoding="utf-8")
            assert before in text, before
            path.write_text(text.replace(before, after, 1), encoding="utf-8")
        lesson = Lesson.of(tmp_path / "authoring" / "lessons" / "02_second.md", tmp_path / "notebooks")
        if built:
            for notebook in (lesson, lesson.deeper):
                build.build(notebook)
        return lesson

    return make
