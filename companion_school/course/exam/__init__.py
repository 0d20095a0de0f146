"""Paper examinations and their marking keys. The numbers in the questions are derived from the instructor's secret."""
