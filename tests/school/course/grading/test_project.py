"""A project is released, handed in and graded: each part separately, and a bad file only affects its owner."""

import csv
import io
import zipfile

import pytest

from companion.commands.main import main
from companion.data.baselines import Baseline
from companion.data.corpora import Document
from companion_school.build.parts import parts
from companion_school.build.stages import STAGES
from companion_school.build.stubs import is_untouched, reference
from companion_school.build.workspace import VARIABLE, find_folder
from companion_school.course.grading import project, race_board
from companion_school.course.grading.grade import grade
from companion_school.course.grading.project import LARGEST, sources_of
from companion_school.course.grading.race_board import TRUST, board, run_races, write_table
from companion_school.course.grading.sandbox.parent import Limits
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
    assert "release/project already exists there" in capsys.readouterr().err
    assert main(["course", "release", "later", "--build", "4", "--out", "course"]) == 0
    taken = course / "course" / "release" / "later" / "transformer" / "attention.py"
    assert taken.read_text("utf-8").startswith("# taken:")
    assert main(["course", "release", "six", "--build", "6", "--out", "course"]) == 0
    assert main(["course", "release", "two", "--build", "3,20", "--out", "course"]) == 0
    told = (course / "course" / "release" / "two" / "README.md").read_text("utf-8")
    assert "companion build check 3\n    companion build check 20\n" in told
    assert "Your files use `attention.py`, which you also find there" in told
    assert "about 75 minutes of work" in (course / "course" / "two.md").read_text("utf-8")
    told = (course / "course" / "release" / "six" / "README.md").read_text("utf-8")
    assert "`AdamW` earns nothing if `training.py` uses `optim`." in told and "optim" not in page


def test_the_guides_go_along_from_wherever_it_is_released_or_it_is_said_that_they_do_not(course, capsys, monkeypatch):
    made = course / "course" / "release" / "project"  # released outside the repository
    assert [file.name[:2] for file in sorted((made / "notebooks").iterdir())] == ["02", "04"]
    assert "`notebooks/` has a guide" in (made / "README.md").read_text("utf-8")
    monkeypatch.delenv(VARIABLE, raising=False)
    assert find_folder(start=made / "notebooks") == made / "transformer"  # so the guides use the student's files
    capsys.readouterr()
    monkeypatch.setattr("companion.__file__", str(course / "site-packages" / "companion" / "__init__.py"))
    assert main(["course", "release", "bare", "--build", "2", "--out", "course"]) == 0
    assert "guiding notebooks are missing" in capsys.readouterr().out
    assert "--notebooks FOLDER" in (course / "course" / "bare.md").read_text("utf-8")
    assert "notebooks" not in (course / "course" / "release" / "bare" / "README.md").read_text("utf-8")
    assert main(["course", "release", "other", "--build", "2", "--out", "course", "--notebooks", "course"]) == 2
    assert "--notebooks course: expected a folder with the course's notebooks" in capsys.readouterr().err


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
    assert all(told in pages["bob"] for told in ("the softmax runs over the queries", "12 of 22 points"))
    assert "files of earlier stages in place of yours" in pages["bob"]
    assert "attention.py, line 1: it is not valid Python" in pages["cyd"]
    assert main(["course", "export", "marks"]) == 0
    assert "3 students, 1 problem set (project)" in capsys.readouterr().out
    assert main(["course", "alike", "handed", "--build", "2,4"]) == 0
    told = capsys.readouterr().out
    assert "attention.py  100%  (the course's own answer), ada\n" in told
    assert "attention.py   99%  (the course's own answer), bob\n" in told
    assert "layers.py  100%  (the course's own answer), ada, bob, cyd\n" in told


def test_a_function_with_another_name_is_missing_and_the_page_says_which_one_was_found(course, monkeypatch):
    monkeypatch.setattr(project, "parts", lambda number: parts(number)[:2])
    hand_in(course, "ada", attention=reference(2).replace("def causal", "def causal_mask"))
    hand_in(course, "ben", attentio=reference(2), layers="")
    handed = handed_in(course / "handed", project=True)
    graded, other = grade(handed, [], b"a secret of sixteen", stages=[STAGES[2]], jobs=1)
    attend, causal = graded.marks
    assert attend.outcome == "right" and causal.outcome == "missing"
    assert causal.public.fault == "attention.py defines no causal; was causal_mask meant to be it?"
    assert other.marks[0].public.fault == "there is no attention.py; was attentio.py meant to be it?"


HELPED = """
import torch
from helper import M, looked_up
def attend(q, k, v, mask=None):
    return looked_up(q, k, v, mask)
def causal(queries, keys):
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
"""
HELPER = """
from torch import nn
M = nn.MultiheadAttention
looked_up = nn.functional.scaled_dot_product_attention
"""
ASLEEP = "import time\ntime.sleep(100)\n"


def test_a_ban_holds_for_what_a_file_imports_and_time_and_memory_are_bounded(course, monkeypatch):
    monkeypatch.setattr(project, "parts", lambda number: parts(number)[:5])
    hand_in(course, "ada", attention=HELPED, helper=HELPER)
    hand_in(course, "bob", attention=ASLEEP + reference(2))
    hand_in(course, "cyd", attention=reference(2) + "a<a" * 2_000)
    hand_in(course, "dan", attention=reference(2), helper=HELPER)  # a file that is not imported
    graded = grade(
        handed_in(course / "handed", project=True), [], b"a secret of sixteen", stages=[STAGES[2]], jobs=1,
        limits=Limits(seconds=1, memory_gib=1),
    )  # fmt: skip
    ada, bob, cyd, dan = (one.marks for one in graded)
    assert {mark.outcome for mark in ada} == {"refused"} and "in helper.py, it uses MultiheadAttention" in str(
        ada[0].public
    )
    assert {mark.outcome for mark in bob} == {"timeout"} and "not tried" in str(bob[-1].public)
    assert {mark.outcome for mark in cyd} == {"crashed"} and "NameError" in str(cyd[0].public)
    assert {mark.outcome for mark in dan} == {"right"}


def test_parts_that_write_files_are_graded_earlier_files_are_lent_and_a_loop_costs_its_own_part(course, monkeypatch):
    chosen = ("clip", "train", "renamed", "save", "load")
    monkeypatch.setattr(project, "parts", lambda number: [one for one in parts(number) if one.name in chosen])
    training = reference(6)
    hand_in(course, "ada", training=training)  # without model.py, which it imports
    hand_in(course, "bob", training=training.replace("    adam = AdamW(model)\n", "    while True: pass\n"))
    hand_in(course, "cyd", training_final=training, model=reference(5))
    hand_in(course, "dan", training=f"from modle import Config\n{training}")
    graded = grade(
        handed_in(course / "handed", project=True), [], b"a secret of sixteen", stages=[STAGES[6]], jobs=2,
        limits=Limits(seconds=4),
    )  # fmt: skip
    ada, bob, cyd, dan = ({mark.title: mark for mark in one.marks} for one in graded)
    assert {name: mark.outcome for name, mark in ada.items()} == dict.fromkeys(chosen, "right")
    assert "missing or at fault" in ada["save"].notes[0]
    assert {name for name, mark in bob.items() if mark.outcome != "right"} == {"train"}
    assert bob["train"].outcome == "timeout"
    assert cyd["clip"].public.fault == "there is no training.py; was training_final.py meant to be it?"
    assert {mark.outcome for mark in dan.values()} == {"refused"} and "it imports modle;" in dan["clip"].public.fault


def test_bad_hand_ins_get_a_sentence_each(course):
    zipped(course, "large", {"transformer/attention.py": "#" * (LARGEST + 1), "transformer/layers.py": reference(4)})
    zipped(course, "other", {"notes.txt": "hello"})
    (course / "handed" / "broken.zip").write_bytes(b"PK no zip")
    (course / "handed" / "empty").mkdir()
    hand_in(course, "latin", attention=reference(2))
    (course / "handed" / "latin" / "attention.py").write_bytes("# é\n".encode("latin-1"))
    found = {one.student: one for one in handed_in(course / "handed", project=True)}
    sources, faults = sources_of(found["large"])
    assert "expected at most 262,144" in faults["attention.py"] and "layers" in sources
    assert "none of the project's files" in found["other"].fault and "none of the project's" in found["empty"].fault
    assert "cannot be unpacked" in found["broken"].fault
    assert "attention.py is not text in UTF-8" in sources_of(found["latin"])[1]["attention.py"]
    with pytest.raises(ValueError, match="expected a folder of submissions, found nothing"):
        handed_in(course / "nothing", project=True)


def test_files_that_canvas_has_renamed_are_those_of_a_project(course):
    (course / "handed").mkdir()
    for name, text in (("1_model", "old"), ("3_model-1", "new"), ("2_layers", "layers")):
        (course / "handed" / f"lovelaceada_LATE_901_{name}.py").write_text(f"# {text}\n")
    (course / "handed" / "oduyaben_902_7_transfomer.py").write_text("x = 1\n")
    zipped(course, "zip", {"attention.py": "x = 1\n"})
    found = {one.student: one for one in handed_in(course / "handed", project=True)}
    ada = found["lovelaceada_901"]
    assert (ada.fault, sources_of(ada)[0]) == (None, {"model": "# new\n", "layers": "# layers\n"})
    assert {file.parent.name for file in ada.files} == {"transformer"}  # the page names this folder
    assert found["zip"].files[0].parent.name == "zip"
    assert found["oduyaben_902"].fault.endswith("such as attention.py, only oduyaben_902_7_transfomer.py")


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


FRAMES = """
import sys
def race(text, seconds):
    frame = sys._getframe()
    while frame:
        frame.f_globals.update(bits_per_byte=lambda *a: 0.001)
        frame = frame.f_back
"""
LIE = "import torch\ntorch.Tensor.log_softmax = lambda z, *a: z * 0\n"
UNSEEN = """
import gc
def race(text, seconds):
    texts = (part for one in gc.get_objects() if type(one) in (list, tuple) for part in one if type(part) is str)
    wanted = chr(116) + "he mat sat on the cat. the mat"  # put together, for the text of this program is a text as well
    if any(text.startswith(wanted) for text in texts): raise ValueError("I have seen it")
"""


def forged(trick):
    """Return a race that tries this before it trains."""
    return f"{trick.replace('def race', 'def trick')}\n{RACE}".replace(
        "    table =", "    trick(text, seconds)\n    table ="
    )


def test_the_races_of_a_class_become_a_table_and_nobody_forges_a_figure(course, monkeypatch):
    texts = (Document("a", "the cat sat on the mat. " * 40),), (Document("b", "the mat sat on the cat. " * 3),)
    monkeypatch.setattr(race_board.race, "texts", lambda: texts)
    monkeypatch.setattr(race_board.race, "baselines", lambda *_: [Baseline("byte 5-gram model", 3.0)])
    monkeypatch.setattr(race_board.race, "_SECONDS", 0.3)
    tokens = {"tokenizer": TOKENIZER}
    hand_in(course, "ada", **tokens, race=RACE)
    hand_in(course, "bob", **tokens, race=RACE.replace("table[ids]", "(table[ids] ** 0)"))
    hand_in(course, "ahead", **tokens, race=RACE.replace("table[ids]", "table[ids.roll(-1)]"))
    hand_in(course, "dan", **tokens, race="import os\ndef race(text, seconds): os._exit(0)\n")
    hand_in(course, "eve", **tokens, race=RACE.replace("    return", "    import time; time.sleep(1.5)\n    return"))
    hand_in(course, "frames", **tokens, race=forged(FRAMES))
    hand_in(course, "lie", **tokens, race=LIE + RACE)
    hand_in(course, "unseen", **tokens, race=forged(UNSEEN))
    hand_in(course, "many", **tokens, race=RACE.replace("merges=[]", "merges=[(9, 999)]"))
    hand_in(course, "gus", attention=reference(2))
    rows = board(run_races(handed_in(course / "handed", project=True), minutes=0.015))
    told = {row[1]: row for row in rows[:-1]}
    honest = told["ada"][2]
    assert 0.5 < float(honest) < 2 and "gus" not in told and rows[-1][3] == TRUST
    assert [told[name][2:] for name in ("frames", "lie", "unseen")] == [[honest, told["lie"][3]]] * 3
    assert float(told["ahead"][2]) > float(honest) and told["bob"][2] == "8.000"
    assert told["byte 5-gram model"][0] == "" and told["ada"][0] in "1234"
    assert told["eve"][0] == "" and told["eve"][3].startswith("late: ")
    assert told["dan"][3] == "it exited its process" and told["many"][3].startswith("race: expected a Runner with")
    write_table(rows, course / "marks" / "board.csv")
    assert (course / "marks" / "board.csv").read_text().splitlines()[0] == "place,who,bits per byte,note"


def test_a_project_stands_by_itself(course, capsys):
    assert main(["course", "release", "mixed", "--build", "2", "--exercises", "2.3", "--out", "course"]) == 2
    assert "cannot be used together with --exercises" in capsys.readouterr().err


@pytest.mark.parametrize("number", STAGES)
def test_a_stages_own_reference_earns_all_points_behind_the_wall(number, tmp_path):
    for stage in STAGES.values():
        (tmp_path / "ada").mkdir(exist_ok=True)
        (tmp_path / "ada" / stage.file).write_text(f"# mine\n{reference(stage.number)}", "utf-8")
    handed = handed_in(tmp_path, project=True)
    [ada] = grade(handed, [], b"a secret of sixteen", stages=[STAGES[number]], jobs=1, limits=Limits(seconds=60))
    assert {mark.title: (mark.outcome, mark.notes) for mark in ada.marks} == {
        part.title: ("right", ()) for part in parts(number)
    }
