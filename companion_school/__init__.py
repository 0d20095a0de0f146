"""The school beside the model: exercises and their checks, questions, figures of the lessons, and graded courses.

It builds on the model package where a lesson shows one; the model package never imports it.
"""
