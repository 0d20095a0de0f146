"""Marks become one table with nbgrader's columns, and a missing mark never becomes a zero."""

import csv
import inspect
import io

import pytest

from companion.commands.main import main
from companion_school.course.grading.gradebook import COLUMNS, collect, to_csv
from companion_school.course.grading.results import Results, store

HEAD = "assignment,student_id,score,max_score,timestamp,submission,2.3\n"


@pytest.fixture
def marks(tmp_path):
    for week, rows in {
        "week2": "week2,ada,5.5,6,2026-01-05 10:00:00,read,right\nweek2,emmy,,6,,unreadable,unreadable\n"
        "week2,lise,2,6,,unreadable,unreadable\n",
        "week3": "week3,ada,0.0,4,,read,timeout\n",
    }.items():
        (tmp_path / "marks" / week).mkdir(parents=True)
        (tmp_path / "marks" / week / "marks.csv").write_text(HEAD + rows)
    (tmp_path / "marks" / "notes.csv").write_text("a,b\n1,2\n")
    return tmp_path / "marks"


def rows_of(file):
    return list(csv.DictReader(io.StringIO(file.read_text())))


def test_the_columns_are_nbgraders(marks):
    # Importing this takes seconds in each process that collects this file
    from nbgrader.plugins.export import CsvExportPlugin

    theirs = inspect.getsource(CsvExportPlugin.export).split("keys = [")[1].split("]")[0]
    assert [name.strip(' "\n') for name in theirs.split(",")] == list(COLUMNS)
    assert to_csv(collect(marks)).splitlines()[0] == ",".join(COLUMNS)


def test_marks_of_several_sets_come_together(marks, capsys):
    assert main(["course", "export", str(marks)]) == 0
    assert "3 students, 2 problem sets (week2, week3)" in capsys.readouterr().out
    found = {(row["assignment"], row["student_id"]): row for row in rows_of(marks / "grades.csv")}
    assert list(found) == [("week2", "ada"), ("week2", "emmy"), ("week2", "lise"), ("week3", "ada")]
    ada = found["week2", "ada"]
    assert (ada["score"], ada["raw_score"], ada["late_submission_penalty"]) == ("5.5", "5.5", "0")
    assert ada["timestamp"] == "2026-01-05 10:00:00"
    assert main(["course", "export", str(marks)]) == 0  # the exported table is not mistaken for marks
    assert len(rows_of(marks / "grades.csv")) == 4


def test_what_could_not_be_read_has_no_score_and_a_wrong_answer_has_zero(marks):
    scores = {(row["assignment"], row["student_id"]): row["score"] for row in collect(marks)}
    assert scores["week2", "emmy"] == "" and scores["week3", "ada"] == "0"
    assert scores["week2", "lise"] == "2"  # typed by the instructor


def test_a_roster_names_students_and_shows_who_is_missing(marks, tmp_path):
    roster = tmp_path / "roster.csv"
    roster.write_text("id,first_name,last_name,email\nada,Ada,Lovelace,a@b\nkurt,Kurt,Gödel,k@b\n", encoding="utf-8")
    with pytest.raises(ValueError, match="emmy, lise: expected exactly one person with this name on the roster"):
        collect(marks, roster)
    assert (marks / "names.csv").read_text() == "student_id,roster_id\nemmy,\nlise,\n"
    (marks / "names.csv").write_text("student_id,roster_id\nemmy,-\nlise,kurt\n")
    found = {(row["assignment"], row["student_id"]): row for row in collect(marks, roster)}
    assert found["week2", "kurt"]["score"] == "2" and ("week2", "lise") not in found
    assert found["week2", "ada"]["last_name"] == "Lovelace" and found["week2", "emmy"]["last_name"] == ""
    kurt = found["week3", "kurt"]
    assert kurt["last_name"] == "Gödel" and kurt["score"] == "" and kurt["max_score"] == "4"


def test_people_who_handed_in_nothing_have_the_due_date_that_applies_to_them(marks, tmp_path):
    course = tmp_path / "course"
    course.mkdir()
    (course / "week3.toml").write_text('due = "2026-01-12T12:00+01:00"\nlate = "10% a day"\n')
    (course / "extensions.csv").write_text("student_id,assignment,due\nkurt,week3,2026-01-15T12:00+01:00\n")
    (marks / "week3" / "results.json").write_text(store(Results("week3", str(course), ())))
    roster = tmp_path / "roster.csv"
    roster.write_text("id,first_name\nada,Ada\nkurt,Kurt\nemmy,Emmy\nlise,Lise\n")
    found = {(row["assignment"], row["student_id"]): row for row in collect(marks, roster)}
    dues = {id: found["week3", id]["duedate"] for id in ("kurt", "emmy")}
    assert dues == {"kurt": "2026-01-15T12:00+01:00", "emmy": "2026-01-12T12:00+01:00"}
    assert found["week2", "kurt"]["duedate"] == ""  # a set without a course has no due date


def test_a_bonus_above_the_maximum_is_exported(marks):
    (marks / "week3" / "marks.csv").write_text(HEAD + "week3,ada,4.5,4,,read,right\n")
    assert next(row["score"] for row in collect(marks) if row["assignment"] == "week3") == "4.5"


@pytest.mark.parametrize(
    "row, message",
    [
        ("week2,ada,1,6,,read,x", r"ada already has a mark for week2 in"),
        ("week2,grace,13,6,,read,x", "line 2: expected a score .* with a bonus up to twice that, got 13 of 6"),
        ("week2,grace,-1,6,,read,x", "line 2: expected a score from 0 to max_score, .* got -1 of 6"),
        ("week2,grace,x,6,,read,x", "line 2, score must be a number, got 'x'"),
        ("week2,,1,6,,read,x", "line 2: expected an assignment and a student_id"),
    ],
)
def test_marks_that_are_none_are_refused(marks, row, message):
    (marks / "zz").mkdir()
    (marks / "zz" / "marks.csv").write_text(HEAD + row + "\n")
    with pytest.raises(ValueError, match=message):
        collect(marks)


def test_bad_input_writes_nothing(tmp_path, capsys):
    assert main(["course", "export", str(tmp_path / "none")]) == 2
    assert "expected a folder with marks" in capsys.readouterr().err
    assert main(["course", "export", str(tmp_path)]) == 2
    assert "expected marks.csv files with the columns" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_roster_without_ids_is_refused(marks, tmp_path, capsys):
    (tmp_path / "roster.csv").write_text("name\nada\n")
    assert main(["course", "export", str(marks), "--roster", str(tmp_path / "roster.csv")]) == 2
    assert "expected a CSV file with a column id" in capsys.readouterr().err
    assert not (marks / "grades.csv").exists()
