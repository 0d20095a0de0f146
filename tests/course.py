"""The lessons' sources, read once per process for all tests, because reading takes longer than most tests."""

from functools import cache

from authoring import lesson


@cache
def lessons() -> list[lesson.Lesson]:
    """Return all lessons in order."""
    return lesson.lessons()


def built_lessons() -> list[lesson.Lesson]:
    """Return the lessons that have a source and were built from it."""
    return [one for one in lessons() if one.source.exists() and one.notebook.exists()]
