"""What code uses of a package: what is found when something changes, and what is not."""

import ast
import re

import pytest

from authoring.imports import PACKAGE
from authoring.uses import WHOLE, Code, Package, Uses

FILES = dict(
    re.findall(
        r"^# == (\S+)\n(.*?)(?=^# == |\Z)",
        """
# == __init__.py
import importlib

def __getattr__(name):
    return importlib

# == __init__.pyi
from .layers.attention import attend as attend
from . import costs as costs

# == base.py
RATE = 3
SIZE = RATE * 2
OTHER = 5

class Kind:
    size: int = OTHER

# == costs.py
from companion.base import SIZE

def count():
    return SIZE

def unused():
    return 1

# == tool.py
from companion import costs

def go(name):
    return getattr(costs, name)

# == table.py
TABLE = {}
TABLE['a'] = 1

def case(f):
    return f

@case
def one():
    return TABLE

# == marked.py
from companion.table import case

@case
def two():
    return 2

@two.more
def third():
    pass

# == loud.py
from companion.base import RATE
print(RATE)

def quiet():
    return 0

# == own.py
A = 1

def all_of():
    return globals()

# == star.py
from companion.base import *

# == layers/__init__.py


# == layers/masks.py
from ..base import Kind

def window(a: Kind) -> Kind:
    b: Kind = a
    return b

def causal():
    return 1

# == layers/attention.py
from __future__ import annotations
from . import masks

def attend(q):
    '''Says.'''
    # why
    from companion.loud import quiet
    return masks.causal(q)

class Layer(masks.Kind):
    def call(self):
        return attend
""",
        re.DOTALL | re.MULTILINE,
    )
)


@pytest.fixture
def package(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / "companion" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    return tmp_path / "companion"


def digests(code, package, **settings):
    return Uses([ast.parse(code)], Package(package), **settings).digests


@pytest.mark.parametrize(
    "code, file, old, new",
    [
        ("from companion.costs import count", "base.py", "RATE = 3", "RATE = 4"),  # two modules away
        ("from companion.costs import count", "costs.py", "return SIZE", "return SIZE + 1"),
        ("from companion import costs\ncosts.count()", "base.py", "RATE = 3", "RATE = 4"),
        ("import companion\ncompanion.costs.count()", "base.py", "RATE = 3", "RATE = 4"),
        ("import companion.costs as c\nc.count()", "base.py", "RATE = 3", "RATE = 4"),
        ("import companion.layers.masks\ncompanion.layers.masks.causal()", "layers/masks.py", "return 1", "return 2"),
        ("from companion import costs\nprint(costs)", "costs.py", "return 1", "return 2"),  # who knows what it asks for
        ("from companion.tool import go", "costs.py", "return 1", "return 2"),
        ("from companion.costs import missing", "costs.py", "return 1", "return 2"),
        ("from companion import attend", "layers/masks.py", "return 1", "return 2"),
        (
            "from companion.layers.attention import Layer",
            "base.py",
            "OTHER = 5",
            "OTHER = 6",
        ),  # a base, and its default
        ("from companion.layers.attention import Layer", "layers/masks.py", "return 1", "return 2"),  # a method's name
        ("from companion import attend", "loud.py", "print(RATE)", "print(-RATE)"),  # loaded by attend when it runs
        ("from companion import attend", "base.py", "RATE = 3", "RATE = 4"),  # what that prints
        ("from companion.table import one", "table.py", "['a'] = 1", "['a'] = 2"),
        ("from companion.table import one", "table.py", "return f", "return None"),
        ("from companion.marked import two", "marked.py", "pass", "return 3"),
        ("from companion.own import all_of", "own.py", "A = 1", "A = 2"),
        ("from companion.star import SIZE", "base.py", "RATE = 3", "RATE = 4"),
        ("from companion.base import *", "base.py", "RATE = 3", "RATE = 4"),
        ("def f():\n    from companion.base import RATE\n    return RATE", "base.py", "RATE = 3", "RATE = 4"),
        ("from companion.base import Kind", "base.py", "size: int", "size: str"),
        ("from companion.layers.masks import window", "layers/masks.py", "(a: Kind)", "(a: int)"),
    ],
)
def test_what_is_used_is_found(package, code, file, old, new):
    before = digests(code, package)
    text = (package / file).read_text()
    (package / file).write_text(text.replace(old, new, 1))
    assert old in text and digests(code, package) != before


@pytest.mark.parametrize(
    "code, file, old, new",
    [
        ("from companion.costs import count", "costs.py", "return 1", "return 2"),  # another function of the file
        ("from companion.costs import count", "base.py", "OTHER = 5", "OTHER = 6"),
        ("from companion import costs", "costs.py", "return 1", "return 2"),  # a module that nothing is asked of
        ("from companion import costs\ncosts.count()", "costs.py", "return 1", "return 2"),
        ("import companion\ncompanion.costs.count()", "costs.py", "return 1", "return 2"),
        ("from companion.costs import count", "costs.py", "def count", "new = 1\n\ndef count"),
        ("from companion import attend", "layers/attention.py", "Says.", "Says more."),
        ("from companion import attend", "layers/attention.py", "# why", "# why not\n\n    # and"),
        ("from companion import attend", "layers/attention.py", "return attend", "return 1"),
        ("from companion import attend", "costs.py", "return SIZE", "return 7"),
        (
            "from companion.layers.masks import window",
            "base.py",
            "OTHER = 5",
            "OTHER = 6",
        ),  # named by annotations alone
        ("from companion.table import one", "marked.py", "return 2", "return 3"),
        ("import torch\ntorch.base.RATE", "base.py", "RATE = 3", "RATE = 4"),
    ],
)
def test_what_is_not_used_is_not_found(package, code, file, old, new):
    before = digests(code, package)
    text = (package / file).read_text()
    (package / file).write_text(text.replace(old, new, 1))
    assert old in text and digests(code, package) == before


def test_code_that_moves_to_another_file_stays_what_it_is(package):
    before = digests("from companion.costs import count", package)
    (package / "sums.py").write_text(FILES["costs.py"])
    (package / "costs.py").write_text("from companion.sums import count\n")
    assert digests("from companion.costs import count", package) == before != set()


def test_what_is_named_besides_is_used_and_what_stops_is_not(package):
    code = "from companion.base import SIZE"
    both = digests(code, package, also=[("companion.own", "A")])
    assert len(both) == len(digests(code, package)) + 1
    assert len(digests(code, package, stops=["companion.base.RATE"])) == 1 < len(digests(code, package))
    assert Package(package).defined_with("companion.table", "case", "a") == WHOLE


def test_the_digest_of_code_does_not_know_which_python_read_it():
    """3.12 gives functions empty type parameters, 3.13 leaves empty lists out when it shows a tree."""
    tree = ast.parse("def f(a, *, b=1):\n    return f'{a!r:>{b}} x' + u'y'")
    plain = Code.of(tree).digest
    tree.body[0].type_params, tree.body[0].type_comment = [], None
    del tree.body[0].returns
    assert Code.of(tree).digest == plain
    tree.body[0].args.kw_defaults[0].value = True  # equal to 1, and something else
    assert Code.of(tree).digest != plain


KNOWN = {
    "__init__.py",
    "families/registry.py",
    "layers/kernels/fla.py",
    "school/exercises/catalogue.py",
    "school/course/exam/paper.py",
    "school/course/grading/sandbox/child.py",
    *(f"school/build/{name}.py" for name in ("parts", "isolated_modules")),
}
"""Where the package imports by a name that only the run knows: public names, which the stub says; exercises, which
build.py finds by number; families, whose systems it asks for by name; kernels of another library, where there is a GPU;
the engine in the process of a student's answers, which no lesson starts; and the reader's own files."""


def test_nothing_else_is_imported_by_a_name_that_only_the_run_knows():
    asks = re.compile(r"\b(?:importlib\.)?import_module\(|\b__import__\(|^from \S+ import \*", re.MULTILINE)
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if asks.search(path.read_text("utf-8")) and "proof" not in path.parts and path.stem[:7] != "lesson_"
    }
    assert found == KNOWN
