"""Tests of the checks themselves: right answers, known-wrong answers and hostile students for every exercise."""
