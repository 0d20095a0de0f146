"""Public names are documented: docstrings, shapes and errors."""

import ast
import json
import re
from functools import cache
from importlib import import_module
from operator import attrgetter

import pytest

import companion
from authoring.imports import PACKAGES, modules_named
from authoring.lesson import NOTEBOOKS, ROOT

# The predicates of masks are called with index tensors of any shapes that broadcast together.
ANY_SHAPE = {"companion/layers/masks.causal"}
# One page, which only imports torch: docstrings state its shapes, and a class's docstring says what its `forward` does.
PAGE = "companion/page"


@cache
def audited():
    """Return the modules that `companion` exports or that lessons and deeper notebooks import."""
    handed_on = modules_named(ast.parse(f"from companion import {', '.join(companion.__all__)}"))
    notebooks = [NOTEBOOKS, NOTEBOOKS / "deeper"]
    pages = [json.loads(p.read_text(encoding="utf-8")) for n in notebooks for p in n.glob("[0-9][0-9]_*.ipynb")]
    code = ["".join(c["source"]) for p in pages for c in p["cells"] if c["cell_type"] == "code"]
    return sorted(handed_on.union(*(modules_named(ast.parse(text)) for text in code if "companion" in text)))


@cache
def module(name):
    file = ROOT / f"{name}.py"
    file = file if file.exists() else ROOT / name / "__init__.py"
    return ast.parse(file.read_text(encoding="utf-8"))


def public(body, above=""):
    """Yield (name, node) for the public functions and classes, and for the methods of these."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield above + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from public(node.body, f"{above}{node.name}.")


def undocumented(tree):
    return [name for name, node in public(tree.body) if not ast.get_docstring(node)]


def says_above(name, method):
    """Return True if a method overrides a documented one of ours."""
    where, _, method = method.rpartition(".")
    if not where:
        return False
    _, *above = attrgetter(where)(import_module(name.replace("/", "."))).__mro__
    ours = [vars(one) for one in above if one.__module__.startswith(("companion.", "companion_school."))]
    return any(method in names and names[method].__doc__ for names in ours)


def without_shape(tree):
    """Return the tensor parameters and results whose axes the signature does not name."""
    found = []
    for name, node in public(tree.body):
        if isinstance(node, ast.FunctionDef):
            parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            notes = {p.arg: p.annotation for p in parameters} | {"return": node.returns}
            parts = {key: re.split(r"\s*\|\s*", ast.unparse(note)) for key, note in notes.items() if note}
            found += [f"{name}({key})" for key, alternatives in parts.items() if "Tensor" in alternatives]
    return found


def silent_errors(tree):
    """Return the functions and constructors that raise without saying so."""
    found = []
    for name, node in public(tree.body):
        bodies = [node]
        if isinstance(node, ast.ClassDef):
            bodies = [part for part in node.body if getattr(part, "name", "") in ("__init__", "__post_init__")]
        raises = any(isinstance(inner, ast.Raise) for part in bodies for inner in ast.walk(part))
        if raises and not re.search(r"[Rr]aises?\b|\w+Error\b|refuse", ast.get_docstring(node) or ""):
            found.append(name)
    return found


def test_lessons_and_the_package_use_modules_that_are_audited():
    assert {
        "companion/layers/attention",
        "companion/layers/moe",
        "companion/transformer",
        "companion/generation/generate",
        "companion/costs/account",
        "companion_school/study/figures",
    } <= set(audited())


@pytest.mark.parametrize("name", audited())
def test_every_public_name_has_a_docstring(name):
    assert ast.get_docstring(module(name)), f"{name} has no docstring"
    missing = [one for one in undocumented(module(name)) if not says_above(name, one)]
    missing = [one for one in missing if not (name == PAGE and one.endswith(".forward"))]
    assert not missing, f"{name}: no docstring: {', '.join(missing)}"


@pytest.mark.parametrize("name", sorted({*audited()} - {PAGE}))
def test_every_tensor_of_a_signature_has_a_shape(name):
    bare = [one for one in without_shape(module(name)) if f"{name}.{one.split('(')[0]}" not in ANY_SHAPE]
    assert not bare, f"{name}: a tensor without a shape: {', '.join(bare)}"


@pytest.mark.parametrize("name", audited())
def test_what_raises_says_so(name):
    silent = silent_errors(module(name))
    assert not silent, f"{name}: raises, and its docstring does not say so: {', '.join(silent)}"


@pytest.mark.parametrize("name", companion.__all__)
def test_exported_name_is_documented_in_its_own_words(name):
    documented = getattr(companion, name)
    # A dataclass generates such a docstring
    assert documented.__doc__ and not documented.__doc__.startswith(f"{name}(")


def test_an_equation_that_is_named_stands_in_its_lesson():
    pages = [page.read_text("utf-8") for page in (ROOT / "authoring").glob("*/[0-9][0-9]_*.md")]
    there = {number for page in pages for number in re.findall(r"\\tag\{(D?\d+\.\d+)\}", page)}
    named = {}
    for file in (file for package in PACKAGES for file in package.rglob("*.py")):
        text = re.sub(r"\s+", " ", file.read_text("utf-8"))
        for lesson, number in re.findall(r"lesson (\d\d),? equation (D?\d+\.\d+)", text):
            assert number.lstrip("D").split(".")[0] == str(int(lesson)), f"{file}: {number} in lesson {lesson}"
            named[number] = file
    assert len(named) > 5 and not named.keys() - there, {number: named[number] for number in named.keys() - there}
