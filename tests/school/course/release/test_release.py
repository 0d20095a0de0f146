"""Problem sets: rejected input, written files, and checks that work without companion."""

import json
import subprocess
import sys

import pytest

from companion.commands.main import main
from companion_school.course.hidden_seeds import PUBLIC_SEED, hidden_seed, hidden_seeds, read_secret
from companion_school.course.points import shares
from companion_school.course.proof.verify import stub
from companion_school.course.release import problem_set
from companion_school.course.release import release as bundling
from companion_school.course.release.problem_set import ProblemSet
from companion_school.course.release.release import release
from companion_school.exercises import NotYet, check
from companion_school.exercises.catalogue import exercises


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_points_add_up_and_the_notebook_states_them(pset, bundle):
    notebook = json.loads((bundle / "source" / "week2" / "week2.ipynb").read_text(encoding="utf-8"))
    marks = [cell["metadata"]["nbgrader"] for cell in notebook["cells"]]
    assert sum(one.get("points", 0) for one in marks) == sum(one.points for one in pset.exercises)
    text = "".join("".join(cell["source"]) for cell in notebook["cells"])
    assert "3 points: 1.5 for the public check, 1.5 for the hidden one" in text
    assert "1 point, all for the hidden check" in text  # 2.1 asks for one fixed result
    assert all(one["schema_version"] == 3 for one in marks)
    for one in exercises().values():
        assert sum(shares(one)) == one.points


def test_exercises_stand_in_the_order_of_the_course(pset):
    assert [one.id for one in pset.exercises] == ["2.1", "2.3", "2.5"]


def test_the_same_secret_gives_the_same_bytes_and_another_one_other_hidden_cases(pset, secret, bundle, tmp_path):
    release(pset, secret, tmp_path / "again")
    assert contents(tmp_path / "again") == contents(bundle)
    release(pset, secret + b"!", tmp_path / "other")
    one, other = contents(bundle), contents(tmp_path / "other")
    assert {name for name in one if one[name] != other[name]} == {"source/week2/week2.ipynb"}


def test_hidden_seeds_follow_from_the_secret_and_tell_nothing_of_each_other(secret):
    seeds = {seed for id in exercises() for known in (secret, secret + b"!") for seed in hidden_seeds(known, id)}
    assert len(seeds) == 2 * 2 * len(exercises()) and PUBLIC_SEED not in seeds
    assert hidden_seed(secret, "2.3") == hidden_seed(secret, "2.3")


TRY = """
import contextlib, io, json, sys
sys.path.insert(0, sys.argv[1])
import math, torch
from exercise_check import NotYet, check
for line in sys.stdin:
    id, answer = json.loads(line)
    names = {"math": math, "torch": torch, "check": check}
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(answer, names)
        try:
            exec(f"check({id!r})", names)
        except NotYet as fault:
            print(fault)
    assert not [name for name in sys.modules if name.split(".")[0] == "companion"]
    print(json.dumps(said.getvalue()), flush=True)
"""


@pytest.fixture(scope="module")
def tried(bundle):
    """Return what students read when they try an answer without companion; one process runs all, as in a notebook."""
    command = [sys.executable, "-c", TRY, str(bundle / "release" / "week2")]
    with subprocess.Popen(command, cwd=bundle, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as student:

        def read(id, answer):
            student.stdin.write(json.dumps([id, answer]) + "\n")
            student.stdin.flush()
            return json.loads(student.stdout.readline()).rstrip("\n")

        yield read


def test_a_student_reads_what_a_reader_would(tried):
    one = exercises()["2.5"]
    wrong = "def causal_mask(q, k): return torch.full((q, k), -math.inf).triu(1)"
    names: dict = {}
    exec("import math, torch\n" + wrong, names)
    with pytest.raises(NotYet) as caught:
        check("2.5", names["causal_mask"])
    assert tried("2.5", wrong) == str(caught.value) and "top left corner" in str(caught.value)
    with pytest.raises(NotYet) as caught:
        check("2.5", stub(one))
    assert tried("2.5", one.stub) == str(caught.value)


def test_a_right_answer_passes_without_companion(tried):
    said = tried("2.5", exercises()["2.5"].solution)
    assert said.startswith("✓ 2.5 The triangle in the right corner: right on the public cases. It is also robust ★")


def test_the_check_of_a_fixed_result_does_not_say_whether_it_is_right(tried):
    right = tried("2.1", exercises()["2.1"].solution)
    assert right == tried("2.1", "def weight_of_cat(): return 0.123") and "whether it is right" in right
    assert "divide" in tried("2.1", "def weight_of_cat(): return 0.5")


def test_what_is_forbidden_is_refused_where_the_source_can_be_read(tried, tmp_path):
    file = tmp_path / "answer.py"
    file.write_text("import torch\ndef visible_softmax(scores, may_look):\n    return torch.softmax(scores, -1)\n")
    answer = f"sys = __import__('sys'); sys.path.insert(0, {str(tmp_path)!r}); from answer import visible_softmax"
    assert "it uses softmax" in tried("2.3", answer)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["week 2", "--exercises", "2.3"], "PSET 'week 2': expected letters, digits"),
        (["week2"], "--exercises: expected at least one"),
        (["week2", "--exercises", "2.3", "2.3"], "--exercises: 2.3 is named more than once"),
        (["week2", "--exercises", "2.99"], "--exercises: exercise '2.99': expected one of 2.1"),
        (["week2", "--exercises", "2.3", "--seed-file", "none"], "--seed-file none: cannot be read"),
        (
            ["week2", "--exercises", "2.3", "--seed-file", "short"],
            "--seed-file short: expected at least 16 random",
        ),
    ],
)
def test_bad_input_is_told_by_its_flag_and_nothing_is_written(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short").write_text("abc")
    assert main(["course", "release", *arguments, "--out", "out"]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["short"]


def test_out_is_needed_and_a_set_that_is_there_stays(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["course", "release", "week2", "--exercises", "2.5"]) == 2
    assert "--out: expected a folder" in capsys.readouterr().err
    assert main(["course", "release", "week2", "--exercises", "2.5", "--out", "out"]) == 0
    said = capsys.readouterr().out
    assert "your new secret" in said and (tmp_path / "out" / "secret.seed").stat().st_mode & 0o077 == 0
    before = contents(tmp_path)
    assert main(["course", "release", "week2", "--exercises", "2.3", "--out", "out"]) == 2
    assert "--out out: source/week2 already exists" in capsys.readouterr().err
    assert contents(tmp_path) == before
    (tmp_path / "out" / "nbgrader_config.py").write_text("# mine")
    assert main(["course", "release", "week3", "--exercises", "2.3", "--out", "out"]) == 0
    assert "your new secret" not in capsys.readouterr().out
    after = contents(tmp_path)
    assert after["out/nbgrader_config.py"] == b"# mine"
    assert all(after[name] == before[name] for name in before if "config" not in name)


def test_a_release_that_fails_leaves_nothing(pset, secret, tmp_path, monkeypatch):
    monkeypatch.setattr(bundling, "page", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        release(pset, secret, tmp_path / "out")
    assert contents(tmp_path) == {} and list((tmp_path / "out").iterdir()) == []


def test_an_exercise_that_builds_on_another_wants_it_in_the_set(monkeypatch):
    monkeypatch.setattr(problem_set, "other_exercises", lambda one: ["2.1"] if one.id == "2.3" else [])
    with pytest.raises(ValueError, match=r"--exercises: 2.3 builds on 2.1; expected both"):
        ProblemSet.of("week2", ["2.3", "2.5"])
    assert len(ProblemSet.of("week2", ["2.3", "2.1"]).exercises) == 2


def test_a_secret_is_the_file_without_the_line_end(tmp_path):
    (tmp_path / "seed").write_bytes(b"0123456789abcdef\n")
    assert read_secret(tmp_path / "seed") == b"0123456789abcdef"


def test_the_instructors_page_says_which_hidden_inputs_are_secret(bundle):
    page = (bundle / "week2.md").read_text(encoding="utf-8")
    assert "| 2.1 | One weight with a pencil | read off | 5 | 0 | 1 | none: one fixed result |" in page
    assert "| 2.3 | A softmax that can hide | write | 15 | 1.5 | 1.5 | from your seed |" in page
