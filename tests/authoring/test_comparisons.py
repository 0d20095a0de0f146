"""Each comparison in the lessons names a cell, a function that repeats it, and enough starts and budgets."""

import pytest
import torch
from course import built_lessons

from authoring import comparisons
from authoring.comparisons import __main__, cells
from authoring.lesson import with_deeper

LISTED = comparisons.comparisons()
NOTEBOOKS = {lesson.name: lesson for lesson in with_deeper(built_lessons())}


@pytest.mark.parametrize("one", LISTED, ids=lambda one: f"{one.lesson}-{one.run}")
def test_each_comparison_names_a_cell_a_function_and_what_it_stands_on(one):
    places = set()
    for lesson in (x for x in NOTEBOOKS.values() if x.label == one.lesson):
        places |= {cell.metadata.get("name") for cell in lesson.cells} | set(lesson.targets)
    assert one.cell in places, one.cell
    assert callable(one.function) and one.function.__doc__
    assert one.starts >= 3 and len(set(one.budgets)) >= 2
    assert one.statement.endswith(".") and any(letter.isdigit() for letter in one.found)


def test_they_stand_in_the_order_of_the_lessons_and_none_twice():
    assert [one.lesson for one in LISTED] == sorted(one.lesson for one in LISTED)
    assert len({(one.lesson, one.statement) for one in LISTED}) == len(LISTED)


def test_cells_of_a_lesson_run_where_they_are_compared(capsys):
    names = cells.names_of("00", "setup", "rows")
    torch.set_default_dtype(torch.float32)  # the lesson calculates with 16 digits
    assert names["X"].shape == (3, 4) and names["ids"] == [1, 5, 9]
    assert capsys.readouterr().out == ""
    with pytest.raises(
        ValueError, match=r"00_one_token_by_hand.md has no cell named 'no-such-cell'; expected one of setup"
    ):
        cells.names_of("00", "no-such-cell")


LIST = """
[[comparison]]
lesson = "00"
statement = "Longer is better."
cell = "rows"
starts = 3
budgets = ["5 updates", "10 updates"]
found = "1 to 3"
run = "longer"
"""


def test_the_runner_runs_each_function_once_and_says_what_stands_on_it(tmp_path, monkeypatch, capsys):
    def longer():
        torch.set_grad_enabled(False)  # as the setup of some lessons does
        print(cells.row("long", "10 updates", "right", [1.0, 2.0, 6.0]))

    monkeypatch.setattr(comparisons, "SOURCE", tmp_path / "comparisons.toml")
    comparisons.SOURCE.write_text(LIST + LIST.replace("Longer is better", "Shorter is worse"), encoding="utf-8")
    monkeypatch.setattr("authoring.comparisons.lesson_00.longer", longer, raising=False)
    assert __main__.main(["00"]) == 0 and torch.is_grad_enabled()
    printed = capsys.readouterr().out
    assert "Longer is better. (3 starts; 5 updates, 10 updates; found: 1 to 3)" in " ".join(printed.split())
    assert "Shorter is worse." in printed
    assert [" ".join(line.split()) for line in printed.splitlines() if line.startswith("long ")] == [
        "long 10 updates right mean 3, each start: 1 2 6"
    ]
    with pytest.raises(SystemExit):
        __main__.main(["14"])
    assert "lesson '14': no comparison of it is listed" in capsys.readouterr().err


def test_the_runner_runs_only_the_functions_that_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(comparisons, "SOURCE", tmp_path / "comparisons.toml")
    other = LIST.replace("Longer is better", "Wider is better").replace('"longer"', '"wider"')
    comparisons.SOURCE.write_text(LIST + other, encoding="utf-8")
    monkeypatch.setattr("authoring.comparisons.lesson_00.longer", lambda: print("ran longer"), raising=False)
    monkeypatch.setattr("authoring.comparisons.lesson_00.wider", lambda: print("ran wider"), raising=False)
    assert __main__.main(["00", "wider"]) == 0
    printed = capsys.readouterr().out
    assert "ran wider" in printed and "ran longer" not in printed and "Longer is better" not in printed
    with pytest.raises(SystemExit):
        __main__.main(["00", "narrower"])
    assert "function 'narrower': expected one of longer, wider" in capsys.readouterr().err
