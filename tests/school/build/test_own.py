"""A notebook says once which of the files are the learner's."""

import pytest

from companion_school.build import own
from companion_school.build.stages import STAGES
from companion_school.build.workspace import take


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPANION_BUILD", str(tmp_path / "mine"))
    monkeypatch.setattr(own, "_told", {})
    (tmp_path / "mine").mkdir()
    return tmp_path / "mine"


def test_a_notebook_says_once_whose_files_it_uses(folder, capsys):
    take(folder, [STAGES[1], STAGES[2]])
    assert own.own(3).frequencies(2) == 1
    assert capsys.readouterr().out == "yours: tokenizer.py, attention.py\n"
    own.own(1)
    assert capsys.readouterr().out == ""
    own.own(3)  # the first cell runs again
    assert capsys.readouterr().out == "yours: tokenizer.py, attention.py\n"
    take(folder, [STAGES[3]])
    own.own(20)
    assert capsys.readouterr().out == "yours: tokenizer.py, attention.py, positions.py\n"


def test_without_files_of_ones_own_the_courses_are_used(folder, capsys):
    own.own(2)
    own.own(1)
    assert capsys.readouterr().out == "yours: nothing yet, so these are the course's files\n"
