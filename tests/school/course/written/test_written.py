"""Written answers: well-formed prompts, texts found in submissions, and bad sheets rejected."""

import contextlib
import io
import json
import math

import pytest

from companion.commands.main import main
from companion_school.course.grading.answers import LONGEST_TEXT, read_texts
from companion_school.course.grading.marks_csv import publish
from companion_school.course.grading.results import Item, Record, Results
from companion_school.course.release.problem_set import ProblemSet
from companion_school.course.release.release import release
from companion_school.course.written.rubrics import MARK, find_written, written_items
from companion_school.course.written.sheet import Given, Row, keep, read_sheet, sheet, text_id

LINE = f"{MARK}14.curves"
CSV = "student_id,item,text_id,text,points,comment\n"


def notebook(*cells):
    parts = [{"cell_type": kind, "source": source} for kind, source in cells]
    return [("week.ipynb", json.dumps({"cells": parts}).encode())]


@pytest.mark.parametrize("item", written_items().values(), ids=list(written_items()))
def test_each_item_has_a_rubric_that_a_marker_can_use(item):
    points = [level.points for level in item.levels]
    assert points == list(range(item.points, -1, -1)) and len(points) >= 3
    assert all(level.text.endswith(".") for level in item.levels) and len(item.looks_for) >= 2
    assert len(item.model.split()) >= 100 and "|" not in "".join(level.text for level in item.levels)
    assert item.level(0.5).text.startswith("Between 0 (")
    with pytest.raises(ValueError, match=r"one of the rubric's levels \(0, 1"):
        item.level(0.25)


def test_collect_says_who_handed_in_the_model_answer_and_which_texts_are_the_same(tmp_path, capsys):
    for student, text in (("ada", find_written("14.curves").model), ("ben", "It falls."), ("cy", "It falls.")):
        [(_, data)] = notebook(("markdown", f"**{LINE}**\n\n{text}\n"))
        (tmp_path / f"{student}.ipynb").write_bytes(data)
    flags = ["--written", "14.curves", "--to", str(tmp_path / "s.csv")]
    assert main(["course", "collect", str(tmp_path), *flags]) == 0
    told = capsys.readouterr().out
    assert "14.curves: ada handed in the course's model answer\n" in told
    assert "14.curves: ben, cy handed in the same text\n" in told
    assert main(["course", "collect", str(tmp_path), *flags, "--blind"]) == 0
    assert "14.curves: 1 student handed in the course's model answer\n" in capsys.readouterr().out


def test_the_training_does_what_the_model_answer_says():
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        names: dict = {}
        exec(find_written("14.curves").code, names)
    rows = [line.split() for line in said.getvalue().splitlines()]
    trained, unseen = ([float(row[at]) for row in rows] for at in (4, 7))
    assert len(names["LETTERS"]) == 26 and names["border"] == 464
    assert f"{math.log(26):.2f}" == "3.26" and 3.26 < trained[0] < 3.5
    assert trained == sorted(trained, reverse=True) and trained[-1] < 0.4
    lowest = unseen.index(min(unseen))
    assert 1 < lowest < 6 and 2.2 < unseen[lowest] < 2.7 and unseen[-1] > 3.9


def test_a_text_is_what_stands_under_its_line_and_in_the_markdown_that_follows():
    asked = ("markdown", f"**{LINE}** (below)\n\nIt falls.\n\nYOUR ANSWER HERE")
    more = ("markdown", "And it\x1b rises.")
    assert read_texts(notebook(asked, more, ("code", "1"), ("markdown", "no more")), [LINE]) == {
        LINE: "It falls.\n\n\n\nAnd it\x1b rises."
    }
    assert read_texts(notebook(asked, ("markdown", "## 2.3 Next\n\nNot mine.")), [LINE]) == {LINE: "It falls."}
    blank = ("markdown", f"**{LINE}**\n\nYOUR ANSWER HERE")
    assert read_texts(notebook(asked, ("code", ""), blank), [LINE]) == {LINE: "It falls."}
    assert read_texts([("a.py", b"x = 1")], [LINE]) == {LINE: ""} == read_texts(notebook(("code", "x")), [LINE])
    long = read_texts(notebook(("markdown", f"{LINE}\n{'x' * 30_000}")), [LINE])[LINE]
    assert long == "x" * LONGEST_TEXT + " [...]"


def named(kind, name, source, **more):
    return {"cell_type": kind, "metadata": {"nbgrader": {"grade_id": name}} if name else {}, "source": source, **more}


def test_a_text_in_a_cell_elsewhere_is_found_if_the_cell_that_was_meant_for_it_is_empty_or_gone():
    other = named("markdown", "", "My answer: it falls.")
    asked = named("markdown", "written_14_curves", f"**{LINE}**\n\nYOUR ANSWER HERE")
    for cells in ([named("markdown", "about", "# week"), other], [asked, named("code", "answer_2_3", "x = 1"), other]):
        files = [("week.ipynb", json.dumps({"cells": cells}).encode())]
        assert read_texts(files, [LINE]) == {LINE: "[elsewhere in the notebook]\n\nMy answer: it falls."}
    written = named("markdown", "written_14_curves", f"**{LINE}**\n\nIt rises.")
    files = [("week.ipynb", json.dumps({"cells": [written, named("code", "imports", ""), other]}).encode())]
    assert read_texts(files, [LINE]) == {LINE: "It rises."}


def test_a_marker_sees_what_the_code_printed_and_drew(tmp_path):
    picture = {"output_type": "display_data", "data": {"image/png": "aGk=", "text/plain": "<Figure>"}}
    printed = {"output_type": "stream", "text": ["loss ", "0.23 <b>"]}
    broken = {"output_type": "display_data", "data": {"image/png": '"><script>'}}
    cells = [
        named("code", "answer_2_3", "x = 1", outputs=[{"output_type": "stream", "text": "not mine"}]),
        named("markdown", "statement_14_curves", "## 14.curves"),
        named("code", "run_14_curves", "train()", outputs=[printed, picture, broken]),
        named("markdown", "written_14_curves", f"{LINE}\n\nIt falls.", attachments={"a.png": {"image/png": "eW8="}}),
    ]
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "ada.ipynb").write_text(json.dumps({"cells": cells}))
    assert main(["course", "collect", str(folder), "--written", "14.curves", "--to", str(tmp_path / "s.csv")]) == 0
    page = (tmp_path / "s.html").read_text()
    assert "It falls." in page and "loss 0.23 &lt;b&gt;" in page and "not mine" not in page and "<script" not in page
    assert page.count("data:image/png;base64,") == 2 and "base64,aGk=" in page and "base64,eW8=" in page


def test_the_notebook_asks_and_leaves_room_and_the_source_has_an_answer(tmp_path):
    item = find_written("14.curves")
    release(ProblemSet.of("week14", [], [], ["14.curves"]), b"a secret that only these tests know", tmp_path)
    books = {
        kind: json.loads((tmp_path / kind / "week14" / "week14.ipynb").read_text()) for kind in ("source", "release")
    }
    [cell] = [cell for cell in books["release"]["cells"] if LINE in "".join(cell["source"])]
    marks = cell["metadata"]["nbgrader"]
    assert (marks["grade"], marks["solution"], marks["locked"], marks["points"]) == (True, True, False, 4)
    assert cell["cell_type"] == "markdown" and "YOUR ANSWER HERE" in "".join(cell["source"])
    given = json.dumps(books["release"])
    assert item.levels[0].text in given and "passes the blind guess" not in given
    assert "passes the blind guess" in json.dumps(books["source"])
    page = (tmp_path / "week14_marking.md").read_text()
    assert all(line in page for line in (*item.looks_for, item.model, item.levels[2].text))
    assert "companion course collect" in (tmp_path / "week14.md").read_text()


def test_a_set_of_written_answers_speaks_of_no_checks_and_has_no_empty_table(tmp_path):
    parts = [f"27.{part}" for part in ("data", "run", "evidence", "card")]
    release(ProblemSet.of("project", [], [], parts), b"a secret that only these tests know", tmp_path)
    given = json.loads((tmp_path / "release/project/project.ipynb").read_text())["cells"]
    first = "".join(given[0]["source"])
    assert "rubric" in first and "`def`" not in first and "public cases" not in first
    page = (tmp_path / "project.md").read_text()
    assert "| public points |" not in page and "in this folder" in page


def test_a_sheet_comes_back_as_it_went_and_marks_stay_with_their_text(tmp_path):
    texts = {("ada", "14.curves"): 'It, falls.\n"Then" it rises.', ("-x", "14.curves"): "=1", ("cy", "14.curves"): ""}
    marks = {("ada", "14.curves"): Given(text_id(texts["ada", "14.curves"]), 3, "-good")}
    rows = [Row(student, item, text) for (student, item), text in sorted(texts.items()) if text]
    (tmp_path / "sheet.csv").write_text(sheet(rows, marks | {("-x", "14.curves"): Given("another", 4)}))
    assert read_sheet(tmp_path / "sheet.csv") == {("ada", "14.curves"): marks["ada", "14.curves"]} | {}
    (tmp_path / "kept.csv").write_text(keep(marks))
    assert read_sheet(tmp_path / "kept.csv", texts=False) == marks


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("ada,14.curves,t,x,4,\nada,14.curves,t,x,3,\n", "row 2, ada: 14.curves occurs twice"),
        ("ada,14.nothing,t,x,4,\n", "row 1, ada: written answer '14.nothing': expected one of 14.curves"),
        ("ada,14.curves,t,x,four,\n", "row 1, ada: points must be a number, got 'four'"),
        ("ada,14.curves,t,x,2.25,\n", "the rubric's levels (0, 1, 2, 3, 4), or halfway between two, got 2.25"),
        ("ada,14.curves,t,x,nan,\n", "the rubric's levels (0, 1, 2, 3, 4), or halfway between two, got nan"),
        ("ada,14.curves,t,x,,\n", "expected points in at least one row, found none"),
        ("eve,14.curves,t,x,4,\n", "eve is not in the marks"),
        ("bob,14.curves,t,x,4,\n", "bob: 14.curves is not the text that was graded; run collect again"),
        ("", "expected points in at least one row"),
    ],
)
def test_a_bad_sheet_is_told_in_a_sentence_and_nothing_is_written(rows, said, tmp_path, capsys):
    items = {
        name: (Item("14.curves", "", "to mark", 0.0, 4, written=True, text_id=id),)
        for name, id in (("ada", "t"), ("bob", "u"))
    }
    records = (Record(name, "read", "", "", (), "", "", "", "", items[name]) for name in items)
    publish(Results("w", "", tuple(records)), tmp_path)
    (tmp_path / "sheet.csv").write_text(CSV + rows)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    assert main(["course", "mark", str(tmp_path / "sheet.csv"), "--into", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["collect", "in", "--written", "14.curves"], "--to: expected a file to write"),
        (
            ["collect", "in", "--written", "14.x-y", "--to", "s.csv"],
            "written answer '14.x-y': expected one of 14.curves",
        ),
        (["collect", "in", "--written", "2.5", "--to", "s.csv"], "expected a problem set with written answers"),
        (["collect", "none", "--written", "14.curves", "--to", "s.csv"], "none: expected a folder of submissions"),
        (["mark", "none.csv", "--into", "in"], "none.csv: expected a marking sheet, found none"),
        (["mark", "in/sheet.csv"], "--into: expected the folder that companion grade"),
        (["mark", "in/sheet.csv", "--into", "in"], "but this one has no results.json"),
        (["release", "w", "--written", "14.nothing", "--out", "out"], "--written: written answer '14.nothing'"),
    ],
)
def test_bad_flags_are_told_in_a_sentence(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "sheet.csv").write_text(CSV)
    assert main(["course", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["in", "sheet.csv"]
