"""The engine that checks answers in the reader's notebook, in a student's folder and in the grader's sandbox.

The modules, in reading order:

exercise            definition of an exercise: statement, reference, cases and known mistakes
derived_cases       cases and rejected inputs that are derived from an exercise's own cases
call                one call of an answer and everything observed afterwards: result, error, gradients, memory
operator_watch      watch a call for forbidden operators and names, and measure its memory
compare             compare a result with the expected one, and describe the difference
examine             run an answer on all cases, collect its faults and give the verdict with its two marks
credit              the same without stopping at the first fault, for partial credit

notebook_answer     an answer in a notebook: checks before it runs, and the messages afterwards
problem_set_checks  the `check` of a problem set that was handed out
sealed_keys         expected results that a student cannot read
codec               values as bytes and back, without pickle

A problem set contains a copy of this folder under another name (`from exercise_check import check`), and the grader
loads it where companion is not installed. Its imports are therefore relative and never leave the folder.
"""

from .problem_set_checks import NotYet, check, check_hidden

__all__ = ["NotYet", "check", "check_hidden"]
