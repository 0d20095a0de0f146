"""Which file of the companion stands behind a name that some code imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "companion"


@cache
def parsed(code: str) -> ast.Module:
    """The tree of some code; an empty one for what is not Python, which the run or the contract reports."""
    try:
        return ast.parse(code)
    except SyntaxError:
        return ast.Module(body=[], type_ignores=[])


def imported(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, str | None]]:
    """Every import of `tree`, the code of a module in the package `inside`: (module, name imported from it or None)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = inside.split(".")[: len(inside.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((module, alias.name) for alias in node.names)


def file_of(module: str, name: str | None, package: Path = PACKAGE) -> Path | None:
    """The file that `from module import name` reads; `None` outside the package.

    Where a package hands the name on, that is the file which it has it from.
    """
    first, *rest = module.split(".")
    if first != package.name:
        return None
    base = package.joinpath(*rest)
    if name and ((base / f"{name}.py").exists() or (base / name / "__init__.py").exists()):
        return file_of(f"{module}.{name}", None, package)
    init = base / "__init__.py"
    if not init.exists():
        path = base.with_suffix(".py")
        return path if path.exists() else None
    if name and name in _handed_on(init, module):
        return file_of(*_handed_on(init, module)[name], package)
    return init


def _handed_on(init: Path, module: str) -> dict[str, tuple[str, str]]:
    """The names that a package imports for others, in its `__init__` or, if they are lazy, in the stub beside it."""
    stub = init.with_suffix(".pyi")
    return _imports_of((stub if stub.exists() else init).read_text(encoding="utf-8"), module)


@cache
def _imports_of(code: str, module: str) -> dict[str, tuple[str, str]]:
    """Where the code of a package has each name from."""
    found = {}
    for node in parsed(code).body:
        if isinstance(node, ast.ImportFrom):
            for alias, (source, name) in zip(node.names, imported(node, module), strict=True):
                found[alias.asname or alias.name] = (source, str(name))
    return found


def modules_named(tree: ast.AST, package: Path = PACKAGE) -> set[str]:
    """The modules behind what `tree` imports of the package, or uses as `companion.name`: `layers/attention`."""
    names = list(imported(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == package.name:
            names.append((package.name, node.attr))
    files = {file_of(module, name, package) for module, name in names}
    return {_short(file, package) for file in files if file} - {""}


def _short(file: Path, package: Path) -> str:
    path = file.parent if file.name == "__init__.py" else file.with_suffix("")
    return "" if path == package else path.relative_to(package).as_posix()
