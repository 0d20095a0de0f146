"""Grading: answers out of submissions, run behind a wall, to marks, feedback pages and a gradebook."""
