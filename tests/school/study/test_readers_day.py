"""A day with the course leaves git clean: run, answer, save, grade; then an update comes, and no answer is lost."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from companion_school.exercises.catalogue import find_exercise
from companion_school.questions.question import find_question
from companion_school.questions.spaced_repetition import read_answers

ROOT = Path(__file__).parents[3]
LESSON, EXERCISES = "02_scaled_dot_product_attention.ipynb", "exercises/02_exercises.ipynb"
TAKEN = (LESSON, EXERCISES, "exercises/TUTOR.md", "deeper/02_deeper.ipynb", "start.ipynb", "map.md", ".lab")
pytestmark = pytest.mark.slow


AFTERNOON = """
import os
from companion.commands.main import main
from companion_school.questions import answer

os.chdir("my")
answer("2.a", "c")
os.chdir("..")
assert main("course release week1 --exercises 2.1 --out course/".split()) == 0
flags = "--pset course/release/week1 --seed-file course/secret.seed --out marks/week1"
assert main(["grade", "submissions/", *flags.split()]) == 0
"""
"""A question is answered, and the exercises are graded."""


@pytest.fixture
def day(tmp_path, monkeypatch):
    """Make a reader's checkout with some of the course's notebooks, and the origin that it pulls from."""
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    for name in ("COMPANION_HOME", "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "course")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "course@example.org")
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "home" / "jupyter"))
    (tmp_path / "home").mkdir()
    origin = tmp_path / "origin"
    for name in TAKEN:
        there = ROOT / "notebooks" / name
        (origin / "notebooks" / name).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if there.is_dir() else shutil.copy)(there, origin / "notebooks" / name)
    shutil.copy(ROOT / ".gitignore", origin)
    git(tmp_path, "init", "-q", "-b", "main", "origin")
    commit(origin)
    git(tmp_path, "clone", "-q", "origin", "a course, é")
    return tmp_path / "a course, é"


def git(folder, *words):
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def commit(folder):
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "the course")


def python(folder, *words):
    """Run Python in a folder and return what it prints."""
    run = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, env=os.environ)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def edit(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def changed(folder):
    return git(folder, "status", "--porcelain", "--untracked-files=all")


def run_and_save(path):
    """Run a notebook from top to bottom, and save it with the metadata that JupyterLab adds."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}).execute()
    notebook.metadata["language_info"] = {"name": "python", "version": "3.12.1", "file_extension": ".py"}
    nbformat.write(notebook, path)
    return notebook


def test_a_day_leaves_git_clean_and_an_update_loses_no_answer(day):
    python(day, "-m", "companion_school.study.readers_copy", "--prepare")
    mine, answer = day / "my", find_exercise("2.1").solution

    notebook = nbformat.read(mine / EXERCISES, as_version=4)
    stub = next(cell for cell in notebook.cells if cell.source == find_exercise("2.1").stub)
    stub.source = answer
    nbformat.write(notebook, mine / EXERCISES)
    said = "".join(str(cell.get("outputs", "")) for cell in run_and_save(mine / EXERCISES).cells)
    assert "2.1 One weight with a pencil: right. 1 point." in said
    lesson = nbformat.read(mine / LESSON, as_version=4)
    lesson.cells[-2].metadata["collapsed"] = True
    lesson.metadata["language_info"] = {"name": "python", "version": "3.12.1"}
    nbformat.write(lesson, mine / LESSON)
    (day / "submissions").mkdir()
    shutil.copy(mine / EXERCISES, day / "submissions" / "ada.ipynb")
    python(day, "-c", AFTERNOON)
    assert (day / "marks" / "week1" / "marks.csv").exists()
    assert changed(day) == ""

    origin = day.parent / "origin"
    edit(origin / "notebooks" / LESSON, "Scaled dot-product attention", "Scaled dot-product attention, again")
    edit(origin / "notebooks" / EXERCISES, "These are the exercises", "Here are the exercises")
    (origin / "notebooks" / "map.md").write_text("A new map.\n")
    (origin / "notebooks" / "sizing.md").write_text("A new page.\n")
    commit(origin)
    git(day, "pull", "-q", "--ff-only")
    told = python(day, "-m", "companion_school.study.readers_copy", "--prepare")

    assert changed(day) == ""
    assert "02_exercises.ipynb is yours and was left as it is; the new version is 02_exercises_new.ipynb" in told
    assert answer in [cell.source for cell in nbformat.read(mine / EXERCISES, as_version=4).cells]
    beside = mine / EXERCISES.replace("exercises.ipynb", "exercises_new.ipynb")
    assert "Here are the exercises" in beside.read_text(encoding="utf-8")
    assert "attention, again" in (mine / LESSON).read_text(encoding="utf-8")
    assert (mine / "map.md").read_text() == "A new map.\n" and (mine / "sizing.md").exists()
    assert [right for _, right in read_answers()[find_question("2.a").key]] == [True]
    start = (mine / "start.ipynb").read_text(encoding="utf-8")
    assert "1 of 5 <a" in start or "1 of 5 " in start
