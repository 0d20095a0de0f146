"""A small, correct lesson and its deeper notebook, for the tests of the builder and of the contract."""

import contextlib
import io
import shutil
from pathlib import Path

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_output

from authoring import build
from authoring.lesson import Lesson
from companion_school.questions.asking import Shown

HERE = Path(__file__).parent


FIGURE = """```{code-cell}
:name: squares
:tags: [folded]
# draws the figure below
from companion_school.study import figures

fig, ax = figures.subplots()
ax.plot([1, 2, 3], [1, 4, 9])
ax.set(xlabel="x", ylabel="square of x")
figures.show(fig, alt="The squares of one to three, rising.")
```

Squares rise faster than their roots.

"""
BEFORE = "```{question} six\n"


@pytest.fixture(scope="session")
def small_lesson(tmp_path_factory):
    """Build the small lesson, with a figure, once in a kernel."""
    folder = tmp_path_factory.mktemp("course with a space, é")
    shutil.copytree(HERE / "small", folder / "authoring")
    lesson = Lesson.of(folder / "authoring" / "lessons" / "02_small.md", folder / "notebooks")
    text = lesson.source.read_text(encoding="utf-8")
    assert BEFORE in text
    lesson.source.write_text(text.replace(BEFORE, FIGURE + BEFORE, 1), encoding="utf-8")
    build.build(lesson)
    return lesson


@pytest.fixture
def copied(small_lesson, tmp_path):
    """Copy the lesson into a folder of its own, where a test may change it."""
    shutil.copytree(small_lesson.notebook.parents[1], tmp_path / "course")
    return Lesson.of(tmp_path / "course" / "authoring" / "lessons" / "02_small.md", tmp_path / "course" / "notebooks")


def run_here(lesson):
    """Execute the cells in this process; this is enough for lessons that only print."""
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
def small(tmp_path, monkeypatch):
    """Return a function that replaces texts in the lesson's sources, and builds both notebooks without a kernel."""
    monkeypatch.setattr(build, "execute", run_here)

    def make(old="", new="", *, deeper=("", ""), built=True):
        shutil.copytree(HERE / "small", tmp_path / "authoring", dirs_exist_ok=True)
        for folder, (before, after) in (("lessons", (old, new)), ("deeper", deeper)):
            path = tmp_path / "authoring" / folder / "02_small.md"
            text = path.read_text(encoding="utf-8")
            assert before in text, before
            path.write_text(text.replace(before, after, 1), encoding="utf-8")
        lesson = Lesson.of(tmp_path / "authoring" / "lessons" / "02_small.md", tmp_path / "notebooks")
        if built:
            for notebook in (lesson, lesson.deeper):
                build.build(notebook)
        return lesson

    return make
