"""Exercises, their checks and a reader's progress.

from companion.school.exercises import check, hint, progress, solution

check("2.3")       try your answer
hint("2.3")        one step of help
solution("2.3")    the reference
progress()         what you have done so far
"""

from companion.school.checking.attempt import NotYet
from companion.school.exercises.reader import check, hint, progress, solution

__all__ = ["NotYet", "check", "hint", "progress", "solution"]
