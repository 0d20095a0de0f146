"""Individual numbers are on each student's sheet and used in grading, but are in no check that students have."""

import csv
import html
import json
import re

import pytest

from companion.commands.main import main
from companion_school.checking.sealed_keys import unseal
from companion_school.course.release import own_numbers
from companion_school.course.release.own_numbers import asked, find_numbers

SECRET = b"a secret of sixteen bytes"
ROSTER = "id,last_name,first_name,email\nada,Lovelace,Ada,a@s\nben,Okafor,Ben,b@s\ncem,Yılmaz,Cem,c@s\n"


def returns(tied, turn):
    cells = [
        {"cell_type": "code", "metadata": {}, "source": f"def own_{name}():\n    return {value}"}
        for name, value in (("1_tied", tied), ("5_turn", turn))
    ]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def right(who):
    return [asked(find_numbers(id), SECRET, who).answer for id in ("1.tied", "5.turn")]


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    home = tmp_path_factory.mktemp("course")
    (home / "roster.csv").write_text(ROSTER)
    (home / "secret").write_bytes(SECRET)
    flags = ["--roster", str(home / "roster.csv"), "--seed-file", str(home / "secret"), "--out", str(home / "course")]
    assert main(["course", "release", "week3", "--numbers", "1.tied", "5.turn", *flags]) == 0
    return home


def test_each_student_has_a_sheet_and_no_check_knows_a_result(course):
    made = {who: asked(find_numbers("1.tied"), SECRET, who) for who in ("ada", "ben", "cem")}
    assert len({one.answer for one in made.values()}) == 3
    for who, one in made.items():
        page = re.sub(r"<[^>]*>", "", (course / "course" / "week3_sheets" / f"{who}.html").read_text())
        assert one.text in html.unescape(page) and "own_1_tied" in page and "¶" not in page
    released = course / "course" / "release" / "week3"
    nobodys = float(asked(find_numbers("1.tied"), SECRET, "").answer)
    assert nobodys.hex() not in str(unseal((released / "exercise_check/keys/1.tied.key").read_bytes()))
    text = (released / "week3.ipynb").read_text()
    assert "Your sheet has the question" in text and "BEGIN HIDDEN" not in text
    assert "each student's own" in (course / "course" / "week3.md").read_text()
    source = json.loads((course / "course" / "source" / "week3" / "week3.ipynb").read_text())
    [cell] = [cell for cell in source["cells"] if cell["metadata"]["nbgrader"]["grade_id"] == "answer_1_tied"]
    assert cell["metadata"]["nbgrader"]["grade"] and cell["metadata"]["nbgrader"]["points"] == 2


def test_a_result_is_right_for_its_student_alone(course, monkeypatch):
    monkeypatch.chdir(course)
    inside = course / "in"
    inside.mkdir()
    (inside / "ada.ipynb").write_text(returns(*right("ada")))
    (inside / "ben.ipynb").write_text(returns(*right("ada")))  # another student's numbers
    (inside / "Cem Yilmaz_77_assignsubmission_file").mkdir()
    (tied, turn), own = right("cem"), inside / "Cem Yilmaz_77_assignsubmission_file" / "week3.ipynb"
    own.write_text(returns(f"{tied} * 1.001", f"{turn} * 1.001"))  # three digits are enough, except for whole numbers
    flags = ["--pset", "course/release/week3", "--seed-file", "secret", "--out", "marks/week3"]
    assert main(["grade", "in", *flags]) == 0
    with (course / "marks" / "week3" / "marks.csv").open() as file:
        rows = {row["student_id"]: (row["1.tied"], row["5.turn"], row["score"]) for row in csv.DictReader(file)}
    assert rows["ada"] == ("right", "right", "5") and rows["ben"] == ("wrong", "wrong", "0")
    assert rows["Cem Yilmaz_77"] == ("wrong", "right", "3")
    page = (course / "marks" / "week3" / "feedback" / "ben.html").read_text()
    assert "not the right result for your numbers" in page and "it is not the right answer" not in page
    (inside / "nobody.ipynb").write_text(returns(1, 1))
    assert main(["grade", "in", *flags]) == 2


def test_a_large_count_must_be_exact(course, monkeypatch):
    monkeypatch.chdir(course)
    (course / "counts").mkdir()
    for who, more in (("ada", "1"), ("ben", "0.0")):
        (course / "counts" / f"{who}.ipynb").write_text(returns(f"{right(who)[0]} + {more}", 0))
    flags = ["--pset", "course/release/week3", "--seed-file", "secret", "--out", "marks_of_counts/week3"]
    assert main(["grade", "counts", *flags]) == 0
    with (course / "marks_of_counts" / "week3" / "marks.csv").open() as file:
        assert [row["1.tied"] for row in csv.DictReader(file)] == ["wrong", "right"]


def test_what_cannot_be_is_refused(course, capsys):
    flags = ["course", "release", "week4", "--out", str(course / "other")]
    assert main([*flags, "--numbers", "2.none", "--roster", str(course / "roster.csv")]) == 2
    assert "--numbers 2.none: expected one of 0.chance" in capsys.readouterr().err
    assert main([*flags, "--numbers", "2.variance"]) == 2
    assert "--numbers, --roster: expected both or neither" in capsys.readouterr().err
    assert own_numbers.is_own("2.variance") and not own_numbers.is_own("2.a") and not own_numbers.is_own("14.curves")
