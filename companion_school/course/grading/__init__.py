"""Grading: find answers in submissions, run them in a sandbox, and write marks, feedback pages and a gradebook."""
