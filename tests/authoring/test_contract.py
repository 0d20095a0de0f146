"""Each rule of the contract is tested on a small lesson that breaks it."""

import os
import re
import shutil
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_output
from nbval.plugin import get_sanitize_patterns

from authoring import approximate, build, contract, notebook_contract
from authoring.lesson import Lesson, asserted

EQUATION = "$$\nv = n\n\\tag{2.1}\n$$\n"
ASSERTED = "assert sum(x * x for x in walks(n)) == n * 2**n  # (2.1)"
FOURTEEN = "assert sum(a * a for a in steps) == 14"
PLACE = "```{question} six"
NEW_CELL = f"```{{code-cell}}\n:tags: [folded]\n# sets up something\n%s\n```\n\nIt is there now.\n\n{PLACE}"
LONG = "\n".join(f"x{i} = {i}" for i in range(40))
TAG = ":name: walk\n"
SYMBOLS = {symbol: {2: "a letter of the small lesson"} for symbol in ("n", "v", "a", "b", "i", "x", "y")}


@pytest.fixture
def changed(small_lesson, tmp_path):
    """Return a function that makes a lesson by replacements in the small one's source, with the same outputs."""
    executed = {cell.metadata.name: cell for cell in small_lesson.built if "name" in cell.metadata}

    def make(old="", new="", *more):
        shutil.copytree(small_lesson.source.parents[1], tmp_path / "authoring", dirs_exist_ok=True)
        lesson = Lesson.of(tmp_path / "authoring" / "lessons" / "02_small.md", tmp_path / "notebooks")
        text = lesson.source.read_text(encoding="utf-8")
        for before, after in zip((old, *more[::2]), (new, *more[1::2]), strict=True):
            assert before in text, before
            text = text.replace(before, after, 1)
        lesson.source.write_text(text, encoding="utf-8")
        code = [cell for cell in lesson.cells if cell.cell_type == "code"]
        for count, cell in enumerate(code, 1):
            cell.execution_count = count
            cell.outputs = executed[cell.metadata.name].outputs if "name" in cell.metadata else []
        lesson.notebook.parent.mkdir(exist_ok=True)
        lesson.notebook.write_text(build._assemble(lesson.cells), encoding="utf-8")
        return lesson

    return make


def texts(lesson, **known):
    return [str(fault) for fault in contract.check(lesson, notebook_contract.Known(symbols=SYMBOLS, **known))]


def test_a_good_lesson_has_no_fault(changed):
    assert texts(changed(), companion_names=contract.companion_names()) == []


@pytest.mark.parametrize(
    "old, new, message",
    [
        # headings
        ("# A small lesson\n", "A small lesson\n", "begins with its title"),
        ("## Summary", "# Summary", "second title, 'Summary'"),
        ("## Summary", "#### Summary", "'Summary' is H4 under an H2"),
        # equations
        ("\\tag{2.1}\n", "", "source line 28: this display equation has no number"),
        ("\\tag{2.1}\n", "\\tag{2.1} \\tag{2.2}\n", "this display equation has 2 numbers"),
        ("\\tag{2.1}\n", "\\tag{2.2}\n", "source line 28: equation number 2.2 is out of order: expected 2.1"),
        ("\\tag{2.1}\n", "\\tag{1.1}\n", "equation number 1.1 is out of order: expected 2.1"),
        (EQUATION, EQUATION + "\n" + EQUATION, "source line 33: equation number 2.1 is out of order: expected 2.2"),
        (EQUATION, EQUATION + "\n\\begin{align}\nx\n\\end{align}\n", "maths is written `\\$\\$ ... \\$\\$` here"),
        (EQUATION, EQUATION + "\n\\tag{2.2}\n", "stands outside `\\$\\$ ... \\$\\$`"),
        (f"(2.2)\n{FOURTEEN}  # (2.2)", f"it\n{FOURTEEN}", "line \\d+: no code cell names equation \\(2.2\\)"),
        ("# (2.1)", "# (2.1) and (2.9)", "the comment names equation \\(2.9\\), which does not exist"),
        ("It is 14.", "It is 14, by equations (2.1) and (2.7).", "equation \\(2.7\\) does not exist"),
        (ASSERTED, "sum(walks(n))  # (2.1)", "names an equation and asserts nothing"),
        # figures
        ("Squares rise faster", "+++\n\n### Squares rise faster", "must be Markdown and begin with a sentence"),
        ("Squares rise faster than their roots.\n\n", "", "must be Markdown and begin with a sentence"),
        # code
        (PLACE, NEW_CELL % LONG, "a code cell of 41 lines"),
        (PLACE, NEW_CELL % "x = 1\n%timeit x", "source line \\d+: not plain Python"),
        (PLACE, NEW_CELL % "def attend(q):\n    pass", "import it from companion.layers.attention"),
        (PLACE, NEW_CELL % "attend = lambda q: q", "'attend' is defined again"),
        (PLACE, NEW_CELL % "class Block:\n    pass", "'Block' is defined again"),
        # tags
        (TAG, f"{TAG}:tags: [raises-exception]\n", "unknown tags \\['raises-exception'\\]"),
        (":name: unequal", ":name: walk", "the name 'walk' is taken"),
        (TAG, f"{TAG}:tags: [nbval-ignore-output]\n", "not compared, without a reason"),
        (TAG, f"{TAG}:tags: [nbval-ignore-output]\n", "1 of \\d+ code cells are not compared"),
        # images
        ("Squares add", "![a](https://example.org/a.png) Squares add", "an image from elsewhere: https://example.org/a"),
        ("Squares add", '<img alt="a" src="//example.org/a.png"> Squares add', "an image from elsewhere"),
    ],
)  # fmt: skip
def test_fault_in_the_source_is_found(changed, old, new, message):
    found = texts(changed(old, new), companion_names=contract.companion_names())
    assert any(re.search(message, text) for text in found), found


MEASURED = """```{code-cell}
:tags: [folded]
# sets up times
times = [1.25, 0.5]
%s
```

It was very short indeed.

"""
BOUND = "```{code-cell}\n:tags: [folded]\n# sets up a bound\nassert times[0] < 2"


@pytest.mark.parametrize(
    "lines",
    [
        'print(f"≈ {times[-1]:.2f} s")\nassert 0.1 < times[-1] < 0.9',
        'print("seconds ≈", times[-1])\nassert times[-1] < 0.9',
        'print(f"≈ {100 * times[-1]:.1f} %, ≈ {max(times)}")\nassert times[-1] < 0.9 and isclose(max(times), 1)',
        'print(f"≈ {round(times[0], 1)}")\nassert_close(times[0], 1.2)',
        'for t in times:\n    print(f"{t} is ≈ {t:.1f}")\n    assert t < 2',
        f'print(f"≈ {{times[0]:.1f}}")\n```\n\nA bound follows.\n\n{BOUND}',
        f'print(f"≈ {{times[0]:.1f}}")\n```\n\n### Under it\n\n{BOUND}',
        'def show():\n    """Prints ≈ and a number."""  # ≈ 3',
    ],
)
def test_a_number_that_is_not_compared_has_a_bound(lines, changed):
    assert texts(changed(PLACE, MEASURED % lines + PLACE)) == []


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('print(f"≈ {times[-1]:.2f} s")', r"source line 124: `times\[-1\]` is printed behind ≈ and has no bound"),
        ('print(f"≈ {times[-1]:.2f} s")\nassert times[0] < 2', r"`times\[-1\]` is printed behind ≈ and has no bound"),
        ('print(f"≈ {times[-1]:.2f} s")\nassert times[-1]', r"`times\[-1\]` is printed behind ≈ and has no bound"),
        ('print(f"≈ {max(times)} s")\nassert len([max]) < 2', r"`max\(times\)` or `times` is printed behind ≈"),
        ('print(f"≈ {times[0]}, ≈ {times[1]}")\nassert times[0] < 2', r"`times\[1\]` is printed behind ≈"),
        ('print("seconds ≈", times[-1])', r"`times\[-1\]` is printed behind ≈ and has no bound"),
        ('print("≈ %.1f" % times[0])\nassert times[0] < 2', 'write a number that is not compared as f"≈ {number}"'),
        ('print("≈ {:.1f}".format(times[0]))\nassert times[0] < 2', "write a number that is not compared as"),
        ('print(f"{times[0]} ≈ s")\nassert times[0] < 2', "write a number that is not compared as"),
        ('print(f"≈ {60 * 24}")', "`60 \\* 24` is the same on every machine: print it without ≈"),
    ],
)
def test_a_number_without_a_bound_is_found(lines, message, changed):
    found = texts(changed(PLACE, MEASURED % lines + PLACE))
    assert len(found) == 1 and re.search(message, found[0]), found


def test_a_bound_in_another_sitting_is_none(changed):
    above = "{deeper}`why"
    shown = MEASURED % 'print(f"≈ {times[0]}")'
    [fault] = texts(changed(above, shown + above, PLACE, f"{BOUND}\n```\n\nIt is bounded.\n\n{PLACE}"))
    assert "`times[0]` is printed behind ≈ and has no bound" in fault


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
    assert len(patterns) == text.count("regex: ") == 4
    picture = 'src="data:image/png;base64,iVBOR+/w0KGgo=" alt="Loss against steps"'
    fold = (
        '<details class="ext-numbers"><summary>The numbers behind it</summary><table><td>2.026</td></table></details>'
    )
    shown = f"<figure>{picture}<figcaption>\x1b[1;32mFigure 2\x1b[0m</figcaption>{fold}</figure>"
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
    made = changed("Squares add up.", "It runs: `$$x$$`, $y$.\n\n```\n$$ x $$\n```\n")
    assert texts(made) == []


def test_a_tagged_rung_may_define_what_the_companion_defines(changed):
    assert texts(changed(TAG, f"{TAG}:tags: [rung]\n"), companion_names={"walks": "companion.sums"}) == []
    [fault] = texts(changed(), companion_names={"walks": "companion.sums"})
    assert "'walks' is defined again; import it from companion.sums" in fault


def test_equations_of_another_lesson_must_exist_there(changed):
    old, new = ASSERTED, f"{ASSERTED} and (0.3)"
    assert texts(changed(old, new), other_equations={"0": {"0.1", "0.3"}}) == []
    [fault] = texts(changed(old, new), other_equations={"0": {"0.1"}})
    assert "equation (0.3), which does not exist" in fault


def test_a_reason_for_a_cell_that_is_compared_is_a_fault(changed):
    [fault] = texts(changed(), not_compared={"walk": "a rate"})
    assert "lists 'walk', and no cell of that name is tagged" in fault


def test_a_heavy_notebook_is_a_fault(changed):
    made = changed()
    made.notebook.write_text(made.notebook.read_text(encoding="utf-8").ljust(800 * 1024), encoding="utf-8")
    [fault] = texts(made)
    assert "the notebook has 800 KiB" in fault and fault.startswith("cell 15")


def test_assertions_are_statements_and_calls():
    code = "x = 1\nassert x\ntorch.testing.assert_close(\n    x, x)\n"
    assert asserted(code) == ["x", "torch.testing.assert_close(x, x)"]
    assert asserted("# assert x\nprint('assert x')") == []
