"""The school's commands, which `companion` discovers through the entry point `companion.commands`."""

from companion_school.commands import build, course, explore, grade, progress, review

COMMANDS = {
    "explore": (explore, "write a page that shows what happens inside a model"),
    "build": (build, "write a transformer of your own, stage by stage, and have it checked"),
    "progress": (progress, "show which exercises you have done, and where to continue"),
    "review": (review, "ask the lessons' questions again when they are due"),
    "grade": (grade, "grade a folder of submissions"),
    "course": (course, "make problem sets, collect marks, and prove that the checks work"),
}
"""For each command, the module with its functions `parser` and `run`, and its help text."""
