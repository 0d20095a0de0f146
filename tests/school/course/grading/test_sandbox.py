"""What a student's process may do, what of it is believed, and what is left of it afterwards."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import companion
from companion_school.checking.call import Outcome, Result
from companion_school.checking.exercise import Case
from companion_school.course.grading.sandbox import confine
from companion_school.course.grading.sandbox.confine import without
from companion_school.course.grading.sandbox.parent import HIDDEN, Limits, Program, Worker, believable
from companion_school.exercises.catalogue import exercises


@pytest.fixture(scope="module")
def worker():
    with Worker(Limits(seconds=5, memory_gib=0.5)) as started:
        yield started


def call(worker, body, *arguments, gradients=False, forbidden=()):
    source = "def answer(*x):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    run = worker.run(Program(source, "answer", forbidden), [Case("it", arguments, gradients=gradients)], [0])
    return run.stopped or run.outcomes[0][0]


def test_values_and_gradients_come_back(worker):
    x = torch.arange(6, dtype=torch.float64).reshape(2, 3)
    outcome = call(
        worker, "x[1][0] = 7\nreturn {'sum': x[0].exp().sum(), 'more': [1, 2.5, None, 'ä', (True,)]}", x, [3]
    )
    assert outcome.value["sum"].equal(x.exp().sum()) and outcome.value["more"] == [1, 2.5, None, "ä", (True,)]
    assert outcome.changed == (1,) and outcome.error is None
    [gradient] = call(worker, "return x[0] ** 2", x, gradients=True).gradients
    assert gradient.shape == (2, 3) and gradient.ne(0).any()


def test_a_call_finds_nothing_of_the_graders(worker, tmp_path):
    found = call(
        worker,
        "import os, sys\nreturn [str(dict(os.environ)), [p for p in sys.path], str(sys.argv), os.getcwd(),"
        " [m for m in sys.modules if 'companion' in m], sys.stdin.read()]",
    ).value
    assert found[0] == "{}" and found[4] == [] and found[5] == "" and os.listdir(worker._folder.name) == []
    assert not any("companion" in path for path in found[1]) and "companion" not in found[2]
    secret = tmp_path / "secret"
    secret.write_text("nobody")
    for body in (
        f"return open({str(secret)!r}).read()",
        "open('here', 'w')",
        "open('/dev/../etc/passwd')",
        "import companion",
        "import companion_school.exercises",
    ):
        assert call(worker, body).result is Result.REFUSED, body


def test_one_call_knows_nothing_of_another_program(worker):
    assert call(worker, "torch.set_default_dtype(torch.float64)\ntorch.zzz = 1\nreturn 1").value == 1
    assert call(worker, "return [str(torch.get_default_dtype()), hasattr(torch, 'zzz')]").value == [
        "torch.float32",
        False,
    ]


def test_nothing_is_left_running_after_a_timeout(worker, monkeypatch):
    monkeypatch.setattr(worker, "limits", Limits(seconds=0.5, memory_gib=0.5))
    begin = time.monotonic()
    assert (
        call(worker, "while True:\n    try:\n        while True: pass\n    except BaseException: pass").result
        is Result.TIMEOUT
    )
    assert time.monotonic() - begin < 4
    left = (
        [pid for pid in os.listdir("/proc") if pid.isdigit() and _parent(pid) == worker._process.pid]
        if _has_proc()
        else []
    )
    assert left == []
    assert call(worker, "return 3").value == 3


def _has_proc():
    return os.path.isdir("/proc/self")


def _parent(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return None


def test_a_worker_that_dies_is_replaced(worker):
    before = worker._process.pid
    worker._process.kill()
    worker._process.wait()
    assert call(worker, "return 1").value == 1 and worker._process.pid != before


def test_forbidden_is_what_pytorch_runs_whatever_it_is_called(worker):
    x = torch.randn(2, 3)
    own = "class Own:\n    def softmax(self, z): return z.exp() / z.exp().sum(-1, keepdim=True)\nreturn Own()"
    assert call(worker, f"{own}.softmax(x[0])", x, forbidden=("softmax",)).value.allclose(x.softmax(-1))
    for spelled in (
        "getattr(torch, 'soft' + 'max')(x[0], -1)",
        "getattr(torch.ops.aten, '_soft' + 'max')(x[0], -1, False)",
        "torch._safe_softmax(x[0], -1)",
        "torch.nn.functional.softmin(-x[0], -1)",
        "torch.special.softmax(x[0], -1)",
        "torch.jit.CompilationUnit('def f(x):\\n  return torch.softmax(x, -1)\\n').f(x[0])",
    ):
        refused = call(worker, f"return {spelled}", x, forbidden=("softmax",))
        assert refused.result is Result.REFUSED and "softmax" in refused.error[1], spelled


def test_scripted_and_compiled_functions_run_and_pytorch_finds_a_place_for_its_files(worker):
    source = """
@torch.jit.script
def double(x):
    return 2 * x

@torch.compile(backend="eager")
def add(x):
    return x + 1

def answer(x):
    import os, tempfile
    os.makedirs(tempfile.gettempdir() + "/torchinductor", exist_ok=True)
    return torch.compile(add)(double(x)), os.path.exists(tempfile.gettempdir() + "/torchinductor")
"""
    run = worker.run(Program(source, "answer"), [Case("it", (torch.tensor([3.0]),))], [0])
    outcome = run.outcomes[0][0]
    assert outcome.error is None and outcome.value[0].equal(torch.tensor([7.0])) and outcome.value[1] is False


def test_what_is_hidden_in_a_library_may_be_seen_and_not_read(tmp_path):
    for name in ("torch/a.py", "companion/page.py", "companion_school/lesson.py", "more/b.py"):
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).touch()
    site = str(tmp_path / "site")
    hidden = f"{site}/companion", f"{site}/companion_school"
    assert without(site, *hidden) == ([f"{site}/more", f"{site}/torch"], [site])
    assert without(site, "/elsewhere/companion") == ([site], []) and without(site, site) == ([], [])


def test_both_packages_are_hidden_and_every_reference_is_in_them(worker):
    library, school = HIDDEN
    assert Path(companion.__file__).resolve().parent == library
    assert worker._process.args[-2:] == [str(library), str(school)]
    assert all(
        Path(sys.modules[exercise.reference.__module__].__file__).is_relative_to(school)
        for exercise in exercises().values()
    )


NATIVE = """
import sys, torch
confine = sys.argv[1]
exec(open(confine).read(), names := {"__name__": "confine"})
enforced = names["keep_to"](names["rules_for_files"]([sys.argv[2], *sys.path], sys.argv[3]))
for file in sys.argv[4:]:
    try:
        print(enforced, bytes(torch.from_file(file, size=9, dtype=torch.uint8).tolist()))
    except RuntimeError as error:
        print(enforced, "refused" if "Permission denied" in str(error) else error)
"""


def test_the_real_references_cannot_be_read_natively_even_where_the_package_lies_beside_torch():
    _, school = HIDDEN
    reference, beside = school / "exercises" / "lesson_02.py", school.parent / "pyproject.toml"
    arguments = [confine.__file__, str(school.parent), str(school), str(reference), str(beside)]
    done = subprocess.run([sys.executable, "-c", NATIVE, *arguments], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    if first.startswith("True"):  # the kernel enforces it
        assert (first, second) == ("True refused", f"True {beside.read_bytes()[:9]}")
    else:
        assert second.startswith("False")


CASE = Case("it", (torch.ones(2), 3, torch.ones(1)), gradients=True)


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(1, result=Result.RIGHT),
        Outcome(1, result=Result.TIMEOUT),
        Outcome(1, changed=(3,)),
        Outcome(1, changed=(-1,)),
        Outcome(1, gradients=(torch.ones(2),)),
        Outcome(2**64),
        Outcome([[0] * 400] * 400),
        Outcome({"a": eval("[" * 30 + "]" * 30)}),
    ],
)
def test_what_no_answer_can_have_given_is_not_believed(outcome):
    with pytest.raises(ValueError, match="know|argument|gradients|number|parts"):
        believable(outcome, CASE)


def test_what_an_answer_may_have_given_is_believed():
    one = Outcome(torch.ones(3), gradients=(torch.ones(2), None), changed=(2, 0, 0))
    assert believable(one, CASE).changed == (0, 2) and believable(one, CASE).value is one.value
    told = believable(Outcome(error=("Kind\x1b[31m", "line\n" * 1000)), CASE).error
    assert told[0] == "Kind [31m" and len(told[1]) < 510 and told[1].isprintable()


@pytest.mark.parametrize(("limits", "flag"), [({"seconds": 0}, "--time 0"), ({"memory_gib": 0.01}, "--memory 0.01")])
def test_limits_that_are_none_are_refused(limits, flag):
    with pytest.raises(ValueError, match=flag):
        Limits(**limits)
