"""The engine that checks an answer, in the reader's notebook, in a student's folder and behind the grader's wall.

exercise    what an exercise is: its statement, reference, cases and known mistakes
attempt     an answer as it was handed in, and what may be wrong with it before it runs
compare     when two results are the same
examine     an answer run on an exercise's cases, and the verdict
credit      which groups of cases it passes, for part of the points
laws        the cases that follow from an exercise's own, whatever it asks
memory      whether results share memory, and tensors in another memory layout
forbidden   what a statement forbids an answer to use
codec       values as bytes and back, without pickle
sealed      expected results that a student cannot read
student     the `check` of a problem set that was handed out

The folder travels as it is: a problem set holds a copy under another name (`from exercise_check import check`), and
the grader loads it where there is no companion. Hence its imports are relative, and reach nothing outside it.
"""

from .student import NotYet, check, check_hidden

__all__ = ["NotYet", "check", "check_hidden"]
