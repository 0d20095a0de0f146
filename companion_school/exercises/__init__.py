"""Exercises, their checks and a reader's progress.

from companion_school.exercises import check, hint, progress, solution, take_over

check("2.3")       try your answer
hint("2.3")        one step of help
solution("2.3")    the reference
progress()         what you have done so far
take_over("2.3")   write your answer into the file of your own transformer that it belongs to
"""

from companion_school.checking.notebook_answer import NotYet
from companion_school.exercises.check import check, hint, progress, solution, take_over

__all__ = ["NotYet", "check", "hint", "progress", "solution", "take_over"]
