"""Examinations on paper and their marking keys. The numbers in the questions follow from the instructor's secret."""
