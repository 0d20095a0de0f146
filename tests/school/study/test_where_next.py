"""The start page and the terminal agree on where to go on; test_progress_table.py tests the sentences."""

import html
import re

import pytest

from companion.commands.main import main
from companion_school.exercises.progress import note_check
from companion_school.questions.question import questions
from companion_school.questions.spaced_repetition import note_answer
from companion_school.study.progress_table import table
from companion_school.study.where_next import Done, course, done, where_next

FIRST = course()[0]["sittings"][0]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPANION_HOME", str(tmp_path))
    return tmp_path


def test_a_terminal_says_what_the_start_page_says_without_its_marks(home):
    every = {id for lesson in course() for sitting in lesson["sittings"] for id in sitting["questions"]}
    for answered in (set(), {FIRST["questions"][0]}, set(FIRST["questions"]), every):
        said = where_next(course(), Done(questions=frozenset(answered)))
        page = table(course(), Done(questions=frozenset(answered)))
        shown = re.sub(r"<[^>]+>", "", re.search(r'<p class="ext-today"><b>(.*?)</b></p>', page)[1])
        assert said == html.unescape(shown)


def test_the_command_ends_with_where_to_go_on(home, capsys):
    assert main(["progress"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "Begin with 00 One token by hand."
    [first] = [question for question in questions().values() if question.id == FIRST["questions"][0]]
    note_answer(first, True)
    note_check("0.1", True)
    assert done() == Done(frozenset({"0.1"}), frozenset({first.id}), done().stages)
    assert main(["progress"]) == 0
    many = len(FIRST["questions"])
    said = f"Go on with 00 One token by hand, {FIRST['title']} (1 of its {many} questions answered)"
    assert capsys.readouterr().out.splitlines()[-1] == said


def test_the_command_shows_a_line_for_each_lesson_and_the_exercises_of_one_on_request(home, capsys):
    note_check("0.1", True)
    assert main(["progress"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) < 40 and shown[0].startswith("lesson 00: 1 of ") and "0.1" not in "".join(shown)
    assert main(["progress", "0"]) == 0
    shown = capsys.readouterr().out
    assert "  0.1  " in shown and "right on" in shown and "lesson 01" not in shown
    assert main(["progress", "all"]) == 0
    shown = capsys.readouterr().out
    assert "lesson 00" in shown and "lesson 27" in shown and "the course: " not in shown.splitlines()[0]
    assert main(["progress", "99"]) == 2 and "lesson must be a number from 0 to 27" in capsys.readouterr().err
