"""The builder is reproducible, does no unnecessary work, and names exactly what is stale."""

import dataclasses
import json

import nbformat
import pytest

from authoring import build, exercises, figure_updates
from companion_school.study.live import moving


def edit(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def outputs(lesson):
    return [c.outputs for c in nbformat.read(lesson.notebook, as_version=4).cells if c.cell_type == "code"]


@pytest.fixture
def executed(small_lesson, monkeypatch):
    """Replace execution by the outputs that the small lesson's cells gave when they were really run."""
    stored = nbformat.read(small_lesson.notebook, as_version=4)
    monkeypatch.setattr(build, "execute", lambda lesson: stored.cells)


def test_what_was_built_is_up_to_date(small_lesson):
    assert build.difference(small_lesson) is None
    assert build.build(small_lesson) == "02_small: up to date"


def test_building_again_gives_the_same_bytes(copied):
    before = copied.notebook.read_bytes()
    assert "executed, unchanged" in build.build(copied, rerun=True)
    assert copied.notebook.read_bytes() == before


def test_changed_prose_is_found_and_needs_no_execution(copied, monkeypatch):
    before = outputs(copied)
    edit(copied.source, "mean square is the", "mean square equals the")
    assert "source line 46): the text in the notebook is not the text in the source" in str(build.difference(copied))
    monkeypatch.setattr(build, "execute", None)
    assert "outputs kept, written" in build.build(copied)
    assert build.difference(copied) is None
    assert outputs(copied) == before
    assert "mean square equals the" in copied.notebook.read_text(encoding="utf-8")


def test_a_changed_question_is_found_and_shown_without_execution(copied, monkeypatch):
    before = outputs(copied)
    edit(copied.source, "How far do you typically get in 256", "How far does a walk typically get in 256")
    found = str(build.difference(copied))
    assert "the question in the notebook is not the question in the source" in found
    monkeypatch.setattr(build, "execute", None)
    assert "outputs kept, written" in build.build(copied)
    assert build.difference(copied) is None
    changed = [new for old, new in zip(before, outputs(copied), strict=True) if old != new]
    assert len(changed) == 1 and all("a walk typically" in text for text in changed[0][0].data.values())


def test_what_nbval_found_different_is_executed_once(copied, monkeypatch, tmp_path, capsys):
    """pytest's cache names the cells, as after `make test-notebooks`, and `make notebooks` reads it."""
    stored, ran = nbformat.read(copied.notebook, as_version=4), []
    monkeypatch.setattr(build, "execute", lambda lesson: ran.append(lesson.name) or stored.cells)
    root = copied.notebook.parents[1]
    monkeypatch.setattr(build, "LAST_FAILED", root / ".pytest_cache" / "v" / "cache" / "lastfailed")

    def built():
        assert build._build_all([copied], rerun=False, jobs=1, known=build.Known())
        return capsys.readouterr().out

    assert "up to date" in built() and ran == []  # the cache is missing
    build.LAST_FAILED.parent.mkdir(parents=True)
    for failed in (
        "notebooks/deeper/02_small.ipynb::Cell 3",
        "tests/a.py::test_b",
        "notebooks/02_small.ipynb2::Cell 1",
    ):
        build.LAST_FAILED.write_text(json.dumps({failed: True}))
        assert "up to date" in built() and ran == []
    build.LAST_FAILED.write_text(json.dumps({"notebooks/02_small.ipynb::Cell 3": True}))
    assert "executed, unchanged" in built() and ran == ["02_small"]
    assert "up to date" in built() and ran == ["02_small"]


def test_a_changed_style_of_figures_is_found_and_needs_no_execution(copied, monkeypatch):
    before = copied.notebook.read_text(encoding="utf-8")
    monkeypatch.setattr(figure_updates, "STYLE", ".ext-figure{color:green}")
    assert "the script or the style of its figure is not the package's" in str(build.difference(copied))
    monkeypatch.setattr(build, "execute", None)
    assert "outputs kept, written" in build.build(copied)
    assert "<style>.ext-figure{color:green}</style><figure" in str(outputs(copied))
    assert build.difference(copied) is None
    monkeypatch.undo()
    build.build(copied)
    assert copied.notebook.read_text(encoding="utf-8") == before


def test_a_moving_figure_gets_the_script_of_now_and_keeps_its_data():
    old = (
        '<style>OF YORE</style><figure class="ext-figure" data-live="hover" role="group"><div class="ext-box">x</div>'
        '<script type="application/json">{"a":1}</script><script type="module">OF YORE</script></figure>'
    )
    shown = nbformat.v4.new_output("display_data", data={"text/html": old, "text/plain": "words"})
    printed = nbformat.v4.new_output("stream", text="<style>old</style>")
    new, same = figure_updates.up_to_date([shown, printed])
    html = new.data["text/html"]
    assert "OF YORE" not in html and moving.script("hover") in html and moving.style() in html
    assert '<script type="application/json">{"a":1}</script>' in html and new.data["text/plain"] == "words"
    assert same == printed and shown.data["text/html"] == old


def test_the_exercises_are_listed(small_lesson):
    text = small_lesson.notebook.read_text(encoding="utf-8")
    assert "{{ exercises }}" not in text
    assert "| 2.1 | One weight with a pencil | " in text and "| 1 (read off) | 5 | 1 |" in text
    assert "[exercises/02_exercises.ipynb](exercises/02_exercises.ipynb)" in text


def test_changed_exercises_are_found_and_listed(copied, monkeypatch):
    first, *others = exercises.of_lesson(2)
    renamed = dataclasses.replace(first, title="A weight with a pen")
    monkeypatch.setattr(exercises, "of_lesson", lambda number: [renamed, *others])
    found = str(build.difference(copied))
    assert found.startswith(
        "cell 23 (source line 161): the exercises in the notebook are not those of companion_school/"
    )
    assert "outputs kept, written" in build.build(copied)
    assert "| 2.1 | A weight with a pen | " in copied.notebook.read_text(encoding="utf-8")
    assert build.difference(copied) is None


def test_changed_code_is_found_and_executed(copied):
    edit(copied.source, "sum(a * a for a in steps))\n```", "7)\n```")
    assert "cell 12 (source line 92): the code in the notebook is not" in str(build.difference(copied))
    assert "executed, written" in build.build(copied)
    assert outputs(copied)[5][0].text == "mean square 7\n"


@pytest.mark.parametrize(
    "old, new, where",
    [
        ("square 14\\n", "square 15\\n", "cell 12 (source line 92): the stored output was changed"),
        ("rising.", "falling.", "cell 15 (source line 109): the stored output was changed"),
        ('"execution_count": 3', '"execution_count": 4', "cell 7 (source line 52): the stored output was changed"),
        ("tag{2.1}", "tag{2.2}", "cell 4 (source line 30): the text in the notebook is not"),
        ("return [2 * bin", "return [3 * bin", "cell 5 (source line 36): the code in the notebook is not"),
        ('"walk"', '"stroll"', "cell 5 (source line 36): the cell's id, tags or name differ"),
        ('"display_name": "Python 3 (ipykernel)"', '"display_name": "mine"', "metadata or its form was changed"),
    ],
)
def test_a_notebook_changed_by_hand_is_found_and_mended(copied, executed, old, new, where):
    before = copied.notebook.read_bytes()
    edit(copied.notebook, old, new)
    assert where in str(build.difference(copied))
    build.build(copied)
    assert copied.notebook.read_bytes() == before


def test_a_cell_too_many_is_found(copied):
    notebook = nbformat.read(copied.notebook, as_version=4)
    notebook.cells.append(nbformat.v4.new_markdown_cell("More."))
    nbformat.write(notebook, copied.notebook)
    assert "has a cell that is not in the source" in str(build.difference(copied))


def test_no_notebook_and_no_source_are_found(copied):
    copied.notebook.rename(copied.notebook.with_suffix(".away"))
    assert str(build.difference(copied)) == "has never been built"
    copied.notebook.with_suffix(".away").rename(copied.notebook)
    copied.source.unlink()
    assert "no source 02_small.md in lessons/" in str(build.difference(copied))
    with pytest.raises(build.BuildError, match=r"no source 02_small\.md"):
        build.build(copied)


EMPTY = '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", EMPTY])
def test_a_file_that_is_no_built_notebook_is_found(copied, text):
    copied.notebook.write_text(text)
    assert "is not a notebook that was built here" in str(build.difference(copied))


def test_a_failing_cell_is_named_and_the_old_notebook_stays(copied):
    before = copied.notebook.read_bytes()
    edit(copied.source, "sum(a * a for a in steps))\n```", "undefined)\n```")
    message = r"(?s)02_small: cell 12 \(02_small\.md, line 92\) failed.*NameError"
    with pytest.raises(build.BuildError, match=message) as caught:
        build.build(copied)
    assert "\x1b" not in str(caught.value)
    assert copied.notebook.read_bytes() == before
    assert sorted(path.name for path in copied.notebook.parent.iterdir()) == ["02_small.ipynb"]


def test_nothing_of_the_clock_or_of_chance_is_kept(small_lesson):
    notebook = json.loads(small_lesson.notebook.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        assert set(cell["metadata"]) <= {"tags", "name", "jupyter", "claims"}
        assert not any("widget" in kind for output in cell.get("outputs", []) for kind in output.get("data", {}))
    assert set(notebook["metadata"]) == {"build", "kernelspec", "language_info"}
