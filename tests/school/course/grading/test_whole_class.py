"""A class of seven: released with a rule for late work, graded twice, and exported to Canvas and Moodle."""

import csv
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile

import pytest
import yaml

from companion.commands.main import main
from companion_school.course.grading.lateness import Lateness, as_toml, read_rule
from companion_school.course.grading.lms import filled
from companion_school.course.grading.marks_csv import merged
from companion_school.course.grading.results import Item, Record, Results
from companion_school.course.proof.leaks import leaks
from companion_school.exercises.catalogue import exercises

NAMES = ("ada", "ben", "cem", "dora", "emmy", "fritz", "jo")
TRIANGLE = "    may_look = torch.ones(queries, keys, dtype=torch.bool).tril()\n"
FILL = "    return torch.zeros(queries, keys).masked_fill(~may_look, -math.inf)\n"
WRONG = f"def causal_mask(queries, keys):\n{TRIANGLE}{FILL}"
RIGHT = "\n".join(exercises()[id].solution for id in ("2.5", "6.3"))
PARTLY = RIGHT.replace("(g * hat).sum(", "(g * hat).mean(")  # right only for a single token: 1 of the 4 points
TEXTS = {"dora": "The loss falls from 3.34.\n\nThen, at 60, it turns.", "emmy": "=1+1"}
BUNDLES = ["--gradescope", "week2.zip", "--repository", "template"]
CANVAS = (
    "Student,ID,SIS User ID,SIS Login ID,Section,week2 (4711),week3 (4712)\n"
    "    Points Possible,,,,,10,5\n"
    + "".join(f'"{name.title()}, Student",{100 + at},,{name},A,,1.5\n' for at, name in enumerate(NAMES))
    + '"Student, Test",999,,,A,,\n'
)
MOODLE = "Identifier,Full name,Email address,Status,Grade,Maximum grade,Feedback comments\n" + "".join(
    f"Participant {500 + at},{name.title()} S,{name}@school,Submitted,,10.00,\n" for at, name in enumerate(NAMES)
)


def gradescope(bundle, folder, answers):
    """Lay out the contents of the zip file and a submission as Gradescope does."""
    with zipfile.ZipFile(bundle) as packed:
        packed.extractall(folder / "source")
    for name in ("submission", "results"):
        (folder / name).mkdir()
    (folder / "submission" / "week2.py").write_text(answers)
    about = {"created_at": "2026-11-30T03:00:00.1-08:00", "users": [{"id": 1, "email": "cem@school"}]}
    (folder / "submission_metadata.json").write_text(json.dumps(about))
    environment = os.environ | {"AUTOGRADER": str(folder), "AUTOGRADER_PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    for path in (folder / "source").rglob("*"):
        path.chmod(0o700)  # setup.sh does this
    subprocess.run(["bash", str(folder / "source" / "run_autograder")], env=environment, check=True)
    return json.loads((folder / "results" / "results.json").read_text())


def pushed(template, answers):
    """Run the workflow command of the template repository on these answers, and return its output."""
    book = json.loads((template / "week2.ipynb").read_text())
    book["cells"].append({"cell_type": "code", "source": answers, "metadata": {}})
    (template / "week2.ipynb").write_text(json.dumps(book))
    told = yaml.safe_load((template / ".github" / "workflows" / "checks.yml").read_text())
    command = told["jobs"]["checks"]["steps"][-1]["run"].split()
    return subprocess.run([sys.executable, *command[1:]], cwd=template, capture_output=True, text=True)


def written(released, answers, name, folder):
    """Write a released notebook with these answers, and a text under the line that asks for one."""
    book = json.loads(released.read_text())
    for cell in book["cells"]:
        cell["source"] = "".join(cell["source"]).replace("YOUR ANSWER HERE", TEXTS[name].partition("\n\n")[0])
        if "Your answer to 14.curves" in cell["source"]:
            last = cell
    more = {"cell_type": "markdown", "source": TEXTS[name].partition("\n\n")[2], "metadata": {}}
    book["cells"].insert(book["cells"].index(last) + 1, more)
    book["cells"].append({"cell_type": "code", "source": answers, "metadata": {}})
    file = folder / f"{name}.ipynb"
    file.write_text(json.dumps(book))
    return file


def fill(sheet, marks):
    """Fill in a sheet as a marker does."""
    rows = rows_of(sheet.read_text())
    for row in rows:
        row["points"], row["comment"] = marks[row["student_id"]]
    with sheet.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def feedback(out, student):
    return (out / "feedback" / f"{student}.html").read_text()


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def mark(student, score="2.0", most="10.0", assignment="week2"):
    return {"assignment": assignment, "student_id": student, "score": score, "max_score": most}


@pytest.mark.slow
def test_a_class_goes_from_its_release_to_the_gradebooks(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = ["--exercises", "2.5", "6.3", "--written", "14.curves"]
    rule = ["--due", "2026-11-30T12:00", "--late", "10% a day, at most 50%"]
    assert main(["course", "release", "week2", *asked, "--out", "course", *rule, *BUNDLES]) == 0
    assert (tmp_path / "course" / "week2_marking.md").read_text().count("**Rubric.**") == 1
    work, out = tmp_path / "in", tmp_path / "marks"
    work.mkdir()
    for name in NAMES:
        answers = {"ben": WRONG, "cem": PARTLY}.get(name, RIGHT)
        file = work / f"{name}.py"
        if name in TEXTS:
            file = written(tmp_path / "course" / "release" / "week2" / "week2.ipynb", answers, name, work)
        else:
            file.write_text(answers)
    (tmp_path / "times.csv").write_text("student_id,time\njo,2026-12-02T00:00\nada,2026-11-30T12:00\n")
    flags = ["--pset", "week2", "--seed-file", "course/secret.seed", "--out", str(out), "--jobs", "1"]
    flags += ["--times", "times.csv"]
    command = ["grade", str(work), *flags]
    assert main(command) == 0
    first = {row["student_id"]: row for row in rows_of((out / "marks.csv").read_text())}
    assert [first[name]["score"] for name in ("ada", "ben", "cem", "jo")] == ["6", "0", "3", "4.8"]
    assert first["jo"]["raw_score"] == "6" and first["jo"]["late_submission_penalty"] == "1.2"
    assert "4.8 of 10 points: 6 earned, 1.2 deducted for lateness" in feedback(out, "jo")
    assert first["ben"]["timestamp"] == "" and first["ben"]["duedate"] == "2026-11-30T12:00"
    groups = "one token: 1 of 1; a batch of tokens: 0 of 2; any epsilon, and edge cases: 0 of 1"
    assert (first["cem"]["6.3"], first["cem"]["6.3 points"], first["cem"]["6.3 groups"]) == ("wrong", "1", groups)
    page = (out / "feedback" / "cem.html").read_text()
    assert "<td>a batch of tokens</td>" in page and "you averaged dgain over the tokens" in page
    mistakes = [row for row in rows_of((out / "class.csv").read_text()) if row["exercise"] == "2.5"]
    assert [row["students"] for row in mistakes] == ["6", "1"] and "top left corner" in mistakes[1]["mistake"]

    elsewhere = gradescope(tmp_path / "week2.zip", tmp_path / "autograder", PARTLY)
    assert elsewhere["score"] == 3.0 == sum(test.get("score", 0) for test in elsewhere["tests"])
    assert elsewhere["tests"][-1]["output"] == "there is no text" and "score" not in elsewhere["tests"][-1]
    assert {test["visibility"] for test in elsewhere["tests"] if "hidden" in test["name"]} == {"after_published"}
    public = [test for test in elsewhere["tests"] if test["visibility"] == "visible" and "score" in test]
    assert "you averaged dgain over the tokens" in public[2]["output"] and elsewhere["stdout_visibility"] == "hidden"
    secret, chosen = (tmp_path / "course" / "secret.seed").read_bytes(), [exercises()[id] for id in ("2.5", "6.3")]
    assert leaks(tmp_path / "template", chosen, secret.strip()) == []
    assert [sum(test[key] for test in public) for key in ("score", "max_score")] == [1.5, 3]
    done = pushed(tmp_path / "template", PARTLY)
    assert done.returncode == 1 and done.stdout.startswith("1 of 2 are right on the public cases.\n2.5: right\n6.3: ")

    assert [first["dora"][name] for name in ("14.curves", "raw_score", "score")] == ["to mark", "6", ""]
    assert first["ada"]["14.curves"] == "missing" and "6 of 10 points so far" in feedback(out, "dora")
    sheet = tmp_path / "sheet.csv"
    assert main(["course", "collect", str(work), "--pset", "course/release/week2", "--to", str(sheet)]) == 0
    assert "2 texts of 7 students" in capsys.readouterr().out
    blind = ["--to", str(tmp_path / "blind.csv"), "--blind"]
    assert main(["course", "collect", str(work), "--pset", "course/release/week2", *blind]) == 0
    assert "2 different texts of 7 students" in capsys.readouterr().out
    texts = rows_of(sheet.read_text())
    assert [row["text"] for row in texts] == [TEXTS["dora"], "'=1+1"] and {row["points"] for row in texts} == {""}
    before = (out / "marks.csv").read_bytes()
    fill(sheet, {"dora": ("4", "Well compared."), "emmy": ("7", "")})
    assert main(["course", "mark", str(sheet), "--into", str(out)]) == 2
    assert (
        "row 2, emmy: expected the points of one of the rubric's levels (0, 1, 2, 3, 4), or halfway between two, got 7"
        in capsys.readouterr().err
    )
    assert (out / "marks.csv").read_bytes() == before and not (out / "written.csv").exists()
    fill(sheet, {"dora": ("4", "Well <compared>."), "emmy": ("2", "")})
    assert main(["course", "mark", str(sheet), "--into", str(out)]) == 0
    first = {row["student_id"]: row for row in rows_of((out / "marks.csv").read_text())}
    assert [first[name]["score"] for name in ("ada", "dora", "emmy", "jo")] == ["6", "10", "8", "4.8"]
    page = feedback(out, "dora")
    assert "10 of 10 points.<" in page and "Well &lt;compared&gt;." in page and "4 of 4 points: Describes both" in page

    again = tmp_path / "again"
    again.mkdir()
    shutil.copy2(work / "dora.ipynb", again / "dora.ipynb")  # graded again, the same text keeps its mark
    (again / "ben.py").write_text(RIGHT)
    command[1] = str(again)
    capsys.readouterr()
    assert (
        main(command) == 2
        and "who are not in these submissions; --regrade keeps those marks" in capsys.readouterr().err
    )
    assert len(rows_of((out / "marks.csv").read_text())) == 7
    assert main([*command, "--regrade"]) == 0
    told = capsys.readouterr().out
    assert "ben: 0 -> 6 (2.5 wrong -> right, 6.3 missing -> right)" in told and "1 of 2 marks changed" in told
    second = {row["student_id"]: row for row in rows_of((out / "marks.csv").read_text())}
    assert second.pop("ben")["score"] == "6" and second == {id: row for id, row in first.items() if id != "ben"}

    for name, table, column in (("canvas", CANVAS, "week2 (4711)"), ("moodle", MOODLE, "Grade")):
        (tmp_path / f"{name}.csv").write_text(table)
        if name == "moodle":  # Moodle's name for the folders that it hands out
            text = (out / "marks.csv").read_text()
            for at, student in enumerate(NAMES):
                text = text.replace(f",{student},", f",{student.title()} S_{500 + at},")
            (out / "marks.csv").write_text(text)
        to = str(tmp_path / f"{name}_filled.csv")
        assert main(["course", "export", str(out), "--into", f"{name}.csv", "--to", to]) == 0
        before, after = rows_of(table), rows_of((tmp_path / f"{name}_filled.csv").read_text())
        scores = [row.pop(column) for row in after]
        assert [score for score in scores if score][-7:] == ["6", "6", "3", "10", "8", "6", "4.8"]
        assert after == [{key: row[key] for key in row if key != column} for row in before], "nothing else changes"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--gradescope", "week2.tar"], "--gradescope week2.tar: expected the name of a zip file"),
        (["--gradescope", "there.zip"], "--gradescope there.zip: it already exists"),
        (["--repository", "full"], "--repository full: expected a new or empty folder"),
        (["--repository", "there.zip"], "--repository there.zip: expected a new or empty folder"),
        (["--gradescope", "there.zip/week2.zip"], "--gradescope there.zip/week2.zip"),
    ],
)
def test_a_bundle_that_cannot_be_is_refused_and_nothing_is_written(flags, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    for file in ("there.zip", "full/file"):
        (tmp_path / file).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    assert main(["course", "release", "w", "--exercises", "2.5", "--out", "course", *flags]) == 2
    assert said in capsys.readouterr().err and sorted(tmp_path.rglob("*")) == before
    command = ["course", "release", "w", "--questions", "2.a", "--out", "course", "--repository", "new"]
    assert main(command) == 2 and "expected exercises with public cases" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def share(rule, time, student="ada", spent=0):
    return rule.of(student, "week2", time, spent).share


def test_late_work_loses_its_share_of_what_it_earned(tmp_path):
    rule = Lateness("2026-11-30T23:59+01:00", "10% a day, at most 25%")
    assert share(rule, "2026-11-30 22:59:00+00:00") == 0.0 == share(rule, "")
    assert share(rule, "2026-11-30 22:59:01 UTC") == pytest.approx(0.1)
    assert share(rule, "2026-12-01 00:00:00") == pytest.approx(0.1), "a time without an offset has the due date's"
    assert share(rule, "2026-12-25 00:00:00") == 0.25
    assert share(Lateness("2026-11-30T00:00", "1% an hour"), "2026-11-30 01:30:00") == pytest.approx(0.02)
    (tmp_path / "week2.toml").write_text(as_toml({"due": rule.due, "late": rule.late}))
    assert read_rule(tmp_path, "week2") == rule and read_rule(tmp_path, "none") is None


def test_one_file_holds_extensions_late_days_and_grace_periods(tmp_path):
    (tmp_path / "week2.toml").write_text(as_toml({"due": "2026-11-30T12:00", "late": "10% a day"}))
    (tmp_path / "extensions.csv").write_text(
        "student_id,assignment,due,grace,late_days,reason\n,,,1 hour,,\n,,,,2,two late days for everybody\n"
        "ada,week2,2026-12-03T12:00,,,ill\nben,,,,0,has agreed to none\nben,week2,,1 day,,\n"
    )
    rule = read_rule(tmp_path, "week2")
    assert share(rule, "2026-12-03T13:00") == 0.0 == share(rule, "2026-11-30T13:00", "cem")
    late = rule.of("cem", "week2", "2026-12-03T11:00")
    assert (late.share, late.days) == (pytest.approx(0.1), 2)
    assert "2 days and 23 hours after the deadline of 2026-11-30 12:00" in late.told
    assert "2 late days were used, and 10% of its points are deducted" in late.told
    assert share(rule, "2026-12-03T11:00", "cem", spent=1) == pytest.approx(0.2)
    assert share(rule, "2026-12-01T12:00", "ben") == 0.0 and share(rule, "2026-12-01T12:01", "ben") == 0.2
    (tmp_path / "extensions.csv").write_text("student_id,assignment,due,grace,late_days,reason\nada,,,soon,,\n")
    with pytest.raises(ValueError, match="extensions.csv, line 2, grace must be a time such as '15 minutes'"):
        read_rule(tmp_path, "week2")


@pytest.mark.parametrize(
    ("due", "late"),
    [
        ("soon", "10% a day"),
        ("2026-11-30", "10% a day"),
        ("2026-11-30T23:59", "much"),
        ("2026-11-30T23:59", "120% a day"),
        ("2026-11-30T23:59", ""),
    ],
)
def test_a_rule_that_is_none_is_refused_and_nothing_is_written(due, late, tmp_path, capsys):
    out = str(tmp_path / "course")
    assert main(["course", "release", "w", "--exercises", "2.5", "--out", out, "--due", due, "--late", late]) == 2
    said = capsys.readouterr().err
    assert ("expected" in said or "must " in said) and not (tmp_path / "course").exists()


def test_a_file_that_is_no_rule_is_told(tmp_path):
    (tmp_path / "week2.toml").write_text("due = 3\n")
    with pytest.raises(ValueError, match="week2.toml: expected due, late, grace"):
        read_rule(tmp_path, "week2")


def test_a_regrade_needs_the_first_marks(tmp_path, capsys):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "ada.py").write_text("x = 1\n")
    (tmp_path / "seed").write_text("a secret that only these tests know")
    flags = ["--exercises", "2.5", "--seed-file", str(tmp_path / "seed"), "--out", str(tmp_path / "out"), "--regrade"]
    assert main(["grade", str(tmp_path / "in"), *flags]) == 2
    assert "--regrade: expected marks from an earlier run in" in capsys.readouterr().err
    assert not (tmp_path / "out" / "marks.csv").exists()


@pytest.mark.parametrize(
    ("table", "marks", "said"),
    [
        (CANVAS.replace("Student,ID", "Name,ID"), [mark("ada")], "expected Canvas' columns"),
        (CANVAS.replace(",ben,", ",ada,"), [mark("ada")], "two students have the id 'ada'"),
        (CANVAS, [mark("ada", assignment="week9")], "expected one column for week9"),
        (CANVAS, [mark("ada", most="3.0")], "week2 is worth 10 points in that file, but 3.0 here"),
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
    marks = [mark("doraS_103"), mark("nobody"), mark("emmy", score="")]
    text, unknown, grades = filled(tmp_path / "canvas.csv", marks)
    assert (unknown, grades) == (["nobody"], 1)
    scores = {row["SIS Login ID"]: row["week2 (4711)"] for row in rows_of(text)}
    assert scores["dora"] == "2.0" and scores["emmy"] == "" and scores["ada"] == ""


def test_two_marks_for_one_person_are_told_and_not_chosen_from(tmp_path):
    (tmp_path / "canvas.csv").write_text(CANVAS)
    twice = [mark("doraS_103"), mark("dora")]
    with pytest.raises(ValueError, match="doraS_103 and dora are the same person in this file"):
        filled(tmp_path / "canvas.csv", twice)


def test_a_table_keeps_the_ends_of_its_lines_and_the_mark_at_its_beginning(tmp_path):
    table = tmp_path / "canvas.csv"
    table.write_bytes(b"\xef\xbb\xbf" + CANVAS.replace("\n", "\r\n").encode())
    text, *_ = filled(table, [mark("nobody")])
    assert text.encode() == table.read_bytes()


def record(student, outcome, points):
    place = f"{student}_assignsubmission_file" if student.endswith(("_101", "_103")) else student
    return Record(student, "read", "", "", (), "", "", place, "", (Item("2.3", "", outcome, points, 3),))


def test_what_is_handed_in_once_more_takes_the_place_of_the_first():
    first = Results("week2", "", (record("doraS_103", "wrong", 2.0), record("benS_101", "right", 3.0)))
    now = Results("week2", "", (record("Dora S_103", "right", 3.0),))
    found, changes = merged(first, now)
    assert [one.student for one in found.records] == ["Dora S_103", "benS_101"]
    assert changes == ["Dora S_103: 2 -> 3 (2.3 wrong -> right)"]


def test_names_that_end_in_the_same_number_are_two_students():
    first = Results("week2", "", (record("jones_2024", "right", 3.0), record("smith_2024", "wrong", 2.0)))
    found, _ = merged(first, Results("week2", "", (record("smith_2024", "right", 3.0),)))
    assert [(one.student, one.items[0].points) for one in found.records] == [("jones_2024", 3.0), ("smith_2024", 3.0)]
