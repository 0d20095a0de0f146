"""A project handed out, handed in and graded: each part by itself, and what is bad costs nobody but its owner."""

import zipfile

import pytest

from companion.commands.main import main
from companion.school.build.sources import is_untouched, reference
from companion.school.build.stages import STAGES
from companion.school.course.grading.project import LARGEST, hand_ins


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
    assert "22 points" in page and "companion grade hand-ins/ --build 2,4" in page
    assert main(["course", "release", "project", "--build", "2", "--out", "course"]) == 2
    assert "it has release/project already" in capsys.readouterr().err
    assert main(["course", "release", "later", "--build", "4", "--out", "course"]) == 0
    taken = course / "course" / "release" / "later" / "transformer" / "attention.py"
    assert taken.read_text("utf-8").startswith("# taken:")


def test_parts_earn_by_themselves_and_an_earlier_fault_costs_its_own_stage_alone(course, capsys):
    right = {STAGES[number].module: reference(number) for number in (2, 4)}
    attention = right["attention"].replace("tril(keys - queries)", "tril()")
    attention = attention.replace("scores.softmax(-1)", "scores.softmax(-2)")
    hand_in(course, "ada", **right)
    hand_in(course, "bob", attention=attention, layers=right["layers"])
    hand_in(course, "cyd", attention="def attend(:", layers=right["layers"])
    capsys.readouterr()
    grade = ["grade", "handed", "--build", "2,4", "--seed-file", "course/secret.seed", "--out", "marks"]
    assert main(grade) == 0
    rows = {line.split(",")[0]: line.split(",") for line in (course / "marks" / "marks.csv").read_text().splitlines()}
    assert rows["ada"][1:4] == ["12", "10", "22"] and rows["cyd"][1:4] == ["0", "10", "10"]
    assert rows["bob"][1:4] == ["2", "10", "12"]
    page = (course / "marks" / "feedback" / "bob.md").read_text("utf-8")
    assert "most likely: the softmax runs over the queries" in page and "references of earlier stages" in page
    assert "attention.py, line 1: it is no Python" in (course / "marks" / "feedback" / "cyd.md").read_text("utf-8")


def test_bad_hand_ins_get_a_sentence_each(course):
    zipped(course, "large", {"transformer/attention.py": "#" * (LARGEST + 1), "transformer/layers.py": reference(4)})
    zipped(course, "other", {"notes.txt": "hello"})
    (course / "handed" / "broken.zip").write_bytes(b"PK no zip")
    zipped(course, "same", {"attention.py": reference(2)})
    hand_in(course, "again", attention=reference(2))
    (course / "handed" / "empty").mkdir()
    found = {one.student: one for one in hand_ins(course / "handed")}
    assert "expected at most 1,048,576" in found["large"].faults["attention.py"] and "layers" in found["large"].sources
    assert "none of the project's files" in found["other"].fault and "none of the project's" in found["empty"].fault
    assert "it cannot be read" in found["broken"].fault
    assert found["same"].faults[""] == "the same files as again" and found["same"].sources
    with pytest.raises(ValueError, match="expected a folder of hand-ins, found nothing"):
        hand_ins(course / "nothing")


def test_a_project_stands_by_itself(course, capsys):
    assert main(["course", "release", "mixed", "--build", "2", "--exercises", "2.3", "--out", "course"]) == 2
    assert "expected a project by itself, got --exercises" in capsys.readouterr().err
