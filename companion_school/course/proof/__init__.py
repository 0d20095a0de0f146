"""Tests of the checks themselves: correct answers, known-wrong answers and hostile students for every exercise."""
