"""Fifty-three realistic submissions: to a week's set, a set with a written answer, and a project.

A table lists the result of each. Reading, choosing, dating, counting and writing pages are not replaced. Only running
an answer is replaced by comparing its text, since other tests run answers.
"""

import csv
import io
import json
import os
import subprocess
import zipfile

import pytest

from companion.commands.main import main
from companion_school.build.stubs import reference, stub
from companion_school.checking.call import Result
from companion_school.checking.examine import Verdict
from companion_school.course.grading import grade as grading
from companion_school.course.grading import project
from companion_school.course.grading.exercise_mark import Earned, Mark
from companion_school.course.points import parts
from companion_school.exercises.catalogue import exercises

RIGHT = [exercises()[id].solution for id in ("2.4", "2.5")]
WRONG = "def causal_mask(queries, keys):\n    return 0"
DUE = "2026-11-15T23:59+01:00"
STAGE = reference(3)
LINE = "**Your answer to 14.curves** (in this cell)"
LONG_AGO = 1_700_000_000


def book(*cells, ids=False, **more):
    made = []
    for at, cell in enumerate(cells):
        kind, source, name = cell if isinstance(cell, tuple) else ("code", cell, None)
        marks = {"nbgrader": {"grade_id": name}} if name else {}
        made.append(
            {"cell_type": kind, "source": source, "metadata": marks, **({"id": f"c{at}"} if ids else {}), **more}
        )
    return json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def put(file, text, when=LONG_AGO):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    os.utime(file, (when, when))


def zipped(name, text, **more):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as packed:
        for path, content in ((name, text), *more.items()):
            packed.writestr(path, content)
    return made.getvalue()


def commit(folder, when):
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    dated = os.environ | {"GIT_COMMITTER_DATE": when, "GIT_AUTHOR_DATE": when}
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "my answers"]):
        subprocess.run([*git, *command], env=dated, check=True, capture_output=True)


FULL, HALF = book("import torch, math", *RIGHT), book(RIGHT[0], WRONG)
WEEK2 = {  # entry: what was handed in; student: score, state of the submission, file, others, source of the time
    "noor/week2.ipynb": FULL,
    "kjell.ipynb": HALF,
    "Ayşe Yılmaz/week2.ipynb": FULL,
    "José.ipynb": FULL,
    "priya.ipynb": book(RIGHT[0], "def causal_mask(queries, keys):\n    raise NotImplementedError"),
    "wei.ipynb": book(WRONG),
    "dana.ipynb": book(*RIGHT, "%timeit 1", "this is ( broken"),
    "igor.ipynb": book("while True: pass", *RIGHT),
    "lucas.ipynb": book(*RIGHT, outputs=["x" * 1_000_000]),
    "mateo.py": "\n".join(RIGHT),
    "order.ipynb": book(*reversed(RIGHT)),
    "twice-tom/week2.ipynb": (HALF, LONG_AGO),
    "twice-tom/week2 (1).ipynb": (FULL, LONG_AGO + 86_400),
    "copied-cleo/week2.ipynb": HALF,
    "copied-cleo/week2 (2).ipynb": FULL,  # the same minute, as after a copy, so the number in the name decides
    "scratch-sam/week2.ipynb": FULL,
    "scratch-sam/notes.ipynb": (book("x = 1"), LONG_AGO + 86_400),
    "zip-zoe/week2.zip": zipped("week2.ipynb", FULL),
    "zip-flat.zip": zipped("work/week2.ipynb", FULL),
    "omar2.ipynb": "",
    "omar3.ipynb": FULL[:200],
    "zofia.ipynb": json.dumps({"hello": 1}),
    "nadia/answers.pdf": "%PDF",
    "other-otto.ipynb": book("x = 1"),
    "empty-emma.ipynb": book(),
    "lovelaceada_LATE_1234_5678_week2.ipynb": HALF,
    "lovelaceada_1234_5690_week2-1.ipynb": FULL,
    "Grace Hopper_77_assignsubmission_file/week2.ipynb": FULL,
    "Grace Hopper_77_assignsubmission_onlinetext/onlinetext.html": "<p>see the file</p>",
    "late-lena/week2.ipynb": FULL,
    "timely-tina/week2.ipynb": FULL,
}
LATE, EARLY = "2026-11-17T10:00:00+0100", "2026-11-10T10:00:00+0100"
TABLE2 = {
    "noor": ("6", "read"), "kjell": ("4", "read"), "Ayşe Yılmaz": ("6", "read"), "José": ("6", "read"),
    "priya": ("4", "read"), "wei": ("0", "read"), "dana": ("6", "read"), "igor": ("6", "read"), "lucas": ("6", "read"),
    "mateo": ("6", "read"), "order": ("6", "read"), "twice-tom": ("6", "read"), "copied-cleo": ("6", "read"),
    "scratch-sam": ("6", "read"), "zip-zoe": ("6", "read"), "zip-flat": ("6", "read"), "omar2": ("", "unreadable"),
    "omar3": ("", "unreadable"), "zofia": ("", "unreadable"), "nadia": ("", "nothing to grade"),
    "other-otto": ("", "other notebook"), "empty-emma": ("0", "empty"), "lovelaceada_1234": ("6", "read"),
    "Grace Hopper_77": ("6", "read"), "late-lena": ("4.8", "read"), "timely-tina": ("6", "read"),
}  # fmt: skip
HANDED_OUT = [("markdown", "## 14.curves Two curves", "statement_14_curves"),
              ("markdown", f"{LINE}\n\nYOUR ANSWER HERE", "written_14_curves")]  # fmt: skip
WEEK6 = {
    "ada": book(HANDED_OUT[0], ("markdown", f"{LINE}\n\nIt falls.", "written_14_curves")),
    "lucas": book(HANDED_OUT[0], ("markdown", "It falls, and turns.", "written_14_curves")),
    "priya": book(HANDED_OUT[0], ("markdown", "It falls, above.", None), HANDED_OUT[1]),
    "igor": book(*HANDED_OUT, ("code", "# It falls,\n# in a comment.", None)),
    "wei": book(HANDED_OUT[0], ("markdown", "It falls.", None), ("markdown", f"{LINE}\n\n", "written_14_curves"),
                ("markdown", "And more.", None)),
    "blank": book(*HANDED_OUT),
    "stripped": book(("markdown", f"{LINE}\n\nWithout metadata.", None)),
    "code": "x = 1",
}  # fmt: skip
TEXTS6 = {"ada": "to mark", "lucas": "to mark", "priya": "to mark", "igor": "to mark", "wei": "to mark",
          "stripped": "to mark", "blank": "missing", "code": "missing"}  # fmt: skip
PROJECT = {
    "noor/transformer/positions.py": STAGE,
    "deep/work/my/transformer/positions.py": STAGE,
    "tom/transformer.zip": zipped("transformer/positions.py", STAGE),
    "zoe.zip": zipped("positions.py", STAGE),
    "mac.zip": zipped("transformer/positions.py", STAGE, **{"__MACOSX/transformer/positions.py": "\0"}),
    "taker/positions.py": f"# taken: the course's reference, not yours\n{STAGE}",
    "hidden/positions.py": f"# mine\n{STAGE}",
    "blank/positions.py": stub(3),
    "syntax/positions.py": "def rotate(:",
    "latin/positions.py": "# é\n".encode("latin-1"),
    "Capital/Positions.py": STAGE,
    "nothing/readme.txt": "hello",
    "broken.zip": b"PK no zip",
    "wrong/positions.py": STAGE.replace("sin", "cos"),
    "old/a/positions.py": (stub(3), LONG_AGO),
    "old/b/positions.py": (STAGE, LONG_AGO + 86_400),
    "Grace Hopper_77_assignsubmission_file/transformer.zip": zipped("positions.py", STAGE),
    "late-lena/transformer/positions.py": STAGE,
    "bannedbob/positions.py": f"{STAGE}\nfrom torch.nn.functional import scaled_dot_product_attention\n",
    "large/positions.py": "#" * 2**21,
}
TABLE3 = {
    "noor": "9", "deep": "9", "tom": "9", "zoe": "9", "mac": "9", "taker": "0", "hidden": "9", "blank": "0",
    "syntax": "", "latin": "", "Capital": "", "nothing": "", "broken": "", "wrong": "0", "old": "9",
    "Grace Hopper_77": "9", "late-lena": "7.2", "bannedbob": "0", "large": "",
}  # fmt: skip


def looked_at(worker, exercise, found, keys, student, share=0.0):
    """Return an exercise's mark from the text of the answer, without running it."""
    program = found.answer.program or ""
    right = exercise.solution.strip() in program
    outcome = Result.RIGHT if right else Result.WRONG if program and "NotImplemented" not in program else Result.MISSING
    earned = tuple(Earned(part, right, right) for part in parts(exercise))
    return Mark(exercise, outcome.value, Verdict(outcome), None, found.answer.notes, earned)


@pytest.fixture(scope="module")
def handed_in(tmp_path_factory):
    home = tmp_path_factory.mktemp("class of 53")
    for name, given in WEEK2.items():
        put(home / "two" / name, *(given if isinstance(given, tuple) else (given,)))
    for name, text in WEEK6.items():
        put(home / "six" / (f"{name}.py" if name == "code" else f"{name}.ipynb"), text)
    put(home / "six" / "late" / "week6.ipynb", WEEK6["ada"])
    for name, given in PROJECT.items():
        put(home / "three" / name, *(given if isinstance(given, tuple) else (given,)))
    for folder, when in (("two/late-lena", LATE), ("two/timely-tina", EARLY), ("three/late-lena", LATE)):
        commit(home / folder, when)
        for file in (home / folder).rglob("*.*"):
            os.utime(file)  # as git does when it clones
    rule = ["--due", DUE, "--late", "10% a day, at most 50%"]
    out = ["--out", str(home / "course")]
    assert main(["course", "release", "week2", "--exercises", "2.4", "2.5", *out, *rule]) == 0
    assert main(["course", "release", "week6", "--written", "14.curves", *out]) == 0
    assert main(["course", "release", "build", "--build", "3", *out, *rule]) == 0
    return home


def graded(home, folder, pset, capsys):
    flags = ["--pset", str(home / "course" / "release" / pset), "--seed-file", str(home / "course" / "secret.seed")]
    assert main(["grade", str(home / folder), *flags, "--out", str(home / "marks" / pset), "--jobs", "1"]) == 0
    text = (home / "marks" / pset / "marks.csv").read_text("utf-8")
    return {row["student_id"]: row for row in csv.DictReader(io.StringIO(text))}, capsys.readouterr()


def page(home, pset, student):
    return (home / "marks" / pset / "feedback" / f"{student}.html").read_text("utf-8")


def test_a_weeks_set(handed_in, monkeypatch, capsys):
    monkeypatch.setattr(grading, "begin", lambda *given: lambda: looked_at(*given))
    rows, said = graded(handed_in, "two", "week2", capsys)
    assert {name: (row["score"], row["submission"]) for name, row in rows.items()} == TABLE2
    assert [rows["twice-tom"][name] for name in ("file", "also_handed_in")] == ["week2 (1).ipynb", "week2.ipynb"]
    assert (
        "twice-tom: week2 (1).ipynb is graded; left out: week2.ipynb" in said.err and "time of its commit" in said.err
    )
    tom = page(handed_in, "week2", "twice-tom")
    assert "Graded: week2 (1).ipynb" in tom and "Also submitted, but not graded: week2.ipynb" in tom
    lena = page(handed_in, "week2", "late-lena")
    assert "4.8 of 6 points: 6 earned, 1.2 deducted for lateness" in lena and "1 day and 10 hours after" in lena
    assert {rows[name]["time_from"] for name in ("late-lena", "timely-tina")} == {"the last commit of the graded files"}
    assert (rows["noor"]["time_from"], rows["noor"]["late_submission_penalty"]) == ("unknown", "0")
    assert "21 of 26 submissions graded" in said.out and "the submission times of 24 are unknown" in said.out
    for student in ("omar2", "omar3", "zofia", "nadia", "other-otto"):
        made = page(handed_in, "week2", student)
        assert "no score yet" in made and "0 of 6 points" not in made
        assert "Graded:" not in made and ("Not graded: " in made or student == "nadia")


def test_a_mark_changed_by_hand_reaches_table_and_page_and_stays(handed_in, monkeypatch, capsys):
    monkeypatch.setattr(grading, "begin", lambda *given: lambda: looked_at(*given))
    out = handed_in / "marks" / "week2"
    if not out.is_dir():
        graded(handed_in, "two", "week2", capsys)
    (out / "overrides.csv").write_text(
        "student_id,item,points,reason,author\npriya,2.5,1,dv is right,Emmy\nnadia,total,3,by mail,Emmy\n"
        "wei,extra,0.5,a good question,Emmy\n"
    )
    assert main(["course", "mark", "--into", str(out)]) == 0
    rows, _ = graded(handed_in, "two", "week2", capsys)  # graded once more, and the row is still there
    assert [rows[name]["score"] for name in ("priya", "nadia", "wei")] == ["5", "3", "0.5"]
    assert [rows[name]["raw_score"] for name in ("priya", "nadia", "wei")] == ["5", "", "0.5"]
    assert "Emmy set this to 1 of 2 points: dv is right" in page(handed_in, "week2", "priya")
    assert rows["priya"]["changed_by_hand"] == "2.5 1 by Emmy"
    kept = (out / "overrides.csv").read_text()
    (out / "overrides.csv").write_text(f"{kept}timely-tina,extra,1.5,a proof of her own,Emmy\n")
    assert main(["course", "mark", "--into", str(out)]) == 0
    assert "7.5 of 6 points" in page(handed_in, "week2", "timely-tina")  # a bonus may exceed the maximum
    (out / "overrides.csv").write_text(f"{kept}wei,2.4,0,x,y\n".replace("extra,0.5", "extra,-0.5"))
    assert main(["course", "mark", "--into", str(out)]) == 2
    assert "wei would have -0.5 of 6 points" in capsys.readouterr().err
    (out / "overrides.csv").write_text(kept)
    assert main(["course", "mark", "--into", str(out)]) == 0
    text = (out / "marks.csv").read_text("utf-8")
    (out / "marks.csv").write_text(text.replace("noor", "nora"))
    assert main(["course", "mark", "--into", str(out)]) == 2
    assert "was changed after it was written, and that change would be lost" in capsys.readouterr().err
    (out / "marks.csv").write_text(text)
    faults = {
        "eve,2.5,1,x,y": "student_id must be a student",
        "wei,2.5,3,x,y": "a number from 0 to 2",
        "wei,2.5,1,,y": "reason must not be empty",
        "wei,9.9,1,x,y": "item must be one of 2.4, 2.5",
    }
    for row, said in faults.items():
        (out / "overrides.csv").write_text(f"student_id,item,points,reason,author\n{row}\n")
        assert main(["course", "mark", "--into", str(out)]) == 2 and said in capsys.readouterr().err
    (out / "overrides.csv").unlink()


def test_a_set_with_a_written_answer_loses_no_text_and_can_be_marked_blind(handed_in, capsys):
    rows, _ = graded(handed_in, "six", "week6", capsys)
    assert {name: row["14.curves"] for name, row in rows.items() if name != "late"} == TEXTS6
    sheet, pset = handed_in / "sheet.csv", str(handed_in / "course" / "release" / "week6")
    assert main(["course", "collect", str(handed_in / "six"), "--pset", pset, "--blind", "--to", str(sheet)]) == 0
    texts = [*csv.DictReader(io.StringIO(sheet.read_text("utf-8")))]
    assert {row["student_id"] for row in texts} == {""} and len(texts) == 6, "two students wrote the same"
    assert any(row["text"].endswith("It falls, above.") for row in texts)
    lines = [";".join(texts[0])]
    lines += [f"{row['student_id']};{row['item']};{row['text_id']};x;3,0;good" for row in texts]
    sheet.write_text("\n".join(lines))  # as a German spreadsheet saves it
    assert main(["course", "mark", str(sheet), "--into", str(handed_in / "marks" / "week6")]) == 0
    assert "6 marks of written answers read" in capsys.readouterr().out
    assert "3 of 4 points." in page(handed_in, "week6", "lucas") and "good" in page(handed_in, "week6", "late")


def test_a_project_has_the_same_table_deadline_and_pages(handed_in, monkeypatch, capsys):
    verdicts = {True: Verdict(Result.RIGHT), False: Verdict(Result.WRONG, "a property", fault="expected 1, got 2")}
    monkeypatch.setattr(
        project._Tried, "_try", lambda self, part, sources, *_: verdicts[STAGE.strip() in sources["positions"]]
    )
    rows, _ = graded(handed_in, "three", "build", capsys)
    assert {name: row["score"] for name, row in rows.items()} == TABLE3
    assert rows["old"]["also_handed_in"] == "a/" and "a different name from the file that was handed out" in page(
        handed_in, "build", "Capital"
    )
    assert "7.2 of 9 points: 9 earned, 1.8 deducted" in page(handed_in, "build", "late-lena")
    assert "Stage 3, positions.py" in page(handed_in, "build", "wrong")
    assert main(["course", "alike", str(handed_in / "three"), "--build", "3"]) == 0
    told = (
        "positions.py  100%  (the course's own answer), Grace Hopper_77, bannedbob, deep, hidden, late-lena, mac, noor"
    )
    assert told in capsys.readouterr().out
