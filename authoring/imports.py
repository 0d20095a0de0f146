"""Find the files in the repository's two packages that define imported names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIBRARY, SCHOOL = PACKAGES = ROOT / "companion", ROOT / "companion_school"
"""The folders of the two packages."""


@cache
def parsed(code: str) -> ast.Module:
    """Return the syntax tree of some code, or an empty tree if it is not valid Python (which another rule reports)."""
    try:
        return ast.parse(code)
    except SyntaxError:
        return ast.Module(body=[], type_ignores=[])


def imported(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, str | None]]:
    """Yield the imports in `tree` as (module, imported name or `None`). Relative imports start at package `inside`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = inside.split(".")[: len(inside.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((module, alias.name) for alias in node.names)


def file_of(module: str, name: str | None) -> Path | None:
    """Return the file that defines what `from module import name` imports, or `None` if it is not in the packages.

    If a package re-exports the name, this is the file from which the package imports it.
    """
    first, *rest = module.split(".")
    if first not in {package.name for package in PACKAGES}:
        return None
    base = (ROOT / first).joinpath(*rest)
    if name and ((base / f"{name}.py").exists() or (base / name / "__init__.py").exists()):
        return file_of(f"{module}.{name}", None)
    init = base / "__init__.py"
    if not init.exists():
        path = base.with_suffix(".py")
        return path if path.exists() else None
    if name and name in _reexported(init, module):
        return file_of(*_reexported(init, module)[name])
    return init


def _reexported(init: Path, module: str) -> dict[str, tuple[str, str]]:
    """Return the names that a package re-exports, from its `__init__` or, for lazy imports, from the stub beside it."""
    stub = init.with_suffix(".pyi")
    return _imports_of((stub if stub.exists() else init).read_text(encoding="utf-8"), module)


@cache
def _imports_of(code: str, module: str) -> dict[str, tuple[str, str]]:
    """Return the module and the original name of each imported name in a package's code."""
    found = {}
    for node in parsed(code).body:
        if isinstance(node, ast.ImportFrom):
            for alias, (source, name) in zip(node.names, imported(node, module), strict=True):
                found[alias.asname or alias.name] = (source, str(name))
    return found


def modules_named(tree: ast.AST) -> set[str]:
    """Return the modules of the packages that `tree` imports or uses as `companion.name`.

    A module is given as its path in the repository without `.py`: `companion/layers/attention`.
    """
    names = list(imported(tree))
    packages = {package.name for package in PACKAGES}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in packages:
            names.append((node.value.id, node.attr))
    files = {file for module, name in names if (file := file_of(module, name))}
    return {short(file) for file in files if not _is_root(file)}


def _is_root(file: Path) -> bool:
    return file.parent in PACKAGES and file.name == "__init__.py"


def short(file: Path) -> str:
    """Return a module's path in the repository without `.py`, or the path of the folder for a package."""
    path = file.parent if file.name == "__init__.py" else file.with_suffix("")
    return path.relative_to(ROOT).as_posix()


def modules() -> list[str]:
    """Return all modules of the packages, in the form that `modules_named` uses."""
    return sorted(short(path) for package in PACKAGES for path in package.rglob("*.py") if path.name[:2] != "__")


@cache
def imports_of(module: str) -> frozenset[str]:
    """Return the other modules of the packages that a module imports, whether at load time or inside functions."""
    path = ROOT / f"{module}.py"
    path = path if path.exists() else ROOT / module / "__init__.py"
    inside = ".".join(path.relative_to(ROOT).parent.parts)
    tree = parsed(path.read_text(encoding="utf-8"))
    files = {file for source, name in imported(tree, inside) if (file := file_of(source, name))}
    return frozenset(short(file) for file in files if not _is_root(file)) - {module}


def part(module: str) -> str:
    """Return the part of the packages to which a module belongs: a folder or a file of the library, or the school."""
    folders = module.split("/")
    return "/".join(folders[:2]) if folders[0] == LIBRARY.name else folders[0]


def parts() -> list[str]:
    """Return the parts, ordered so that each imports only from the parts before it.

    Raises `graphlib.CycleError` if parts import from each other.
    """
    needs: dict[str, set[str]] = {}
    for module in modules():
        needs.setdefault(part(module), set()).update(map(part, imports_of(module)))
    graph = TopologicalSorter({name: sorted(needed - {name}) for name, needed in needs.items()})
    return list(graph.static_order())
