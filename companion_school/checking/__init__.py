"""The engine that checks an answer, in the reader's notebook, in a student's folder and behind the grader's wall.

How a check works, in the order in which it is read:

exercise            what an exercise is: statement, reference, cases and known mistakes, and which cases are robust ones
derived_cases       the cases that follow from an exercise's own, whatever it asks; and the refusals that follow
call                one call of an answer, and all that can be seen of it afterwards: result, error, gradients, memory
operator_watch      during a call: the operators and names that a statement forbids, and bytes
compare             after a call: whether the result is the expected one, or near it in other types; and how to say so
examine             all calls on all cases, the faults, the two marks to which they belong, and the verdict
credit              the same, without stopping at the first fault: for part of the points

notebook_answer     an answer as it stands in a notebook: what may be wrong before it runs, and what is said afterwards
problem_set_checks  the `check` of a problem set that was handed out
sealed_keys         expected results that a student cannot read
codec               values as bytes and back, without pickle

The folder travels as it is: a problem set holds a copy under another name (`from exercise_check import check`), and
the grader loads it where there is no companion. Hence its imports are relative, and reach nothing outside it.
"""

from .problem_set_checks import NotYet, check, check_hidden

__all__ = ["NotYet", "check", "check_hidden"]
