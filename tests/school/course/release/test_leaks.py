"""Nothing that a student receives holds what a student must not have; and a leak of any kind would be found."""

import ast
import base64
import gzip
import html
import inspect
import json
import shutil
import zipfile
from pathlib import Path

import pytest

from companion.school.checking.sealed import seal
from companion.school.course.release.leaks import Guarded, bare, leaks, search
from companion.school.course.release.notebooks import write_self_study
from companion.school.course.release.problem_set import ProblemSet
from companion.school.course.release.release import release
from companion.school.course.seeds import hidden_seeds
from companion.school.exercises.catalogue import exercises

BOOK = exercises()
ONE = BOOK["2.3"]
CODE = ONE.solution


@pytest.fixture(scope="module")
def guarded(secret):
    return Guarded.of(list(BOOK.values()), secret)


@pytest.fixture
def received(bundle, tmp_path):
    """What a student receives, in a folder of its own, to plant leaks in."""
    shutil.copytree(bundle / "release" / "week2", tmp_path / "week2")
    return tmp_path / "week2"


def test_nothing_leaks_to_students(bundle, guarded):
    assert search(bundle / "release", guarded) == []


def test_nothing_leaks_from_a_set_of_all_exercises(secret, tmp_path, guarded):
    release(ProblemSet.of("all", list(BOOK)), secret, tmp_path)
    assert search(tmp_path / "release", guarded) == []
    assert next(leaks(tmp_path / "source", guarded))  # the instructor's, in which there is everything to be found


def test_the_notebooks_for_self_study_hold_no_solution(tmp_path, guarded):
    notebooks = Path(__file__).parents[4] / "notebooks"
    for lesson in notebooks.glob("[0-9][0-9]_*.ipynb"):
        shutil.copy(lesson, tmp_path)
    write_self_study(tmp_path)
    assert search(tmp_path / "exercises", guarded) == []
    assert search(notebooks / "exercises", guarded) == []


def lines_of(function):
    return inspect.getsource(function).split("\n", 2)[-1]


def renamed(code):
    """The same program under other names, on other lines."""

    class Other(ast.NodeTransformer):
        def visit_Name(self, node):
            return ast.Name(
                node.id if node.id in ("torch", "math", "ValueError", "tuple") else f"{node.id}_0", node.ctx
            )

        def visit_arg(self, node):
            return ast.arg(f"{node.arg}_0")

    return ast.unparse(Other().visit(ast.parse(code)))


def in_notebook(received, change):
    file = received / "week2.ipynb"
    notebook = json.loads(file.read_text(encoding="utf-8"))
    change(notebook)
    file.write_text(json.dumps(notebook), encoding="utf-8")


def output(text):
    return lambda notebook: notebook["cells"][1].update(
        outputs=[{"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)}]
    )


def error(text):
    return lambda notebook: notebook["cells"][1].update(
        outputs=[{"output_type": "error", "ename": "E", "evalue": "", "traceback": [text]}]
    )


NOTEBOOK_LEAKS = {
    "a reference in a cell": lambda n: n["cells"].append({"cell_type": "code", "source": CODE, "metadata": {}}),
    "one line of it": lambda n: n["cells"][2].update(source=["Try this: `" + CODE.splitlines()[-3].strip() + "`"]),
    "under other names": lambda n: n["cells"].append({"cell_type": "code", "source": renamed(CODE), "metadata": {}}),
    "in prose": lambda n: n["cells"].append({
        "cell_type": "markdown", "source": f"Look:\n\n```python\n{renamed(CODE)}\n```\n", "metadata": {}
    }),
    "in a cell's metadata": lambda n: n["cells"][3]["metadata"].update(solution=CODE),
    "in the notebook's metadata": lambda n: n["metadata"].update(answers={"2.3": CODE.splitlines()}),
    "in an output": output(CODE),
    "in a traceback": error(f"----> 1 {CODE.splitlines()[-1].strip()}"),
    "in base64": output(base64.b64encode(CODE.encode()).decode()),
    "in hexadecimal": output(CODE.encode().hex()),
    "in a string": lambda n: n["cells"].append({"cell_type": "code", "source": f"x = {CODE!r}", "metadata": {}}),
    "in an attachment": lambda n: n["cells"][0].update(
        attachments={"a.txt": {"text/plain": base64.b64encode(gzip.compress(CODE.encode())).decode()}}
    ),
    "a variant": output(lines_of(ONE.variants[0])),
    "a variant under other names": output(renamed(f"def f(scores, may_look):\n{lines_of(ONE.variants[0])}")),
    "a known mistake": output(lines_of(ONE.mistakes[2].answer)),
    "a fixed result": output(f"the weight is {BOOK['2.1']():.4f}"),
    "a marker": output("### BEGIN HIDDEN TESTS"),
}  # fmt: skip


@pytest.mark.parametrize("kind", NOTEBOOK_LEAKS)
def test_a_leak_in_the_notebook_is_found(kind, received, guarded):
    in_notebook(received, NOTEBOOK_LEAKS[kind])
    assert search(received, guarded)


def put(name, content):
    def plant(received, secret):
        (received / name).parent.mkdir(exist_ok=True)
        (received / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return plant


def zipped(received, secret):
    with zipfile.ZipFile(received / "data.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("deep/a.py", CODE)


def key_with(text):
    """A line of JSON, as long as one in a key."""
    return json.dumps({"dict": [["numbers", list(range(500))], ["mistake", text]]}).encode()


SPANS = "".join(f"<span class='n'>{html.escape(part)}</span>" for part in CODE.replace("(", " ( ").split(" "))
FILE_LEAKS = {
    "a paired text file": put("week2.py", f"# %%\n{CODE}\n"),
    "the references' module": put("exercise_check/lesson_02.py", "pass"),
    "a page with coloured code": put("feedback.html", f"<html><body><pre>{SPANS}</pre></body></html>"),
    "an archive": zipped,
    "a compressed file": put("a.bin", gzip.compress(CODE.encode())),
    "in a long line of JSON": put(
        "a.key", b"\x7f" + key_with(f"# Look:\n{renamed(CODE)}") + b"\n\xff" + key_with("another")
    ),
    "in JSON before other text": put("a.txt", key_with(renamed(CODE)) + b" and so on"),
    "behind a long line of JSON": put("a.txt", key_with("") + b"; " + renamed(CODE.splitlines()[-1].strip()).encode()),
    "bytes": put("a.pyc", b"\0\xff\0" + CODE.encode() + b"\0\xfe"),
    "the secret": lambda received, secret: (received / "x.txt").write_bytes(b"seed: " + secret),
    "the secret as a file's name": lambda received, secret: (received / secret.decode()).write_text(""),
    "a hidden seed": lambda received, secret: (received / "x.txt").write_text(str(hidden_seeds(secret, "2.3")[1])),
    "a hidden key": lambda received, secret: (received / "x.key").write_bytes(
        seal(ONE, hidden_seeds(secret, "2.3")[0], mistakes=False)
    ),
    "the key of a fixed result": lambda received, secret: (received / "x.key").write_bytes(seal(BOOK["2.1"], 0)),
}


@pytest.mark.parametrize("kind", FILE_LEAKS)
def test_a_leak_in_a_file_is_found(kind, received, secret, guarded):
    FILE_LEAKS[kind](received, secret)
    assert search(received, guarded)


def test_hidden_inputs_in_a_message_are_found(received, secret, guarded):
    first = next(iter(ONE.inputs(hidden_seeds(secret, "2.3")[0]))).arguments[0]
    in_notebook(received, output(f"with scores = {first}"))
    assert any("hidden case" in leak.what for leak in search(received, guarded))


def test_the_source_with_its_hidden_tests_would_be_a_leak(bundle, guarded):
    found = {leak.what for leak in search(bundle / "source", guarded)}
    assert any("hidden case of exercise 2.3" in what for what in found)
    assert any("visible_softmax" in what for what in found)


def test_what_anybody_has_is_no_leak(received, guarded):
    in_notebook(received, output("\n".join([ONE.statement, ONE.stub, "scale = math.sqrt(d_k)", "return x"])))
    assert search(received, guarded) == []


def test_a_students_own_answer_is_no_leak_to_that_student(received, secret):
    in_notebook(received, output(CODE))
    lesson = [exercise for exercise in BOOK.values() if exercise.id.startswith("2.")]
    assert search(received, Guarded.of(lesson, secret))
    assert search(received, Guarded.of(lesson, secret, public=[CODE])) == []


def test_bare_text_is_the_same_however_it_is_broken_and_quoted():
    assert bare("a  =\n 'b'") == bare('"a = b\\n"') == "a=b"
