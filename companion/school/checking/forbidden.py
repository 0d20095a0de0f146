"""Does a piece of code use a name that it must not?"""

from __future__ import annotations

import ast
from collections.abc import Collection


def forbidden_uses(source: str, forbidden: Collection[str]) -> list[str]:
    """Which of the forbidden names the code uses, and `companion` if it imports that; sorted.

    Counts a name, an attribute (`x.softmax`), what is imported under any name, and a text that is exactly the name
    (`getattr(torch, "softmax")`); not a name that the code itself gives to something. Raises `SyntaxError` for what
    is not Python.
    """
    tree = ast.parse(source)
    wanted, found = {*forbidden}, set()
    own = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    own |= {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name):
                found |= {name} & wanted - own
            case ast.Attribute(attr=name) | ast.Constant(value=str(name)):
                found |= {name} & wanted
            case ast.Import(names=names):
                found |= {part for alias in names for part in alias.name.split(".")} & {*wanted, "companion"}
            case ast.ImportFrom(module=module, names=names):
                parts = {part for part in (module or "").split(".")} | {alias.name for alias in names}
                found |= parts & {*wanted, "companion"}
    return sorted(found)


def forbidden_fault(used: Collection[str]) -> str:
    """What to say of an answer that uses these."""
    return f"it uses {', '.join(used)}, which the exercise asks you to do without"
