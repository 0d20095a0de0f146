"""Problem sets for graded courses, and the code that grades students' answers.

release        problem sets and projects: notebooks without answers, and the instructor's sealed keys
written        written answers, their rubrics and marking sheets
exam           examination papers and their marking keys
bundles        Gradescope autograders and template repositories
grading        marks, feedback pages and gradebooks
proof          tests of the checks: right, wrong and hostile answers, mutants, hidden seeds
hidden_seeds   the instructor's secret, and the seeds of the hidden cases
points         how an exercise's points are split
oral, slides   oral questions about a student's own answers; slides of a lesson
"""
