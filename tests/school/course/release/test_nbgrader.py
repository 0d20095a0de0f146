"""The current nbgrader can generate, autograde, give feedback on and export a problem set as released."""

import csv
import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from companion_school.course.grading.grade import grade
from companion_school.course.grading.submissions import handed_in
from companion_school.course.grading.what_to_grade import choose
from companion_school.course.proof.leaks import leaks
from companion_school.course.release.problem_set import ProblemSet
from companion_school.course.release.release import release
from companion_school.exercises.catalogue import exercises

PARTLY = exercises()["6.3"].solution.replace("(g * hat).sum(", "(g * hat).mean(")  # right only for a single token
WRONG = {
    "6.3": PARTLY,
    "2.1": "def weight_of_cat():\n    return 0.5",
    "2.3": "def visible_softmax(scores, may_look):\n"
    "    import sys\n"
    "    print('a warning', file=sys.stderr)\n"
    "    return torch.exp(scores) * may_look\n",
    "2.5": "def causal_mask(queries, keys):\n"
    "    print('I was asked for', queries, keys)\n"
    "    raise TypeError(f'{queries} {keys}')",
}


NBGRADER = """
import json, os, sys
from multiprocessing import forkserver
before = os.environ['PYTHONPATH']
sys.path.insert(0, sys.argv[1])
from alembic.config import Config
from alembic.script import ScriptDirectory
from authoring.kernels import fork_kernels
from nbgrader import api
from nbgrader.apps.nbgraderapp import NbGraderApp
from traitlets.config import Application

def version():
    with api._temp_alembic_ini('sqlite://') as ini:
        return ScriptDirectory.from_config(Config(ini)).get_current_head()

fork_kernels()
os.environ['PYTHONPATH'] = os.pathsep.join([sys.argv[1], before])
forkserver.ensure_running()
os.environ['PYTHONPATH'] = before  # no kernel finds more than it would
api.get_alembic_version = version
for command in json.loads(sys.argv[2]):
    sys.argv[1:] = command
    NbGraderApp.launch_instance()
    while Application._instance is not None:
        type(Application._instance).clear_instance()
"""
"""Commands in succession, in one process. Each kernel is forked from one process that has loaded PyTorch; which
version nbgrader's own tables have is read here, and not in another process that loads all of nbgrader."""
COMMANDS = (
    "generate_assignment week2",
    "autograde week2",
    "generate_feedback week2",
    "export",
    "db student import roster.csv",
    "export --to named.csv",
)


def run(course, commands):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("JUPYTER")}
    environment |= {"OMP_NUM_THREADS": "1", "JUPYTER_CONFIG_DIR": str(course), "IPYTHONDIR": str(course / ".ipython")}
    several = json.dumps([command.split() for command in commands])
    command = [sys.executable, "-c", NBGRADER, str(Path(__file__).parents[4]), several]
    done = subprocess.run(command, cwd=course, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def graded(secret, right, hand_in, tmp_path_factory):
    """Run all commands; return the folder, and the released files, ours and nbgrader's."""
    course = tmp_path_factory.mktemp("nbgrader with a space, é") / "course"
    release(ProblemSet.of("week2", ["2.1", "2.3", "2.5", "6.3"]), secret, course)
    released = {path.name: path.read_bytes() for path in (course / "release" / "week2").rglob("*") if path.is_file()}
    for student, answers in {"ada": right, "blank": {}, "carl": right | WRONG}.items():
        hand_in(course / "release" / "week2", course / "submitted" / student / "week2", answers)
    hand_in(course / "release" / "week2", course / "submitted" / "emmy" / "week2", right)
    file = course / "submitted" / "emmy" / "week2" / "week2.ipynb"
    text = file.read_text(encoding="utf-8").replace('check(\\"2.3\\")', "print(1)")  # the student edited a check
    file.write_text(text, encoding="utf-8")
    shutil.rmtree(course / "release")
    run(course, COMMANDS)
    made = {path.name: path.read_bytes() for path in (course / "release" / "week2").rglob("*") if path.is_file()}
    return course, released, made


@pytest.fixture(scope="module")
def marks(graded):
    with (graded[0] / "grades.csv").open(newline="") as file:
        return {row["student_id"]: row for row in csv.DictReader(file)}


def test_nbgrader_makes_the_release_that_we_made(graded):
    _, ours, theirs = graded
    assert theirs == ours


def test_the_marks_are_right(marks):
    scores = {student: (float(row["score"]), float(row["max_score"])) for student, row in marks.items()}
    assert scores == {"ada": (10, 10), "blank": (0, 10), "carl": (1, 10), "emmy": (10, 10)}


def test_the_companion_gives_the_same_points(graded, marks, secret):
    handed = handed_in(graded[0], "week2")
    task = choose([], str(graded[0] / "release" / "week2"), None, [], secret)
    points = {
        one.handed.student: sum(mark.points for mark in one.marks) for one in grade(handed, task.exercises, secret)
    }
    assert points == {student: float(row["score"]) for student, row in marks.items()}


def page(graded, student):
    text = (graded[0] / "feedback" / student / "week2" / "week2.html").read_text(encoding="utf-8")
    return html.unescape(re.sub(r"<[^>]+>", "", text[text.index("<body") :]))


def test_feedback_names_the_mistake(graded):
    text = page(graded, "carl")
    assert "you divided the scores by their sum: exponentiate them first" in text
    assert "A softmax that can hide: hidden keys get 0" in text and "fails on a hidden case" in text
    assert "right on the hidden cases" in page(graded, "ada")


def test_feedback_shows_no_hidden_test_and_no_reference(graded, secret, right):
    own = [*right.values(), *WRONG.values()]  # a page shows students their own answers
    lessons = [exercise for exercise in exercises().values() if exercise.id.startswith(("2.", "6."))]
    assert leaks(graded[0] / "feedback", lessons, secret, public=own) == []
    assert all("check_hidden" not in page(graded, student) for student in ("ada", "blank", "carl"))


def test_an_answer_that_prints_its_arguments_shows_no_hidden_ones(graded):
    text = page(graded, "carl")
    public, hidden = text.split("Grade cell: hidden_2_5")
    assert "I was asked for 3 3" in public and "I was asked for" not in hidden
    assert re.search(r"as many queries as keys\s+fails on a hidden case", hidden)
    assert "TypeError: 3 3" in public and "TypeError" not in hidden


def test_nbgrader_takes_the_roster(graded):
    with (graded[0] / "named.csv").open(newline="") as file:
        assert {row["student_id"]: row["last_name"] for row in csv.DictReader(file)}["ada"] == "Lovelace"
