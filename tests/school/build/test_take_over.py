"""An answer to an exercise becomes a part of a stage that asks for the same, without overwriting anything."""

import linecache
import textwrap

import pytest
import torch

from companion_school.build.isolated_modules import World
from companion_school.build.stubs import names, reference, stub
from companion_school.build.take_over import BRIDGES, take_over
from companion_school.build.workspace import lay_stubs, read_sources
from companion_school.checking.notebook_answer import NotYet
from companion_school.exercises import check
from companion_school.exercises import take_over as take_over_here
from companion_school.exercises.catalogue import find_exercise


@pytest.mark.parametrize("bridge", BRIDGES.values(), ids=BRIDGES)
def test_the_solution_of_the_exercise_makes_the_part_right(bridge, tmp_path):
    """`take_over` only writes what is right, so it is enough to test that it wrote."""
    told = take_over(bridge, find_exercise(bridge.exercise).solution, tmp_path)
    text = (tmp_path / bridge.stage.file).read_text("utf-8")
    assert bridge.definition in names(bridge.stage.number) and f"{bridge.definition} of" in told
    assert f"# your answer to exercise {bridge.exercise}\ndef " in text
    assert text.count("NotImplementedError\n") < stub(bridge.stage.number).count("NotImplementedError\n")


def test_several_answers_stand_in_one_file(tmp_path):
    for number in ("3.3", "3.4", "2.5"):
        take_over(BRIDGES[number], find_exercise(number).solution, tmp_path)
    code = World(read_sources(tmp_path), "attention")
    x = torch.randn(2, 3, 8)
    assert code.merge(code.split(x, 4)).equal(x) and code.causal(2, 3).tolist() == [[True, True, False], [True] * 3]


def test_what_has_been_begun_is_left_as_it_is(tmp_path):
    lay_stubs(tmp_path)
    file = tmp_path / "attention.py"
    file.write_text(reference(2).replace("transpose(1, 2)", "transpose(2, 1)"), "utf-8")
    before = file.read_text("utf-8")
    with pytest.raises(ValueError, match="split of attention.py: you have already started this file"):
        take_over(BRIDGES["3.3"], find_exercise("3.3").solution, tmp_path)
    assert file.read_text("utf-8") == before


def test_an_answer_that_needs_its_notebook_is_not_laid_in(tmp_path):
    lay_stubs(tmp_path)
    with pytest.raises(ValueError, match="does it use something else from its notebook") as told:
        take_over(BRIDGES["3.4"], "def from_heads(x):\n    return _helper(x)\n", tmp_path)
    assert "_helper" in str(told.value)
    assert (tmp_path / "attention.py").read_text("utf-8") == stub(2)


def test_a_reader_does_it_by_a_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COMPANION_BUILD", str(tmp_path / "mine"))
    monkeypatch.setenv("COMPANION_PROGRESS", str(tmp_path / "progress.json"))
    cell = textwrap.dedent(find_exercise("3.4").solution)
    linecache.cache["<cell 7>"] = len(cell), None, cell.splitlines(keepends=True), "<cell 7>"
    space = {"torch": torch, "check": check, "take_over": take_over_here}
    exec(compile(cell, "<cell 7>", "exec"), space)
    exec('check("3.4")', space)
    assert '`merge` of attention.py, stage 2 of your own transformer. take_over("3.4")' in capsys.readouterr().out
    exec('take_over("3.4")', space)
    assert "merge of attention.py is done" in capsys.readouterr().out
    assert "return from_heads(x)" in (tmp_path / "mine" / "attention.py").read_text("utf-8")
    with pytest.raises(ValueError, match="is not part of a stage; expected one of 2.3, 2.5"):
        exec('take_over("3.1")', space)
    exec("def from_heads(x):\n    return x", space)
    with pytest.raises(NotYet):
        exec('take_over("3.4")', space)
