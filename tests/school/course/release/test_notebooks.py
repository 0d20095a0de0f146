"""The committed exercise notebooks are up to date, and the solved ones print what they should."""

import contextlib
import io
import re
import shutil
from pathlib import Path

import nbformat
import pytest

from companion.commands.main import main
from companion_school.checking.exercise import BEGIN, END, exercise
from companion_school.course.release.dependencies import other_exercises
from companion_school.course.release.documents import document
from companion_school.course.release.notebook_cells import marked_solution, to_text
from companion_school.course.release.notebooks import chapters, self_study, solved, stale_files
from companion_school.exercises.catalogue import exercises

FOLDER = Path(__file__).parents[4] / "notebooks"
CHAPTERS = chapters(FOLDER)


@pytest.fixture
def copied(tmp_path):
    shutil.copytree(FOLDER, tmp_path / "course", ignore=shutil.ignore_patterns(".*", "figures", "*.md"))
    shutil.copy(FOLDER / "exercises" / "TUTOR.md", tmp_path / "course" / "exercises")
    return tmp_path / "course"


def test_the_committed_notebooks_are_what_the_exercises_make():
    assert CHAPTERS
    assert stale_files(FOLDER) == [], "run: make notebooks"


def test_a_stale_notebook_is_found_and_mended(copied, capsys):
    notebook = next((copied / "exercises").glob("02_*.ipynb"))
    built = notebook.read_bytes()
    (copied / "exercises" / "99_gone.ipynb").write_text("{}")
    (copied / "exercises" / "TUTOR.md").unlink()
    notebook.write_bytes(built.replace(b"Exercises", b"Tasks", 1))
    assert main(["course", "notebooks", str(copied), "--check"]) == 1
    said = capsys.readouterr().out
    assert (
        f"{notebook}: is not up to date with the exercises" in said
        and "99_gone.ipynb: does not belong to any exercises" in said
    )
    assert "TUTOR.md: has never been built" in said and "make notebooks" in said
    assert main(["course", "notebooks", str(copied)]) == 0
    assert notebook.read_bytes() == built and not (copied / "exercises" / "99_gone.ipynb").exists()
    assert main(["course", "notebooks", str(copied), "--check"]) == 0
    assert not list(copied.rglob(".*"))  # no half-written files are left


def test_a_folder_without_lessons_is_refused(tmp_path, capsys):
    assert main(["course", "notebooks", str(tmp_path)]) == 2
    assert "expected the folder of the lessons" in capsys.readouterr().err
    assert main(["course", "notebooks", str(tmp_path), "--check", "--solved", "x"]) == 2
    assert "--check cannot be used together with --solved" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", CHAPTERS)
@pytest.mark.parametrize("make", [self_study, lambda _, *chapter: solved(*chapter)], ids=["self_study", "solved"])
def test_jupyter_would_write_the_same_file(name, make):
    text = to_text(make(name, *CHAPTERS[name]))
    read = nbformat.reads(text, as_version=4)
    nbformat.validate(read)
    assert nbformat.writes(read) + "\n" == text
    assert len({cell.id for cell in read.cells}) == len(read.cells)


@pytest.mark.parametrize("name", CHAPTERS)
def test_at_both_ends_a_line_leads_back_and_on_to_the_next_lesson(name):
    path = FOLDER / "exercises" / f"{name[:2]}_exercises.ipynb"
    cells = nbformat.read(path, as_version=4).cells
    links = dict(re.findall(r"\[([^\]]+)\]\(([^)]+)\)", cells[0].source))
    assert cells[-1].source == cells[0].source
    assert [cell.metadata.get("tags") for cell in (cells[0], cells[-1])] == [["navigation"]] * 2
    after = next((other for other in CHAPTERS if int(other[:2]) == int(name[:2]) + 1), None)
    following = [target for words, target in links.items() if words.endswith("→")]
    assert following == ([f"../{after}.ipynb"] if after else [])
    assert {f"../{name}.ipynb", "../start.ipynb", "../glossary.md"} <= set(links.values())
    assert ("Deeper" in links) == (FOLDER / "deeper" / f"{name[:2]}_deeper.ipynb").exists()
    assert all((path.parent / target).exists() for target in links.values())


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_reader_gets_stub_check_and_help_for_every_exercise(name):
    title, book = CHAPTERS[name]
    made = self_study(name, title, book)
    codes = [cell for cell in made["cells"] if cell["cell_type"] == "code"]
    sources = [cell["source"] for cell in codes]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in codes)
    assert f"(../{name}.ipynb)" in made["cells"][0]["source"] and (FOLDER / f"{name}.ipynb").exists()
    for one in book:
        at = sources.index(one.stub)
        assert sources[at + 1] == f'check("{one.id}")' and codes[at + 1]["metadata"]["tags"] == ["raises-exception"]
        assert sources[at + 2] == f'# hint("{one.id}")\n# solution("{one.id}")'
    assert sources[-1] == f"progress({int(name[:2])})"


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_solved_notebook_prints_what_it_says(name):
    made = solved(*CHAPTERS[name])
    codes = [cell for cell in made["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in codes] == list(range(1, len(codes) + 1))
    assert sum(bool(cell["outputs"]) for cell in codes) == len(CHAPTERS[name][1])
    namespace: dict = {}
    for cell in codes:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(cell["source"], namespace)
        assert printed.getvalue() == "".join(out["text"] for out in cell["outputs"]), cell["source"]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPANION_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("one", exercises().values(), ids=exercises())
def test_a_solution_needs_nothing_that_a_reader_does_not_have(one):
    assert all(int(id.split(".")[0]) <= one.lesson for id in other_exercises(one))
    lines = marked_solution(one).split("\n")
    begin, end = lines.index(f"    {BEGIN}"), lines.index(f"    {END}")
    assert "\n".join(lines[:begin] + lines[begin + 1 : end]) == one.solution
    assert "\n".join([*lines[:begin], "    raise NotImplementedError"]) == one.stub


def test_a_solution_that_leans_on_a_helper_is_told():
    @exercise("99.1", "Lean", task="Lean", points=1, difficulty=1, minutes=1, hints=["a.", "b.", "c."])
    def lean(x):
        """Return twice `x`."""
        ### BEGIN SOLUTION
        return [shutil.copy for _ in range(2)]
        ### END SOLUTION

    with pytest.raises(ValueError, match=r"exercise 99\.1: its solution needs shutil"):
        other_exercises(lean)


def test_the_page_for_assistants_asks_them_to_tutor():
    page = document("TUTOR.md")
    assert (FOLDER / "exercises" / "TUTOR.md").read_text(encoding="utf-8") == page
    assert page.startswith("# To an AI assistant: tutor, do not solve\n")
