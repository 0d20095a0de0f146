"""Exercises and questions that have moved to another lesson can also be found by their old numbers."""

import json
from datetime import date

import pytest

from authoring.question import as_html, read_question
from companion_school.course.exam.paper import exam_questions
from companion_school.course.grading import what_to_grade
from companion_school.course.grading.what_to_grade import choose
from companion_school.course.release.problem_set import ProblemSet
from companion_school.course.release.questions import as_exercise, function_name
from companion_school.course.written.rubrics import written_items
from companion_school.exercises.catalogue import exercises, find_exercise
from companion_school.exercises.progress import read_progress
from companion_school.old_ids import MOVED, letters, numbers, renamed
from companion_school.questions import spaced_repetition
from companion_school.questions.question import find_question, questions

SECRET = b"0123456789abcdef"
QUESTION = next(one for one in questions().values() if one.kind == "choice" and one.lesson == 2)
WRITTEN = next(iter(written_items().values()))


@pytest.fixture
def moved(tmp_path, monkeypatch):
    """Pretend that exercise 2.3, a question and a written item have moved here from lesson 91."""
    monkeypatch.setenv("COMPANION_HOME", str(tmp_path))
    for old, new in {"91.4": "2.3", "91.h": QUESTION.place, "91.essay": WRITTEN.id}.items():
        monkeypatch.setitem(MOVED, old, new)
    return tmp_path


def test_everything_that_has_moved_is_where_the_table_says():
    there = {*exercises(), *written_items(), *exam_questions(), *(one.place for one in questions().values())}
    assert set(MOVED.values()) <= there and len(set(MOVED.values())) == len(MOVED)
    taken = {*exercises(), *questions(), *written_items(), *exam_questions()}
    assert not taken & set(MOVED), "the id of something that has moved is given to something else"


def test_an_old_number_finds_an_exercise_and_its_progress(moved):
    assert find_exercise("91.4") is find_exercise(91.4) is find_exercise("2.3")
    (moved / "progress.json").write_text(json.dumps({"91.4": {"checks": 2, "passed": "2026-01-01"}}))
    assert read_progress()["2.3"].passed == "2026-01-01"
    assert renamed({"91.4": 1, "2.3": 2, "2.1": 3}) == {"2.3": 2, "2.1": 3}


def test_an_old_letter_finds_a_question_whose_answers_stay(moved):
    assert find_question("91.h") is find_question(QUESTION.id) is QUESTION
    (moved / "questions.json").write_text(json.dumps({f"91/{QUESTION.name}": [["2026-01-01", True]]}))
    assert spaced_repetition.due([QUESTION], date(2026, 1, 2)) == [QUESTION]
    assert 'data-lesson="91"' in as_html(QUESTION)  # so that a browser finds earlier answers


def test_a_number_and_a_letter_are_not_given_again(moved):
    assert [id for id, _ in zip(numbers(91), range(4), strict=False)] == ["91.1", "91.2", "91.3", "91.5"]
    assert letters(91)[6:8] == ["91.g", "91.i"]
    body = ["new", ":kind: number", "How many?", "= 1 | One."]
    assert read_question(body, moved, 1, 91, 7).question.id == "91.i"


def test_a_problem_set_may_name_old_ids(moved):
    made = ProblemSet.of("week", ["91.4"], ["91.h"], ["91.essay"])
    assert (made.exercises[0].id, made.questions[0].id, made.written[0].id) == ("2.3", QUESTION.id, WRITTEN.id)


def test_a_problem_set_of_before_is_graded_under_its_own_numbers(moved):
    task = choose(["91.4", "91.h", "91.essay"], None, None, (), SECRET)
    assert [one.id for one in task.exercises] == ["2.3", "91.h"] and task.exercises[1].name == "question_91_h"
    assert task.written[0].id == "91.essay"
    old, new = what_to_grade._forms(QUESTION, QUESTION.place)[::-1]
    assert (function_name(old), function_name(new)) == ("question_91_h", f"question_{QUESTION.id.replace('.', '_')}")
    assert as_exercise(old, SECRET).solution.split("\n")[1:] == as_exercise(new, SECRET).solution.split("\n")[1:]
