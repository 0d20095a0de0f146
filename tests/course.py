"""The lessons as they are written, read once by all tests of a process: to read them takes longer than most tests."""

from functools import cache

from authoring import lesson


@cache
def lessons() -> list[lesson.Lesson]:
    """All lessons, in order."""
    return lesson.lessons()


def built_lessons() -> list[lesson.Lesson]:
    """Those that have a source and were built from it."""
    return [one for one in lessons() if one.source.exists() and one.notebook.exists()]
