"""Changes by hand, late work and repeated grading: every number and sentence on the pages has to fit."""

import csv
import json
import re

import pytest

from companion.commands.main import main
from companion_school.course.grading.feedback import page
from companion_school.course.grading.lateness import Lateness, as_toml, read_rule
from companion_school.course.grading.marks_csv import first_results, merged, publish
from companion_school.course.grading.results import Group, Item, Record, Results
from companion_school.course.grading.submissions import handed_in
from companion_school.course.written.sheet import text_id
from companion_school.exercises.catalogue import exercises

DUE = {"due": "2026-11-30T23:59+01:00", "late": "10% a day, at most 50%"}
LATE = "2026-12-02 12:00:00+01:00"
TEXT = Item("14.curves", "Two curves", "to mark", 0.0, 4.0, written=True, text_id=text_id("words"))
NAME = exercises()["2.5"].name
HEAD = "student_id,item,points,reason,author,mistake\n"


def record(student, *items, time="", place="", submission="read"):
    return Record(student, submission, "", "week2.ipynb", (), time, "git", place or student, "", items)


def exercise(points=2.0, outcome="right", **about):
    return Item("2.5", "An exercise", outcome, points, 2.0, **about)


@pytest.fixture
def course(tmp_path):
    (tmp_path / "course").mkdir()
    (tmp_path / "course" / "week2.toml").write_text(as_toml(DUE))
    (tmp_path / "marks" / "week2").mkdir(parents=True)
    return tmp_path


def settled(course, *records, overrides="", written="", extensions=""):
    out = course / "marks" / "week2"
    for file, head, rows in (
        (out / "overrides.csv", HEAD, overrides),
        (out / "written.csv", "student_id,item,text_id,points,comment\n", written),
        (course / "course" / "extensions.csv", "student_id,assignment,due,grace,late_days,reason\n", extensions),
    ):
        file.write_text(head + rows)
    return publish(Results("week2", str(course / "course"), records), out)


def test_a_total_set_by_hand_loses_nothing_for_lateness_and_uses_no_late_days(course):
    ada, extensions = record("ada", exercise(), time=LATE), ",,,,1,everybody has one late day\n"
    [one], _ = settled(course, ada, extensions=extensions)
    assert (one.score, one.late.days) == (1.8, 1) and "10% of its points are deducted" in page(one, "week2")
    [one], _ = settled(course, ada, extensions=extensions, overrides="ada,total,1,on paper,Emmy,\n")
    assert (one.score, one.penalty, one.late.days) == (1.0, 0.0, 0)
    said = page(one, "week2")
    assert "1 day and 12 hours after the deadline of 2026-11-30 23:59 (UTC+01:00)." in said
    assert "deducted" not in said and "late day" not in said


def test_work_that_could_not_be_read_uses_no_late_days(course):
    groups = (Group("one head", 0.0, 1.0, False), Group("all else", 0.0, 1.0, False))
    unread = record("ada", exercise(0.0, "unreadable", groups=groups), time=LATE, submission="nothing to grade")
    [one], _ = settled(course, unread, extensions=",,,,1,everybody has one late day\n")
    assert one.score is None and one.late.days == 0 and "deducted. " not in page(one, "week2")
    [row] = csv.DictReader((course / "marks" / "week2" / "marks.csv").open())
    assert row["2.5 points"] == "" == row["2.5 groups"]


def test_late_days_that_would_not_lower_the_penalty_are_kept(course):
    (course / "course" / "extensions.csv").write_text("student_id,late_days\n,2\n")
    rule = read_rule(course / "course", "week2")
    days = {day: rule.of("ada", "week2", f"2026-12-{day:02}T12:00+01:00") for day in (1, 2, 5, 6, 30)}
    found = {day: (round(late.share, 4), late.days) for day, late in days.items()}
    assert found == {1: (0.0, 1), 2: (0.0, 2), 5: (0.3, 2), 6: (0.4, 2), 30: (0.5, 0)}


def test_a_backup_of_marks_does_not_count_late_days_twice(course):
    head = "assignment,student_id,late_days\n"
    for folder, row in (("week1", "week1,ada,1\n"), ("week1_old", "week1,ada,1\n"), ("week0", "week0,ada,1\n")):
        (course / "marks" / folder).mkdir()
        (course / "marks" / folder / "marks.csv").write_text(head + row)
    [one], _ = settled(course, record("ada", exercise(), time=LATE), extensions="ada,,,,4,\n")
    assert one.late.days == 2 and one.score == 2.0
    [one], _ = settled(course, record("ada", exercise(), time=LATE), extensions="ada,,,,3,\n")
    assert one.late.days == 1 and one.score == 1.8


def test_late_days_go_to_the_set_that_is_due_first_in_whatever_order_marks_are_written(course):
    (course / "course" / "week1.toml").write_text(as_toml(DUE | {"due": "2026-11-16T23:59+01:00"}))
    (course / "course" / "extensions.csv").write_text("student_id,late_days\n,1\n")
    times = {"week1": "2026-11-17 12:00:00+01:00", "week2": "2026-12-01 12:00:00+01:00"}
    sets = {
        name: Results(name, str(course / "course"), (record("ada", exercise(), time=times[name]),)) for name in times
    }
    for name in ("week2", "week1", "week2", "week1", "week2"):
        [one], _ = publish(sets[name], course / "marks" / name)
    assert (one.score, one.late.days) == (1.8, 0)
    [one], _ = publish(sets["week1"], course / "marks" / "week1")
    assert (one.score, one.late.days) == (2.0, 1)


def test_a_few_seconds_are_said_in_seconds():
    late = Lateness(**DUE).of("ada", "week2", "2026-11-30T22:59:30+00:00")
    assert (
        "submitted on 2026-11-30 23:59:30, 30 seconds after the deadline of 2026-11-30 23:59 (UTC+01:00)" in late.told
    )
    assert "1 minute and 20 seconds after" in Lateness(**DUE).of("ada", "w", "2026-12-01T00:00:20+01:00").told


def test_a_due_date_needs_a_time_of_day(tmp_path):
    with pytest.raises(ValueError, match="due must have a time of day, as in 2026-11-30T23:59"):
        Lateness("2026-11-30", "10% a day")
    (tmp_path / "week2.toml").write_text(as_toml(DUE))
    (tmp_path / "extensions.csv").write_text("student_id,due\nada,2026-12-07\n")
    with pytest.raises(ValueError, match=r"extensions.csv, line 2, due must have a time of day"):
        read_rule(tmp_path, "week2")


def test_students_are_told_that_a_day_counts_once_it_has_begun():
    assert Lateness(**DUE, grace="1 hour").told == (
        "Due 2026-11-30T23:59+01:00, with a grace period of 1 hour; late work loses 10% for each day begun, at most 50%"
    )
    assert Lateness(DUE["due"], "0.5% an hour").told.endswith("late work loses 0.5% for each hour begun")
    assert Lateness(DUE["due"], "0% a day").told.endswith("late work loses no points")


def test_points_taken_off_may_come_from_a_written_answer(course):
    ada, off = record("ada", exercise(0.0, "wrong"), TEXT), "ada,extra,-2,came late,Emmy,\n"
    [one], _ = settled(course, ada, overrides=off)
    assert one.score is None
    [one], _ = settled(course, ada, overrides=off, written=f"ada,14.curves,{TEXT.text_id},3,\n")
    assert one.score == 1.0
    with pytest.raises(ValueError, match="ada would have -1 of 6 points"):
        settled(course, ada, overrides=off, written=f"ada,14.curves,{TEXT.text_id},1,\n")


def test_an_export_says_that_marks_lack_what_has_changed_since(course, capsys):
    dana = record("Dana D_2", exercise(), time=LATE, place="Dana D_2_assignsubmission_file")
    settled(course, dana, extensions="dana,week2,2026-12-07T23:59+01:00,,,ill\n")
    (course / "roster.csv").write_text("id,first_name,last_name\ndana,Dana,D\n")
    command = ["course", "export", str(course / "marks"), "--roster", str(course / "roster.csv")]
    assert main(command) == 0  # this matches her name
    assert f"run companion course mark --into {course / 'marks' / 'week2'}, and export" in capsys.readouterr().err
    assert main(["course", "mark", "--into", str(course / "marks" / "week2")]) == 0
    assert main(command) == 0 and capsys.readouterr().err == ""
    [row] = csv.DictReader((course / "marks" / "grades.csv").open())
    assert (row["student_id"], row["score"]) == ("dana", "2")


def test_a_mistake_that_no_answer_makes_is_told(course, capsys):
    wrong, row = record("ada", exercise(0.0, "wrong", mistake="the mask is missing")), ",2.5,1,nearly,Emmy,"
    command = ["course", "mark", "--into", str(course / "marks" / "week2")]
    [one], _ = settled(course, wrong, overrides=f"{row}the mask is missing\n")
    assert one.score == 1.0 and main(command) == 0 and "no effect" not in capsys.readouterr().out
    [one], _ = settled(course, wrong, overrides=f"{row}the mask is mising\n")
    assert one.score == 0.0 and main(command) == 0
    assert "overrides.csv, line 2: no effect, because no wrong answer to 2.5" in capsys.readouterr().out


def test_a_page_does_not_call_a_person_the_grader(course):
    change = "ada,14.curves,2,said it in person,Emmy,\n"
    for written, before in (("", ""), (f"ada,14.curves,{TEXT.text_id},1,\n", "Before that:")):
        [one], _ = settled(course, record("ada", TEXT), overrides=change, written=written)
        said = re.sub(r"<[^>]+>", "", page(one, "week2"))
        assert one.score == 2.0 and "Emmy set this to 2 of 4 points: said it in person" in said
        assert "the grader found" not in said and "will mark it" not in said and before in said


def test_an_extension_without_effect_is_told_even_if_other_names_are_matched(course):
    (course / "marks" / "names.csv").write_text("student_id,roster_id\nBo B_1,bo\n")
    bo, dana = (record(f"{who}_{n}", exercise(), place=f"{who}_{n}_assignsubmission_file") for n, who in
                ((1, "Bo B"), (2, "Dana D")))  # fmt: skip
    longer = "dana,week2,2026-12-07T23:59+01:00,,,ill\nbo,week2,2026-12-07T23:59+01:00,,,ill\n"
    _, [fault] = settled(course, bo, dana, extensions=longer)
    assert "no effect on dana, because" in fault
    (course / "marks" / "names.csv").write_text("student_id,roster_id\nBo B_1,bo\nDana D_2,dana\n")
    assert settled(course, bo, dana, extensions=f"{longer}gus,week2,2026-12-07T23:59+01:00,,,ill\n")[1] == []


def test_a_name_in_extensions_that_nobody_has_is_told(course, capsys):
    due = "2026-12-07T23:59+01:00,,,ill\n"
    settled(
        course, record("ada", exercise()), extensions=f"adaa,week2,{due}ben,week2,{due}ada,wek2,{due}ada,week2,{due}"
    )
    (course / "course" / "roster.csv").write_text("id\nada\nben\n")
    assert main(["course", "mark", "--into", str(course / "marks" / "week2")]) == 0
    said = capsys.readouterr().out
    assert "extensions.csv: no effect for adaa, who is neither in these marks nor in roster.csv\n" in said
    assert "extensions.csv: no effect for wek2, because there is no wek2.toml\n" in said
    assert said.count("no effect") == 2


def test_marks_of_another_set_are_not_replaced(course):
    settled(course, record("ada", exercise()))
    out = course / "marks" / "week2"
    for again in (False, True):
        with pytest.raises(ValueError, match="it contains the marks of week2; expected a new folder for week3"):
            first_results(out, ["ada"], "week3", again=again)
    first = first_results(out, ["ada"], "", again=True)
    found, _ = merged(first, Results("second", "", (record("ada", exercise(0.0, "wrong")),)))
    assert (found.assignment, found.course) == ("week2", str(course / "course"))


def test_a_time_that_is_lost_in_a_regrade_is_told():
    first = Results("week2", "", (record("ada", exercise(), time=LATE),))
    _, [change] = merged(first, Results("week2", "", (record("ada", exercise()),)))
    assert f"the submission time was {LATE}, and is unknown now" in change
    assert merged(first, first)[1] == []


def test_a_set_with_a_due_date_keeps_its_name_in_the_marks(course, capsys):
    (course / "in").mkdir()
    (course / "in" / "ada.ipynb").write_text('{"cells": []}')
    book = {"cells": [{"cell_type": "code", "source": "def turn(x):\n    return x", "metadata": {}}]}
    (course / "course" / "release" / "week2").mkdir(parents=True)
    (course / "course" / "release" / "week2" / "week2.ipynb").write_text(json.dumps(book).replace("turn", NAME))
    (course / "seed").write_text("a secret that only these tests know")
    flags = ["--pset", str(course / "course/release/week2"), "--seed-file", str(course / "seed"), "--assignment", "one"]
    assert main(["grade", str(course / "in"), *flags, "--out", str(course / "new")]) == 2
    assert "--assignment one: the due date and the extensions belong to week2" in capsys.readouterr().err


def test_different_maxima_in_one_set_are_told(course):
    others = [record(who, exercise()) for who in ("ada", "ben")]
    assert settled(course, *others)[1] == []
    _, [fault] = settled(course, *others, record("cem", Item("2.5", "An exercise", "right", 2.5, 2.5)))
    assert "max_score is 2 for most students, but not for all (cem 2.5)" in fault


def test_a_name_in_capitals_is_a_notebook_all_the_same(tmp_path):
    (tmp_path / "ADA.IPYNB").write_text('{"cells": []}')
    (tmp_path / "ben").mkdir()
    (tmp_path / "ben" / "WEEK2.IPYNB").write_text('{"cells": []}')
    assert [(one.student, one.fault) for one in handed_in(tmp_path, "week2")] == [("ADA", None), ("ben", None)]


def test_a_project_has_its_own_rule_for_several_folders(course):
    part = Item("build.2 attend", "attend", "missing", 0.0, 2.0, section="Stage 2, attention.py")
    [one], _ = settled(course, Record("ada", "read", "", "transformer/", ("old/",), "", "", "ada", "", (part,)))
    said = page(one, "build")
    assert "not graded: old/. If there are several folders with files of the project" in said
    assert "notebooks" not in said


def test_two_rows_that_set_the_same_term_are_refused_and_terms_may_be_in_several_rows(course):
    rows = "ada,week2,2026-12-01T12:00,,,ill\nada,week2,,,2,\n"
    [one], _ = settled(course, record("ada", exercise(), time=LATE), extensions=rows)
    assert one.late.days == 1
    with pytest.raises(ValueError, match="line 4, due: line 2 already sets it for this student and problem set"):
        settled(course, record("ada", exercise(), time=LATE), extensions=f"{rows}ada,week2,2026-12-05T12:00,,,again\n")


def test_a_bonus_beside_a_total_is_not_said_to_count(course):
    [one], _ = settled(
        course, record("ada", exercise()), overrides="ada,total,1,on paper,Emmy,\nada,extra,1,nice,Emmy,\n"
    )
    assert one.score == 1.0
    assert "Emmy added 1 point: nice (replaced by the total that was set by hand)" in page(one, "week2")
