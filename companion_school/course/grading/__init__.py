"""Grading: turn the files that students hand in into marks, feedback pages and a gradebook.

submissions      finds each student's files (archives: unpacks them safely)
received         when work was handed in; lateness: what late work costs
what_to_grade    the items to grade
answers          finds the answers in a submission
grade            grades a class, in parallel
sandbox          runs an answer isolated from the system
exercise_mark    marks one answer; project: a project, stage by stage
results          the stored results, from which everything below is generated
marks_csv        tables of marks (tables: CSV for spreadsheets); feedback: a student's page
gradebook        all problem sets in one table; lms: Canvas and Moodle
similarity       similar answers in a class
race_board       the ranking of a class's races
"""
