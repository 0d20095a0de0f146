"""Oral questions point at lines of a student's own answer, and list what a good reply mentions."""

import re

from companion.commands.main import main
from companion_school.course import oral
from companion_school.course.grading.similarity import Answers
from companion_school.exercises.catalogue import exercises

MINE = """
import torch
def weights(q, k):
    scores = torch.einsum("id,jd->ij", q, k)
    if q.shape[1] < 1:
        raise ValueError("too narrow")
    return scores[:, 1:].softmax(dim=-1)
"""
SECRET = b"a secret of sixteen bytes"


def test_each_question_is_about_a_line_of_this_answer():
    found = {one.kind: one for one in oral.questions("2.2", MINE)}
    assert {"axis", "einsum", "comparison", "refusal", "slice"} == {*found}
    axis, summed = found["axis"], found["einsum"]
    assert (axis.line, axis.code) == (7, "return scores[:, 1:].softmax(dim=-1)") and "`dim=-1`" in axis.ask
    assert summed.names.startswith("the sum runs over d;")
    assert "`<=` instead of `<`" in found["comparison"].ask and "`scores[:, 1:]`" in found["slice"].ask


def test_what_cannot_be_read_has_no_questions_and_markup_stays_text():
    assert oral.questions("2.2", "def f(:") == [] == oral.questions("2.2", "x = 1\n" * 50_000)
    [one] = oral.questions("2.2", "def f(x):\n    return x.sum(dim='`</p>\\x1b[31m')")
    assert "\x1b" not in one.ask + one.code and "`" not in one.code
    for line in ("if x < '`<img src=x>`':", "x['`<b>`':2]", "torch.einsum('`<i>`->i', x)", "x.tril('`<u>`')"):
        for one in oral.questions("2.2", f"def f(x):\n    {line}" + " pass" * line.startswith("if")):
            code = re.findall("`([^`]*)`", f"{one.ask} {one.names}")
            assert not re.search("<[a-z]", re.sub("`[^`]*`", "", f"{one.ask} {one.names}")) and code


def test_questions_differ_in_kind_and_come_from_as_many_answers_as_there_are():
    solutions = {id: exercises()[id].solution for id in ("2.3", "2.4", "10.5")}
    answers = [Answers(id, {"ada": text}, (), "") for id, text in solutions.items()]
    mine = oral.drawn(answers, "ada", SECRET, 3)
    assert len({one.kind for one in mine}) == 3 and [one.exercise for one in mine] == [*solutions]
    assert all(one.code.split("  #")[0] in solutions[one.exercise] for one in mine)
    others = [
        oral.drawn(answers, "ada", secret, 3)
        for secret in (SECRET, b"another one of sixteen", b"and a third one of it")
    ]
    assert others[0] == mine and (others[1] != mine or others[2] != mine)
    assert oral.drawn(answers, "nobody", SECRET, 3) == []


def test_the_list_has_everybody(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "ada.py").write_text("import torch\n" + exercises()["2.5"].solution)
    (tmp_path / "in" / "ben.py").write_text("x = 1\n")
    (tmp_path / "secret").write_bytes(SECRET)
    flags = ["--exercises", "2.5", "--seed-file", "secret"]
    assert main(["course", "oral", "in", *flags, "--to", "oral.md", "--each", "2"]) == 0
    told = (tmp_path / "oral.md").read_text()
    assert told.count("*Listen for:*") in (1, 2) and "## ada" in told
    assert "## ben\n\nThere is no answer to ask about." in told
    assert main(["course", "oral", "in", "--exercises", "2.5"]) == 2
    assert "--seed-file: expected the file with your secret" in capsys.readouterr().err
