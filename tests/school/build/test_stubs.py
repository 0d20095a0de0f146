"""The reference of each stage imports what it needs, and its stub states the whole task without solving it."""

import ast
import sys
import types
from pathlib import Path

import pytest

from companion import page
from companion_school.build.stages import STAGES, find_stage, find_stages
from companion_school.build.stubs import given, is_untouched, lines_written, names, reference, stub

ON_PAGE = range(2, 10)


def test_the_stages_of_the_page_define_all_of_it():
    written = {name for number in ON_PAGE for name in (*names(number), *given(number))}
    tree = ast.parse(Path(page.__file__).read_text("utf-8"))
    assert written == {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)} and len(written) > 30


@pytest.mark.parametrize("kind", [reference, stub])
def test_files_import_each_other_and_torch_alone(kind, monkeypatch):
    for number in [number for number in STAGES if number in (*ON_PAGE, 20)]:
        code = types.ModuleType(STAGES[number].module)
        monkeypatch.setitem(sys.modules, STAGES[number].module, code)
        exec(kind(number), vars(code))
        assert {*names(number), *given(number)} <= {*vars(code)}
        imported = {n.module.split(".")[0] for n in ast.walk(ast.parse(kind(number))) if isinstance(n, ast.ImportFrom)}
        assert imported <= {"torch", "safetensors", "pathlib", "collections", "dataclasses", "functools"} | {
            STAGES[n].module for n in STAGES[number].needs
        }


@pytest.mark.parametrize("number", ON_PAGE)
def test_a_stub_has_every_signature_and_docstring_and_no_code(number):
    def told(source):
        return {
            (n.name, ast.unparse(n.args), ast.get_docstring(n))
            for n in ast.walk(ast.parse(source))
            if isinstance(n, ast.FunctionDef)
        }

    assert told(stub(number)) == told(reference(number))
    for node in ast.walk(ast.parse(stub(number))):
        if isinstance(node, ast.FunctionDef):
            body = node.body[ast.get_docstring(node) is not None :]
            assert [ast.unparse(line) for line in body] == ["raise NotImplementedError"]
    assert is_untouched(number, stub(number)) and not is_untouched(number, reference(number))
    assert is_untouched(number, stub(number).replace('"""', '"""As an earlier version said it: ', 1))


def test_what_is_given_is_whole_and_not_asked_for():
    assert given(5) == ("Config",) and "Config" not in names(5)
    assert "d_ff: int = 176" in stub(5) and "# given" in stub(5) and "# given" not in stub(4)


def test_stages_are_found_by_any_of_their_names():
    assert {find_stage(name).number for name in (5, "5", "05", "build.5", 5.0, "model", "model.py")} == {5}
    assert [stage.number for stage in find_stages("1,20,3,5-7")] == [1, 3, 20, 5, 6, 7]
    for wrong in ("0", "99", "lesson", "7-2", "", "2-"):
        with pytest.raises(ValueError, match="expected"):
            find_stages(wrong)


@pytest.mark.parametrize("number", range(14, 19))
def test_the_stages_of_the_later_lessons_take_at_most_forty_lines(number):
    assert 15 <= lines_written(reference(number)) <= 40


def test_lines_are_counted_without_what_is_given_and_said():
    assert lines_written(stub(5)) == 5  # each function and method has one line, which raises
    assert lines_written("def f():\n    'says'\n\n    # why\n    return (\n        1\n    )\n") == 3
