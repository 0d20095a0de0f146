"""In Gradescope's container, which has no bubblewrap, an answer cannot read the seed beside it."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

from companion_school.course.bundles.gradescope import SECRET, write_bundle
from companion_school.course.grading.sandbox import wall
from companion_school.exercises.catalogue import find_exercise

SEED = "a seed that nobody outside may read"
DOCKER = ("chown", "dac_override", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap", "net_bind_service",
          "net_raw", "sys_chroot", "mknod", "audit_write", "setfcap")  # fmt: skip
"""The capabilities that root has in a container, unless somebody asks for others."""
WAYS = {
    "by open": "open({path!r}).read()",
    "by PyTorch": "bytes(__import__('torch').from_file({path!r}, size=30, dtype=__import__('torch').uint8).tolist())",
    "as root again": "(__import__('os').setresuid(0, 0, 0), open({path!r}).read())",
    "by another program": "__import__('subprocess').run(['cat', {path!r}], capture_output=True).stdout",
    "over the grader": "open(f'/proc/{{__import__(\"os\").getppid()}}/root' + {path!r}).read()",
}
ANSWER = """
def causal_mask(queries, keys):
    found = []
    for way in {ways!r}:
        try:
            found.append(str(eval(way)))
        except BaseException as error:
            found.append(type(error).__name__)
    raise ValueError("found: " + "; ".join(found))
"""


@pytest.fixture
def autograder(tmp_path):
    """Make the folders of Gradescope, with the bundle unpacked as `setup.sh` leaves it."""
    write_bundle("week2", ["2.5"], {}, SEED.encode(), tmp_path / "week2.zip")
    home = Path(tempfile.mkdtemp(prefix="autograder-"))  # not in pytest's folders, which only their owner can enter
    home.chmod(0o755)
    with zipfile.ZipFile(tmp_path / "week2.zip") as packed:
        packed.extractall(home / "source")
    for folder in ("submission", "results"):
        (home / folder).mkdir()
    (home / "submission_metadata.json").write_text(json.dumps({"users": [{"id": 1}]}))
    for path in (home / "source", *(home / "source").rglob("*")):
        path.chmod(path.stat().st_mode & 0o700)
    yield home
    shutil.rmtree(home)


def run(home):
    """Run the autograder; return what the student sees and the exit code.

    Root runs it with a container's capabilities and without `bwrap`.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"AUTOGRADER": str(home), "AUTOGRADER_PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    script = str(home / "source" / "run_autograder")
    if os.geteuid() != 0:
        return subprocess.run(["bash", script], env=environment, check=False).returncode
    tools = home / "bin"
    tools.mkdir(exist_ok=True)
    for tool in ("bash", "env", "setpriv"):
        (tools / tool).symlink_to(subprocess.run(["which", tool], capture_output=True, text=True).stdout.strip())
    kept = ",".join(["-all", *(f"+{name}" for name in DOCKER)])
    command = [str(tools / "setpriv"), f"--bounding-set={kept}", "--inh-caps=-all", str(tools / "bash"), script]
    return subprocess.run(command, env=environment | {"PATH": str(tools)}, check=False).returncode


def test_an_answer_cannot_read_the_seed(autograder):
    path = str(autograder / "source" / SECRET)
    ways = [way.format(path=path) for way in WAYS.values()]
    (autograder / "submission" / "week2.py").write_text(ANSWER.format(ways=ways))
    code = run(autograder)
    if os.geteuid() != 0 and code == 2:  # it has refused to grade, which protects the seed too
        assert wall.stands("bubblewrap") and not (autograder / "results" / "results.json").exists()
        return
    told = (autograder / "results" / "results.json").read_text()
    assert code == 0 and "found: " in told and SEED[:20] not in told, told
    assert "PermissionError" in told or "FileNotFoundError" in told


def test_a_seed_that_others_may_read_is_not_graded_with(autograder):
    for path in (autograder / "source", autograder / "source" / SECRET):
        path.chmod(0o755)
    (autograder / "submission" / "week2.py").write_text(find_exercise("2.5").solution)
    code = run(autograder)
    assert code == (2 if os.geteuid() == 0 or wall.stands("bubblewrap") else 0)
