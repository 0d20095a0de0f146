"""Answers are found by their names, whatever surrounds them."""

import json

import pytest

from companion_school.course.grading.answers import Submission, Unreadable, cells_of, contents, read_answers


def read_cells(file):
    return cells_of(file.name, contents(file))


ANSWER = "def double(x):\n    return 2 * x"


def run(submission, name="double"):
    names = {}
    exec(submission.find(name).program, names)
    return names[name]


def test_an_answer_brings_what_it_needs_and_nothing_else():
    cells = [
        "import math, os\nfrom torch import zeros, ones",
        "TABLE = []\nTABLE.append(3)\nTABLE += [4]",
        "raise RuntimeError('another cell')",
        "def helper(n):\n    return ones(n).sum() * math.pi",
        "other = 1\ndef double(x):\n    other = x\n    return helper(2) * TABLE[1] * other",
        "x = double(2)",
    ]
    program = Submission(cells).find("double").program
    assert run(Submission(cells))(1).item() == pytest.approx(2 * 3.14159265 * 4)
    for needless in ("os", "zeros", "raise", "other = 1", "double(2)"):
        assert needless not in program


@pytest.mark.parametrize(
    "cells",
    [
        [ANSWER],
        [ANSWER, ANSWER],
        ["x = (", ANSWER, "%%bash\nls", "!ls", "def broken(:"],
        ["%matplotlib inline\n" + ANSWER + "\n!ls\nx?"],
        ["import functools", "@functools.cache\n" + ANSWER],
        ["double = lambda x: 2 * x"],
        ["a = 1; double = lambda x: 2 * x; b = 2"],
        ["if True:\n    def double(x):\n        return 2 * x"],
    ],
)
def test_cells_around_an_answer_change_nothing(cells):
    assert run(Submission(cells))(4) == 8


def test_the_last_written_definition_counts_and_that_is_said():
    twice = Submission([ANSWER, "def double(x):\n    return 3 * x"]).find("double")
    assert "return 3 * x" in twice.program and "return 2 * x" not in twice.program
    assert twice.notes == ("double is defined 2 times; the last counts",)
    stub = "def double(x):\n    '''What to do.'''\n    raise NotImplementedError"
    over = Submission([ANSWER, stub]).find("double")
    assert "return 2 * x" in over.program and over.notes == (
        "double is defined 2 times; the last that is written counts",
    )
    assert "NotImplementedError" in Submission([stub]).find("double").program


def test_a_helper_is_the_one_that_stood_there_when_the_answers_cell_had_run():
    helper = "def helper(x):\n    return {} * x"
    cells = [
        helper.format(2),
        "def double(x):\n    return helper(x)",
        helper.format(5),
        "def other(x):\n    return helper(x)",
    ]
    assert run(Submission(cells))(1) == 2 and run(Submission(cells), "other")(1) == 5
    assert run(Submission([cells[1], cells[2]]))(1) == 5, "where none stood before, one that came later is taken"


def test_what_a_decorator_registers_comes_along():
    cells = [
        "from functools import singledispatch",
        "@singledispatch\ndef phi(x): raise TypeError",
        "@phi.register\ndef _(x: float): return 2 * x\n@phi.register(int)\ndef _(x): return 3 * x",
        "def answer(x): return phi(x)",
    ]
    names = {}
    exec(Submission(cells).find("answer").program, names)
    assert names["answer"](1.5) == 3.0 and names["answer"](2) == 6


def test_an_import_brings_only_what_is_needed():
    cells = [
        "import torch, companion\nfrom companion.layers.attention import *",
        "def double(x):\n    return torch.add(x, x)",
    ]
    assert (
        Submission(["import math", *cells]).find("double").program
        == "import torch\ndef double(x):\n    return torch.add(x, x)\n"
    )


def test_a_cell_that_cannot_be_read_says_where():
    answer = Submission(["\n\ndef double(x):\n    return 2 *"]).find("double")
    assert answer.program is None and "line 4" in answer.broken
    beside = Submission(["def double(x:", ANSWER]).find("double")
    assert beside.program is not None and "cannot be read" in beside.notes[0]
    assert Submission(["x = 1"]).find("double") == type(answer)(None)


@pytest.mark.parametrize("code", ["-" * 10**5 + "1", "x" + ".a" * 10**5, "(" * 10**5, "1 + " * 10**5 + "1", "'\0'"])
def test_code_that_breaks_parsers_is_told(code):
    answer = Submission([f"def double(x):\n    return {code}"]).find("double")
    assert answer.program is None and answer.broken


def notebook(tmp_path, content):
    file = tmp_path / "set.ipynb"
    file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return file


def test_cells_are_read_whatever_they_look_like(tmp_path):
    cells = [
        {"cell_type": "code", "source": ["a = 1\n", "b = 2"]},
        {"cell_type": "markdown", "source": "def double"},
        {"cell_type": "code", "source": "c = 3", "outputs": ["x" * 10**6], "id": "same"},
    ]
    assert read_cells(notebook(tmp_path, {"cells": cells})) == ["a = 1\nb = 2", "c = 3"]
    old = {"worksheets": [{"cells": [{"cell_type": "code", "input": ["a = 1"]}]}], "nbformat": 3}
    assert read_cells(notebook(tmp_path, old)) == ["a = 1"]
    script = tmp_path / "set.py"
    script.write_text("a = 1\n# %% next\nb = (\n")
    assert [cell.strip() for cell in read_cells(script)] == ["a = 1", "b = ("]


def test_what_an_editor_puts_in_front_of_an_answer_changes_nothing(tmp_path):
    """It may be a byte order mark, or the line endings of Windows."""
    book = json.dumps({"cells": [{"cell_type": "code", "source": [ANSWER]}]}).encode("utf-8-sig")
    script = tmp_path / "set.py"
    script.write_bytes(ANSWER.replace("\n", "\r\n").encode("utf-8-sig"))
    for file in (notebook(tmp_path, book), script):
        assert run(Submission(read_cells(file)))(4) == 8
    script.write_bytes(ANSWER.encode("utf-16"))
    with pytest.raises(Unreadable, match=r"set.py is text in UTF-16 or UTF-32; expected UTF-8"):
        read_cells(script)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "empty file"),
        (b"Dear instructor", "not JSON"),
        (b"\xff\x00\xfe", "not text"),
        (json.dumps({"cells": []}).encode("utf-16"), "set.ipynb is text in UTF-16 or UTF-32; expected UTF-8"),
        (b"[" * 10**5, "not JSON"),
        ([1], "no list of cells"),
        ({"cells": 3}, "no list of cells"),
        ({"cells": [3]}, "no list of cells"),
        ({"metadata": {}}, "no list of cells"),
    ],
)
def test_what_is_no_notebook_is_told(tmp_path, content, why):
    with pytest.raises(Unreadable, match=why):
        read_cells(notebook(tmp_path, content))


@pytest.mark.parametrize(
    "line", ["f?  # what is it?", "%timeit f(1)  # slow?", "%time g = 3; \\\n    g", "x = !ls  # files"]
)
def test_an_answer_beside_a_magic_command_with_a_comment_is_found(line):
    answer = Submission([f"{line}\ndef f(x):\n    return x + 1\n"]).find("f")
    assert answer.broken is None and "return x + 1" in answer.program


def test_a_misspelled_name_is_pointed_out():
    notebook = json.dumps({"cells": [{"cell_type": "code", "source": ANSWER.replace("double", "duoble")}]}).encode()
    found = read_answers([("a.ipynb", notebook)], {"double": [], "triple": []}, lambda *_: [])["answers"]
    assert found["double"]["notes"] == ["there is a function duoble; was it meant to be double?"]
    assert found["triple"]["notes"] == []


@pytest.mark.parametrize(
    ("star", "body", "is_kept"),
    [
        ("torch", "return x.softmax(-1)", False),  # it could cost the mark where an exercise forbids operators
        ("torch", "return softmax(x, -1)", True),
        ("torch", "return max(x)", True),  # as in the student's notebook, where it is not Python's
        ("unknown_module", "return softmax(x, -1)", True),
    ],
)
def test_everything_is_imported_only_where_the_answer_needs_it(star, body, is_kept):
    answer = Submission(["import torch", f"from {star} import *", f"def f(x):\n    {body}"]).find("f")
    assert (f"from {star} import *" in answer.program) is is_kept
