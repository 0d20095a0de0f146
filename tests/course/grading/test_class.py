"""A class of ten: released with a rule for late work, graded, graded again, and in the tables of Canvas and Moodle."""

import csv
import io
import os

import pytest

from companion.commands.main import main
from companion.course.grading.lateness import Lateness, as_toml, read_rule
from companion.course.grading.lms import filled
from companion.exercises.catalogue import exercises

NAMES = ("ada", "ben", "cem", "dora", "emmy", "fritz", "grete", "hedy", "ida", "jo")
TRIANGLE = "    may_look = torch.ones(queries, keys, dtype=torch.bool).tril()\n"
FILL = "    return torch.zeros(queries, keys).masked_fill(~may_look, -math.inf)\n"
WRONG = f"def causal_mask(queries, keys):\n{TRIANGLE}{FILL}"
RIGHT = "\n".join(exercises()[id].solution for id in ("2.5", "6.3"))
PARTLY = RIGHT.replace("(g * hat).sum(", "(g * hat).mean(")  # one token alone comes out right: 1 of the 4 points
CANVAS = (
    "Student,ID,SIS User ID,SIS Login ID,Section,week2 (4711),week3 (4712)\n"
    "    Points Possible,,,,,6,5\n"
    + "".join(f'"{name.title()}, Student",{100 + at},,{name},A,,1.5\n' for at, name in enumerate(NAMES))
    + '"Student, Test",999,,,A,,\n'
)
MOODLE = "Identifier,Full name,Email address,Status,Grade,Maximum grade,Feedback comments\n" + "".join(
    f"Participant {500 + at},{name.title()} S,{name}@school,Submitted,,6.00,\n" for at, name in enumerate(NAMES)
)


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def mark(student, score="2.0", most="6.0", assignment="week2"):
    return {"assignment": assignment, "student_id": student, "score": score, "max_score": most}


@pytest.mark.slow
def test_a_class_goes_from_its_release_to_the_gradebooks(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rule = ["--due", "2026-11-30T12:00", "--late", "10% a day, at most 50%"]
    assert main(["course", "release", "week2", "--exercises", "2.5", "6.3", "--out", "course", *rule]) == 0
    work, out = tmp_path / "in", tmp_path / "marks"
    work.mkdir()
    for at, name in enumerate(NAMES):
        answers = {"ben": WRONG, "cem": PARTLY}.get(name, RIGHT)
        (work / f"{name}.py").write_text(answers)
        handed = 1796040000 + (86400 * 1.5 if name == "jo" else -at)  # 2026-11-30 12:00 UTC
        os.utime(work / f"{name}.py", (handed, handed))
    command = ["grade", str(work), "--pset", "week2", "--seed-file", "course/secret.seed", "--out", str(out)]
    assert main(command) == 0
    first = {row["student_id"]: row for row in rows_of((out / "marks.csv").read_text())}
    assert [first[name]["score"] for name in ("ada", "ben", "cem", "jo")] == ["6.0", "0.0", "3.0", "4.8"]
    assert first["jo"]["raw_score"] == "6.0" and first["jo"]["late_submission_penalty"] == "1.2"
    groups = "one token: 1 of 1; a batch of tokens: 0 of 2; any epsilon, the edges, and what is refused: 0 of 1"
    assert (first["cem"]["6.3"], first["cem"]["6.3 points"], first["cem"]["6.3 groups"]) == ("wrong", "1", groups)
    page = (out / "feedback" / "cem.html").read_text()
    assert "<td>a batch of tokens</td>" in page and "dgain is averaged over the tokens" in page
    mistakes = [row for row in rows_of((out / "class.csv").read_text()) if row["exercise"] == "2.5"]
    assert [row["students"] for row in mistakes] == ["9", "1"] and "top left corner" in mistakes[1]["mistake"]

    again = tmp_path / "again"
    again.mkdir()
    (again / "ben.py").write_text(RIGHT)
    os.utime(again / "ben.py", (1796030000, 1796030000))
    command[1] = str(again)
    capsys.readouterr()
    assert main(command) == 2 and "who are not graded now; --regrade keeps them" in capsys.readouterr().err
    assert len(rows_of((out / "marks.csv").read_text())) == 10
    assert main([*command, "--regrade"]) == 0
    told = capsys.readouterr().out
    assert "ben: 0.0 -> 6.0 (2.5 wrong -> right, 6.3 missing -> right)" in told and "1 of 1 marks changed" in told
    second = {row["student_id"]: row for row in rows_of((out / "marks.csv").read_text())}
    assert second.pop("ben")["score"] == "6.0" and second == {id: row for id, row in first.items() if id != "ben"}

    for name, table, column in (("canvas", CANVAS, "week2 (4711)"), ("moodle", MOODLE, "Grade")):
        (tmp_path / f"{name}.csv").write_text(table)
        if name == "moodle":  # as it calls the folders that it hands out
            text = (out / "marks.csv").read_text()
            for at, student in enumerate(NAMES):
                text = text.replace(f",{student},", f",{student.title()} S_{500 + at}_assignsubmission_file,")
            (out / "marks.csv").write_text(text)
        to = str(tmp_path / f"{name}_filled.csv")
        assert main(["course", "export", str(out), "--into", f"{name}.csv", "--to", to]) == 0
        before, after = rows_of(table), rows_of((tmp_path / f"{name}_filled.csv").read_text())
        scores = [row.pop(column) for row in after]
        assert [score for score in scores if score][-10:] == ["6.0"] * 2 + ["3.0"] + ["6.0"] * 6 + ["4.8"]
        assert after == [{key: row[key] for key in row if key != column} for row in before], "nothing else changes"


def test_late_work_loses_its_share_of_what_it_earned(tmp_path):
    rule = Lateness("2026-11-30T23:59+01:00", "10% a day, at most 25%")
    assert rule.penalty(4.0, "2026-11-30 22:59:00") == 0.0
    assert rule.penalty(4.0, "2026-11-30 22:59:01 UTC") == pytest.approx(0.4)
    assert rule.penalty(4.0, "2026-12-25 00:00:00") == 1.0
    assert Lateness("2026-11-30", "1% an hour").penalty(100, "2026-11-30 01:30:00") == 2.0
    file = tmp_path / "week2.toml"
    file.write_text(as_toml(rule))
    assert read_rule(file) == rule and read_rule(tmp_path / "none.toml") is None


@pytest.mark.parametrize(
    ("due", "late"), [("soon", "10% a day"), ("2026-11-30", "much"), ("2026-11-30", "120% a day"), ("2026-11-30", "")]
)
def test_a_rule_that_is_none_is_refused_and_nothing_is_written(due, late, tmp_path, capsys):
    out = str(tmp_path / "course")
    assert main(["course", "release", "w", "--exercises", "2.5", "--out", out, "--due", due, "--late", late]) == 2
    assert "expected" in capsys.readouterr().err and not (tmp_path / "course").exists()


def test_a_file_that_is_no_rule_is_told(tmp_path):
    file = tmp_path / "week2.toml"
    file.write_text("due = 3\n")
    with pytest.raises(ValueError, match="week2.toml: expected due and late"):
        read_rule(file)


def test_a_regrade_needs_the_first_marks(tmp_path, capsys):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "ada.py").write_text("x = 1\n")
    (tmp_path / "seed").write_text("a secret that only these tests know")
    flags = ["--exercises", "2.5", "--seed-file", str(tmp_path / "seed"), "--out", str(tmp_path / "out"), "--regrade"]
    assert main(["grade", str(tmp_path / "in"), *flags]) == 2
    assert "--regrade: expected the first marks in" in capsys.readouterr().err
    assert not (tmp_path / "out" / "marks.csv").exists()


@pytest.mark.parametrize(
    ("table", "marks", "said"),
    [
        (CANVAS.replace("SIS Login ID", "Login"), [mark("ada")], "expected Canvas' columns"),
        (CANVAS.replace(",ben,", ",ada,"), [mark("ada")], "two students have the id 'ada'"),
        (CANVAS, [mark("ada", assignment="week9")], "expected one column for week9"),
        (CANVAS, [mark("ada", most="3.0")], "week2 is worth 6 points there, and 3.0 here"),
        (MOODLE, [mark("ada@school"), mark("ada@school", assignment="week3")], "expected marks of one problem set"),
        (MOODLE.replace("Participant 501", "Participant 500"), [mark("ada@school")], "two students have the id '500'"),
    ],
)
def test_a_table_that_does_not_fit_is_told_in_a_sentence(table, marks, said, tmp_path):
    (tmp_path / "table.csv").write_text(table)
    with pytest.raises(ValueError, match=said):
        filled(tmp_path / "table.csv", marks)


def test_students_are_known_by_what_the_platforms_call_their_files(tmp_path):
    (tmp_path / "canvas.csv").write_text(CANVAS)
    text, unknown = filled(
        tmp_path / "canvas.csv", [mark("doraS_LATE_103_5678_week2"), mark("nobody"), mark("emmy", score="")]
    )
    assert unknown == ["nobody"]
    scores = {row["SIS Login ID"]: row["week2 (4711)"] for row in rows_of(text)}
    assert scores["dora"] == "2.0" and scores["emmy"] == "" and scores["ada"] == ""
