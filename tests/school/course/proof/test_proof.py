"""`companion course verify` counts the trials, reports faults, and exits with 0 only if there are none."""

import json
from dataclasses import replace
from datetime import date

import pytest

from companion.commands.main import main
from companion_school.build.parts import parts
from companion_school.checking.call import in_this_process
from companion_school.checking.examine import KnownMistake, examine, key_of
from companion_school.checking.exercise import Case
from companion_school.course.proof import proof
from companion_school.course.proof.proof import Proof, as_json, as_text, prove
from companion_school.course.proof.seeds import seed_trials
from companion_school.course.proof.verify import SEEDS, Trial
from companion_school.exercises.catalogue import exercises
from companion_school.exercises.progress import note_check, note_hint

KINDS = (*proof.EACH, "hostile")
GOOD = tuple(Trial("2.3", kind, "one", seed, None) for kind in KINDS for seed in SEEDS)
BAD = (*GOOD, Trial("2.3", "mistake", "a mask", 3, "should be caught, but passes"))


def test_everything_about_an_exercise_is_tried_on_every_seed(monkeypatch):
    monkeypatch.setattr(proof, "run_hostile_class", lambda jobs: 1 / 0)
    found = prove(["2.5"], jobs=1)
    one = exercises()["2.5"]
    tried = 1 + len(one.variants) + 1 + len(one.mistakes)
    assert len(found.trials) == tried * len(SEEDS) and found.holds and "hostile" not in found.kinds
    assert "hostile" not in as_text(found) and as_text(found).startswith("1 exercise, each on 5 seeds")
    with pytest.raises(ValueError, match="2.99"):
        prove(["2.5", "2.99"])


@pytest.mark.parametrize("id", ["2.3", "10.3"])
def test_a_known_mistake_is_named_as_any_answer_that_makes_it(id):
    exercise = exercises()[id]
    key = key_of(exercise)
    for known, (_, gives) in zip(exercise.mistakes, key.mistakes, strict=True):
        alone = examine(key, in_this_process(known.answer)).strict
        assert examine(key, KnownMistake(key, known.answer, gives)).strict == alone
        assert alone.mistake == known.message


def test_the_whole_proof_tries_every_exercise_and_the_hostile_class(monkeypatch):
    monkeypatch.setattr(proof, "exercises", lambda: ["2.5"])
    monkeypatch.setattr(proof, "run_hostile_class", lambda jobs: [Trial("", "hostile", f"in {jobs}", 0, None)])
    found = prove(jobs=1)
    assert "hostile" in found.kinds and found.holds and found.trials[-1].name == "in 1"
    assert "1 of 1  hostile students" in as_text(found)


def test_the_counts_are_printed():
    text = as_text(Proof(5, BAD))
    assert "5 exercises, each on 5 seeds" in text and "1 of 1  references" in text and "1 of 2  known mistakes" in text
    assert "2.3, mistake 'a mask', seed 3: should be caught, but passes" in text and "NOT as expected: 1 fault" in text
    assert as_text(Proof(5, GOOD)).endswith("everything is as expected")


def test_the_counts_are_there_as_json():
    read = json.loads(as_json(Proof(5, BAD)))
    assert read["counts"]["mistake"] == {"tried": 2, "as expected": 1} and read["as it must be"] is False
    assert read["faults"][0]["fault"] == "should be caught, but passes"
    assert json.loads(as_json(Proof(5, GOOD)))["as it must be"] is True


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_tried_proves_nothing(kind):
    assert not Proof(5, tuple(trial for trial in GOOD if trial.kind != kind)).holds


def test_right_answers_stand_other_seeds_and_answers_for_some_sizes_do_not(capsys):
    assert main(["course", "verify", "2.5", "--seeds", "3", "--jobs", "1"]) == 0
    told = capsys.readouterr().out
    assert "1 exercise, each on 3 seeds" in told and "5 of 5  right for some sizes only" in told
    [part] = (part.exercise() for part in parts(6) if part.name == "clip")
    assert {trial.fault for trial in seed_trials(part, 2, strict=False)} == {None}


def test_an_exercise_without_sizes_is_proved_by_what_it_has(capsys):
    assert main(["course", "verify", "24.1", "--seeds", "2", "--jobs", "1"]) == 0
    told = capsys.readouterr().out
    assert "sizes" not in told and told.endswith("everything is as expected\n")


def test_what_loses_a_mark_on_a_seed_and_what_is_right_for_some_sizes_is_told():
    exercise = exercises()["2.5"]
    small = replace(
        exercise, _cases=lambda draw: iter([Case("two and three", (2, 3))]), excused={"large": "", "edge": ""}
    )
    told = {trial.name: trial.fault for trial in seed_trials(small, 1)}
    assert told["right up to size 4"] == told["right for the public sizes"] == "should not be right and robust, but is"
    wrong = replace(exercise, variants=[lambda queries, keys: exercise.reference(queries, keys) | (keys == 11)])
    assert [trial.fault for trial in seed_trials(wrong, 20) if trial.kind == "variant" and trial.fault]


@pytest.mark.parametrize("trials, code", [(GOOD, 0), (BAD, 1)])
def test_the_exit_code_says_whether_it_holds(trials, code, monkeypatch, capsys):
    monkeypatch.setattr(proof, "prove", lambda ids, jobs: Proof(5, trials))
    assert main(["course", "verify", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["as it must be"] is (code == 0)
    assert main(["course", "verify", "--jobs", "0"]) == 2
    assert "--jobs 0: expected a whole number" in capsys.readouterr().err


def test_progress_is_shown(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("COMPANION_HOME", str(tmp_path))
    assert main(["progress", "2"]) == 0
    assert "2.3  A softmax that can hide" in capsys.readouterr().out
    note_check("2.3", passed=True)
    note_hint("3.1")
    assert main(["progress", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == set(exercises()) and told["2.3"]["title"] == "A softmax that can hide"
    assert told["2.3"]["checks"] == told["3.1"]["hints"] == 1 and told["3.1"]["passed"] is None
    assert told["2.3"]["passed"] == date.today().isoformat() and told["2.3"]["robust"] is None
    (tmp_path / "progress.json").write_text("{")
    assert main(["progress"]) == 2
    assert "expected the progress that the course wrote" in capsys.readouterr().err
