"""The lessons' questions: right and wrong answers are judged, stored, and asked again when they are due."""

import json
import math
from dataclasses import replace
from datetime import date, timedelta
from importlib.resources import files

import pytest
from scripts import run

from companion.commands.main import main
from companion_school import questions as questions_package
from companion_school.questions import answer, ask, asking, spaced_repetition, terminal
from companion_school.questions import question as module
from companion_school.questions.asking import review
from companion_school.questions.numbers import read_number
from companion_school.questions.question import (
    LETTERS,
    Answer,
    Question,
    around,
    find_question,
    questions,
    shown_number,
)

SIZE = Question(
    "2.a", "size", "choice", "How does $q \\cdot k$ grow?",
    (Answer("it stays", False, "No: squares add up."), Answer("16 times", True, "The root of 256."),
     Answer("256 times", False, "Only with equal signs.")),
    html="<section></section>",
)  # fmt: skip
ROOT = Question(
    "2.b", "root", "number", "The root of 2?",
    (Answer("1.414", True, "It is $\\sqrt{2}$.", 0.01), Answer("2", False, "That is the square.")),
    otherwise="Take the root.",
)  # fmt: skip
GUESS = Question("5.a", "guess", "predict", "What will it do?", outcome="It collapses.")
COURSE = {question.id: question for question in (SIZE, ROOT, GUESS)}
DAY = date(2026, 1, 1)


@pytest.fixture
def course(tmp_path, monkeypatch):
    """Make three questions, and a folder for the reader's answers."""
    monkeypatch.setenv("COMPANION_HOME", str(tmp_path))
    for place in (module.__name__, "companion_school.questions.asking"):
        monkeypatch.setattr(f"{place}.questions", lambda: COURSE)
    return tmp_path


def test_every_question_of_the_course_is_answered_right_and_wrong():
    for question in questions().values():
        if question.kind == "predict":
            assert question.judge("a guess").right is None and question.judge("a guess").why
            continue
        given = [LETTERS[at] for at in range(len(question.answers))]
        given = given if question.kind == "choice" else [known.text for known in question.answers]
        verdicts = [question.judge(one) for one in given]
        assert [verdict.right for verdict in verdicts].count(True) == 1
        assert all(verdict.why for verdict in verdicts)
        if question.kind == "number":
            assert question.judge("123456.789").right is False


def test_every_question_is_html_that_answers_without_script():
    for question in questions().values():
        reasons = len(question.answers) + bool(question.otherwise) if question.kind != "predict" else 1
        assert question.html.count("<details><summary>") == reasons
        assert question.html.count('class="ext-why"') == reasons
        assert question.html.count(" data-right") == (question.kind != "predict")
        formulas = sum("$" in answer.text for answer in question.answers) if question.kind == "choice" else 0
        assert question.html.count(' data-words="') == formulas  # with only a formula, the choice would have no name
        assert "{ref}" not in question.html and "{deeper}" not in question.html


@pytest.mark.parametrize(
    "question, given, right, why",
    [
        (SIZE, "b", True, "The root of 256."),
        (SIZE, " B ", True, "The root of 256."),
        (SIZE, "c", False, "Only with equal signs."),
        (ROOT, "1.41", True, "It is $\\sqrt{2}$."),
        (ROOT, "1,41", True, "It is $\\sqrt{2}$."),
        (ROOT, "2.0", False, "That is the square."),
        (ROOT, "4/2", False, "That is the square."),
        (ROOT, "7", False, "Take the root."),
        (GUESS, "it grows", None, "It collapses."),
    ],
)
def test_an_answer_is_judged(question, given, right, why):
    assert question.judge(given) == module.Verdict(right, why)


@pytest.mark.parametrize(
    "question, given, message",
    [
        (SIZE, "d", "question 2.a: expected one of a, b, c, got 'd'"),
        (SIZE, "", "expected one of a, b, c"),
        (ROOT, "two", "question 2.b: expected a number, such as 0.25, 1/4 or e\\^2, got 'two'"),
        (GUESS, " ", "expected your prediction, got nothing"),
    ],
)
def test_an_answer_of_another_kind_is_refused(question, given, message):
    with pytest.raises(ValueError, match=message):
        question.judge(given)


@pytest.mark.parametrize(
    "text, number",
    [
        ("1,024", 1024), ("1,024.5", 1024.5), ("0,5", 0.5), ("1/4", 0.25), ("50%", 0.5), ("-1e-3", -0.001),
        ("\u22122", -2), ("1 000", 1000), (".5", 0.5), ("", None), ("x", None), ("1/0", None), ("1/2/3", 1 / 6),
        ("e^2", math.e**2), ("ln 8", math.log(8)), ("2*0.5", 1), ("sqrt(2)/2", math.sqrt(2) / 2),
        ("\u221a2", math.sqrt(2)),
        ("2^10", 1024), ("-2^2", -4), ("2^-1", 0.5), ("2**3**2", 512), ("log2(1,024)", 10),
        ("3 \u00d7 \u03c0", 3 * math.pi),
        ("1 - 1/e", 1 - 1 / math.e), ("(1+2)*3", 9), ("007", 7), ("exp(-1)", math.exp(-1)), ("--2", 2), ("5.", 5),
        ("0x10", None), ("5 # x", None), ("1j", None), ("True", None), ("e(2)", None), ("2e", None),
        ("ln", None), ("ln -2", None),
        ("ln(0)", None), ("9**9**9", None), ("(-8)^(1/3)", None), ("0^-1", None), ("1//2", None),
        ("5%2", None), ("(1", None),
        ("1)", None), ("[1][0]", None), ("(1)(2)", None), ("__import__('os')", None), ("e.real", None), ("1;2", None),
        ("1.5.2", None), ("1,2,3", None), ("(" * 30 + ")" * 30, None), ("(" * 31 + "1", None), ("1+" * 40 + "1", None),
    ],
)  # fmt: skip
def test_numbers_are_read_as_people_write_them(text, number):
    found = read_number(text)
    assert found == number if number is None else math.isclose(found, number, rel_tol=1e-15)


def test_the_page_reads_numbers_as_the_package_does(tmp_path):
    mark = next(mark for mark in test_numbers_are_read_as_people_write_them.pytestmark if mark.name == "parametrize")
    texts = [text for text, _ in mark.args[1]]
    code = files(questions_package).joinpath("question.js").read_text(encoding="utf-8")
    reads = code[code.index("const FUNCTIONS") : code.index("const LETTERS")]
    run(f'{reads}\nwrite("read.json", JSON.stringify(given.map(number)));', texts, tmp_path)
    read = json.loads((tmp_path / "read.json").read_text())  # NaN is null in JSON
    for text, on_the_page in zip(texts, read, strict=True):
        here = read_number(text)
        same = here is on_the_page if None in (here, on_the_page) else math.isclose(here, on_the_page, rel_tol=1e-14)
        assert same, (text, here, on_the_page)


def test_a_hint_narrows_and_does_not_tell():
    for question in questions().values():
        if question.right is None:
            assert question.hint([]) == ""
        elif question.kind == "choice":
            letters = LETTERS[: len(question.answers)]
            right = letters[question.answers.index(question.right)]
            others = [letter for letter in letters if letter != right]
            assert question.hint(others) == "" and right in question.hint([])[len("It is ") :]
            said = question.hint(others[:1])
            assert others[0] not in said[len("It is ") :] or not said
        else:
            value = read_number(question.right.text)
            low, high = around(value) if value else (0, 1)
            assert low <= value < high and (not value or low < value)
            assert question.hint([]) == (
                f"It lies between {shown_number(low)} and {shown_number(high)}." if value else "It is close to 0."
            )


@pytest.mark.parametrize(
    ("value", "said"), [(1.4e6, "1400000"), (-0.9, "\u22120.9"), (3e-5, "0.00003"), (2 / 3, "0.666667")]
)
def test_a_number_has_no_exponent(value, said):
    assert shown_number(value) == said


def test_two_wrong_answers_bring_a_hint_and_three_the_answer(course, monkeypatch, capsys):
    monkeypatch.setattr(asking, "_WRONG", {})
    answer("2.b", 2)
    assert "hint" not in capsys.readouterr().out
    answer("2.b", 7)
    assert capsys.readouterr().out == "Question 2.b: not right. Take the root.\nA hint. It lies between 0.9 and 2.\n"
    answer("2.b", 8)
    assert capsys.readouterr().out.endswith("The answer: 1.414. It is √2.\n")
    answer("2.a", "c")
    answer("2.a", "a")  # the remaining choice is the answer
    assert capsys.readouterr().out.endswith("The answer: b: 16 times. The root of 256.\n")
    answer("2.a", "b")
    assert "The answer" not in capsys.readouterr().out


# --- stored, and asked again


def days(*given):
    return [(DAY + timedelta(days=day), right) for day, right in given]


@pytest.mark.parametrize(
    "given, due",
    [
        ((), None),
        (((0, True),), 1),
        (((0, False),), 1),
        (((0, False), (0, True)), 1),  # once the reason is known, another answer does not count
        (((0, True), (1, True)), 4),
        (((0, True), (1, True), (4, True)), 11),
        (((0, True), (1, True), (4, True), (11, True)), 32),
        (((0, True), (1, True), (4, False)), 5),
        (((0, True), (1, True), (2, True)), 4),  # before it is due, nothing is gained
        (((0, True), (1, True), (2, False)), 3),
        (((0, True), (9, True)), 12),
    ],
)
def test_a_question_comes_again_after_1_3_7_and_21_days(given, due):
    state = spaced_repetition.state(days(*given))
    assert state.due == (None if due is None else DAY + timedelta(days=due)) and not state.settled


def test_a_question_answered_five_times_in_its_time_is_settled():
    state = spaced_repetition.state(days((0, True), (1, True), (4, True), (11, True), (32, True)))
    assert state.settled and state.due is None


def test_what_waits_longest_comes_first(course):
    spaced_repetition.note_answer(SIZE, True, DAY + timedelta(days=2))
    spaced_repetition.note_answer(ROOT, False, DAY)
    assert spaced_repetition.due(COURSE.values(), DAY) == []
    assert spaced_repetition.due(COURSE.values(), DAY + timedelta(days=1)) == [ROOT]
    assert spaced_repetition.due(COURSE.values(), DAY + timedelta(days=3)) == [ROOT, SIZE]


def test_answers_in_a_notebook_are_kept(course, capsys):
    answer("2.a", "c")
    answer("2.b", 1.414)
    answer("5.a", "it grows")
    answer("5.a", "it grows", as_expected=False)
    said = capsys.readouterr().out
    assert "Question 2.a: not right. Only with equal signs." in said and "Question 2.b: right. It is √2." in said
    assert "It collapses." in said
    stored = json.loads((course / "questions.json").read_text(encoding="utf-8"))
    assert {key: [row[1:] for row in given] for key, given in stored.items()} == {
        "2/size": [[False, "c"]], "2/root": [[True, "1.414"]], "5/guess": [[False, "it grows"]],
    }  # fmt: skip


def test_a_notebook_is_given_back_the_latest_answer_to_each_question(course, capsys):
    (course / "questions.json").write_text(
        '{"2/root": [["2026-01-01", true]]}', encoding="utf-8"
    )  # from an older version
    answer("2.a", "c")
    answer("2.a", "b")
    answer("5.a", " it grows ", as_expected=False)
    assert asking.given()._repr_json_()[0] == {"2/size": ["b", None], "5/guess": ["it grows", False]}
    assert [row[2:] for row in json.loads((course / "questions.json").read_text("utf-8"))["2/size"]] == [[], ["b"]]


def test_an_answer_stays_right_or_wrong_when_choices_are_reordered(course, monkeypatch):
    it_stays, sixteen, many = SIZE.answers
    reordered = {**COURSE, "2.a": replace(SIZE, answers=(sixteen, many, it_stays))}
    answer("2.a", "b")
    monkeypatch.setattr(asking, "questions", lambda: reordered)
    assert asking.given()._repr_json_()[0] == {"2/size": ["a", None]}
    answer("2.a", "a")  # "it stays", which was wrong
    assert asking.given()._repr_json_()[0] == {}


def test_what_cannot_be_understood_is_named_and_left(course):
    (course / "questions.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(ValueError, match=r"questions\.json: expected answers saved by the course"):
        answer("2.a", "b")
    assert (course / "questions.json").read_text(encoding="utf-8") == "[1]"


def test_a_question_shows_itself_with_its_script(course):
    page = ask("2.a")._repr_html_()
    assert "<section></section>" in page and '<script type="module">' in page and "http" not in page
    assert repr(ask("2.a")).startswith("Question 2.a: How does")


def test_what_is_reviewed_in_a_notebook_does_not_show_the_answer_of_before(course, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    spaced_repetition.note_answer(SIZE, True, DAY)
    review()
    assert [one.question for one in shown] == [SIZE] and "<section data-anew>" in shown[0]._repr_html_()
    assert "data-anew" not in ask("2.a")._repr_html_().split("<script")[0]


def test_an_unknown_question_is_refused_with_what_there_is(course):
    with pytest.raises(ValueError, match=r"question '2.z': expected one of 2.a, 2.b"):
        find_question("2.z")
    with pytest.raises(ValueError, match=r"question '9': expected a question from lessons 2, 5, such as 2.a"):
        find_question("9")


# --- in the terminal


def asked(*lines):
    given = iter(lines)

    def read(prompt):
        try:
            return next(given)
        except StopIteration:
            raise EOFError from None

    return read


def test_the_terminal_asks_says_why_and_keeps(course):
    said = []
    count = terminal.review([SIZE, ROOT, GUESS], asked("z", "c", "", "it grows", "y"), said.append)
    text = "\n".join(said)
    assert count == 2
    assert "expected one of a, b, c, got 'z'" in text and "Not right. Only with equal signs." in text
    assert "It is b: 16 times. The root of 256." in text and "asked again in 1 day" in text and "skipped" in text
    assert set(spaced_repetition.read_answers()) == {"2/size", "5/guess"}
    assert all(len(line) <= 80 for line in text.splitlines())


def test_the_end_of_the_input_ends_the_review_and_keeps_what_was_answered(course, monkeypatch):
    said = []
    assert terminal.review([SIZE, ROOT], asked("b"), said.append) == 1
    assert said[-1] == "\nStopped. Your answers are saved."
    assert set(spaced_repetition.read_answers()) == {"2/size"}
    monkeypatch.setattr("sys.stdin", None)  # as in a process that was started with stdin closed
    assert terminal.review([ROOT], write=said.append) == 0


def test_the_command_asks_what_waits(course, monkeypatch, capsys):
    monkeypatch.setattr("builtins.input", asked("b"))
    assert main(["review"]) == 0
    assert "No question is due today." in capsys.readouterr().out
    spaced_repetition.note_answer(SIZE, True, DAY)
    assert main(["review", "--list", "2"]) == 0
    listed = capsys.readouterr().out
    assert "2.a  size  again on 2026-01-02, answered 1 time" in listed and "5.a" not in listed
    assert main(["review", "2"]) == 0
    assert "Right. The root of 256." in capsys.readouterr().out
    assert main(["review", "3"]) == 2
    assert "LESSON 3: expected one of the lessons with questions (02, 05)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "markdown, text",
    [
        ("$\\sqrt{512} / \\sqrt 2$", "√512 / √2"),
        ("$\\sqrt{d_k}$ of $q \\cdot k$", "√d_k of q · k"),
        ("See [the coins](02.ipynb#cell-id=1).", "See the coins."),
        ("$\\operatorname{Var}(x) \\le \\frac{1}{2}$", "Var(x) ≤ (1)/(2)"),
    ],
)
def test_formulas_are_readable_in_a_terminal(markdown, text):
    assert terminal.readable(markdown) == text


def test_choices_cannot_be_guessed_by_their_position_or_length():
    """Chance is 31 %, because questions have three or four choices."""
    asked = [question.answers for question in module.questions().values() if question.kind == "choice"]
    right = [[answer.right for answer in answers].index(True) for answers in asked]
    longest = [max(range(len(answers)), key=lambda at: len(answers[at].text)) for answers in asked]
    assert all(0.2 < right.count(at) / len(asked) < 0.4 for at in range(3))
    assert sum(a == b for a, b in zip(right, longest, strict=True)) / len(asked) < 0.4
