"""The teaching side of the course: exercises and their checks, questions, the lessons' figures, and graded courses.

It imports the library `companion`, which never imports the school.

exercises   the exercises of each lesson: statement, reference, hints, cases and known mistakes
checking    the engine that checks an answer
questions   the lessons' questions, with spaced repetition
build       the build track, *Your own transformer*
study       figures, small tasks and data of the lessons
explorer    the page that runs a model and shows its activations
course      problem sets, grading, gradebooks and exams, for instructors
records     recorded results of long runs
commands    the school's commands
"""
