"""The engine that checks answers in the reader's notebook, in a student's folder and in the grader's sandbox.

The modules, in reading order:

exercise            define an exercise: its statement, reference, cases and known mistakes
derived_cases       derive further cases and rejected inputs from an exercise's own cases
call                call an answer once and observe its result, error, gradients and memory
operator_watch      watch a call for forbidden operators and names, and measure its memory
compare             compare a result with the expected one, and describe the difference
examine             run an answer on all cases and return a verdict on its two marks
credit              examine an answer without stopping at the first fault, for partial credit

notebook_answer     check an answer in a notebook and print messages about it
problem_set_checks  the function `check` of a problem set
sealed_keys         store an exercise's cases and expected results without its solution
codec               serialize values without pickle

A problem set contains a copy of this folder under another name (`from exercise_check import check`), and the grader
loads it where companion is not installed. Its imports are therefore relative and never leave the folder.
"""

from .problem_set_checks import NotYet, check, check_hidden

__all__ = ["NotYet", "check", "check_hidden"]
