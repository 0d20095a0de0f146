"""Every lesson is up to date with its source and keeps the contract of authoring/README.md."""

import tomllib

import pytest
from course import lessons

from authoring import build, contract
from authoring.lesson import ROOT, with_deeper

COURSE = lessons()
LESSONS = with_deeper(COURSE)


def test_the_lessons_of_the_course_are_there():
    names = {lesson.name for lesson in LESSONS}
    assert {"00_one_token_by_hand", "02_scaled_dot_product_attention", "10_generation_and_kv_cache"} <= names


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_notebook_is_what_its_source_builds(lesson):
    found = build.difference(lesson)
    assert found is None, f"{lesson.name}, {found}. `make notebooks` builds it"


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_lesson_keeps_the_contract(lesson):
    assert lesson.source.exists() and lesson.notebook.exists(), f"{lesson.name}: {build.difference(lesson)}"
    faults = contract.check(lesson, contract.known_of(lesson, COURSE))
    assert not faults, "\n".join([f"{lesson.name} breaks the contract of authoring/README.md:", *map(str, faults)])


def test_reasons_are_kept_for_lessons_that_exist():
    reasons = tomllib.loads((ROOT / "authoring" / "not_compared.toml").read_text(encoding="utf-8"))
    assert set(reasons) <= {lesson.name for lesson in LESSONS}


def test_the_questions_of_the_package_are_those_of_the_lessons():
    assert build.QUESTIONS.read_text(encoding="utf-8") == build.collected(COURSE), "run: make notebooks"
