"""Students' files contain nothing that students must not have, and a leak would be found."""

import html
import inspect
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from companion_school.checking.sealed_keys import seal
from companion_school.course.hidden_seeds import hidden_seeds
from companion_school.course.proof.leaks import bare, leaks
from companion_school.course.release.notebooks import write_self_study
from companion_school.course.release.problem_set import ProblemSet
from companion_school.course.release.release import release
from companion_school.exercises.catalogue import exercises

BOOK = exercises()
ALL = [replace(one, mistakes=one.mistakes[:2]) for one in BOOK.values()]
"""Every exercise, with two known mistakes: a key is made of what each gives on every case, and that takes longest."""
ONE = BOOK["2.3"]
CODE = ONE.solution


def test_nothing_leaks_from_a_set_of_all_exercises(secret, tmp_path):
    release(replace(ProblemSet.of("all", list(BOOK)), exercises=tuple(ALL)), secret, tmp_path)
    assert leaks(tmp_path / "release", ALL, secret) == []
    shutil.rmtree(tmp_path / "source" / "all" / "exercise_check")  # this folder is the same in the release
    assert leaks(tmp_path / "source", ALL[:1], secret)  # the instructor's source contains everything that can leak


def test_the_notebooks_for_self_study_hold_no_solution(tmp_path, secret):
    notebooks = Path(__file__).parents[4] / "notebooks"
    for lesson in notebooks.glob("[0-9][0-9]_*.ipynb"):
        shutil.copy(lesson, tmp_path)
    write_self_study(tmp_path)
    assert leaks(tmp_path / "exercises", ALL, secret) == []
    assert leaks(notebooks / "exercises", ALL, secret) == []


def lines_of(function):
    return inspect.getsource(function).split("\n", 2)[-1]


SPANS = "".join(f"<span class='n'>{html.escape(part)}</span>" for part in CODE.replace("(", " ( ").split(" "))
PLANTED = {
    "a reference in a cell": ("a.ipynb", lambda secret: json.dumps({"cells": [{"source": CODE}]})),
    "one line of it": ("a.md", lambda secret: "Try this: `" + CODE.splitlines()[-3].strip() + "`"),
    "a page with coloured code": ("a.html", lambda secret: f"<pre>{SPANS}</pre>"),
    "a variant": ("a.py", lambda secret: lines_of(ONE.variants[0])),
    "a known mistake": ("a.py", lambda secret: lines_of(ONE.mistakes[2].answer)),
    "a fixed result": ("a.txt", lambda secret: f"the weight is {BOOK['2.1']():.4f}"),
    "a marker": ("a.ipynb", lambda secret: "### BEGIN HIDDEN TESTS"),
    "the secret": ("a.txt", lambda secret: f"seed: {secret.decode()}"),
    "the secret as a file's name": ("a secret that only these tests know", lambda secret: ""),
    "a hidden seed": ("a.txt", lambda secret: str(hidden_seeds(secret, "2.3")[1])),
    "a hidden key": ("a.key", lambda secret: seal(ONE, hidden_seeds(secret, "2.3")[0], mistakes=False)),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_what_is_put_there_is_found(kind, bundle, secret, tmp_path):
    received = tmp_path / "week2"
    shutil.copytree(bundle / "release" / "week2", received)
    two = [one for one in ALL if one.id.startswith("2.")]
    assert leaks(received, two, secret) == []
    name, made = PLANTED[kind]
    content = made(secret)
    (received / name).write_bytes(content.encode() if isinstance(content, str) else content)
    assert leaks(received, two, secret)
    assert leaks(received, two, secret, public=[CODE]) == [] or kind not in ("a reference in a cell", "one line of it")


def test_bare_text_is_the_same_however_it_is_broken_and_quoted():
    assert bare("a  =\n 'b'") == bare('"a = b\\n"') == "a=b"
