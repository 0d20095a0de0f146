"""The sandbox: what a student's process may do, which replies are believed, and what it leaves behind."""

import os
import sys
import time
from pathlib import Path

import pytest
import torch

from companion_school.checking import codec
from companion_school.checking.call import Outcome, Result
from companion_school.checking.exercise import Case
from companion_school.course.grading.sandbox import parent
from companion_school.course.grading.sandbox.parent import Limits, Program, Worker, believable
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
    secret.chmod(0o600)
    for body in (f"return open({str(secret)!r}).read()", "open('here', 'w')", "import companion"):
        assert call(worker, body).error is not None, body


def test_one_call_knows_nothing_of_another_program(worker):
    assert call(worker, "torch.set_default_dtype(torch.float64)\ntorch.zzz = 1\nreturn 1").value == 1
    assert call(worker, "return [str(torch.get_default_dtype()), hasattr(torch, 'zzz')]").value == [
        "torch.float32",
        False,
    ]


def test_nothing_is_left_running_after_a_timeout(worker, monkeypatch):
    monkeypatch.setattr(worker, "limits", Limits(seconds=0.5, memory_gib=0.5))
    begin, before = time.monotonic(), descendants(worker._process.pid)
    endless = "while True:\n    try:\n        while True: pass\n    except BaseException: pass"
    assert call(worker, endless).result is Result.TIMEOUT
    assert time.monotonic() - begin < 60 and descendants(worker._process.pid) == before
    assert call(worker, "return 3").value == 3


def descendants(process):
    """Return the descendants of a process; an empty list if the system does not tell."""
    pids = [int(pid) for pid in os.listdir("/proc") if pid.isdigit()] if os.path.isdir("/proc/self") else []
    children = {pid for pid in pids if parent_of(pid) == process}
    return children.union(*map(descendants, children))


def parent_of(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
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


def test_the_references_are_not_among_what_the_worker_is_given(worker):
    checking = Path(codec.__file__).parent
    given = [Path(word) for word in worker.wall.command([checking], []) if "companion_school" in word]
    outside = [path for path in given if not path.is_relative_to(checking)]
    assert all(path.name == "companion_school" for path in outside)  # hidden if it is installed there
    module = exercises()["2.3"].reference.__module__
    assert not Path(sys.modules[module].__file__).is_relative_to(checking)


def test_a_part_whose_results_fill_the_memory_together_is_ended(worker, monkeypatch):
    monkeypatch.setattr(parent, "MOST_BYTES", 300_000)
    cases = [Case("it", (at,)) for at in range(4)]
    run = worker.run(Program("def answer(x): return 'x' * 100_000", "answer"), cases, range(4))
    assert len(run.outcomes) == 2 and run.stopped.error == ("Malformed", "its results fill the memory")
    large = call(worker, "return 'x' * 2**20")
    assert large.error[1].startswith("the result takes")


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
    with pytest.raises(ValueError, match="report|argument|gradients|number|parts"):
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


@pytest.mark.parametrize("load, factor", [(0.1, 1.0), (2.0, 1.0), (5.0, 2.5), (50.0, 4.0)])
def test_a_busy_machine_gives_answers_more_time(load, factor, monkeypatch):
    monkeypatch.setattr(parent.os, "getloadavg", lambda: (load, 0.0, 0.0), raising=False)
    monkeypatch.setattr(parent.os, "cpu_count", lambda: 2)
    assert parent.busy() == factor


def test_what_wants_too_much_memory_is_told_the_limit(worker):
    outcome = call(worker, "return torch.ones(2**36)")
    assert outcome.error == ("RuntimeError", "it wanted more memory than the 0.5 GiB that an answer may take")
