"""A problem set as a template repository for GitHub Classroom: what students get, and a workflow that runs its checks.

A student may read and change everything in their repository, its workflow too. So nothing hidden is in it: the workflow
earns the points of the public cases, and `companion grade` on the cloned repositories gives the marks.

Source: GitHub Docs, "Use autograding", and the actions of github.com/classroom-resources: each test is a step with a
whole number as `max-score`, and the reporter adds up the steps' results.
"""

from __future__ import annotations

import shutil
import tempfile
from importlib import metadata
from importlib.resources import files
from pathlib import Path

import yaml

from companion.ground.atomic import write_atomic
from companion.ground.display import count
from companion_school.course.points import parts
from companion_school.course.release.documents import document
from companion_school.course.release.problem_set import ProblemSet
from companion_school.course.release.release import source_notebook, student_files

CHECK = ".github/classroom/public_check.py"
_MINUTES = 5
_TORCH = "https://download.pytorch.org/whl/cpu"


def check_place(pset: ProblemSet, folder: Path) -> None:
    """Raises `ValueError` where no such folder should be written, and for a set without public cases."""
    if not any(part.public for exercise in pset.exercises for part in parts(exercise)):
        raise ValueError(
            "--github-classroom: expected exercises with public cases, got none: all is graded by hidden ones"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"--github-classroom {folder}: expected a folder that is empty or not there yet")


def write_template(pset: ProblemSet, secret: bytes, folder: Path) -> None:
    """Write the template repository of a problem set, whole or not at all. Raises as `check_place`."""
    check_place(pset, folder)
    pset = pset.dealt(secret)
    received = student_files(pset, source_notebook(pset, secret))
    points, scale = public_points(pset)
    told = "a point here is a point of the set" if scale == 1 else f"{scale} points here are one of the set"
    answers = files("companion_school.course.grading").joinpath("answers.py").read_bytes()
    made = {
        **received,
        "README.md": document("classroom.md")
        .format(name=pset.name, points=count(points, "point"), scale=told)
        .encode(),
        "requirements.txt": f"--extra-index-url {_TORCH}\n{_torch()}\nsafetensors\nnumpy\njupyterlab\n".encode(),
        CHECK: document("public_check.py.txt").format(name=pset.name).encode(),
        ".github/classroom/answers.py": answers,
        ".github/workflows/classroom.yml": workflow(pset).encode(),
        ".gitignore": b"__pycache__/\n.ipynb_checkpoints/\n",
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder.parent))
    try:
        for path, content in made.items():
            write_atomic(unfinished / path, content)
        unfinished.chmod(0o755)
        if folder.exists():
            folder.rmdir()
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def public_points(pset: ProblemSet) -> tuple[int, int]:
    """The points that the workflow can give, and how many of them are one of the set: GitHub counts whole points."""
    public = [part.public for exercise in pset.exercises for part in parts(exercise)]
    scale = next(scale for scale in (1, 2) if all((points * scale).is_integer() for points in public))
    return int(sum(public) * scale), scale


def workflow(pset: ProblemSet) -> str:
    """The workflow: a step for the public cases of each part of an exercise's points, and the reporter."""
    _, scale = public_points(pset)
    steps: list[dict[str, object]] = [
        {"name": "Checkout code", "uses": "actions/checkout@v4"},
        {"name": "Python", "uses": "actions/setup-python@v5", "with": {"python-version": "3.12"}},
        {"name": "Install", "run": f"pip install --extra-index-url {_TORCH} {_torch()} safetensors numpy"},
    ]
    ids = []
    for exercise in pset.exercises:
        for number, part in enumerate(parts(exercise), 1):
            if not part.public:
                continue
            group = f" {number}" if part.name else ""
            ids.append(f"e{exercise.id.replace('.', '-')}{group.replace(' ', '-')}")
            name = f"{exercise.id} {exercise.title}{f', {part.name}' if part.name else ''}"
            asked = {"test-name": name, "command": f"python {CHECK} {exercise.id}{group}", "timeout": _MINUTES}
            grader = "classroom-resources/autograding-command-grader@v1"
            steps.append({
                "name": name, "id": ids[-1], "uses": grader, "with": asked | {"max-score": int(part.public * scale)},
            })  # fmt: skip
    steps.append({
        "name": "Autograding Reporter",
        "uses": "classroom-resources/autograding-grading-reporter@v1",
        "env": {f"{id.upper()}_RESULTS": f"${{{{steps.{id}.outputs.result}}}}" for id in ids},
        "with": {"runners": ",".join(ids)},
    })  # fmt: skip
    job = {"runs-on": "ubuntu-latest", "if": "github.actor != 'github-classroom[bot]'", "steps": steps}
    made = {
        "name": "Autograding Tests",
        "on": ["push", "workflow_dispatch"],
        "permissions": {"checks": "write", "actions": "read", "contents": "read"},
        "jobs": {"run-autograding-tests": job},
    }
    return yaml.safe_dump(made, sort_keys=False, width=200)


def _torch() -> str:
    return f"torch=={metadata.version('torch').partition('+')[0]}"
