"""Data from and for learning platforms and git: names, times, tables in other languages, pages."""

import csv
import io
import json
import os
import subprocess
import zipfile
from dataclasses import replace

import pytest

from companion.commands.main import main
from companion_school.course.bundles.gradescope_results import results
from companion_school.course.bundles.repository import clone_all
from companion_school.course.grading import grade as grading
from companion_school.course.grading.exercise_mark import Earned, Graded, Mark
from companion_school.course.grading.gradebook import collect
from companion_school.course.grading.lateness import Lateness
from companion_school.course.grading.lms import filled
from companion_school.course.grading.marks_csv import publish, summary
from companion_school.course.grading.received import CALLED_LATE, read_times
from companion_school.course.grading.results import Item, Record, Results, record_of
from companion_school.course.grading.similarity import Alike, as_text
from companion_school.course.grading.submissions import Handed, handed_in, platform_name
from companion_school.course.points import parts
from companion_school.course.written import rubrics
from companion_school.exercises.catalogue import exercises

CHOSEN = exercises()["2.5"]
BOOK = json.dumps({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def mark(student, score="2", most="16"):
    return {"assignment": "week2", "student_id": student, "score": score, "max_score": most}


@pytest.mark.parametrize(
    ("name", "student", "file"),
    [
        ("lovelaceada_1234_5678_week2.ipynb", "lovelaceada_1234", "week2.ipynb"),
        ("lovelaceada_LATE_1234_5678_week2-1.ipynb", "lovelaceada_1234", "week2-1.ipynb"),
        ("anon_aB3xY_555_week2.ipynb", "anon_aB3xY", "week2.ipynb"),
        ("Ada Lovelace_12345_assignsubmission_file", "Ada Lovelace_12345", ""),
        ("Teilnehmerin 7_12345_assignsubmission_onlinetext_", "Teilnehmerin 7_12345", ""),
        ("week2_ada_attempt_2026-11-30-23-59-01_my_work.ipynb", "ada", "my_work.ipynb"),
        (
            "week2_ada_attempt_2026-11-30-23-59-01_x_attempt_2026-01-01-00-00-00_y.ipynb",
            "ada",
            "x_attempt_2026-01-01-00-00-00_y.ipynb",
        ),
        ("11-22 - Ada Lovelace - Nov 30, 2026 1159 PM", "Ada Lovelace_11", ""),
        ("33-22 - Ada Lovelace - Nov 30, 2026 1159 PM", "Ada Lovelace_33", ""),
    ],
)
def test_names_of_downloads_are_understood(name, student, file):
    found = platform_name(name)
    assert (found.student, found.name) == (student, file)
    assert platform_name("ada.ipynb") is None is platform_name("my_week_2.ipynb")


def test_times_come_from_names_manifests_and_tables_and_from_nothing_else(tmp_path):
    inside = tmp_path / "in"
    for folder in ("submission_1", "11-22 - Ada Lovelace - Nov 30, 2026 1159 PM", "cem", "dora"):
        (inside / folder).mkdir(parents=True)
        (inside / folder / "week2.ipynb").write_text(BOOK)
    (inside / "week2_ben_attempt_2026-12-01-08-00-00_week2.ipynb").write_text(BOOK)
    (inside / "submission_metadata.yml").write_text(
        "submission_1:\n  :submitters:\n  - :name: Emmy\n    :email: emmy@school\n"
        "  :created_at: 2026-11-29 17:25:02.123456000 Z\n  :score: 1.0\n"
    )
    (tmp_path / "times.csv").write_text("student_id;time\ncem;2026-11-28T10:00\n")
    found = handed_in(inside, "week2", times=read_times(tmp_path / "times.csv"), zone="+01:00")
    assert {one.student: (one.time, one.time_from) for one in found} == {
        "emmy@school": ("2026-11-29 17:25:02+00:00", "Gradescope's list"),
        "Ada Lovelace_11": ("2026-11-30 23:59:00+01:00", "the name that the platform gave it"),
        "ben": ("2026-12-01 08:00:00+01:00", "the name that the platform gave it"),
        "cem": ("2026-11-28 10:00:00+01:00", "the instructor's table of times"),
        "dora": ("", "unknown"),
    }
    (tmp_path / "times.csv").write_text("student_id,time\ncem,soon\n")
    with pytest.raises(ValueError, match="line 2, time must be a time such as"):
        read_times(tmp_path / "times.csv")


def repository(folder, when="2026-11-10T10:00:00+0100"):
    folder.mkdir(parents=True)
    (folder / "week2.ipynb").write_text(BOOK)
    dated = os.environ | {"GIT_COMMITTER_DATE": when, "GIT_AUTHOR_DATE": when}
    for command in ("init -q", "add .", "-c user.name=a -c user.email=a@b -c commit.gpgsign=false commit -qm x"):
        subprocess.run(["git", "-C", str(folder), *command.split()], env=dated, check=True, capture_output=True)


def test_a_repository_is_asked_for_times_and_nothing_in_it_is_obeyed(tmp_path):
    for student in ("ada", "eve", "mal"):
        repository(tmp_path / "in" / f"course-week2-{student}")
    (tmp_path / "in" / "course-week2-eve" / "week2.ipynb").write_text(BOOK + " ")  # changed after the commit
    evil = tmp_path / "in" / "course-week2-mal" / ".git" / "config"
    fired = tmp_path / "fired"
    evil.write_text(
        f'{evil.read_text()}[log]\nshowSignature = true\n[gpg]\nprogram = "touch {fired}"\n'
        f'[core]\nfsmonitor = "touch {fired}"\nhooksPath = "{tmp_path}"\n[alias]\nrev-list = "!touch {fired}"\n'
    )
    found = {one.student: one for one in handed_in(tmp_path / "in", "week2")}
    assert set(found) == {"ada", "eve", "mal"}, "the names of repositories of one assignment begin alike"
    assert found["ada"].time == found["mal"].time == "2026-11-10 10:00:00+01:00" and not fired.exists()
    assert (found["eve"].time, found["eve"].time_from) == ("", "unknown")


def test_a_class_is_cloned_by_a_list_and_brought_up_to_date(tmp_path, capsys):
    repository(tmp_path / "far" / "ada")
    (tmp_path / "list.csv").write_text(
        f"student_id,repository\nada,file://{tmp_path}/far/ada\nben,file://{tmp_path}/x\n"
    )
    command = ["course", "clone", str(tmp_path / "list.csv"), "--to", str(tmp_path / "in")]
    assert main(command) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "ada: cloned" and told[1].startswith("ben: ") and "does not" in told[1]
    repository(tmp_path / "far" / "later", "2026-11-12T10:00:00+0100")
    assert main(command) == 1 and (tmp_path / "in" / "ada" / "week2.ipynb").is_file()
    for bad, said in (("--upload-pack=x", "address to clone"), ("ext::sh -c x", "address to clone")):
        (tmp_path / "list.csv").write_text(f"student_id,repository\nada,{bad}\n")
        with pytest.raises(ValueError, match=said):
            [*clone_all(tmp_path / "list.csv", tmp_path / "in")]
    for names, said in (
        ("../ada", "line 2, student_id must consist of"),
        ("o'neil", "must"),
        ("ada ada", "occurs twice"),
    ):
        rows = "".join(f"{name},file:///x\n" for name in names.split())
        (tmp_path / "list.csv").write_text(f"student_id,repository\n{rows}")
        with pytest.raises(ValueError, match=said):
            [*clone_all(tmp_path / "list.csv", tmp_path / "in")]


GERMAN = (
    "\ufeffKennung;Bewertung;Höchste Bewertung;Feedback\r\nTeilnehmer/in 77;;16,00;\r\nTeilnehmer/in 78;1,50;16,00;\r\n"
)
CANVAS = (
    "Student;ID;SIS User ID;Section;week2 (4711)\n    Points Possible;;;;16,00\nHopper, Grace;77;g;A;\nX, Y;78;x;A;EX\n"
)


def test_tables_of_other_languages_and_of_blind_marking_are_filled_in(tmp_path):
    (tmp_path / "moodle.csv").write_text(GERMAN, encoding="utf-8", newline="")
    with pytest.raises(ValueError, match="--columns Identifier=Nummer Grade=Bewertung"):
        filled(tmp_path / "moodle.csv", [mark("Grace_77")])
    named = {"Identifier": "Kennung", "Grade": "Bewertung"}
    text, unknown, _ = filled(tmp_path / "moodle.csv", [mark("Grace_77", "12.5"), mark("nobody")], named)
    assert unknown == ["nobody"] and text == GERMAN.replace("77;;", "77;12,5;")
    (tmp_path / "canvas.csv").write_text(CANVAS)
    text, _, grades = filled(tmp_path / "canvas.csv", [mark("hoppergrace_77", "12.5"), mark("xy_78", "3")])
    assert grades == 1  # whoever is excused stays excused
    assert "Hopper, Grace;77;g;A;12,5\n" in text and text.endswith("X, Y;78;x;A;EX\n")


def test_names_of_platforms_meet_the_roster_and_are_asked_for_once(tmp_path, capsys):
    rows = "assignment,student_id,score,max_score\n"
    (tmp_path / "marks" / "w").mkdir(parents=True)
    (tmp_path / "marks" / "w" / "marks.csv").write_text(
        f"{rows}w,Grace Hopper_77,1,2\nw,godelkurt_12,2,2\nw,ada,0,2\nw,mystery_9,1,2\n"
    )
    roster = tmp_path / "roster.csv"
    roster.write_text("id;first_name;last_name;email\nada;Ada;L;a@b\ngh1;Grace;Hopper;g@b\nkg2;Kurt;Gödel;k@b\n")
    export = ["course", "export", str(tmp_path / "marks"), "--roster", str(roster)]
    assert main(export) == 2
    assert "names.csv: mystery_9: expected exactly one person with this name on the roster" in capsys.readouterr().err
    names = tmp_path / "marks" / "names.csv"
    assert names.read_text() == "student_id,roster_id\nGrace Hopper_77,gh1\ngodelkurt_12,kg2\nmystery_9,\n"
    names.write_text(names.read_text().replace("mystery_9,", "mystery_9,-"))
    for target in ([], ["--to", str(tmp_path / "marks" / "all.csv")], []):  # exported tables are not mistaken for marks
        assert main([*export, *target]) == 0
    found = {row["student_id"]: row["score"] for row in collect(tmp_path / "marks", roster)}
    assert found == {"ada": "0", "gh1": "1", "kg2": "2", "mystery_9": "1"}
    table, filled_in = tmp_path / "canvas.csv", tmp_path / "filled.csv"  # only for this set, and with the roster's ids
    table.write_text("Student,ID,SIS User ID,SIS Login ID,Section,w (1)\nG,500,gh1,g,A,\nA,501,ada,a,A,\n")
    assert main(["course", "export", str(tmp_path / "marks" / "w"), "--into", str(table), "--to", str(filled_in)]) == 0
    assert "G,500,gh1,g,A,1\n" in filled_in.read_text() and "A,501,ada,a,A,0\n" in filled_in.read_text()


def test_pages_go_back_under_the_names_that_the_platform_gave(tmp_path):
    places = {"Grace_77": "Grace_77_assignsubmission_file", "ada_12": "ada_12_99_week2.ipynb", "ben": "ben.ipynb"}
    places |= {"Mary J. Smith_78": "Mary J. Smith_78_assignsubmission_file", "j.doe": "j.doe", "j.poe": "j.poe"}
    item = Item("2.5", "", "right", 2.0, 2)
    records = [Record(name, "read", "", "", (), "", "", place, "", (item,)) for name, place in places.items()]
    publish(Results("week2", "", tuple(records)), tmp_path / "marks")
    assert main(["course", "export", str(tmp_path / "marks"), "--pages", str(tmp_path / "pages.zip")]) == 0
    with zipfile.ZipFile(tmp_path / "pages.zip") as packed:
        assert packed.namelist() == [
            "Grace_77_assignsubmission_file/week2.html", "ada_12_99_week2.html", "ben/week2.html",
            "Mary J. Smith_78_assignsubmission_file/week2.html", "j.doe/week2.html", "j.poe/week2.html",
        ]  # fmt: skip


def test_a_second_release_with_the_same_seed_leaves_the_first_rule_alone(tmp_path):
    asked = ["--exercises", "2.5", "--seed-file", str(tmp_path / "seed"), "--late", "10% a day"]
    (tmp_path / "seed").write_text("a secret that only these tests know")
    for folder, due in (("one", "2026-11-30T23:59"), ("two", "2027-11-30T23:59")):
        assert main(["course", "release", "week2", *asked, "--due", due, "--out", str(tmp_path / folder)]) == 0
    assert 'due = "2026-11-30T23:59"' in (tmp_path / "one" / "week2.toml").read_text()
    assert 'due = "2027-11-30T23:59"' in (tmp_path / "two" / "week2.toml").read_text()


MINE = """
["3.mine"]
title = "Two heads"
minutes = 5
prompt = "Why two?"
model = "Because."
looks_for = ["a reason"]
levels = [{points = 2, text = "A reason."}, {points = 0, text = "None."}]
"""


def test_an_instructors_own_written_items_go_into_a_set(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(rubrics, "_OWN", {})
    (tmp_path / "mine.toml").write_text(MINE)
    own = ["--own-items", str(tmp_path / "mine.toml"), "--written", "3.mine"]
    assert main(["course", "release", "week3", *own, "--out", str(tmp_path / "course")]) == 0
    assert "Your answer to 3.mine" in (tmp_path / "course" / "release" / "week3" / "week3.ipynb").read_text()
    (tmp_path / "in").mkdir()
    cell = {"cell_type": "markdown", "source": "**Your answer to 3.mine**\n\nBecause.", "metadata": {}}
    (tmp_path / "in" / "ada.ipynb").write_text(json.dumps({"cells": [cell]}))
    flags = ["--pset", str(tmp_path / "course/release/week3"), "--seed-file", str(tmp_path / "course" / "secret.seed")]
    assert main(["grade", str(tmp_path / "in"), *flags, "--out", str(tmp_path / "m")]) == 0
    [row] = csv.DictReader(io.StringIO((tmp_path / "m" / "marks.csv").read_text()))
    assert (row["3.mine"], row["max_score"]) == ("to mark", "2")
    sheet = tmp_path / "sheet.csv"
    assert main(["course", "collect", str(tmp_path / "in"), *flags[:2], "--to", str(sheet)]) == 0
    sheet.write_text(sheet.read_text().replace("Because.,,", "Because.,2,"))
    rubrics._OWN.clear()  # as in a new process
    assert main(["course", "mark", str(sheet), "--into", str(tmp_path / "m")]) == 0
    assert "2 of 2 points: A reason." in (tmp_path / "m" / "feedback" / "ada.html").read_text()
    (tmp_path / "mine.toml").write_text(MINE.replace("points = 0", "points = 1"))
    assert main(["course", "release", "other", *own, "--out", str(tmp_path / "course")]) == 2
    assert "3.mine: the points of its levels must decrease to 0, got [2, 1]" in capsys.readouterr().err
    (tmp_path / "mine.toml").write_text(MINE.replace("points = 2, text", "points = 2, txt"))
    assert main(["course", "release", "other", *own, "--out", str(tmp_path / "course")]) == 2
    assert "(a level of 3.mine has no text)" in capsys.readouterr().err


def test_gradescope_shows_a_late_student_no_points_before_marks_are_published():
    exercise = exercises()["2.5"]
    earned = tuple(Earned(part, True, True) for part in parts(exercise))
    graded = Graded(Handed("ada", ()), "read", None, (Mark(exercise, "right", earned=earned),))
    rule = Lateness("2026-11-30T12:00+00:00", "10% a day")
    late = rule.of("ada", "week2", "2026-12-01T13:00+00:00")
    made = results(graded, late)
    assert made["score"] == 1.6 and "20% of its points are deducted" in made["output"]
    assert "0.4" not in made["output"] and "1.6" not in made["output"]
    assert rule.of("ada", "week2", "2026-12-01T13:00+00:00", due="2026-12-20T12:00+00:00").share == 0.0


def test_a_deadline_that_has_moved_away_is_not_forgotten(tmp_path, capsys):
    item = Item("2.5", "", "right", 2.0, 2)
    late = Record("ada", "read", "", "", (), "2026-12-02 12:00:00+00:00", "git", "ada", "", (item,))
    (tmp_path / "course").mkdir()
    (tmp_path / "course" / "week2.toml").write_text('due = "2026-11-30T23:59"\nlate = "10% a day"\n')
    [one], _ = publish(Results("week2", str(tmp_path / "course"), (late,)), tmp_path / "marks")
    assert one.score == 1.6
    (tmp_path / "course").rename(tmp_path / "elsewhere")
    assert main(["course", "mark", "--into", str(tmp_path / "marks")]) == 2
    assert "the deadline and the extensions are in" in capsys.readouterr().err
    stored = tmp_path / "marks" / "results.json"
    stored.write_text(stored.read_text().replace(str(tmp_path / "course"), str(tmp_path / "elsewhere")))
    assert main(["course", "mark", "--into", str(tmp_path / "marks")]) == 0
    assert ",0.4,1.6," in (tmp_path / "marks" / "marks.csv").read_text()


def test_extensions_and_late_days_go_by_the_roster_whatever_the_platform_calls_a_student(tmp_path):
    item, marks = Item("2.5", "", "right", 2.0, 2), tmp_path / "marks"
    (tmp_path / "course").mkdir()
    for name in ("week2", "week3"):
        (tmp_path / "course" / f"{name}.toml").write_text('due = "2026-11-30T23:59"\nlate = "10% a day"\n')
    terms = "student_id,assignment,due,late_days\nada,week2,2026-12-05T23:59,\nben,,,2\n"
    (tmp_path / "course" / "extensions.csv").write_text(terms)

    def made(name, *places):
        late = "2026-12-02 12:00:00+00:00"
        people = [(platform_name(place).student if "_" in place else place, place) for place in places]
        records = [Record(who, "read", "", "", (), late, "git", place, "", (item,)) for who, place in people]
        settled, faults = publish(Results(name, str(tmp_path / "course"), tuple(records)), marks / name)
        return {one.record.student: one.score for one in settled}, faults

    moodle = "Ada L_7_assignsubmission_file", "Ben B_8_assignsubmission_file"
    found, [fault] = made("week2", *moodle)
    assert found == {"Ada L_7": 1.6, "Ben B_8": 1.6} and "no effect on ada, ben" in fault
    (marks / "names.csv").write_text("student_id,roster_id\nAda L_7,ada\nBen B_8,ben\n")
    assert made("week2", *moodle) == ({"Ada L_7": 2, "Ben B_8": 2}, [])
    assert made("week3", "ada", "ben") == ({"ada": 1.6, "ben": 1.6}, [])  # his two late days are used up


def test_a_page_goes_back_to_the_upload_that_was_graded(tmp_path):
    for number in (4999, 5004):
        (tmp_path / f"pateldev_904_{number}_week3.ipynb").write_text(BOOK)
    [dev] = handed_in(tmp_path, "week3")
    assert dev.place == dev.files[0].name == "pateldev_904_5004_week3.ipynb"


def test_an_error_of_the_grader_costs_nobody_else_a_mark(tmp_path, monkeypatch):
    """Python 3.11 raised SystemError where two threads parsed code at the same time, and the class had no marks."""

    def fails_for_ben(worker, one, *_):
        if one.student == "ben":
            raise SystemError("AST constructor recursion depth mismatch")
        return Graded(one, "read", None, (Mark(CHOSEN, "right", earned=(Earned(parts(CHOSEN)[0], True, True),)),))

    monkeypatch.setattr(grading, "grade_one", fails_for_ben)
    for name in ("ada", "ben"):
        (tmp_path / f"{name}.ipynb").write_text(BOOK)
    settled, _ = publish(
        Results("w", "", tuple(map(record_of, grading.grade(handed_in(tmp_path), [CHOSEN], b"a secret of sixteen")))),
        tmp_path / "marks",
    )
    assert [one.score for one in settled] == [2, None]
    page = (tmp_path / "marks" / "feedback" / "ben.html").read_text()
    assert "nothing could be graded" in page and "The grader failed (SystemError:" in page
    own = grading.grade(handed_in(tmp_path), [CHOSEN], b"a secret of sixteen", own=lambda _: [exercises()["2.3"]])
    assert [mark.exercise.id for mark in own[1].marks] == ["2.5", "2.3"], "ben's maximum includes his own numbers"


def test_pages_and_lists_say_what_is_so(tmp_path):
    item = Item("27.data", "The data", "to mark", 0.0, 1, written=True, text_id="x")
    moodle = Record("Ada L_7", "read", "", "", (), "", CALLED_LATE, "Ada L_7_assignsubmission_file", "", (item,))
    marks = tmp_path / "marks"
    publish(Results("w", "", (moodle,)), marks)
    (marks / "overrides.csv").write_text(
        "student_id,item,points,reason,author\nAda L_7,27.data,1,fine,Emmy\nAda L_7,extra,-1,a week late,Emmy\n"
    )
    blind = replace(moodle, student="Participant_201", place="Participant_201_assignsubmission_file_")
    publish(Results("w", "", (blind,)), tmp_path / "blind")
    assert "Participant 201: 0 of" in (tmp_path / "blind" / "feedback" / "Participant_201.html").read_text()
    (tmp_path / "names.csv").write_text("student_id,roster_id\nadal_9,ada\nAda L_7,ada\nada_8,ada\n")
    text = (marks / "overrides.csv").read_text()
    (marks / "overrides.csv").write_text(text.replace("Ada L_7,27", "ada,27"))  # by the roster's id
    settled, _ = publish(Results("w", "", (moodle,)), marks)
    page = (marks / "feedback" / "Ada L_7.html").read_text()
    assert "Ada L: 0 of 1 point." in page and "Emmy took off 1 point: a week late" in page and "_7" not in page
    assert "hidden cases" not in page.lower()  # a person marks all of it
    told = summary(settled)
    assert "a person marks the written answers" in told and "Ada L_7: Canvas marks it as late, but does not say" in told
    (marks / "overrides.csv").write_text("student_id,item,points,reason,author\nAda L_7,extra,-2,no,Emmy\n")
    with pytest.raises(ValueError, match="points must be a number from -1 to 1"):
        publish(Results("w", "", (moodle,)), marks)


def test_answers_that_differ_are_never_100_percent_alike():
    assert as_text([Alike("a.py", ("ada", "ben"), 0.998)]) == "a.py   99%  ada, ben"
    assert as_text([Alike("a.py", ("ada", "ben"), 1.0)]) == "a.py  100%  ada, ben"
