"""Questions in a problem set: shuffled by the seed, graded like exercises, and without answers in students' files."""

import csv
from dataclasses import replace

import nbformat
import pytest

from companion.commands.main import main
from companion_school.checking.call import Result, in_this_process
from companion_school.checking.credit import earned, examine_groups
from companion_school.checking.examine import examine, key_of
from companion_school.checking.sealed_keys import unseal
from companion_school.course.grading import what_to_grade
from companion_school.course.points import parts, shares
from companion_school.course.release import problem_set
from companion_school.course.release import questions as release_questions
from companion_school.course.release.problem_set import ProblemSet
from companion_school.course.release.questions import LETTERS, as_exercise, needs_lesson
from companion_school.course.release.release import checks, release, source_notebook
from companion_school.questions import question
from companion_school.questions.question import Answer, Question
from companion_school.questions.question import questions as course_questions

SECRETS = [bytes([number]) * 32 for number in range(12)]
SIZE = Question(
    "2.a", "size", "choice", "How does it grow?",
    (Answer("it stays", False, "Squares add up."), Answer("16 times", True, "The root."),
     Answer("256 times", False, "Only with equal signs."), Answer("twice", False, "Faster.")),
)  # fmt: skip
ROOT = Question("2.b", "root", "number", "The root of 2?",
                (Answer("1.414", True, "Yes.", 0.01), Answer("2", False, "That is the square.")))  # fmt: skip
GUESS = Question("2.c", "guess", "predict", "What will it do?", outcome="It collapses.")
FORESEEN = Question(
    "2.d", "foreseen", "predict", "What will the row do?", outcome="It collapses.", alone=1,
    choices=(Answer("it stays", False, "No."), Answer("it collapses", True, "Yes."), Answer("it grows", False, "Nor.")),
    reasons=(Answer("squares add up", True, "So it is."), Answer("sums cancel", False, "Not of squares.")),
)  # fmt: skip
COURSE = {question.id: question for question in (SIZE, ROOT, GUESS, FORESEEN)}


@pytest.fixture(autouse=True)
def course(monkeypatch):
    for place in (what_to_grade, problem_set, release_questions, question):  # every module that looks them up
        monkeypatch.setattr(place, "questions", lambda: COURSE)


def verdict(exercise, given):
    return examine(key_of(exercise), in_this_process(lambda: given))


@pytest.mark.parametrize("secret", SECRETS[:3])
def test_each_choice_is_judged_wherever_it_stands(secret):
    exercise = as_exercise(SIZE, secret)
    for letter in LETTERS[:4]:
        [row] = [line for line in exercise.statement.splitlines() if line.startswith(f"- **{letter}** ")]
        [choice] = [answer for answer in SIZE.answers if row.endswith(f"** {answer.text}")]
        found = verdict(exercise, letter)
        assert (found.result is Result.RIGHT) == choice.right
        assert found.mistake == (None if choice.right else choice.why) or choice.right


def test_the_order_follows_from_the_secret():
    orders = {as_exercise(SIZE, secret).statement for secret in SECRETS}
    assert len(orders) > 3
    assert as_exercise(SIZE, SECRETS[0]).statement == as_exercise(SIZE, SECRETS[0]).statement


@pytest.mark.parametrize("given, right", [(1.414, True), (1.42, True), (1.5, False), (2.0, False)])
def test_a_number_is_judged_within_its_tolerance(given, right):
    assert (verdict(as_exercise(ROOT, SECRETS[0]), given).result is Result.RIGHT) == right


def pairs(exercise):
    """Return everything that a student may return, with flags for a right choice and a right reason."""
    rows = [line.removeprefix("- **").split("** ") for line in exercise.statement.splitlines() if line[:4] == "- **"]
    choices = {mark: text for mark, text in rows if mark in LETTERS}
    reasons = {int(mark): text for mark, text in rows if mark not in LETTERS}
    return [((a, b), choices[a] == "it collapses", reasons[b] == "squares add up") for a in choices for b in reasons]


@pytest.mark.parametrize("alone", [0, 1])
def test_a_prediction_needs_its_reason(alone):
    """Both right earn 2 points, the right choice with a wrong reason a share or nothing. The order reveals nothing."""
    exercise = as_exercise(replace(FORESEEN, alone=alone), SECRETS[1])
    assert exercise.points == 2 and shares(exercise) == (0.0, 2.0) and len(pairs(exercise)) == 6
    for pair, choice, reason in pairs(exercise):
        verdicts = examine_groups(key_of(exercise), in_this_process(lambda pair=pair: pair))
        points = sum(part.hidden for part, ok in zip(parts(exercise), earned(verdicts), strict=True) if ok)
        assert points == (2 if choice and reason else alone if choice else 0)
    why = {verdict(exercise, pair).mistake for pair, *_ in pairs(exercise)}
    assert why == {None, "No.", "Nor.", "Not of squares."}
    assert len({as_exercise(FORESEEN, secret).statement for secret in SECRETS}) > 4


def test_what_the_course_offers_to_predict():
    """At least six predictions of the lessons can be graded, with one right choice and one right reason each."""
    everything = course_questions()
    offered = [question for question in everything.values() if question.kind == "predict" and question.is_gradable]
    assert len(offered) >= 6 and any(not question.alone for question in offered)
    for asked in offered:
        for answers in (asked.choices, asked.reasons):
            assert len(answers) >= 3 and sum(answer.right for answer in answers) == 1
            assert all(answer.text.strip() and answer.why.endswith((".", "?")) for answer in answers)


@pytest.mark.parametrize(
    "words",
    [
        "Press *shrink*.",
        "See Figure 12.2.",
        "With the chances above, what comes?",
        "the head above",
        "What does this model do?",
        "Our batch is cut.",
        "After the 40 updates?",
        "Turn it as in [the figure](05.ipynb).",
        "With the last handle at 1?",
    ],
)
def test_words_that_point_into_a_lesson_are_noticed(words):
    asked = replace(SIZE, text=f"How does it grow? {words}")
    assert needs_lesson(asked) and not needs_lesson(SIZE)
    [told] = ProblemSet("quiz", (), (asked,)).warnings()
    assert told.startswith("question 2.a refers to something that is only in lesson 02")


def test_few_questions_of_the_course_need_their_lesson_beside_them_and_none_has_a_link_into_it():
    gradable = [one for one in course_questions().values() if one.is_gradable]
    assert len(gradable) > 250 and {one.id for one in gradable if needs_lesson(one)} == {"0.a", "5.c"}
    assert [one.id for one in gradable if "](" in as_exercise(one, SECRETS[0]).statement] == []


@pytest.mark.parametrize(
    ("id", "given", "fault"),
    [
        ("2.a", "Z", "expected one of the choices 'A', 'B', 'C', 'D'; got 'Z'"),
        ("2.a", "16 times", "expected one of the choices 'A', 'B', 'C', 'D'"),
        ("2.a", ("Z", 99), "expected one of the choices 'A', 'B', 'C', 'D'"),
        ("2.a", " b ", None),
        ("2.b", float("inf"), "expected a finite number, got inf"),
        ("2.b", "1.41", "the result is not of the right kind"),
        ("2.b", 7, None),
        ("2.d", ("A", 9), "expected one of the choices ('A', 1), ('A', 2)"),
        ("2.d", ("a", 1), None),
    ],
)
def test_a_public_check_looks_at_form_and_range_and_at_nothing_else(id, given, fault):
    pset = ProblemSet.of("quiz", [], ["2.a", "2.b", "2.d"]).dealt(SECRETS[0])
    found = unseal(checks(pset)[f"exercise_check/keys/{id}.key"]).examine(in_this_process(lambda: given))
    assert found.is_right if fault is None else fault in found.fault


def test_a_right_letter_is_right_in_small_letters_too():
    exercise = as_exercise(SIZE, SECRETS[0])
    assert verdict(exercise, f" {exercise.reference().lower()} ").result is Result.RIGHT


def test_a_students_check_knows_neither_right_nor_wrong():
    pset = ProblemSet.of("quiz", [], ["2.b", "2.a", "2.d"]).dealt(SECRETS[0])
    assert [exercise.id for exercise in pset.exercises] == ["2.a", "2.b", "2.d"]
    for exercise in pset.exercises:
        assert shares(exercise) == (0.0, exercise.points)
        sealed = unseal(checks(pset)[f"exercise_check/keys/{exercise.id}.key"])
        assert not sealed.knows_answers and sealed.key.mistakes == ()


def test_a_quiz_is_released_with_questions_and_without_answers(tmp_path):
    release(ProblemSet.of("quiz", [], ["2.a", "2.b", "2.d"]), SECRETS[0], tmp_path)
    [notebook] = (tmp_path / "release" / "quiz").glob("*.ipynb")
    text = notebook.read_text(encoding="utf-8")
    assert "def question_2_a():" in text and "raise NotImplementedError" in text and "How does it grow?" in text
    for answer in (*SIZE.answers, *FORESEEN.choices, *FORESEEN.reasons):
        assert answer.text in text and f" {answer.why}" not in text
    assert source_notebook(ProblemSet.of("quiz", [], ["2.a"]).dealt(SECRETS[0]), SECRETS[0]).cells


@pytest.mark.parametrize(
    "ids, message",
    [
        (["2.z"], "--questions: question '2.z': expected one of 2.a, 2.b, 2.c, 2.d"),
        (
            ["2.c"],
            "--questions: question 2.c is a prediction without a list of reasons.* expected one of 2.a, 2.b, 2.d",
        ),
        (["2.a", "2.a"], "--questions: 2.a is named more than once"),
        ([], "--exercises: expected at least one, as in --exercises 2.3 2.4, or --questions 2.a 2.b"),
    ],
)
def test_a_question_that_cannot_be_graded_is_refused(ids, message):
    with pytest.raises(ValueError, match=message):
        ProblemSet.of("quiz", [], ids)


def test_moving_a_question_keeps_its_order():
    """The order follows from the question's name, so inserting another question only changes its number."""
    assert as_exercise(replace(SIZE, id="2.d"), SECRETS[0]).statement == as_exercise(SIZE, SECRETS[0]).statement


def test_a_class_answers_a_quiz_and_is_graded(tmp_path):
    """The commands release, answer and grade it; a right letter earns its point, and a wrong one gets the reason."""
    (tmp_path / "seed").mkdir()
    (tmp_path / "seed" / "secret").write_bytes(SECRETS[3])
    seed = ["--seed-file", str(tmp_path / "seed" / "secret")]
    assert (
        main(["course", "release", "quiz", "--questions", "2.a", "2.b", "2.d", "--out", str(tmp_path / "out"), *seed])
        == 0
    )
    right = as_exercise(SIZE, SECRETS[3]).reference()
    wrong = next(letter for letter in LETTERS[:4] if letter != right)
    for student, letter in (("ada", right), ("bob", wrong)):
        foreseen = next(
            pair
            for pair, choice, reason in pairs(as_exercise(FORESEEN, SECRETS[3]))
            if choice and reason == (student == "ada")
        )
        cells = [f"def question_2_a():\n    return {letter!r}", "def question_2_b():\n    return 1.41"]
        cells.append(f"def question_2_d():\n    return {foreseen!r}")
        (tmp_path / "in" / student).mkdir(parents=True)
        nbformat.write(
            nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells]),
            tmp_path / "in" / student / "quiz.ipynb",
        )
    flags = ["--pset", str(tmp_path / "out" / "release" / "quiz"), "--out", str(tmp_path / "marks"), *seed]
    assert main(["grade", str(tmp_path / "in"), *flags]) == 0
    with open(tmp_path / "marks" / "marks.csv", newline="") as file:
        rows = {row["student_id"]: row for row in csv.DictReader(file)}
    assert (rows["ada"]["2.a"], rows["ada"]["2.b"], float(rows["ada"]["score"])) == ("right", "right", 4.0)
    assert (rows["bob"]["2.a"], rows["bob"]["2.d"], float(rows["bob"]["score"])) == ("wrong", "wrong", 2.0)
    assert rows["bob"]["2.d groups"] == "what happens: 1 of 1; what happens, and why: 0 of 1"
    statement = as_exercise(SIZE, SECRETS[3]).statement
    [why] = [answer.why for answer in SIZE.answers if f"**{wrong}** {answer.text}" in statement]
    page = (tmp_path / "marks" / "feedback" / "bob.html").read_text(encoding="utf-8")
    assert f"About your answer: {why}" in page and "Wrong: this is not the right answer." in page
    assert "input that is not shown" not in page


def test_everything_that_a_set_can_contain_is_listed_with_its_points_and_minutes(capsys):
    assert main(["course", "list", "2", "14"]) == 0
    said = capsys.readouterr().out
    lines = {line.split()[0]: line for line in said.splitlines() if line}
    assert {"--exercises", "--questions", "--numbers", "--written"} < {*lines}
    gradable = [one.id for one in question.questions().values() if one.is_gradable and one.lesson == 2]
    assert {"2.3", "14.1", "2.variance", "14.curves", *gradable} < {*lines} and "3.1" not in lines
    assert "choice" in lines["2.a"] and "\\" not in said
    assert main(["course", "list", "99"]) == 2
    assert "LESSON '99': expected lessons from 0" in capsys.readouterr().err
