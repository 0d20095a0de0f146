"""Examinations: questions for paper, whose numbers follow from the instructor's secret, and their marking keys."""
