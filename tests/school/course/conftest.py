"""A problem set of lesson 02, released once, and some students' answers to it."""

import json
import shutil

import pytest

from companion_school.course.release.problem_set import ProblemSet
from companion_school.course.release.release import release
from companion_school.exercises.catalogue import exercises


@pytest.fixture(scope="session")
def secret():
    return b"a secret that only these tests know"


@pytest.fixture(scope="session")
def pset():
    return ProblemSet.of("week2", ["2.1", "2.5", "2.3"])


@pytest.fixture(scope="session")
def bundle(pset, secret, tmp_path_factory):
    out = tmp_path_factory.mktemp("course with a space, é") / "out"
    release(pset, secret, out)
    return out


@pytest.fixture(scope="session")
def hand_in():
    """Return a function that fills these answers, by exercise, into a released notebook."""

    def write(released, submitted, answers):
        shutil.copytree(released, submitted)
        [file] = submitted.glob("*.ipynb")
        notebook = json.loads(file.read_text(encoding="utf-8"))
        for cell in notebook["cells"]:
            place = cell["metadata"]["nbgrader"]["grade_id"].removeprefix("answer_").replace("_", ".")
            if place in answers:
                cell["source"] = answers[place]
        file.write_text(json.dumps(notebook), encoding="utf-8")
        return file

    return write


@pytest.fixture(scope="session")
def right():
    return {id: one.solution for id, one in exercises().items()}
