"""Each rule of the contract, fed a small lesson that breaks it."""

import os
import re
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_output
from nbval.plugin import get_sanitize_patterns

from authoring import approximate, build, contract, first
from authoring.lesson import Lesson, assertion_lines

EQUATION = "$$\na + b = b + a\n\\tag{2.1}\n$$\n"
ASSERTED = "assert add(1, 2) == add(2, 1)  # (2.1), claim S0-04"
NEW_CELL = "\n```{code-cell}\n%s\n```\n\n## Where texts differ"
CHECK = 'check("2.1", shares_of_scores)'
LONG = "\n".join(f"x{i} = {i}" for i in range(41))


@pytest.fixture
def changed(small_lesson, tmp_path):
    """Makes a lesson from the small one after one replacement in its source, its outputs kept."""
    executed = {cell.metadata.name: cell for cell in small_lesson.built if cell.cell_type == "code"}

    def make(old="", new="", name="02_small"):
        text = small_lesson.source.read_text(encoding="utf-8")
        assert old in text
        lesson = Lesson(tmp_path / f"{name}.md", tmp_path / f"{name}.ipynb")
        lesson.source.write_text(text.replace(old, new, 1), encoding="utf-8")
        code = [cell for cell in lesson.cells if cell.cell_type == "code"]
        for count, cell in enumerate(code, 1):
            cell.execution_count = count
            cell.outputs = executed[cell.metadata.name].outputs if "name" in cell.metadata else []
        lesson.notebook.write_text(build._assemble(lesson.cells, "0"), encoding="utf-8")
        return lesson

    return make


def texts(lesson, **known):
    return [str(fault) for fault in contract.check(lesson, contract.Known(**known))]


def test_a_good_lesson_has_no_fault(changed):
    assert texts(changed(), companion_names=contract.companion_names()) == []


@pytest.mark.parametrize(
    "old, new, message",
    [
        # parts
        ("# A small lesson\n", "A small lesson\n", "begins with its title"),
        ("## Summary", "# Summary", "second title, 'Summary'"),
        ("## Summary", "#### Summary", "'Summary' is H4 under an H2"),
        ("## Summary\n\nIt runs.\n", "", "the part `## Summary` is missing"),
        ("## Break it: a string", "## A string", "the part `## Break it` is missing"),
        ("## Exercises", "## Summary\n\n## Exercises", "the part `## Summary` is there 2 times"),
        ("## What to read next", "## What to read next\n\n## Afterword", "the last three H2 must be"),
        ("run?**", "run.**", "must be the lesson's question"),
        ("**You need:**", "Needed:", "`\\*\\*You need:\\*\\*` is missing"),
        (" 1 minute.", " a while.", "must name its minutes"),
        # equations
        ("\\tag{2.1}\n", "", "source line 17: this display equation has no number"),
        ("\\tag{2.1}\n", "\\tag{2.1} \\tag{2.2}\n", "this display equation has 2 numbers"),
        ("\\tag{2.1}\n", "\\tag{2.2}\n", "source line 17: equation number 2.2 is out of order: expected 2.1"),
        ("\\tag{2.1}\n", "\\tag{1.1}\n", "equation number 1.1 is out of order: expected 2.1"),
        (EQUATION, EQUATION + "\n" + EQUATION, "source line 22: equation number 2.1 is out of order: expected 2.2"),
        (EQUATION, EQUATION + "\n\\begin{align}\nx\n\\end{align}\n", "maths is written `\\$\\$ ... \\$\\$` here"),
        (EQUATION, EQUATION + "\n\\tag{2.2}\n", "stands outside `\\$\\$ ... \\$\\$`"),
        ("# (2.1), claim", "# claim", "source line 19: no code cell names equation \\(2.1\\)"),
        ("# (2.1), claim", "# (2.1) and (2.9), claim", "the comment names equation \\(2.9\\), which does not exist"),
        ("equation (2.1)", "equations (2.1) and (2.7)", "source line 33: equation \\(2.7\\) does not exist"),
        (ASSERTED, "add(1, 2) == add(2, 1)  # (2.1)", "names an equation and asserts nothing"),
        # figures
        ("Squares rise faster", "+++\n\n### Squares rise faster", "must be Markdown and begin with a sentence"),
        ("Squares rise faster than their roots.\n\n", "", "must be Markdown and begin with a sentence"),
        # exercises
        ("{{ exercises }}\n", "", "needs the line `{{ exercises }}` once, above its code; it is nowhere"),
        ("{{ exercises }}", "{{ exercises }}\n\n{{ exercises }}", "it is in cells \\[9, 9\\]"),
        ("that a score", "that\n\n{{ exercises }}\n\na score", "it is in cells \\[9, 11\\]"),
        ("Weights and masks, for a change.\n\n", "", "say in a sentence, above the table, what the exercises"),
        ("{{ exercises }}", "### 1. Add\n\n{{ exercises }}", "heading '1. Add': exercises are written once"),
        ("\n## Summary", "\n```{code-cell}\nx = 1\n```\n\nDone.\n\n## Summary", "second code cell: exercises"),
        (CHECK, 'check("2.1")', "tries one wrong answer: `check\\(\"2.1\", wrong\\)`"),
        (CHECK, 'check("3.1", shares_of_scores)', "tries one wrong answer"),
        (CHECK, f"{CHECK}\n    {CHECK}", "tries one wrong answer"),
        (CHECK, "shares_of_scores()", "tries one wrong answer"),
        ("except NotYet", "except ValueError", "show what the check says of the wrong answer"),
        ('assert "exponentiate them first" in said', "print(said)", "assert a part of what the check says"),
        ("The check says that a score is no weight.\n\n", "", "Markdown, and say in a sentence what the check said"),
        # code
        ("## Where texts differ", NEW_CELL % LONG, "a code cell of 41 lines"),
        ("## Where texts differ", NEW_CELL % "x = 1\n%timeit x", "source line 66: not plain Python"),
        ("## Where texts differ", NEW_CELL % "def attend(q):\n    pass", "import it from companion.layers.attention"),
        ("## Where texts differ", NEW_CELL % "attend = lambda q: q", "'attend' is defined again"),
        ("## Where texts differ", NEW_CELL % "class Block:\n    pass", "'Block' is defined again"),
        # tags
        (":tags: [rung]", ":tags: [raises-exception]", "unknown tags \\['raises-exception'\\]"),
        (":name: mistake", ":name: sums", "the name 'sums' is taken"),
        (":tags: [rung]", ":tags: [rung, nbval-ignore-output]", "not compared, without a reason"),
        (":tags: [rung]", ":tags: [rung, nbval-ignore-output]", "1 of 4 code cells are not compared"),
        # images
        ("It runs.", "It runs.\n\n![a](https://example.org/a.png)", "an image from elsewhere: https://example.org/a.png"),
        ("It runs.", 'It runs.\n\n<img alt="a" src="//example.org/a.png">', "an image from elsewhere"),
    ],
)  # fmt: skip
def test_fault_in_the_source_is_found(changed, old, new, message):
    found = texts(changed(old, new), companion_names=contract.companion_names())
    assert any(re.search(message, text) for text in found), found


MEASURED = """
```{code-cell}
times = [1.25, 0.5]
%s
```

It was short.
"""


@pytest.mark.parametrize(
    "lines",
    [
        'print(f"≈ {times[-1]:.2f} s")\nassert 0.1 < times[-1] < 0.9',
        'print("seconds ≈", times[-1])\nassert times[-1] < 0.9',
        'print(f"≈ {100 * times[-1]:.1f} %, ≈ {max(times)}")\nassert times[-1] < 0.9 and isclose(max(times), 1)',
        'print(f"≈ {round(times[0], 1)}")\nassert_close(times[0], 1.2)',
        'for t in times:\n    print(f"{t} is ≈ {t:.1f}")\n    assert t < 2',
        'print(f"≈ {times[0]:.1f}")\n```\n\nA bound follows.\n\n```{code-cell}\nassert times[0] < 2',
        'print(f"≈ {times[0]:.1f}")\n```\n\n### Under it\n\n```{code-cell}\nassert times[0] < 2',
        'def show():\n    """Prints ≈ and a number."""  # ≈ 3',
    ],
)
def test_a_number_that_is_not_compared_has_a_bound(lines, changed):
    assert texts(changed("## Where texts differ", f"{MEASURED % lines}\n## Where texts differ")) == []


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('print(f"≈ {times[-1]:.2f} s")', r"source line 66: `times\[-1\]` is printed behind ≈ and has no bound"),
        ('print(f"≈ {times[-1]:.2f} s")\nassert times[0] < 2', r"`times\[-1\]` is printed behind ≈ and has no bound"),
        ('print(f"≈ {times[-1]:.2f} s")\nassert times[-1]', r"`times\[-1\]` is printed behind ≈ and has no bound"),
        ('print(f"≈ {max(times)} s")\nassert len([max]) < 2', r"`max\(times\)` or `times` is printed behind ≈"),
        ('print(f"≈ {times[0]}, ≈ {times[1]}")\nassert times[0] < 2', r"`times\[1\]` is printed behind ≈"),
        ('print("seconds ≈", times[-1])', r"`times\[-1\]` is printed behind ≈ and has no bound"),
        ('print("≈ %.1f" % times[0])\nassert times[0] < 2', 'write a number that is not compared as f"≈ {number}"'),
        ('print("≈ {:.1f}".format(times[0]))\nassert times[0] < 2', "write a number that is not compared as"),
        ('print(f"{times[0]} ≈ s")\nassert times[0] < 2', "write a number that is not compared as"),
        ('print(f"≈ {60 * 24}")', "`60 \\* 24` is the same on every machine: print it without ≈"),
        ('print(f"≈ {times[0]}")\n```\n\n## Another part\n\n```{code-cell}\nassert times[0] < 2', "has no bound"),
    ],
)
def test_a_number_without_a_bound_is_found(lines, message, changed):
    found = texts(changed("## Where texts differ", f"{MEASURED % lines}\n## Where texts differ"))
    assert len(found) == 1 and re.search(message, found[0]), found


def test_a_sign_that_another_cell_writes_is_a_fault(changed):
    made = changed()
    book = nbformat.read(made.notebook, as_version=4)
    at = next(at for at, cell in enumerate(book.cells) if cell.cell_type == "code")
    book.cells[at].outputs = [new_output("stream", name="stdout", text="loss ≈ 3.1\n")]
    nbformat.write(book, made.notebook)
    [fault] = texts(made)
    assert fault.startswith(f"cell {at + 1}, ") and "≈ is printed by a function of another cell: write it here" in fault


def test_every_pattern_that_is_not_compared_is_read_and_leaves_out_what_it_says():
    text = approximate.CONFIG.read_text(encoding="utf-8")
    patterns = get_sanitize_patterns(text)
    assert len(patterns) == text.count("regex: ") == 3
    picture = 'src="data:image/png;base64,iVBOR+/w0KGgo=" alt="Loss against steps"'
    fold = (
        '<details class="ext-numbers"><summary>The numbers behind it</summary><table><td>2.026</td></table></details>'
    )
    shown = f"<figure>{picture}<figcaption>Figure 2</figcaption>{fold}</figure>"
    for regex, replace in patterns:
        shown = re.sub(regex, replace, shown)
    alone = '<figure>src="PICTURE" alt="Loss against steps"<figcaption>Figure 2</figcaption>NUMBERS</figure>'
    assert shown == alone


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("loss ≈ 3.10 nats", "loss ≈ 12.9 nats", True),
        ("| ≈   3.1 | 5 |", "| ≈ 12.25 | 5 |", True),
        ("a ≈ -1,024, b", "a ≈ 1e-05, b", True),
        ("ends at ≈ 3.", "ends at ≈ 4.5.", True),
        ("≈ 3.1 of 5", "≈ 3.1 of 6", False),
        ("≈ 3.1", "≈ nan", False),
        ("3.1", "3.2", False),
        ("≈ 3 4", "≈ 3 5", False),
    ],
)
def test_what_nbval_leaves_out_is_the_number_behind_the_sign(one, other, same):
    pair, *_ = get_sanitize_patterns(approximate.CONFIG.read_text(encoding="utf-8"))
    assert (re.sub(*pair, one) == re.sub(*pair, other)) == same


def test_nbval_shows_numbers_behind_the_sign_and_compares_the_rest(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p authoring.nbval_run\n", encoding="utf-8")
    made = nbformat.v4.new_notebook()
    for count, text in enumerate(("loss ≈ 12.5 nats\n", "loss ≈ 0.333 bits\n"), 1):
        printed = [new_output("stream", name="stdout", text=text)]
        code = 'print(f"loss ≈ {1 / 3:.3f} nats")'
        made.cells.append(nbformat.v4.new_code_cell(code, execution_count=count, outputs=printed))
    nbformat.write(made, tmp_path / "one.ipynb")
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "--color=no", "--nbval", "--nbval-current-env", "one.ipynb"]
    root = str(approximate.CONFIG.parents[1])
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": root})
    assert "PASSED one.ipynb::Cell 0" in done.stdout and "FAILED one.ipynb::Cell 1" in done.stdout, done.stdout


def output(kind, **content):
    return {"outputs": [new_output(kind, **content)]}


@pytest.mark.parametrize(
    "change, message",
    [
        ({"execution_count": None}, "cell 3, source line \\d+: this cell was not executed"),
        ({"execution_count": 7}, "code cell 1, executed as number 7"),
        (output("error", ename="ValueError", evalue="no", traceback=[]), "a stored error: ValueError: no"),
        (output("stream", name="stderr", text="a warning"), "output on stderr: 'a warning'"),
        (output("display_data", data={"image/png": "AAAA"}), "not finished with figures.show"),
        (output("display_data", data={"text/html": "<img src='https://a.org/b.png'>"}), "an output shows an image"),
    ],
)
def test_fault_in_the_outputs_is_found(changed, change, message):
    made = changed()
    made.built[2].update(change)
    found = texts(made)
    assert any(re.search(message, text) for text in found), found


def test_code_and_inline_dollars_are_not_equations(changed):
    made = changed("It runs.", "It runs: `$$x$$`, $y$.\n\n```\n$$ x $$\n```\n")
    assert texts(made) == []


def test_a_tagged_rung_may_define_what_the_companion_defines(changed):
    assert texts(changed("It runs.", "It runs."), companion_names={"add": "companion.sums"}) == []
    [fault] = texts(changed(":tags: [rung]\n", ""), companion_names={"add": "companion.sums"})
    assert "'add' is defined again; import it from companion.sums" in fault


def test_a_lesson_needs_exercises(changed):
    made = changed('check("2.1"', 'check("98.1"', name="98_small")
    [fault] = map(str, first.exercises(made, contract.Known()))
    assert fault.endswith("has no exercises; they are written in companion/exercises/lesson_98.py")
    line = made.source.read_text(encoding="utf-8").split("\n").index("{{ exercises }}") + 1
    assert fault.startswith(f"cell 9, source line {line}: ")


def test_exercises_without_a_code_cell_are_a_fault(changed):
    made = changed()
    del made.built[9]
    assert any("tries one wrong answer" in str(fault) for fault in first.exercises(made, contract.Known()))


def test_the_section_before_the_exercises_may_have_headings(changed):
    assert texts(changed("It is the same.\n", "It is the same.\n\n### A last one\n\nThat one, too.\n")) == []


def test_equations_of_another_lesson_must_exist_there(changed):
    old, new = "# (2.1), claim", "# (2.1) and (0.3), claim"
    assert texts(changed(old, new), other_equations={"0": {"0.1", "0.3"}}) == []
    [fault] = texts(changed(old, new), other_equations={"0": {"0.1"}})
    assert "equation (0.3), which does not exist" in fault


def test_a_reason_for_a_cell_that_is_compared_is_a_fault(changed):
    [fault] = texts(changed(), not_compared={"sums": "a rate"})
    assert "lists 'sums', and no cell of that name is tagged" in fault


def test_a_heavy_notebook_is_a_fault(changed):
    made = changed()
    made.notebook.write_text(made.notebook.read_text(encoding="utf-8").ljust(800 * 1024), encoding="utf-8")
    [fault] = texts(made)
    assert "the notebook has 800 KiB" in fault and fault.startswith("cell 6")


def test_assertions_are_statements_and_calls():
    assert assertion_lines("x = 1\nassert x\ntorch.testing.assert_close(\n    x, x)\n") == [1, 3]
    assert assertion_lines("# assert x\nprint('assert x')") == []
