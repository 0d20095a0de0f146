"""Every lesson is what its source builds, and keeps the contract of authoring/README.md."""

import tomllib
from pathlib import Path

import pytest

from authoring import build, contract
from authoring.lesson import equations, lessons

LESSONS = lessons()
NOT_COMPARED = tomllib.loads(Path(__file__).with_name("not_compared.toml").read_text(encoding="utf-8"))
COMPANION = contract.companion_names()


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
    others = {other.number: equations(other.built) for other in LESSONS if other.notebook.exists()}
    known = contract.Known(COMPANION, NOT_COMPARED.get(lesson.name, {}), others)
    faults = contract.check(lesson, known)
    assert not faults, "\n".join([f"{lesson.name} breaks the contract of authoring/README.md:", *map(str, faults)])


def test_reasons_are_kept_for_lessons_that_exist():
    assert set(NOT_COMPARED) <= {lesson.name for lesson in LESSONS}
