"""What code uses of the companion: the functions, classes and values behind its names, followed from one to the next.

A notebook is made anew when one of them changed, and not when their file did. What decides is their code: neither where
it stands, nor comments, docstrings and blank lines. Where a name cannot be followed the whole module counts, so that
what is found is rather too much than too little:

- A class counts with all its methods, whichever are called.
- A module counts whole that is used in any way but `module.name`, or has not got the name; so does one whose code asks
  for `globals()`.
- What a module does when it is loaded (a call, a loop) counts for everything that is loaded with it; a line about
  something that it defines (`thing.register(...)`, `@thing.case`) belongs to that.
- What the signatures of functions name is not looked up when they run (`from __future__ import annotations`), and is
  not followed; the annotations of a class are.

What is imported by a name that only the run knows (`import_module`) is not seen. `authoring/build.py` says what stands
behind those names, and a test holds that there are no others.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from authoring.imports import PACKAGE, imported

WHOLE = "*"
"""In place of a name: the module with all that it defines and imports."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Bound = tuple[str, str | None]
"""What an import binds a name to: a module, or a name of one."""


@dataclass(frozen=True)
class Code:
    """A piece of code.

    digest:  of what it does.
    names:   that it uses, with their attributes: `account.parameters`.
    texts:   that stand in it.
    binds:   what it imports.
    """

    digest: str
    names: frozenset[str]
    texts: frozenset[str]
    binds: Mapping[str, Bound]

    @classmethod
    def of(cls, tree: ast.AST, inside: str = "") -> Code:
        """Of a statement, or a whole tree, in the package `inside`."""
        reader = _Reader(inside)
        reader.read(tree)
        digest = hashlib.sha256("".join(reader.written).encode()).hexdigest()
        return cls(digest, frozenset(reader.names), frozenset(reader.texts), reader.binds)


@dataclass
class Module:
    """A module, taken apart.

    defines:  the statements that define each name, and those about it.
    binds:    what each name that it imports stands for.
    does:     the statements that only do something.
    loads:    what is loaded with it.
    inside:   the package that relative imports in it begin from.
    """

    inside: str
    defines: dict[str, list[ast.stmt]] = field(default_factory=dict)
    binds: dict[str, Bound] = field(default_factory=dict)
    does: list[ast.stmt] = field(default_factory=list)
    loads: set[Bound] = field(default_factory=set)

    def take(self, statement: ast.stmt) -> None:
        """Note what a statement imports, defines, is about, or does."""
        if isinstance(statement, ast.Import | ast.ImportFrom):
            self.binds.update(_bound(statement, self.inside))
            self.loads.update(imported(statement, self.inside))
            return
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            return
        if isinstance(statement, Definition):
            about = [root for decorator in statement.decorator_list if (root := _root(decorator)) in self.defines]
            names = [statement.name, *about]
        elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
        elif isinstance(statement, ast.Expr) and (root := _root(statement.value)) in self.defines:
            names = [root]
        else:
            names = []
            self.does.append(statement)
            for inner in ast.walk(statement):
                if isinstance(inner, ast.Import | ast.ImportFrom | Definition):
                    self.take(inner)
                elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                    names.append(inner.id)
        for name in dict.fromkeys(names):
            self.defines.setdefault(name, []).append(statement)


class Package:
    """The package that lies in a folder, read as far as it is asked for."""

    def __init__(self, folder: Path = PACKAGE):
        self.folder = folder
        self._files: dict[str, Path | None] = {}
        self._modules: dict[str, Module] = {}
        self._codes: dict[int, Code] = {}

    def file(self, module: str) -> Path | None:
        """The file of a module, as in `companion.layers.masks`; `None` for what is none of the package."""
        if module not in self._files:
            first, *rest = module.split(".")
            base = self.folder.joinpath(*rest)
            files = (base.with_suffix(".py"), base / "__init__.py") if first == self.folder.name else ()
            self._files[module] = next((path for path in files if path.is_file()), None)
        return self._files[module]

    def module(self, name: str) -> Module:
        """A module that is there."""
        if name not in self._modules:
            file = self.file(name)
            assert file is not None, name
            made = self._modules[name] = Module(name if file.stem == "__init__" else name.rpartition(".")[0])
            if file.with_suffix(".pyi").is_file():  # where a package says what it hands on once it is asked for it
                made.binds.update(Code.of(ast.parse(file.with_suffix(".pyi").read_text("utf-8")), made.inside).binds)
            for statement in ast.parse(file.read_text("utf-8")).body:
                if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                    made.take(statement)
        return self._modules[name]

    def code(self, statement: ast.stmt, inside: str) -> Code:
        if id(statement) not in self._codes:
            self._codes[id(statement)] = Code.of(statement, inside)
        return self._codes[id(statement)]

    def defined_with(self, module: str, decorator: str, value: str) -> str:
        """The name that a module defines with `@decorator("value", ...)`; if it has none, all that it has."""
        for name, statements in self.module(module).defines.items():
            for call in getattr(statements[0], "decorator_list", ()):
                first = call.args[:1] if isinstance(call, ast.Call) and _root(call) == decorator else []
                if [arg.value for arg in first if isinstance(arg, ast.Constant)] == [value]:
                    return name
        return WHOLE


class Uses:
    """What some code uses of a package.

    digests:  of the definitions, whatever they are called and wherever they stand.
    found:    the definitions, (module, name).
    texts:    that stand in them.

    also:     definitions that it uses besides.
    stops:    definitions, as in `companion.costs.account.parameters`, that are not counted.
    """

    def __init__(
        self,
        trees: Iterable[ast.AST],
        package: Package,
        also: Iterable[tuple[str, str]] = (),
        stops: Iterable[str] = (),
    ):
        self.package, self._stops = package, frozenset(stops)
        self.digests: set[str] = set()
        self.found: set[tuple[str, str]] = set()
        self.texts: set[str] = set()
        self._loaded: set[str] = set()
        self._counted: set[tuple[str, str]] = set()
        self._waiting: list[tuple[str, str]] = []
        codes = [Code.of(tree) for tree in trees]
        binds = {name: bound for code in codes for name, bound in code.binds.items()}
        self._load_all(binds.values())
        for code in codes:
            self._follow(code.names, binds)
        for module, name in binds.values():
            if name and not package.file(f"{module}.{name}"):  # imported to be used, be it in a string
                self._resolve(module, name, ())
        for module, name in also:
            self._reach(module, name)
        while self._waiting:
            module, name = self._waiting.pop()
            there = package.module(module)
            for defined in there.defines if name == WHOLE else [name]:
                for statement in there.defines[defined]:
                    self._count(statement, module)
            if name == WHOLE:
                self._follow(there.binds, there.binds)

    def _count(self, statement: ast.stmt, module: str) -> None:
        """Take a statement of a module in, and reach what it names."""
        there = self.package.module(module)
        code = self.package.code(statement, there.inside)
        if (module, code.digest) not in self._counted:
            self._counted.add((module, code.digest))
            self.digests.add(code.digest)
            self.texts |= code.texts
            self._load_all(code.binds.values())
            self._follow(code.names, {**there.binds, **code.binds}, module)

    def _follow(self, names: Iterable[str], binds: Mapping[str, Bound], module: str = "") -> None:
        """Reach what names stand for that are used beside these imports, in a module or (empty) a notebook."""
        defines = self.package.module(module).defines if module else {}
        for path in names:
            first, *rest = path.split(".")
            if first in defines:
                self._reach(module, first)
            if first in binds:
                self._resolve(*binds[first], rest)
            if first == "globals" and module:
                self._reach(module, WHOLE)

    def _resolve(self, module: str, name: str | None, rest: Sequence[str]) -> None:
        """Reach what an import stands for; of a module, the attribute that is used."""
        if self.package.file(module) is None:
            return
        if name is None:
            name, rest = (rest[0], rest[1:]) if rest else (WHOLE, ())
        there = self.package.module(module)
        if name in there.defines or name == WHOLE:
            self._reach(module, name)
        elif name in there.binds and there.binds[name] != (module, name):
            self._resolve(*there.binds[name], rest)
        elif self.package.file(f"{module}.{name}"):
            self._resolve(f"{module}.{name}", None, rest)
        elif not name.startswith("__"):
            self._reach(module, WHOLE)

    def _reach(self, module: str, name: str) -> None:
        if (module, name) not in self.found and f"{module}.{name}" not in self._stops:
            self._load(module)
            self.found.add((module, name))
            self._waiting.append((module, name))

    def _load_all(self, bound: Iterable[Bound]) -> None:
        for module, name in bound:
            self._load(module)
            self._load(f"{module}.{name}")
            if name == WHOLE and self.package.file(module):
                self._reach(module, WHOLE)

    def _load(self, module: str) -> None:
        """Count what a module does when it is loaded, and load what it loads."""
        if module in self._loaded or self.package.file(module) is None:
            return
        self._loaded.add(module)
        there = self.package.module(module)
        self._load(module.rpartition(".")[0])
        self._load_all(there.loads)
        for statement in there.does:
            self._count(statement, module)


def _bound(statement: ast.Import | ast.ImportFrom, inside: str) -> dict[str, Bound]:
    """What an import binds."""
    if isinstance(statement, ast.ImportFrom):
        bound = imported(statement, inside)
        return {alias.asname or alias.name: one for alias, one in zip(statement.names, bound, strict=True)}
    top = ((alias.name.partition(".")[0], alias) for alias in statement.names)
    return {alias.asname or first: (alias.name if alias.asname else first, None) for first, alias in top}


def _root(node: ast.AST) -> str:
    """The name that a path of calls and attributes begins with: `thing` of `thing.register(1)`."""
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


class _Reader:
    """Writes code in a form that is the same in every Python: without docstrings, and without what a newer one adds to
    its trees and leaves empty. Notes the names that it uses, the texts that stand in it, and what it imports."""

    def __init__(self, inside: str):
        self.inside = inside
        self.written: list[str] = []
        self.names: set[str] = set()
        self.texts: set[str] = set()
        self.binds: dict[str, Bound] = {}

    def read(self, node: ast.AST, in_function: bool = False, named: bool = False) -> None:
        """named: the path of names that the node is part of has been noted."""
        if isinstance(node, ast.Import | ast.ImportFrom):
            self.binds.update(_bound(node, self.inside))
        elif isinstance(node, ast.Name) and not named:
            self.names.add(node.id)
        elif isinstance(node, ast.Attribute) and not named:
            named = self._note(node)
        if isinstance(node, Definition):
            in_function = not isinstance(node, ast.ClassDef)
        documented = isinstance(node, Definition) and ast.get_docstring(node, clean=False) is not None
        self.written.append(type(node).__name__)
        for name in node._fields:
            value = getattr(node, name, None)
            if value is None or value == [] or name in _NO_CODE:
                continue
            self.written.append(name)
            for child in value[1:] if documented and name == "body" else value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    signature = in_function and name in ("annotation", "returns")
                    self.read(child, in_function, named or signature)
                else:
                    self.written.append(repr(child))
                    if isinstance(node, ast.Constant) and isinstance(child, str):
                        self.texts.add(child)
        self.written.append(";")

    def _note(self, node: ast.Attribute) -> bool:
        """Note `account.parameters`; whether the node is such a path."""
        path: list[str] = []
        inner: ast.AST = node
        while isinstance(inner, ast.Attribute):
            path.append(inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name):
            self.names.add(".".join([inner.id, *reversed(path)]))
        return isinstance(inner, ast.Name)


_NO_CODE = frozenset({"type_comment", "kind", "ctx", "type_ignores"})
