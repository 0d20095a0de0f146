"""A project handed out, handed in and graded: each part by itself, and what is bad costs nobody but its owner."""

import csv
import io
import zipfile

import pytest

from companion.commands.main import main
from companion.data.corpora import Document
from companion.data.yardsticks import Yardstick
from companion_school.build.stages import STAGES
from companion_school.build.stubs import is_untouched, reference
from companion_school.build.workspace import VARIABLE, find_folder
from companion_school.course.grading import project
from companion_school.course.grading.project import LARGEST, board, run_races, sources_of, write_table
from companion_school.course.grading.submissions import handed_in


@pytest.fixture
def course(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["course", "release", "project", "--build", "2,4", "--out", "course"]) == 0
    return tmp_path


def hand_in(course, student, **texts):
    folder = course / "handed" / student
    folder.mkdir(parents=True)
    for module, text in texts.items():
        (folder / f"{module}.py").write_text(text, "utf-8")


def zipped(course, student, texts):
    (course / "handed").mkdir(exist_ok=True)
    with zipfile.ZipFile(course / "handed" / f"{student}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in texts.items():
            archive.writestr(name, text)


def test_a_project_is_handed_out_with_stubs_and_no_solution(course, capsys):
    made = course / "course" / "release" / "project"
    assert is_untouched(2, (made / "transformer" / "attention.py").read_text("utf-8"))
    assert "companion build check 2" in (made / "README.md").read_text("utf-8")
    page = (course / "course" / "project.md").read_text("utf-8")
    assert "22 points" in page and "companion grade hand-ins/ --pset project" in page
    assert main(["course", "release", "project", "--build", "2", "--out", "course"]) == 2
    assert "it has release/project already" in capsys.readouterr().err
    assert main(["course", "release", "later", "--build", "4", "--out", "course"]) == 0
    taken = course / "course" / "release" / "later" / "transformer" / "attention.py"
    assert taken.read_text("utf-8").startswith("# taken:")


def test_the_guides_go_along_from_wherever_it_is_released_or_it_is_said_that_they_do_not(course, capsys, monkeypatch):
    made = course / "course" / "release" / "project"  # released outside the repository
    assert [file.name[:2] for file in sorted((made / "notebooks").iterdir())] == ["02", "04"]
    assert "`notebooks/` has a guide" in (made / "README.md").read_text("utf-8")
    monkeypatch.delenv(VARIABLE, raising=False)
    assert find_folder(start=made / "notebooks") == made / "transformer"  # so the guides run with the student's files
    capsys.readouterr()
    monkeypatch.setattr("companion.__file__", str(course / "site-packages" / "companion" / "__init__.py"))
    assert main(["course", "release", "bare", "--build", "2", "--out", "course"]) == 0
    assert "guiding notebooks are not in it" in capsys.readouterr().out
    assert "--notebooks FOLDER" in (course / "course" / "bare.md").read_text("utf-8")
    assert "notebooks" not in (course / "course" / "release" / "bare" / "README.md").read_text("utf-8")
    assert main(["course", "release", "other", "--build", "2", "--out", "course", "--notebooks", "course"]) == 2
    assert "--notebooks course: expected the course's notebooks" in capsys.readouterr().err


def test_parts_earn_by_themselves_and_an_earlier_fault_costs_its_own_stage_alone(course, capsys):
    right = {STAGES[number].module: reference(number) for number in (2, 4)}
    attention = right["attention"].replace("tril(keys - queries)", "tril()")
    attention = attention.replace("scores.softmax(-1)", "scores.softmax(-2)")
    hand_in(course, "ada", **right)
    hand_in(course, "bob", attention=attention, layers=right["layers"])
    hand_in(course, "cyd", attention="def attend(:", layers=right["layers"])
    capsys.readouterr()
    flags = ["--seed-file", "course/secret.seed", "--out", "marks/project"]
    assert main(["grade", "handed", "--pset", "project", *flags]) == 0
    text = (course / "marks" / "project" / "marks.csv").read_text()
    rows = {row["student_id"]: row for row in csv.DictReader(io.StringIO(text))}
    assert [rows[name]["score"] for name in ("ada", "bob", "cyd")] == ["22", "12", "10"]
    assert rows["ada"]["max_score"] == "22" and rows["ada"]["build.2 attend"] == "right"
    pages = {name: (course / f"marks/project/feedback/{name}.html").read_text("utf-8") for name in ("bob", "cyd")}
    assert "the softmax runs over the queries" in pages["bob"] and "references of earlier stages" in pages["bob"]
    assert "attention.py, line 1: it is not valid Python" in pages["cyd"] and "12 of 22 points" in pages["bob"]
    assert main(["course", "export", "marks"]) == 0
    assert "3 students, 1 problem set (project)" in capsys.readouterr().out
    assert main(["course", "alike", "handed", "--build", "2,4"]) == 0
    told = capsys.readouterr().out
    assert "attention.py  100%  (the course's own answer), ada\n" in told
    assert "attention.py   99%  (the course's own answer), bob\n" in told
    assert "layers.py  100%  (the course's own answer), ada, bob, cyd\n" in told


def test_bad_hand_ins_get_a_sentence_each(course):
    zipped(course, "large", {"transformer/attention.py": "#" * (LARGEST + 1), "transformer/layers.py": reference(4)})
    zipped(course, "other", {"notes.txt": "hello"})
    (course / "handed" / "broken.zip").write_bytes(b"PK no zip")
    (course / "handed" / "empty").mkdir()
    hand_in(course, "latin", attention=reference(2))
    (course / "handed" / "latin" / "attention.py").write_bytes("# é\n".encode("latin-1"))
    found = {one.student: one for one in handed_in(course / "handed", project=True)}
    sources, faults = sources_of(found["large"])
    assert "expected at most 1,048,576" in faults["attention.py"] and "layers" in sources
    assert "none of the project's files" in found["other"].fault and "none of the project's" in found["empty"].fault
    assert "cannot be unpacked" in found["broken"].fault
    assert "attention.py is not text in UTF-8" in sources_of(found["latin"])[1]["attention.py"]
    with pytest.raises(ValueError, match="expected a folder of submissions, found nothing"):
        handed_in(course / "nothing", project=True)


def test_names_with_dots_are_whole_names_and_zips_are_opened_wherever_they_lie(course):
    for student in ("anna.meier", "anna.ode"):
        hand_in(course, student, attention=f"# {student}\n{reference(2)}")
    zipped(course, "tom.old", {"attention.py": "x = 1\n"})
    (course / "handed" / "tom").mkdir()
    (course / "handed" / "tom.old.zip").rename(course / "handed" / "tom" / "transformer.zip")
    (course / "handed" / "pipe.zip").symlink_to(course / "nowhere")
    found = {one.student: one for one in handed_in(course / "handed", project=True)}
    assert sources_of(found["anna.meier"])[0]["attention"].startswith("# anna.meier")
    assert sources_of(found["anna.ode"])[0]["attention"].startswith("# anna.ode") and found["anna.ode"].fault is None
    assert sources_of(found["tom"])[0] == {"attention": "x = 1\n"}
    assert "is a link" in found["pipe"].fault


TOKENIZER = """
def encode(text, merges): return list(text.encode())
def decode(ids, merges): return bytes(ids).decode()
"""
RACE = """
import torch
from types import SimpleNamespace
def race(text, seconds):
    table = torch.full((256, 256), 0.01)
    ids = torch.tensor(list(text.encode()))
    table.index_put_((ids[:-1], ids[1:]), torch.ones(()), accumulate=True)
    return SimpleNamespace(model=lambda ids: table[ids].log(), merges=[], context=9)
"""


def test_the_races_of_a_class_become_a_table_and_a_bad_one_costs_its_owner_alone(course, monkeypatch):
    texts = (Document("a", "the cat sat on the mat. " * 40),), (Document("b", "the mat sat on the cat. " * 3),)
    monkeypatch.setattr(project.race, "texts", lambda: texts)
    monkeypatch.setattr(project.race, "yardsticks", lambda *_: [Yardstick("byte 5-gram model", 3.0)])
    monkeypatch.setattr(project.race, "_SECONDS", 0.0)
    hand_in(course, "ada", tokenizer=TOKENIZER, race=RACE)
    hand_in(course, "bob", tokenizer=TOKENIZER, race=RACE.replace("table[ids]", "(table[ids] ** 0)"))
    hand_in(course, "cyd", tokenizer=TOKENIZER, race=RACE.replace("table[ids]", "table[ids.roll(-1)]"))
    hand_in(course, "dan", tokenizer=TOKENIZER, race="import os\ndef race(text, seconds): os._exit(0)\n")
    late = RACE.replace("    return", "    import time; time.sleep(1.5)\n    return")
    hand_in(course, "eve", tokenizer=TOKENIZER, race=late)
    hand_in(course, "fay", attention=reference(2))
    rows = board(run_races(handed_in(course / "handed", project=True), minutes=0.015))
    told = {row[1]: row for row in rows}
    assert [row[1] for row in rows[1:3]] in (["ada", "eve"], ["eve", "ada"]) and "fay" not in told
    assert told["ada"][0] == "1" and told["bob"][0] == "2" and 0.5 < float(told["ada"][2]) < 2
    assert told["bob"][2] == "8.000" and told["byte 5-gram model"][0] == "" and rows.index(told["bob"]) == 4
    assert told["eve"][0] == "" and told["eve"][3].startswith("late: ")
    assert told["cyd"][3].startswith("race: the logits of a token change with the tokens that come after")
    assert told["dan"][3] == "it ended its process"
    write_table(rows, course / "marks" / "board.csv")
    assert (course / "marks" / "board.csv").read_text().splitlines()[0] == "place,who,bits per byte,note"


def test_a_project_stands_by_itself(course, capsys):
    assert main(["course", "release", "mixed", "--build", "2", "--exercises", "2.3", "--out", "course"]) == 2
    assert "expected a project by itself, got --exercises" in capsys.readouterr().err
