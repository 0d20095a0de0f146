"""Whatever students put into a folder of submissions, by mistake or on purpose, only affects themselves."""

import csv
import json
import os
import struct
import subprocess
import zipfile
from pathlib import Path

import pytest

from companion.commands.main import main
from companion_school.course.grading import archives, received
from companion_school.course.grading.answers import Submission
from companion_school.course.grading.exercise_mark import Graded
from companion_school.course.grading.grade import grade
from companion_school.course.grading.gradebook import collect, to_csv
from companion_school.course.grading.marks_csv import page_name
from companion_school.course.grading.received import moment
from companion_school.course.grading.results import record_of
from companion_school.course.grading.sandbox.parent import Limits
from companion_school.course.grading.submissions import handed_in, left_out, plain, platform_name, scratch
from companion_school.course.grading.tables import quoted, unquoted
from companion_school.exercises.catalogue import find_exercise

CHOSEN = find_exercise("2.5")
LIMITS = Limits(seconds=8, memory_gib=0.5)


def book(*cells):
    parts = [{"cell_type": "code", "source": cell, "metadata": {}, "outputs": []} for cell in cells]
    return json.dumps({"cells": parts, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


RIGHT = book("import torch, math", CHOSEN.solution)


def put(path, text=RIGHT):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def outcomes(folder, assignment="week2"):
    graded = grade(handed_in(folder, assignment), [CHOSEN], b"a secret of sixteen", jobs=1, limits=LIMITS)
    return {student.handed.student: student for student in graded}


def test_a_link_to_somebody_elses_folder_earns_nothing(tmp_path):
    put(tmp_path / "in" / "alice" / "week2" / "week2.ipynb")
    put(tmp_path / "course" / "source" / "week2" / "week2.ipynb")
    (tmp_path / "in" / "mallory").mkdir()
    (tmp_path / "in" / "mallory" / "week2").symlink_to("../alice/week2")
    (tmp_path / "in" / "oscar").mkdir()
    (tmp_path / "in" / "oscar" / "week2").symlink_to("../../course/source/week2")
    (tmp_path / "in" / "trudy").symlink_to("alice")
    (tmp_path / "in" / "ivan.ipynb").symlink_to("alice/week2/week2.ipynb")
    found = {handed.student: handed for handed in handed_in(tmp_path / "in", "week2")}
    assert found["alice"].fault is None and len(found["alice"].files) == 1
    for thief in ("mallory", "oscar", "trudy", "ivan"):
        assert found[thief].files == () and "link" in found[thief].fault


def test_a_time_is_believed_where_nbgrader_wrote_it_and_nowhere_else(tmp_path):
    stamp = "2020-01-01 00:00:00 UTC"
    for folder in (
        tmp_path / "course" / "submitted" / "ada" / "week2",
        tmp_path / "plain" / "ada",
        tmp_path / "plain" / "bob" / "week2",
    ):
        put(folder / "week2.ipynb")
        put(folder / "timestamp.txt", stamp)
    put(tmp_path / "course" / "submitted" / "eve" / "set.ipynb")
    put(tmp_path / "course" / "submitted" / "eve" / "timestamp.txt", stamp)
    times = {handed.student: handed.time for handed in handed_in(tmp_path / "course", "week2")}
    assert times == {"ada": "2020-01-01 00:00:00+00:00", "eve": ""}
    assert [handed.time for handed in handed_in(tmp_path / "plain", "week2")] == ["", ""]


@pytest.mark.parametrize("kind", ["a pipe", "a sparse file", "a folder", "a link"])
def test_a_timestamp_that_is_no_small_file_holds_nobody_up(kind, tmp_path):
    home = tmp_path / "submitted" / "ada" / "week2"
    put(home / "week2.ipynb")
    stamp = home / "timestamp.txt"
    if kind == "a pipe":
        os.mkfifo(stamp)
    elif kind == "a sparse file":
        stamp.touch()
        os.truncate(stamp, 3 * 2**30)
    elif kind == "a folder":
        stamp.mkdir()
    else:
        stamp.symlink_to("/dev/zero")
    [ada] = handed_in(tmp_path, "week2")
    assert (ada.time, ada.time_from) == ("", "unknown")


def test_one_students_folder_is_that_students_row_and_the_batch_goes_on(tmp_path):
    inside = tmp_path / "in"
    put(inside / "ada.ipynb")
    put(inside / "two sets" / "a" / "a.ipynb")
    put(inside / "two sets" / "b" / "b.ipynb")
    put(inside / "twice.ipynb")
    put(inside / "twice" / "set.ipynb")
    (inside / "pipe").mkdir()
    os.mkfifo(inside / "pipe" / "set.ipynb")
    (inside / "locked" / "week2").mkdir(parents=True)
    (inside / "folder" / "set.ipynb").mkdir(parents=True)
    found = {handed.student: handed for handed in handed_in(inside, "week2")}
    assert found["ada"].fault is None
    assert "holds a, b" in found["two sets"].fault and found["twice"].fault is None
    assert len(found["twice"].files) == len(found["twice"].others) == 1
    assert all("link or a folder" in found[name].fault for name in ("pipe", "folder"))
    assert "found nothing" in found["locked"].fault
    with pytest.raises(ValueError, match=r"--pset: required to say which problem set to grade; .* holds a, b"):
        (lonely := tmp_path / "lonely").mkdir()
        (inside / "two sets").rename(lonely / "two sets")
        handed_in(lonely, "week2")


def test_a_folder_that_cannot_be_listed_is_its_students_fault(tmp_path, monkeypatch):
    put(tmp_path / "in" / "ada.ipynb")
    (tmp_path / "in" / "shut").mkdir()
    listed = type(tmp_path).iterdir

    def iterdir(path):
        if path.name == "shut":  # root can list every folder
            raise PermissionError(13, "Permission denied")
        return listed(path)

    monkeypatch.setattr(type(tmp_path), "iterdir", iterdir)
    found = {handed.student: handed.fault for handed in handed_in(tmp_path / "in")}
    assert found == {"ada": None, "shut": "its folder cannot be read (Permission denied)"}


NAMES = {
    "n" * 249: "too long for a page",
    "Jörg".encode("latin-1").decode("utf-8", "surrogateescape"): "in Latin-1",
    "\x1b[2Jall graded\nada: right": "for the terminal",
    '=HYPERLINK("http:..")': "a formula",
    "\u202egpj": "right to left",
}


def test_names_of_students_do_no_harm_and_everybody_gets_a_row_and_a_page(tmp_path, capsys):
    inside, out = tmp_path / "in", tmp_path / "marks"
    for name in NAMES:
        put(
            inside / f"{name}.ipynb"[-255:] if len(name) < 200 else inside / f"{name}.py",
            "x = 1" if len(name) > 200 else RIGHT,
        )
    put(inside / "ada.ipynb")
    put(tmp_path / "mine" / "secret", "nobody can guess this secret")
    flags = ["--seed-file", str(tmp_path / "mine" / "secret"), "--out", str(out), "--exercises", "2.5"]
    assert main(["grade", str(inside), *flags]) == 0
    said = capsys.readouterr()
    assert "\x1b[2J" not in said.out + said.err and "\nada: right" not in said.out
    text = (out / "marks.csv").read_text("utf-8")
    rows = {row["student_id"]: row for row in csv.DictReader(text.splitlines())}
    assert len(rows) == len(list((out / "feedback").iterdir())) == len(NAMES) + 1
    assert rows["ada"]["score"] == rows["J\\xf6rg"]["score"] == "2"
    assert not any(name.startswith("=") for name in rows)


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"), ("a;=1+1;b", "a;'=1+1;b"), ("\uff1d1+1", "'\uff1d1+1"), ("a\n=1", "a\n'=1"),
        (" \u202e@x", "' \u202e@x"),
        ("'=1", "''=1"), ("a,-b", "a,-b"), ("O'Neil", "O'Neil"), ("a;b", "a;b"),
    ],
)  # fmt: skip
def test_no_cell_is_a_formula_whatever_a_spreadsheet_takes_for_a_separator(text, cell):
    assert quoted(text) == cell and unquoted(cell) == text


def test_a_quoted_name_is_the_same_name_after_export(tmp_path):
    assert [unquoted(quoted(name)) for name in ("=1", "ada", "'x", "@a")] == ["=1", "ada", "'x", "@a"]
    head = "assignment,student_id,score,max_score\n"
    put(tmp_path / "marks.csv", f"{head}week2,'=1,2,6\n")
    [row] = collect(tmp_path)
    assert row["student_id"] == "=1" and ",'=1," in to_csv([row])


def test_pages_of_long_names_are_told_apart():
    first, second = page_name("n" * 254), page_name("n" * 253)
    assert first != second and max(len(first), len(second)) < 200 and page_name("ada") == "ada.html"
    assert len(page_name("ä" * 120).encode()) < 200


def test_left_out_files_are_named_plainly(tmp_path):
    put(tmp_path / "\x1b[2J.txt", "")
    assert left_out(tmp_path) == ["\\x1b[2J.txt"] == [plain("\x1b[2J.txt")]


def test_a_zip_writes_nothing_elsewhere_and_no_more_than_a_notebook_may_weigh(tmp_path, monkeypatch):
    inside = tmp_path / "in"
    inside.mkdir()
    contents = {"ada": {"../../evil.ipynb": RIGHT, "/week2.ipynb": RIGHT}, "eve": {"week2.ipynb": "0" * 5000}}
    contents["mal"] = {f"{at}.ipynb": "" for at in range(300)}
    for student, entries in contents.items():
        with zipfile.ZipFile(inside / f"{student}.zip", "w", zipfile.ZIP_DEFLATED) as packed:
            for name, text in entries.items():
                packed.writestr(name, text)
    monkeypatch.setattr(archives, "LARGEST", 4000)
    monkeypatch.setattr(archives, "_LARGEST_INDEX", 10_000)
    found = {one.student: one for one in handed_in(inside, "week2")}
    assert found["ada"].files[0].name == "week2.ipynb" and found["ada"].others == ("evil.ipynb",)
    assert all(file.is_relative_to(scratch()) for file in found["ada"].files) and not list(tmp_path.glob("*.ipynb"))
    assert "its files are larger than" in found["eve"].fault and "it lists too many files" in found["mal"].fault


BOMBS = {
    "a hundred thousand lines": book("x = 1\n" * 100_000),
    "a million spaces": book("x = (\n" + " " * 10**6 + "x"),
    "a list of four million numbers": book("y = [" + "1," * 4_000_000 + "]"),
    "deep brackets": "[" * 10**6,
    "a JSON of lists": '{"cells": [' + "[]," * 10_000_000 + "[]]}",
    "ten thousand magics": book("!ls\n" * 10_000 + "x = ("),
}


@pytest.fixture(scope="module")
def bombed(tmp_path_factory):
    """Grade each of these files, with a right answer after each, one after the other."""
    folder = tmp_path_factory.mktemp("in")
    for kind, text in BOMBS.items():
        put(folder / f"{kind}, eve.ipynb", text)
        put(folder / f"{kind}, zoe.ipynb")
    return outcomes(folder)


@pytest.mark.parametrize("kind", BOMBS)
def test_a_file_that_takes_for_ever_or_all_memory_to_read_is_one_students_row(kind, bombed):
    eve, zoe = bombed[f"{kind}, eve"], bombed[f"{kind}, zoe"]
    assert zoe.marks[0].outcome == "right"
    assert not any(mark.points for mark in eve.marks) and eve.submission in ("unreadable", "other notebook")
    assert eve.fault


@pytest.mark.parametrize(
    "cell",
    [
        "import functools\n# two\u2028lines\n@functools.cache\ndef double(x):\n    return 2 * x",
        "import functools\n# a form\ffeed\n@functools.cache\ndef double(x):\n    return 2 * x",
        "here = !pwd\ndef double(x):\n    return 2 * x",
        "took = %timeit -o 1 + 1\ndef double(x):\n    return 2 * x",
        "%precision 4\ndef double(x):\n    return (2  # why 2?\n            * x)",
        "def double(x):\n    return (8 * x\n            % 6 // 1)\n!ls",
        "a = 'ä'; double = lambda x: 2 * x; b = 'é'",
        "def double(x):\r\n    return 2 * x\r\n!ls\r\n",
    ],
)
def test_what_jupyter_lets_people_write_is_read(cell):
    names: dict = {}
    exec(Submission([cell]).find("double").program, names)
    assert names["double"](1) == 2


def test_a_zip_whose_list_of_files_is_another_one_than_it_says_is_not_read(tmp_path):
    """`zipfile` would read the directory for archives of more than 4 GB, however long it is."""
    with zipfile.ZipFile(tmp_path / "ada.zip", "w") as packed:
        packed.writestr("week2.ipynb", RIGHT)
    data = (tmp_path / "ada.zip").read_bytes()
    at = data.rindex(b"PK\x05\x06")
    larger = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 1, 1, 2**30, 0)
    where = struct.pack("<4sLQL", b"PK\x06\x07", 0, at, 1)
    (tmp_path / "ada.zip").write_bytes(data[:at] + larger + where + data[at:])
    [ada] = handed_in(tmp_path)
    assert ada.fault == "ada.zip cannot be unpacked: it is a Zip64 archive (for more than 4 GB)"


def test_a_repository_that_takes_for_ever_is_asked_once_and_with_little_memory(tmp_path, monkeypatch):
    home = tmp_path / "ada"
    for name in ("week2.ipynb", "week2 (1).ipynb", "week2 (2).ipynb"):
        (home / ".git").mkdir(parents=True, exist_ok=True)
        (home / name).write_text(RIGHT)
    (home / ".git" / "HEAD").write_text("0" * 40)
    asked = []

    def slow(command, timeout, **_):
        asked.append(" ".join(command))
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(received.subprocess, "run", slow)
    [ada] = handed_in(tmp_path, "week2")
    assert len(asked) == 1 and "ulimit -v" in asked[0] and "ulimit -t" in asked[0]
    assert ada.files[0].name == "week2 (2).ipynb" and ada.time_from == "unknown"


def test_a_folder_of_many_zips_is_not_unpacked(tmp_path):
    """Each of them could unpack to 200 MiB."""
    for at in range(12):
        put(tmp_path / "eve" / f"{at}.zip", "")
        with zipfile.ZipFile(tmp_path / "eve" / f"{at}.zip", "w") as packed:
            packed.writestr("week2.ipynb", RIGHT)
    [eve] = handed_in(tmp_path, "week2")
    assert eve.fault == "it holds 12 zip files; expected at most 10" and eve.files == ()


def test_a_class_in_one_zip_loses_nobody_to_somebody_elses_files(tmp_path):
    file, ending = tmp_path / "class.zip", "_assignsubmission_file"
    with zipfile.ZipFile(file, "w") as packed:
        for number in range(150):
            for module in range(14):  # the checks, which many hand in with their notebook
                packed.writestr(f"S {number}_{number + 1}{ending}/exercise_check/m{module}.py", "x = 1")
            packed.writestr(f"S {number}_{number + 1}{ending}/week2.ipynb", book())
        packed.writestr(f"Long_901{ending}/{'书' * 100}.ipynb", book())
        packed.writestr(f"Twice_902{ending}/a.py", "x = 1")
        packed.writestr(f"Twice_902{ending}/a.py/week2.ipynb", book())
    found = handed_in(file, "week2")
    assert len(found) == 152 and not [one.student for one in found if one.fault]


def test_who_handed_in_no_notebook_has_a_row_in_a_class_zip_too(tmp_path):
    with zipfile.ZipFile(tmp_path / "class.zip", "w") as packed:
        packed.writestr("Ada Lovelace_1_assignsubmission_file_/week2.ipynb", book())
        packed.writestr("Eun Park_2_assignsubmission_file_/scan.pdf", b"%PDF")
        packed.writestr("Eun Park_2_assignsubmission_file_/more.pdf", b"%PDF")
        packed.writestr("ben/", "")
        packed.writestr("__MACOSX/ada/._week2.ipynb", "")
        packed.writestr("grades.xlsx", "")
    found = {one.student: one.fault for one in handed_in(tmp_path / "class.zip", "week2")}
    only = "expected a notebook, found only scan.pdf"
    assert found == {"Ada Lovelace_1": None, "Eun Park_2": only, "ben": "expected a notebook, found nothing"}


def test_a_zip_with_an_environment_is_that_of_its_notebook(tmp_path):
    for place in (".venv/lib", "venv/lib/python"):
        with zipfile.ZipFile(tmp_path / "ada.zip", "w") as packed:
            for number in range(2100):
                packed.writestr(f"{place}/m{number}.py", "x = 1")
            packed.writestr("week2.ipynb", book())
        [ada] = handed_in(tmp_path, "week2")
        assert (ada.fault, [file.name for file in ada.files]) == (None, ["week2.ipynb"])


def test_a_students_folder_called_submitted_hides_nobody(tmp_path):
    for name in ("ada", "submitted"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "week2.ipynb").write_text(book())
    assert [one.student for one in handed_in(tmp_path, "week2")] == ["ada", "submitted"]


def test_a_fault_is_plain_text_whatever_a_file_is_called(tmp_path):
    (tmp_path / "evil").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path / "evil") + b"/x\xff\x1b[31m.zip")).write_bytes(b"PK")
    [evil] = handed_in(tmp_path, "week2")
    fault = record_of(Graded(evil, "nothing to grade", evil.fault, ())).fault
    assert fault.isprintable() and fault.encode() and "cannot be unpacked" in fault


def test_a_name_with_two_platform_numbers_is_nobody_elses():
    assert platform_name("Mallory_102_assignsubmission_file_103_assignsubmission_file") is None


@pytest.mark.parametrize("time", ["9999-12-31 23:59:59-12:00", "0001-01-01 00:00:00+12:00"])
def test_a_time_that_nobody_can_mean_is_no_time(time):
    with pytest.raises(ValueError, match="must be a time such as"):
        moment(time, "time")
