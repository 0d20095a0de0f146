"""The checks checked: right answers, known mistakes and hostile students, against every exercise."""
