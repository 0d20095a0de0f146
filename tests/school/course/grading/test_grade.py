"""`companion grade`: finding submissions, the CSV file, the pages, and messages about bad flags."""

import csv
import io
import json
import os

import pytest

from companion.commands.main import main
from companion_school.checking.examine import key_of
from companion_school.course.grading import feedback, marks_csv
from companion_school.course.grading.answers import Answer
from companion_school.course.grading.exercise_mark import Graded, KeyRing, begin
from companion_school.course.grading.gradebook import COLUMNS
from companion_school.course.grading.results import Results, load, read_overrides, record_of, settle
from companion_school.course.grading.sandbox import wall
from companion_school.course.grading.sandbox.parent import Found, Limits, Worker
from companion_school.course.grading.submissions import Handed, handed_in, left_out
from companion_school.course.release.questions import as_exercise
from companion_school.exercises.catalogue import find_exercise
from companion_school.questions.question import questions

BOOK = ("2.1", "2.3", "2.5")


def notebook(*cells):
    parts = [
        {"cell_type": "code", "source": cell, "metadata": {}, "outputs": [], "execution_count": None} for cell in cells
    ]
    return json.dumps({"cells": parts, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def secret(tmp_path):
    put(tmp_path / "mine" / "secret", "nobody can guess this secret")
    return tmp_path / "mine" / "secret"


@pytest.fixture(scope="module")
def class_of_five(tmp_path_factory):
    """Grade five submissions once: right, partly right, unreadable, empty, and right only on the public cases."""
    home = tmp_path_factory.mktemp("class")
    right = [find_exercise(id).solution for id in BOOK]
    put(home / "mine" / "secret", "nobody can guess this secret")
    put(home / "in" / "ada" / "set.ipynb", notebook("import torch, math", *right))
    put(
        home / "in" / "bob.ipynb",
        notebook(
            "import torch\ndef causal_mask(queries, keys):\n    return torch.ones(queries, keys).tril(keys - queries)"
        ),
    )
    put(home / "in" / "cy" / "set.ipynb", "my dog ate it")
    put(home / "in" / "dee" / "answer.pdf", "%PDF")
    public = [case.arguments for case in key_of(find_exercise("2.5")).cases]
    listed = f"    if (queries, keys) not in {public!r}: raise RuntimeError(f'told {{queries}} {{keys}}')\n"
    put(home / "in" / "eve.ipynb", notebook("import torch, math", right[2].replace(":\n", ":\n" + listed, 1)))
    put(home / "in" / "roster.txt", "ada, bob")
    flags = ["--seed-file", str(home / "mine" / "secret"), "--out", str(home / "marks"), "--exercises", *BOOK]
    assert main(["grade", str(home / "in"), "--assignment", "week2", *flags]) == 0
    with open(home / "marks" / "marks.csv", newline="") as file:
        return home, {row["student_id"]: row for row in csv.DictReader(file)}


def test_every_outcome_has_its_word_in_the_csv(class_of_five):
    _, rows = class_of_five
    assert [rows["ada"][id] for id in BOOK] == ["right"] * 3 and rows["ada"]["score"] == rows["ada"]["max_score"] == "6"
    assert [rows["bob"][id] for id in BOOK] == ["missing", "missing", "wrong"] and rows["bob"]["score"] == "0"
    assert [rows["cy"][id] for id in BOOK] == ["unreadable"] * 3 and rows["cy"]["score"] == "", "no silent zero"
    assert [rows[name]["submission"] for name in ("ada", "bob", "cy", "dee")] == [
        "read",
        "read",
        "unreadable",
        "nothing to grade",
    ]
    assert rows["ada"]["assignment"] == "week2" and (rows["ada"]["timestamp"], rows["ada"]["time_from"]) == (
        "",
        "unknown",
    )


def test_the_columns_are_nbgraders(class_of_five):
    _, rows = class_of_five
    assert tuple(rows["ada"])[: len(COLUMNS)] == COLUMNS


def test_the_pages_say_what_is_wrong_and_nothing_about_hidden_cases(class_of_five):
    home, _ = class_of_five
    pages = {file.stem: file.read_text() for file in (home / "marks" / "feedback").iterdir()}
    assert set(pages) == {"ada", "bob", "cy", "dee", "eve"}
    assert "Most likely: that is a mask of ones and zeros" in pages["bob"] and "queries = " in pages["bob"]
    assert "no score yet" in pages["cy"] and "0 of 6" not in pages["cy"]
    assert "is not a notebook" in pages["cy"] and "answer.pdf" in pages["dee"] and "6 of 6 points" in pages["ada"]
    keys = KeyRing(b"nobody can guess this secret")
    for page in pages.values():
        assert "http" not in page and "<script" not in page and "secret" not in page
        for key in keys.hidden(find_exercise("2.3")):
            assert f"{key.cases[0].arguments[0][0, 0]:.4g}" not in page


def test_a_hidden_failure_names_the_property_and_no_more(class_of_five):
    page = (class_of_five[0] / "marks" / "feedback" / "eve.html").read_text()
    assert (
        "1 of 6 points" in page
        and "integers equal to the size of an axis" in page
        and "told" not in page.replace('class="told"', "").replace(".told", "")
    )


def test_points_for_a_known_mistake_are_given_to_all_who_made_it(class_of_five, tmp_path):
    results = load(class_of_five[0] / "marks")
    [item] = [item for record in results.records for item in record.items if item.mistake]
    file = tmp_path / "overrides.csv"
    head = "student_id,item,points,reason,author,mistake\n"
    put(file, f'{head},2.5,1,a mask all the same,Emmy,"{item.mistake}"\n')
    [change] = read_overrides(file, results)
    assert (change.student, change.item, change.points) == ("bob", "2.5", 1)
    put(file, f"{file.read_text()}bob,2.5,0.5,seen twice,Emmy,\n,2.3,1,nobody made it,Emmy,another mistake\n")
    assert [one.points for one in read_overrides(file, results)] == [0.5]


def test_a_page_without_anything_to_grade_has_no_table_of_zeros(class_of_five):
    home, rows = class_of_five
    page = (home / "marks" / "feedback" / "cy.html").read_text()
    assert "no score yet" in page and "<table" not in page and "0 of" not in page
    assert {rows["cy"][f"{id} points"] for id in BOOK} == {""} and rows["bob"]["2.5 points"] == "0"


def marked(exercise, program):
    with Worker(Limits(1.0)) as worker:
        return begin(worker, exercise, Found(True, Answer(program), ()), KeyRing(b"nobody can guess this"), "ada")()


def lead(one):
    [item] = record_of(Graded(Handed("ada", (), ""), "read", None, (one,))).items
    return item.findings[0].lead


def test_the_page_says_what_a_wrong_answer_gets_right():
    gradients = find_exercise("2.4")
    found = marked(gradients, gradients.solution.replace("return dz @ k / scale, dz.T", "return dz @ k, 2 * dz.T"))
    assert found.outcome == "wrong" and lead(found) == "What is right already: result 3 (of 3)."
    found = marked(find_exercise("2.5"), find_exercise("2.5").solution.replace("keys - queries", "0"))
    assert found.outcome == "wrong" and "kinds of public cases (" in lead(found)


def test_an_endless_answer_is_told_with_the_smallest_case():
    mask = find_exercise("2.5")
    found = marked(mask, "def causal_mask(queries, keys):\n    while True: pass\n")
    first = next(iter(mask.inputs()))
    assert found.outcome == "timeout" and found.public.shows == first.shows
    assert found.public.fault == "it did not finish within its time limit"


def test_a_letter_that_is_not_offered_is_told_so():
    [question] = [as_exercise(one, b"s") for one in questions().values() if one.id == "2.a"]
    sentence, letter = (
        marked(question, f"def {question.name}():\n    return {given!r}\n") for given in ("four times", "Z")
    )
    assert sentence.outcome == letter.outcome == "wrong"
    assert "expected one of the choices 'A', 'B', 'C'" in sentence.hidden.fault
    [item] = record_of(Graded(Handed("ada", (), ""), "read", None, (letter,))).items
    assert "got 'Z'" in item.findings[0].fault


def test_what_ends_its_process_on_a_case_of_one_group_keeps_the_points_of_the_others():
    [merges] = [find_exercise("1.7")]
    ends = merges.solution.replace(
        "if most < 0:", "if most == 20:\n        import os\n        os._exit(0)\n    if most < 0:"
    )
    assert any(case.arguments[1] == 20 for case in merges.inputs())
    found = Found(True, Answer(ends), ())
    with Worker(Limits()) as worker:
        came_to = begin(worker, merges, found, KeyRing(b"nobody can guess this secret"), "ada")()
    assert came_to.outcome == "crashed" and [one.points for one in came_to.earned] == [2, 1, 1, 0]


def test_what_ends_its_process_where_it_must_refuse_is_right_and_not_robust():
    merges = find_exercise("1.7")
    ends = merges.solution.replace(
        "if most < 0:", "if most < 0:\n        import os\n        os._exit(0)\n    if most < 0:"
    )
    takes = merges.solution.replace("if most < 0:", "if False:")
    with Worker(Limits()) as worker:
        keys = KeyRing(b"nobody can guess this secret")
        ended, took, robust = (
            begin(worker, merges, Found(True, Answer(text), ()), keys, "ada", 0.25)()
            for text in (ends, takes, merges.solution)
        )
    assert [one.outcome for one in (ended, took, robust)] == ["right"] * 3
    assert [one.points for one in (ended, took, robust)] == [5, 5, 6.25] and robust.most == took.most == 6.25
    assert "its process ended" in ended.unstood.fault and "expected a ValueError" in took.unstood.fault
    assert robust.robust and robust.unstood is None


def test_the_marks_say_what_is_robust():
    mask = find_exercise("2.5")
    takes = mask.solution.replace("if not 1 <= queries <= keys:", "if False:")
    assert takes != mask.solution
    with Worker(Limits()) as worker:
        keys = KeyRing(b"nobody can guess this secret")
        marks = [
            begin(worker, mask, Found(True, Answer(text), ()), keys, "ada", 0.5)() for text in (takes, mask.solution)
        ]
    handed = [Handed(name, (), "") for name in ("ada", "ben")]
    records = [record_of(Graded(one, "read", None, (each,))) for one, each in zip(handed, marks, strict=True)]
    class_of_two = settle(Results("week2", "", tuple(records)), {}, [])
    rows = [*csv.DictReader(io.StringIO(marks_csv.table(class_of_two, "week2")))]
    assert [(row["2.5"], row["2.5 points"], row["2.5 robust"]) for row in rows] == [
        ("right", "2", "no"),
        ("right", "3", "yes"),
    ]
    assert [(row["score"], row["max_score"]) for row in rows] == [("2", "3"), ("3", "3")]
    counted = marks_csv.statistics(class_of_two)
    assert "2.5,right and robust,,1" in counted and "2.5,right," in counted
    assert marks_csv.summary(class_of_two).split("\n")[1].split()[:3] == ["2.5", "2", "1"]
    pages = [feedback.page(one, "week2") for one in class_of_two]
    assert "It is not robust ★ yet, which would earn" in pages[0] and "expected a ValueError" in pages[0]
    assert "right, robust ★" in pages[1] and "not robust" not in pages[1]


def test_the_same_secret_gives_the_same_marks_and_another_one_other_cases():
    mine, same, other = KeyRing(b"one secret of many"), KeyRing(b"one secret of many"), KeyRing(b"another secret")
    exercise = find_exercise("2.3")
    first = [ring.hidden(exercise)[0].cases[0].arguments[0] for ring in (mine, same, other)]
    assert first[0].equal(first[1]) and not first[0].equal(first[2])
    assert mine.order("ada")(9) == same.order("ada")(9) != mine.order("bob")(9)
    assert sorted(mine.order("ada")(9)) == list(range(9))


def test_all_three_layouts_are_found(tmp_path):
    put(tmp_path / "flat" / "ada.ipynb", "{}")
    put(tmp_path / "flat" / "bob.py", "")
    put(tmp_path / "folders" / "ada" / "a.ipynb", "{}")
    put(tmp_path / "folders" / "ada" / "b.ipynb", "{}")
    put(tmp_path / "folders" / "ada" / "checks.py", "")
    put(tmp_path / "folders" / "ada" / ".ipynb_checkpoints" / "a.ipynb", "{}")
    put(tmp_path / "course" / "submitted" / "ada" / "week1" / "week1.ipynb", "{}")
    put(tmp_path / "course" / "submitted" / "ada" / "week2" / "week2.ipynb", "{}")
    put(tmp_path / "course" / "submitted" / "ada" / "week2" / "timestamp.txt", "2026-02-03 10:11:12 UTC\n")
    assert [one.student for one in handed_in(tmp_path / "flat")] == ["ada", "bob"]
    [ada] = handed_in(tmp_path / "folders")
    assert [file.name for file in ada.files] == ["b.ipynb"] and ada.others == ("a.ipynb",)
    [ada] = handed_in(tmp_path / "course", "week2")
    assert ada.files[0].name == "week2.ipynb" and ada.time == "2026-02-03 10:11:12+00:00"
    with pytest.raises(ValueError, match="--pset: required to say which problem set.*week1, week2"):
        handed_in(tmp_path / "course")
    put(tmp_path / "flat" / "notes.txt", "")
    assert left_out(tmp_path / "flat") == ["notes.txt"]


def test_a_link_to_somewhere_is_not_read(tmp_path, secret):
    (tmp_path / "in" / "mal").mkdir(parents=True)
    os.symlink(secret, tmp_path / "in" / "mal" / "set.ipynb")
    [mal] = handed_in(tmp_path / "in")
    assert mal.files == () and "is a link" in mal.fault


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["{in}"], "--seed-file: expected the file"),
        (["{in}", "--seed-file", "{in}/nothing", "--exercises", "2.1"], "cannot be read"),
        (["{in}", "--seed-file", "{empty}", "--exercises", "2.1"], "at least"),
        (["{in}", "--seed-file", "{in}/secret", "--exercises", "2.1"], "expected a file outside"),
        (["{in}", "--seed-file", "{secret}"], "--exercises: expected exercise numbers, or --pset"),
        (["{in}", "--seed-file", "{secret}", "--exercises", "2.1", "--pset", "x"], "exactly one of the three"),
        (["{in}", "--seed-file", "{secret}", "--exercises", "2.99"], "2.99"),
        (["{in}", "--seed-file", "{secret}", "--exercises", "2.1", "2.1"], "each exercise once"),
        (["{in}", "--seed-file", "{secret}", "--pset", "week9"], "--pset week9: expected the notebook, name or folder"),
        (["{in}", "--seed-file", "{secret}", "--exercises", "2.1", "--jobs", "0"], "--jobs 0"),
        (["{in}", "--seed-file", "{secret}", "--exercises", "2.1", "--time", "0"], "--time 0"),
        (["{in}", "--seed-file", "{secret}", "--exercises", "2.1", "--memory", "0"], "--memory 0"),
        (["{nobody}", "--seed-file", "{secret}", "--exercises", "2.1"], "expected STUDENT.ipynb"),
        (
            ["{in}/nowhere", "--seed-file", "{secret}", "--exercises", "2.1"],
            "expected a folder of submissions, found nothing",
        ),
    ],
)
def test_bad_flags_get_a_message_and_nothing_is_written(flags, message, tmp_path, secret, capsys):
    put(tmp_path / "in" / "ada.ipynb", notebook("x = 1"))
    put(tmp_path / "in" / "secret", "nobody can guess this secret")
    put(tmp_path / "empty", "  \n")
    (tmp_path / "nobody").mkdir()
    places = {"in": tmp_path / "in", "secret": secret, "empty": tmp_path / "empty", "nobody": tmp_path / "nobody"}
    out = tmp_path / "marks"
    assert main(["grade", *(flag.format(**places) for flag in flags), "--out", str(out)]) == 2
    assert message in capsys.readouterr().err and not out.exists()


def test_without_a_wall_nothing_is_graded_unless_it_is_asked_for_and_then_every_page_says_so(
    tmp_path, secret, capsys, monkeypatch
):
    monkeypatch.setattr(wall, "stands", lambda name: "it is not installed")
    for student in ("ada", "ben"):
        put(tmp_path / "in" / f"{student}.py", find_exercise("2.5").solution)
    out = tmp_path / "marks"
    flags = ["grade", str(tmp_path / "in"), "--seed-file", str(secret), "--exercises", "2.5", "--out", str(out)]
    assert main(flags) == 2 and not out.exists()
    assert "--no-sandbox is required" in capsys.readouterr().err
    assert main([*flags, "--no-sandbox", "--jobs", "1"]) == 0
    pages = [(out / "feedback" / f"{student}.html").read_text() for student in ("ada", "ben")]
    assert all("raded without a sandbox" in page for page in pages)


def test_what_lies_within_reach_is_named_and_nothing_is_graded(tmp_path, secret, capsys, monkeypatch):
    monkeypatch.setattr(wall, "stands", lambda name: "" if name == "bubblewrap" else "it needs root")
    monkeypatch.setattr(wall, "_shown", lambda: (str(tmp_path),))  # an environment inside the course's own folder
    put(tmp_path / "in" / "ada.py", "x = 1")
    flags = ["grade", str(tmp_path / "in"), "--seed-file", str(secret), "--exercises", "2.5"]
    assert main([*flags, "--out", str(tmp_path / "marks")]) == 2 and not (tmp_path / "marks").exists()
    assert f"{secret} lies in {tmp_path}, which students' code can read" in capsys.readouterr().err


def test_help_says_what_stands_between_students_code_and_the_grader(capsys):
    assert main(["grade", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "apt install bubblewrap" in shown and "--network none" in shown and "--no-sandbox" in shown
