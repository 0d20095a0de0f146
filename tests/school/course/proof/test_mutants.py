"""Mutants: the changes made to a reference, and whether the checks reject them."""

import json

import pytest

from companion.commands.main import main
from companion_school.checking.call import Result, in_this_process
from companion_school.checking.examine import examine, key_of
from companion_school.course.proof import survivors
from companion_school.course.proof.mutants import mutants
from companion_school.exercises.catalogue import exercises


def test_each_changes_one_thing_and_no_error_message():
    made = list(mutants(exercises()["2.3"]))
    changes = [mutant.change for mutant in made]
    assert len(set(changes)) == len(changes) > 30
    assert "z.max -> z.min" in changes and "~may_look -> may_look" in changes and "-1 -> 1" in changes
    assert not any("expected a boolean" in change for change in changes)


def test_almost_all_are_told_from_right_answers():
    exercise = exercises()["2.5"]
    key = key_of(exercise)
    passing = [
        m.change for m in mutants(exercise) if examine(key, in_this_process(m.answer)).strict.result is Result.RIGHT
    ]
    assert passing == [], passing


def test_what_is_declared_and_does_not_pass_is_told(monkeypatch):
    known = {"1 -> 2": "it is not", "nothing -> this": "there is none"}
    monkeypatch.setattr(survivors, "declared", lambda: {"2.5": known})
    tally = survivors.tally("2.5")
    assert set(tally.stale) == set(known) and tally.killed == tally.made
    report = survivors.Report((tally,))
    assert not report.holds and "declared in equivalent.toml, but does not pass: nothing -> this" in survivors.as_text(
        report
    )
    read = json.loads(survivors.as_json(report))
    assert read["mutants"] == read["killed"] == tally.made and read["as it must be"] is False


def test_one_that_does_not_end_is_refused():
    def endless(queries, keys):
        while True:
            pass

    assert survivors._passes(key_of(exercises()["2.5"]), endless) is None


def test_reasons_are_given_for_exercises_that_there_are():
    for id, known in survivors.declared().items():
        assert id in exercises() and all(" -> " in change and reason for change, reason in known.items())


@pytest.mark.parametrize("flags", [["--mutants", "99.1"]])
def test_an_unknown_exercise_is_told(flags, capsys):
    assert main(["course", "verify", *flags]) == 2
    assert "99.1" in capsys.readouterr().err
