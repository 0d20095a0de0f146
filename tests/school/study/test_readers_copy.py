"""A reader's own copy of the notebooks is complete and up to date, and never overwrites the reader's work."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from ipykernel.ipkernel import IPythonKernel
from IPython.core.interactiveshell import InteractiveShell
from nbformat.sign import NotebookNotary

from companion_school.study import readers_copy

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def signatures(tmp_path, monkeypatch):
    """Replace the place where Jupyter records what it trusts, for one test."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))


@pytest.fixture
def course(tmp_path):
    folder = tmp_path / "a course, é" / "notebooks"
    write(folder / "02_attention.ipynb", "1 + 1")
    write(folder / "exercises" / "02_exercises.ipynb", "def answer(): ...")
    (folder / "map.md").write_text("the map")
    (folder / ".lab").mkdir()
    (folder / ".lab" / "settings.json").write_text("{}")
    return folder


@pytest.fixture
def mine(course):
    folder = course.parent / "my"
    assert readers_copy.refresh(course, folder) == []
    return folder


def write(path, *sources, output=""):
    cells = [nbformat.v4.new_code_cell(source, id=f"cell-{number}") for number, source in enumerate(sources)]
    for cell in cells:
        cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=output)] if output else []
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)


def source(path):
    return [cell.source for cell in nbformat.read(path, as_version=4).cells]


def files(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {readers_copy.RECORD}


def test_everything_is_copied_but_the_settings(course, mine):
    assert files(mine) == {"02_attention.ipynb", "exercises/02_exercises.ipynb", "map.md"}
    ours, theirs = (nbformat.read(folder / "02_attention.ipynb", as_version=4).cells for folder in (mine, course))
    assert ours == theirs and (mine / "map.md").read_bytes() == (course / "map.md").read_bytes()


def test_copies_are_trusted_so_that_figures_move_before_a_cell_is_run(course, mine):
    notary = NotebookNotary()
    for name, trusted in ((mine / "02_attention.ipynb", True), (course / "map.ipynb", False)):
        if not name.exists():
            write(name, "something else")
        assert notary.check_signature(nbformat.read(name, as_version=4)) is trusted


def test_a_copy_has_the_metadata_that_jupyterlab_would_write_when_it_opens_it(course, mine):
    """Otherwise each notebook would look unsaved as soon as it is opened."""
    metadata = json.loads((mine / "02_attention.ipynb").read_text("utf-8"))["metadata"]
    assert metadata["language_info"] == IPythonKernel.language_info
    readers_copy.write_kernel(mine / "kernel")
    spec = json.loads((mine / "kernel" / "kernels" / "python3" / "kernel.json").read_text("utf-8"))
    assert metadata["kernelspec"] == {"name": "python3"} | {key: spec[key] for key in ("display_name", "language")}


def test_a_name_error_in_the_courses_kernel_says_which_cell_to_run(mine, capsys):
    readers_copy.write_kernel(mine / "kernel")
    spec = json.loads((mine / "kernel" / "kernels" / "python3" / "kernel.json").read_text("utf-8"))
    [extension] = [flag.removeprefix("--ext=") for flag in spec["argv"] if flag.startswith("--ext=")]
    shell = InteractiveShell()
    shell.extension_manager.load_extension(extension)
    for cell, note in (
        ('check("0.1")', "Run the first code cell of this notebook, which imports check"),
        ("scores + 1", "Choose Run > Run All Above Selected Cell"),
        ("1 / 0", ""),
    ):
        result = shell.run_cell(cell)
        said = capsys.readouterr().out
        assert not result.success and type(result.error_in_exec).__name__ in said and note in said
        assert ("this cell again" in said) == bool(note)


def test_a_new_version_replaces_a_copy_that_was_only_read_and_run(course, mine):
    write(mine / "02_attention.ipynb", "1 + 1", output="2")  # JupyterLab has saved it with its outputs
    write(course / "02_attention.ipynb", "1 + 2")
    (course / "map.md").write_text("a new map")
    assert readers_copy.refresh(course, mine) == []
    assert source(mine / "02_attention.ipynb") == ["1 + 2"] and (mine / "map.md").read_text() == "a new map"


def test_new_outputs_replace_those_of_a_copy_that_was_only_read_and_run(course, mine):
    """The outputs contain the scripts of questions and figures."""
    write(mine / "02_attention.ipynb", "1 + 1", output="old")
    write(course / "02_attention.ipynb", "1 + 1", output="new")
    assert readers_copy.refresh(course, mine) == []
    assert nbformat.read(mine / "02_attention.ipynb", as_version=4).cells[0].outputs[0].text == "new"


def test_a_copy_that_was_run_keeps_its_outputs_while_the_course_stays(course, mine):
    write(mine / "02_attention.ipynb", "1 + 1", output="2")
    before = (mine / "02_attention.ipynb").read_bytes()
    assert readers_copy.refresh(course, mine) == []
    assert (mine / "02_attention.ipynb").read_bytes() == before


def test_an_answer_is_never_written_over_and_the_new_version_lies_beside_it(course, mine):
    exercises = mine / "exercises" / "02_exercises.ipynb"
    write(exercises, "def answer(): return 42")
    assert readers_copy.refresh(course, mine) == []
    write(course / "exercises" / "02_exercises.ipynb", "def answer(x): ...")
    [said] = readers_copy.refresh(course, mine)
    assert said == (
        "my/exercises/02_exercises.ipynb is yours and was left as it is; "
        "the new version is 02_exercises_new.ipynb beside it"
    )
    assert source(exercises) == ["def answer(): return 42"]
    assert source(exercises.with_name("02_exercises_new.ipynb")) == ["def answer(x): ..."]
    assert readers_copy.refresh(course, mine) == []  # reported only once
    assert source(exercises) == ["def answer(): return 42"]


def test_a_damaged_copy_is_the_readers_too(course, mine):
    (mine / "02_attention.ipynb").write_text('{"cells": [')
    write(course / "02_attention.ipynb", "1 + 2")
    assert len(readers_copy.refresh(course, mine)) == 1
    assert (mine / "02_attention.ipynb").read_text() == '{"cells": ['


def test_without_the_record_nothing_is_written_over(course, mine):
    write(mine / "02_attention.ipynb", "my own")
    (mine / readers_copy.RECORD).unlink()
    assert [said.split()[0] for said in readers_copy.refresh(course, mine)] == ["my/02_attention.ipynb"]
    assert source(mine / "02_attention.ipynb") == ["my own"]


def test_a_copy_that_was_removed_comes_back(course, mine):
    (mine / "map.md").unlink()
    readers_copy.refresh(course, mine)
    assert (mine / "map.md").read_text() == "the map"


def test_what_cannot_be_understood_is_told(course, mine):
    with pytest.raises(ValueError, match="expected the folder of the course's notebooks"):
        readers_copy.refresh(course / "elsewhere", mine)
    (mine / readers_copy.RECORD).write_text("[]")
    with pytest.raises(ValueError, match="expected the record of what was copied"):
        readers_copy.refresh(course, mine)


def test_the_command_says_what_is_wrong_and_exits_with_2(tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "companion_school.study.readers_copy", "--prepare"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 2 and "expected the folder of the course's notebooks" in run.stderr
    assert not (tmp_path / "my").exists()


def test_the_kernel_has_the_courses_name_and_is_this_python(tmp_path):
    readers_copy.write_kernel(tmp_path)
    known = readers_copy.environment(tmp_path, {"JUPYTER_PATH": "theirs"})
    assert known["JUPYTER_PATH"] == os.pathsep.join(
        [str(tmp_path / "my" / ".jupyter"), str(tmp_path / "notebooks" / ".lab"), "theirs"]
    )
    spec = json.loads((tmp_path / "kernels" / "python3" / "kernel.json").read_text())
    assert spec["display_name"] == "The Executable Transformer" and spec["argv"][0] == sys.executable


def test_a_readers_settings_are_those_that_the_page_needs():
    settings = json.loads((ROOT / "notebooks/.lab/labconfig/default_setting_overrides.json").read_text("utf-8"))
    notebook = settings["@jupyterlab/notebook-extension:tracker"]
    assert notebook == {"windowingMode": "defer", "codeCellConfig": {"lineWrap": True}}
    assert settings["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"
    assert settings["@jupyterlab/docmanager-extension:plugin"]["defaultViewers"] == {"markdown": "Markdown Preview"}
    flags = readers_copy.command(ROOT)
    assert f"--LabApp.default_url=/lab/tree/{readers_copy.MINE}/{readers_copy.START}" in flags
    [custom] = [flag.split("=", 1)[1] for flag in flags if flag.startswith("--ServerApp.tornado_settings=")]
    assert "--LabApp.log_level=WARN" in flags
    # The server's own pings and timeouts remain, because with a timeout as long as the interval it closes a connection
    # every 30 seconds.
    assert list(ast.literal_eval(custom)) == ["static_custom_path"]
    [folder] = ast.literal_eval(custom)["static_custom_path"]
    assert "max-width: 45em" in (Path(folder) / "custom.css").read_text("utf-8")  # `make lab-check` measures the result


def test_a_readers_jupyterlab_has_nothing_of_nbgrader_or_jupytext():
    [served] = [flag.split("=", 1)[1] for flag in readers_copy.command(ROOT) if "jpserver_extensions" in flag]
    shown = json.loads((ROOT / "notebooks/.lab/labconfig/page_config.json").read_text("utf-8"))["disabledExtensions"]
    assert set(ast.literal_eval(served).values()) == {False} and set(shown.values()) == {True}
    assert {name.split(".")[0] for name in ast.literal_eval(served)} == {"jupyterlab_jupytext", "nbgrader"}
    assert set(shown) == {"@jupyter/nbgrader", "jupyterlab-jupytext"}


def test_a_course_that_is_open_is_not_opened_twice(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    running = {"pid": os.getpid(), "root_dir": str(tmp_path / "here"), "url": "http://localhost:8888/", "token": "abc"}
    (tmp_path / "jpserver-1.json").write_text(json.dumps(running))
    assert readers_copy.open_already(tmp_path / "here") == "http://localhost:8888/lab/tree/my/start.ipynb?token=abc"
    assert readers_copy.open_already(tmp_path / "elsewhere") is None


@pytest.mark.parametrize("path", ["my/02.ipynb", "my/exercises/02_exercises.ipynb", "course/a.md", "submissions/x.py",
                                  "marks/week2/marks.csv", "course.seed", "course/secret.seed"])  # fmt: skip
def test_git_ignores_what_readers_and_instructors_make(path):
    assert subprocess.run(["git", "check-ignore", "-q", path], cwd=ROOT).returncode == 0


def test_git_knows_every_file_of_the_package():
    ignored = subprocess.run(
        ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    assert ignored.stdout == ""


def test_the_extension_that_follows_links_is_one_that_jupyterlab_finds_and_loads():
    folder = ROOT / "notebooks" / ".lab" / "labextensions" / "executable-transformer"
    build = json.loads((folder / "package.json").read_text(encoding="utf-8"))["jupyterlab"]["_build"]
    script = (folder / build["load"]).read_text(encoding="utf-8")
    assert f'["{folder.name}"]' in script  # the name by which JupyterLab requests it
    found = readers_copy.environment(ROOT, {})["JUPYTER_PATH"].split(os.pathsep)
    assert str(folder.parents[1]) in found
