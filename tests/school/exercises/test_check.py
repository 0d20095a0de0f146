"""`check` for readers: it raises with a message, never returns a verdict, and remembers what was done."""

import json
import math
import re
import threading

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

from companion.ground.user_files import kept_file
from companion_school.checking.notebook_answer import Printed
from companion_school.checking.operator_watch import forbidden_uses
from companion_school.exercises import NotYet, check, hint, progress, solution
from companion_school.exercises.progress import FILE, read_progress


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPANION_HOME", str(tmp_path / "new"))
    return tmp_path / "new"


def right(queries, keys):
    if queries < 1 or queries > keys:
        raise ValueError("no such mask")
    return torch.full((queries, keys), -math.inf).triu(keys - queries + 1)


def top_left(queries, keys):
    return torch.full((queries, keys), -math.inf).triu(1)


def test_a_right_answer_says_so_and_returns_nothing(capsys):
    assert check("2.5", right) is None
    told = "✓ 2.5 The triangle in the right corner: right. 2 points."
    assert capsys.readouterr().out == f"{told} It is also robust ★: it passed all further tests.\n"


def test_a_wrong_answer_raises_with_property_input_expected_and_got_and_mistake():
    with pytest.raises(NotYet) as caught:
        check("2.5", top_left)
    lines = str(caught.value).splitlines()
    assert lines[0] == "2.5 The triangle in the right corner: one query at the end sees every key"
    assert lines[1].strip() == "with queries = 1, keys = 4"
    assert lines[2].strip() == "expected [[0, 0, 0, 0]], got [[0, -inf, -inf, -inf]]"
    assert lines[3].strip().startswith("most likely: your triangle sits in the top left corner")


def test_dividing_by_d_k_is_called_by_its_name():
    with pytest.raises(NotYet, match="divided by d_k, not by its square root"):
        check("2.1", lambda: math.exp(1) / (2 * math.exp(1) + 1))


def test_the_answer_is_found_by_its_name_where_check_is_called(capsys):
    exec("def causal_mask(q, k): return right(q, k)\ncheck('2.5')", {"check": check, "right": right})
    assert "right" in capsys.readouterr().out
    with pytest.raises(NotYet, match="found no function named causal_mask"):
        exec("check('2.5')", {"check": check})
    with pytest.raises(NotYet, match="is a float; expected a function"):
        exec("causal_mask = 3.0\ncheck('2.5')", {"check": check})


def printing(times, sign="."):
    def causal_mask(queries, keys):
        for _ in range(times):
            print(sign * 50)
        return right(queries, keys)

    return causal_mask


def test_the_verdict_comes_first_and_a_flood_of_lines_is_cut(capsys):
    check("2.5", printing(20_000))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("✓ 2.5 The triangle in the right corner: right. 2 points.")
    assert lines[2] == "Printed by your function while it was tried:" and lines[3:23] == ["." * 50] * 20
    assert re.fullmatch(r"\.\.\. and [\d,]+ more lines", lines[23]) and len(lines) == 24
    check("2.5", printing(1, "," * 100_000))  # one very long line
    assert len(capsys.readouterr().out) < 5_000
    with pytest.raises(NotYet) as caught:
        check("2.5", lambda queries, keys: print("here") or top_left(queries, keys))
    first, *_, printed = str(caught.value).split("\n\n")
    assert first.startswith("2.5 The triangle in the right corner: one query at the end sees every key")
    assert set(printed.splitlines()[1:21]) == {"here"} and capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "text, told",
    [
        ("", ""),
        ("\n", ""),
        ("a", "a"),
        ("a\n", "a"),
        ("a\nb", "a\nb"),
        ("x\n" * 20, "x\n" * 19 + "x"),
        ("x\n" * 21, "x\n" * 20 + "... and 1 more line"),
        ("x\n" * 20 + "y", "x\n" * 20 + "... and 1 more line"),
        ("z" * 5_000, "z" * 4_000 + " ..."),
    ],
)
def test_what_an_answer_prints_is_told_with_a_count_of_the_rest(text, told):
    for size in (1, 7, len(text) or 1):
        printed = Printed()
        for at in range(0, len(text), size):
            printed.write(text[at : at + size])
        assert printed.told == (f"Printed by your function while it was tried:\n{told}" if told else "")


def test_a_cell_that_did_not_run_is_said_and_the_old_function_judged(capsys):
    shell = InteractiveShell()
    shell.user_ns.update(check=check, torch=torch, math=math)
    old = "def causal_mask(queries, keys):\n    return torch.full((queries, keys), -math.inf).triu(1)"

    def run(cell, store=True):
        shell.run_cell(cell, store_history=store)
        return capsys.readouterr().out

    run(old)
    assert "did not run" not in run("check('2.5')")
    run(old.replace("(1)", "(keys - queries + 1)").replace("    return", "    x = 1\n  return"))
    said = run("check('2.5')")
    assert said.startswith("Your latest cell with causal_mask did not run (IndentationError, line 3: ")
    assert "the check used the causal_mask of an earlier run.\n\n2.5 The triangle" in said
    run("undefined\n" + old.replace("(1)", "(2)"))
    assert run("check('2.5')").startswith("Your latest cell with causal_mask stopped before its function was defined; ")
    run("x = 3\n" + old)
    assert run("check('2.5')").startswith("2.5 The triangle")
    del shell.user_ns["causal_mask"]
    run(old + ")")
    said = run("check('2.5')")
    assert "did not run (SyntaxError, line 2" in said and "there is nothing to check" in said


def test_a_function_with_only_pass_is_not_called_as_handed_out():
    def causal_mask(queries, keys):
        pass

    with pytest.raises(NotYet, match="not written yet\n.*its body is only `pass` or `...`"):
        check("2.5", causal_mask)


def test_jupyter_shows_the_message_without_a_traceback(capsys):
    shell = InteractiveShell.instance()
    shell.user_ns.update(check=check, top_left=top_left)
    shell.run_cell("check('2.5', top_left)")
    shown = capsys.readouterr().out
    assert shown.startswith("2.5 The triangle") and "Traceback" not in shown


def causal_softmax(scores, may_look):
    return torch.softmax(scores, dim=-1)


def test_what_an_exercise_forbids_is_refused_by_name():
    with pytest.raises(NotYet, match="it uses softmax, which the exercise asks you to do without"):
        check("2.3", causal_softmax)


@pytest.mark.parametrize(
    "code, found",
    [
        ("torch.softmax(x, -1)", ["softmax"]),
        ("x.softmax(-1)", ["softmax"]),
        ("getattr(torch, 'softmax')(x)", ["softmax"]),
        ("from torch.nn.functional import softmax as s", ["softmax"]),
        ("import companion.layers.attention as a", ["companion"]),
        ("from companion import attend", ["companion"]),
        ("# softmax\n'the softmax of x'", []),
        ("softmax_of_rows = x.exp()", []),
        ("softmax = x.exp()\nsoftmax / softmax.sum()", []),
        ("softmax = torch.softmax", ["softmax"]),
    ],
)
def test_forbidden_names_are_found_however_they_are_reached(code, found):
    assert forbidden_uses(code, ("softmax", "log_softmax")) == found


def test_hints_come_one_step_at_a_time_and_the_last_stays(capsys):
    for number in (1, 2, 3, 3):
        hint("2.5")
        assert (said := capsys.readouterr().out).startswith(f"2.5, hint {number} of 3: ")
        assert ('solution("2.5")' in said) == (number == 3)


def test_the_check_of_a_stub_is_no_attempt():
    namespace = {"check": check, "causal_mask": lambda *of: (_ for _ in ()).throw(NotImplementedError)}
    with pytest.raises(NotYet, match="not written yet"):
        exec("check('2.5')", namespace)
    assert read_progress() == {}


def test_the_solution_is_one_that_passes(capsys):
    solution("2.5")
    namespace = {"torch": torch, "math": math}
    exec(capsys.readouterr().out, namespace)
    check("2.5", namespace["causal_mask"])
    assert read_progress()["2.5"].solution


def test_progress_is_kept_from_day_to_day(capsys, home):
    namespace = {"check": check, "causal_mask": top_left}
    with pytest.raises(NotYet):
        exec("check('2.5')", namespace)
    hint("2.5")
    namespace["causal_mask"] = right
    exec("check('2.5')", namespace)
    first = read_progress()["2.5"]
    assert first.checks == 2 and first.hints == 1 and first.passed
    namespace["causal_mask"] = top_left
    with pytest.raises(NotYet):
        exec("check('2.5')", namespace)
    assert read_progress()["2.5"].passed == first.passed  # an exercise that was done stays done
    capsys.readouterr()
    progress(2)
    said = capsys.readouterr().out
    assert (
        "lesson 03" not in said and "lesson 02: 1 of " in said and said.splitlines()[-1].startswith("the course: 1 of ")
    )
    assert len(said.splitlines()) < 15
    progress()
    assert (
        "lesson 02: 1 of " in (said := capsys.readouterr().out) and "lesson 03: 0 of " in said and "  2.5" not in said
    )
    for wrong in (99, "x", -1):
        with pytest.raises(ValueError, match="lesson must be a number from 0 to 27, or 'all'; got"):
            progress(wrong)
    progress("all")
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  2.5")]
    assert f"right on {first.passed}, robust ★" in line and "1 hint" in line
    assert sorted(path.name for path in home.iterdir()) == ["progress.json"]  # no half-written files are left


def test_trying_somebody_elses_answer_is_not_progress():
    check("2.5", right)
    assert read_progress() == {}


def test_progress_that_cannot_be_understood_is_not_overwritten(home):
    home.mkdir()
    for text in ("{", "[1]", json.dumps({"2.5": {"colour": 1}})):
        kept_file(FILE).write_text(text)
        with pytest.raises(ValueError, match=r"progress\.json: expected the progress"):
            hint("2.5")
        assert kept_file(FILE).read_text() == text


def test_an_exercise_that_is_none_is_told_with_those_there_are():
    with pytest.raises(ValueError, match=r"exercise '2.9': expected one of 2.1, 2.2"):
        check("2.9")
    for id in ("99.1", "softmax", "2.3.1", ""):
        with pytest.raises(
            ValueError, match=rf"exercise '{id}': expected a lesson \(0 to 27\), a dot and a number, as in"
        ):
            hint(id)


@pytest.mark.parametrize("id", ["2.5", 2.5, "02.5", "2-5", " 2.5 "])
def test_a_number_is_understood_however_it_is_written(id, capsys):
    check(id, right)
    assert capsys.readouterr().out.startswith("✓ 2.5 ")


def test_an_answer_that_does_not_end_says_how_to_stop_it(monkeypatch, capsys):
    monkeypatch.setattr("companion_school.checking.notebook_answer.PATIENCE", 0.05)
    told = threading.Event()

    def endless(queries, keys):
        told.wait(60)  # until the message that says how to stop
        raise KeyboardInterrupt

    said: list[str] = []
    monkeypatch.setattr("builtins.print", lambda *texts, **_: (said.extend(texts), told.set()))
    with pytest.raises(KeyboardInterrupt):
        check("2.5", endless)
    assert "still running after 0.05 seconds" in said[0] and "Interrupt Kernel" in said[0]


def test_an_answer_without_source_is_checked_by_what_it_does():
    namespace = {"torch": torch, "math": math}
    exec("def made(q, k):\n    return 1.0", namespace)
    with pytest.raises(NotYet, match="expected a tensor of shape"):
        check("2.5", namespace["made"])
    with pytest.raises(NotYet, match="it uses softmax .perhaps inside .*, which the exercise asks you to do without"):
        check("2.3", eval("lambda scores, may_look: torch.softmax(scores, -1) * may_look", {"torch": torch}))
