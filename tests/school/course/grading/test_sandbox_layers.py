"""What the kernel refuses an answer that knows Python well enough to get round Python: no hook, no user id to lean on.

The workers here run copies of the grader's own files from which one layer or several were taken out. Where the kernel
has neither Landlock nor seccomp, `--require-sandbox` must refuse to grade; there the other tests have nothing to hold.
"""

import functools
import os
import shutil
import socket
import struct
from pathlib import Path

import pytest

from companion_school.checking.exercise import Case
from companion_school.course.grading.grade import grade
from companion_school.course.grading.sandbox import child, confine, seccomp
from companion_school.course.grading.sandbox.parent import HIDDEN, Limits, Program, Worker
from companion_school.course.grading.submissions import Handed
from companion_school.exercises.catalogue import find_exercise

LAYERS = {
    "hook": ("confine.py", "    sys.addaudithook(_hook(tuple(readable), hidden))", "    return"),
    "user": ("confine.py", '    if os.geteuid() != 0 or sys.platform != "linux":', "    if True:"),
    "seccomp": ("seccomp.py", "    if not is_available():", "    if True:"),
    "landlock": ("child.py", "    tools.confine.keep_to(tools.rules)\n", ""),
}
CALL = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(number, *arguments):
    done = libc.syscall(number, *arguments)
    return 'done' if done >= 0 else os.strerror(ctypes.get_errno())
"""
DEEDS = {
    "reads the references": "return open({reference!r}).read()[:9]",
    "reads them natively": "return torch.from_file({reference!r}, size=9, dtype=torch.uint8).tolist()",
    "reads the instructor's secret": "return open({secret!r}).read()",
    "writes a file": "open({secret!r} + '-mine', 'w').write('x')",
    "makes a pipe": "os.mkfifo({secret!r} + '-pipe')",
    "makes shared memory": "import _posixshmem\n_posixshmem.shm_open('/companion-test', 0o102, 0o600)",
    "kills the worker": "os.kill({worker}, 9)",
    "stops the worker by its descriptor": (
        "import signal\nsignal.pidfd_send_signal(os.pidfd_open({worker}), signal.SIGSTOP)"
    ),
}
CALLS = {  # what only the filter refuses
    "sends hidden inputs by UDP": (
        "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))"
    ),
    "connects to a socket in a file": "import socket\nsocket.socket(socket.AF_UNIX).connect({unix!r})",
    "forks": "return os.fork()",
    "starts a program": "import subprocess\nsubprocess.run(['/bin/true'])",
    "leaves System V memory": "return call({shmget}, 0, 4096, 0o1600)",
    "changes the worker's priority": "os.setpriority(os.PRIO_PROCESS, {worker}, 19)",
    "binds the worker to a processor": "os.sched_setaffinity({worker}, [0])",
    "raises its limits": "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (9, 9))",
}
MEMORY = {
    "writes into the worker's memory": (
        "import struct\nours = ctypes.create_string_buffer(8)\nlocal = struct.pack('QQ', ctypes.addressof(ours), 8)\n"
        "return call({process_vm_writev}, {worker}, local, 1, struct.pack('QQ', id(None), 8), 1, 0)"
    ),
    "reads the worker's memory": "return open('/proc/{worker}/mem', 'rb').read(9)",
    "traces the worker": "return call({ptrace}, 16, {worker}, 0, 0)",
}


@pytest.fixture
def without(tmp_path, monkeypatch):
    """Start a worker that lacks these layers."""

    def start(*layers):
        copied = tmp_path / "grading"
        shutil.copytree(Path(confine.__file__).parents[1], copied)
        for layer in layers:
            name, line, instead = LAYERS[layer]
            file = copied / "sandbox" / name
            assert line in file.read_text()
            file.write_text(file.read_text().replace(line, instead))
        monkeypatch.setattr(child, "__file__", str(copied / "sandbox" / "child.py"))
        return Worker(Limits(seconds=20, memory_gib=0.5))

    return start


@pytest.fixture
def named(tmp_path):
    """What a deed may name: files of the instructor's, and a socket of another program's."""
    (tmp_path / "secret").write_text("nobody can guess this")
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(str(tmp_path / "unix"))
    unix.listen()
    reference = HIDDEN / "exercises" / "lesson_02.py"
    numbers = seccomp.refused_calls(os.uname().machine) if seccomp.is_available() else {}
    yield numbers | {"secret": str(tmp_path / "secret"), "unix": str(tmp_path / "unix"), "reference": str(reference)}
    unix.close()


def done_by(worker, deed, named):
    body = deed.format(**named, worker=worker._process.pid)
    source = f"{CALL}\nimport torch\ndef answer():\n" + "".join(f"    {line}\n" for line in body.splitlines())
    run = worker.run(Program(source, "answer"), [Case("it", ())], [0])
    return run.stopped or run.outcomes[0][0]


def refused(outcome):
    text = f"{outcome.value} {outcome.error}"
    return any(word in text for word in ("not permitted", "denied", "not allowed"))


def let_through(worker, deeds, named):
    """What the kernel did not refuse, by name. Where it has no sandbox there is nothing to hold, and that is said."""
    with worker:
        rules = confine.rules_for_files([], str(HIDDEN))
        assert worker.is_sandboxed == (rules is not None and seccomp.is_available())
        if rules is not None:
            os.close(rules)
        if not worker.is_sandboxed:
            return {}
        before = worker._process.pid
        went = {name: outcome for name in deeds if not refused(outcome := done_by(worker, deeds[name], named))}
        assert done_by(worker, "return 3", named).value == 3 and worker._process.pid == before
        return went


class TestWithoutTheHook:
    def test_the_kernel_refuses_by_itself(self, without, named):
        assert let_through(without("hook"), DEEDS | CALLS | MEMORY, named) == {}

    def test_the_kernel_refuses_root_too(self, without, named):
        assert let_through(without("hook", "user"), DEEDS | CALLS | MEMORY, named) == {}

    def test_the_domain_holds_without_the_filter(self, without, named):
        deeds = {name: deed for name, deed in DEEDS.items() if "pidfd" not in deed}
        assert let_through(without("hook", "user", "seccomp"), deeds | MEMORY, named) == {}

    def test_the_filter_holds_without_the_domain_of_its_own(self, without, named):
        signals = {name: DEEDS[name] for name in list(DEEDS)[6:]}
        assert let_through(without("hook", "user", "landlock"), CALLS | MEMORY | signals, named) == {}


def test_a_frame_of_the_hook_holds_nothing_that_can_be_rewired():
    plain = child._load("plain", Path(confine.__file__))  # as the grader loads it: no annotations are checked
    with pytest.raises(plain.Refused) as caught:
        plain._hook(("/usr",), "/hidden")("open", ("/etc/passwd", "r", 0))
    frame = caught.value.__traceback__.tb_next.tb_frame
    assert frame.f_code.co_freevars == () and frame.f_code.co_name == "hook"
    functions = [name for name, value in frame.f_locals.items() if hasattr(value, "__closure__")]
    assert functions == []
    assert frame.f_code.co_names == (), "the hook looks nothing up"


@pytest.mark.parametrize("machine", seccomp._MACHINES)
def test_every_jump_of_the_filter_lands_in_it(machine):
    code = [struct.unpack("=HBBI", instruction) for instruction in seccomp._program(machine)]
    for at, (kind, if_so, if_not, _) in enumerate(code):
        if kind in (0x15, 0x35, 0x45):
            assert at + 1 + max(if_so, if_not) < len(code)
    assert code[-1][0] == 0x06 and len(code) < 4096
    numbers = list(seccomp.refused_calls(machine).values())
    assert len(numbers) == len(set(numbers)) > 100


@pytest.mark.parametrize(("landlock", "filtered", "named"), [(False, True, "Landlock"), (True, False, "seccomp")])
def test_a_sandbox_that_is_required_and_not_there_is_told_before_anything_runs(
    landlock, filtered, named, monkeypatch, tmp_path
):
    start = Worker._start

    def without_kernel(self, begin=start):
        begin(self)
        self.landlock, self.seccomp = landlock, filtered

    book = tmp_path / "a.py"
    book.write_text("x = 1")
    handed = [Handed("ada", (book,), "")]
    nothing = functools.partialmethod(without_kernel, lambda worker: None)  # whoever ran anything in it would fail
    monkeypatch.setattr(Worker, "_start", nothing)
    with pytest.raises(ValueError, match=f"--require-sandbox: expected a kernel that confines answers; .* no {named}"):
        grade(handed, [find_exercise("2.5")], b"a secret of sixteen", jobs=1, require_sandbox=True)
    monkeypatch.setattr(Worker, "_start", without_kernel)
    warnings = []
    [ada] = grade(handed, [find_exercise("2.5")], b"a secret of sixteen", jobs=1, warn=warnings.append)
    assert ada.submission == "other notebook" and named in warnings[0]
