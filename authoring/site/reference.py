"""API reference for both packages, generated from docstrings without importing anything.

Each folder has a page. The pages are ordered so that each folder imports only from earlier ones. Each page lists its
modules, and each module lists its documented public names, with the signature as written followed by the docstring. The
index is a map of the packages, which lists each module with its first sentence and the lessons that import it. The
modules with exercises are omitted, because they contain the solutions.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from authoring import imports
from authoring.lesson import Lesson
from authoring.site.notebook import block, raw

INDEX = "reference/index"
LEFT_OUT = re.compile(r"companion_school/exercises/lesson_\d\d$|/_\w*$")
_OWN = "companion"  # page for modules that are not in a subfolder
# folders whose subfolders get their own pages, and the number of levels
_DEEP = {"layers": 2, "training": 2, "build": 2, "course": 2}
_TERM = re.compile(r"(\S.{0,60}?):?\s{2,}(\S.*)")  # a term and its description, separated by two or more spaces
_OF_ONE = ("Returns:", "Yields:", "Note:", "Example:", "Examples:")
_SECTIONS = ("Args:", "Attributes:", "Raises:", *_OF_ONE)
_ENTRY = re.compile(r"([\w*][\w*, .()|\[\]]*): ?(.*)")
_MARKS = re.compile(r"([\\*_\[\]<>$#|~^{}])")


@dataclass(frozen=True)
class Module:
    """A module of the packages, with its dotted name, its path in the repository, its source and its docstring."""

    name: str
    file: str
    source: str
    says: str

    @property
    def page(self) -> str:
        """The name of the page that describes the module."""
        package, *folders = self.name.split(".")[:-1]
        if package == imports.SCHOOL.name:
            return f"reference/{'.'.join([package, *_shown(folders)])}"
        return f"reference/{'.'.join(_shown(folders)) or _OWN}"


def _shown(folders: list[str]) -> list[str]:
    """Return the leading folders of a module's path, which name its page."""
    return folders[: _DEEP.get(folders[0], 1)] if folders else []


def modules() -> list[Module]:
    """Return the modules, sorted by part and then by name."""
    found = []
    order = {part: at for at, part in enumerate(imports.parts())}
    for name in sorted(imports.modules(), key=lambda name: (order[imports.part(name)], name)):
        if LEFT_OUT.search(name):
            continue
        source = (imports.ROOT / f"{name}.py").read_text(encoding="utf-8")
        if says := ast.get_docstring(ast.parse(source)):
            found.append(Module(name.replace("/", "."), f"{name}.py", source, says))
    return found


def users(lessons: Iterable[Lesson]) -> dict[str, list[str]]:
    """Return the labels of the lessons that import each module, keyed by module file."""
    found: dict[str, list[str]] = {}
    for lesson in lessons:
        for module in lesson.imports:
            found.setdefault(f"{module}.py", []).append(lesson.label)
    return found


def places(there: Iterable[Module]) -> dict[str, str]:
    """Return the site address of each module's description, keyed by module file."""
    return {module.file: f"{module.page}.html#{module.name}" for module in there}


def texts(there: Sequence[Module], used: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str, str]]:
    """Yield each page's name, its label in the contents, and its text.

    Args:
        there: The modules.
        used: The labels of the lessons that import each module, by the module's file.
    """
    pages: dict[str, list[Module]] = {}
    for module in there:
        pages.setdefault(module.page, []).append(module)
    lines = [
        "# The package",
        "`companion` is the library that the course builds, and `companion_school` the school around it: exercises, "
        "checks, questions, figures and grading. Each folder imports only from those above it. "
        "The numbers are the lessons that import a module.",
    ]
    for page, own in pages.items():
        name = page.rpartition("/")[2]
        title = name if name.startswith(_OWN) else f"companion.{name}"
        parts = [f"# {title}"]
        entries = []
        for module in own:
            parts += part(module)
            said = prose(_first(module.says))
            lessons = f" ({', '.join(used[module.file])})" if module.file in used else ""
            entries.append(f"- [`{module.name}`]({name}.html#{module.name}): {said}{lessons}")
        lines += [f"## [{title}]({name}.html)", "\n".join(entries)]
        yield page, title, "\n\n".join(parts) + "\n"
    yield INDEX, "The package", "\n\n".join(lines) + "\n"


def part(module: Module) -> Iterator[str]:
    """Yield the text for a module: its docstring and its documented public names."""
    tree, lines = ast.parse(module.source), module.source.splitlines()
    yield raw(f'<span class="place" id="{module.name}"></span>')
    yield f"## {module.name.removeprefix('companion.')}"
    yield words(module.says)
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from _defined(node, module, 3)
        elif (name := _assigned(node)) and not name.startswith("_") and (said := _string(after)):
            yield raw(f'<span class="place" id="{module.name}.{name}"></span>')
            yield f"### {name}"
            yield block("signature", _segment(node, lines))
            yield words(said)


def _defined(node: ast.FunctionDef | ast.ClassDef, module: Module, level: int, inside: str = "") -> Iterator[str]:
    said = ast.get_docstring(node)
    if node.name.startswith("_") or not said:
        return
    name = f"{inside}{node.name}"
    yield raw(f'<span class="place" id="{module.name}.{name}"></span>')
    yield f"{'#' * level} {node.name}"
    yield block("signature", signature(node, module.source))
    yield words(said)
    if isinstance(node, ast.ClassDef):
        for method in node.body:
            if isinstance(method, ast.FunctionDef):
                yield from _defined(method, module, level + 1, f"{name}.")


def signature(node: ast.FunctionDef | ast.ClassDef, source: str) -> str:
    """Return the source that precedes the docstring and, for a class, its fields and the signature of `__init__`."""
    lines = source.splitlines()
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    head = "\n".join(lines[first - 1 : node.body[0].lineno - 1])
    if isinstance(node, ast.ClassDef):
        for member in node.body:
            if isinstance(member, ast.AnnAssign) and not str(_assigned(member)).startswith("_"):
                head += f"\n{_segment(member, lines, padded=True)}"
            elif isinstance(member, ast.FunctionDef) and member.name == "__init__":
                head += "\n" + "\n".join(lines[member.lineno - 1 : member.body[0].lineno - 1])
    return textwrap.dedent(head).rstrip()


def _segment(node: ast.stmt, lines: Sequence[str], *, padded: bool = False) -> str:
    """Return the source of a node.

    This avoids `ast.get_source_segment`, which would split the whole source again for each node.
    """
    assert node.end_lineno is not None
    first, *rest = (line.encode() for line in lines[node.lineno - 1 : node.end_lineno])
    if not rest:
        return first[node.col_offset : node.end_col_offset].decode()
    margin = re.sub(rb"\S", b" ", first[: node.col_offset]) if padded else b""
    last = rest.pop()[: node.end_col_offset]
    return b"\n".join([margin + first[node.col_offset :], *rest, last]).decode()


def _assigned(node: ast.AST | None) -> str:
    """Return the name to which a statement assigns, or an empty string if it does not assign to a single name."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""


def _string(node: ast.AST | None) -> str:
    value = node.value if isinstance(node, ast.Expr) else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def _first(docstring: str) -> str:
    return " ".join(docstring.split("\n\n")[0].split())


def words(docstring: str) -> str:
    """Return a docstring as Markdown: paragraphs, Google-style sections, lists and indented examples."""
    parts = []
    for paragraph in re.split(r"\n\s*\n", textwrap.dedent(docstring).strip()):
        lines = paragraph.split("\n")
        if lines[0] in _SECTIONS and len(lines) > 1:
            parts.append(_section(lines[0], textwrap.dedent("\n".join(lines[1:]))))
        elif all(line.startswith("    ") for line in lines):
            parts.append(block("signature", textwrap.dedent(paragraph), language=_language(textwrap.dedent(paragraph))))
        elif entries := _entries(lines):
            parts.append("\n\n".join(f"{prose(term)}\n: {prose(said)}" for term, said in entries))
        elif lines[0].startswith("- "):
            parts.append(
                "\n".join(f"- {prose(' '.join(item.split()))}" for item in re.split(r"^- ", paragraph, flags=re.M)[1:])
            )
        else:
            parts.append(prose(" ".join(paragraph.split())))
    return "\n\n".join(parts)


def _section(title: str, body: str) -> str:
    """Return a section, such as `Args:`, as Markdown: a list of its entries, or a paragraph for `Returns:`."""
    entries: list[list[str]] = []
    for line in body.split("\n"):
        opening = None if title in _OF_ONE or line.startswith(" ") else _ENTRY.fullmatch(line)
        if opening:
            entries.append([opening[1], opening[2]])
        elif entries:
            entries[-1][1] += f" {line.strip()}"
        else:
            return f"**{title[:-1]}**\n: {prose(' '.join(body.split()))}"
    named = "\n\n".join(f"{prose(term)}\n: {prose(said.strip())}" for term, said in entries)
    return f"**{title[:-1]}**\n\n{named}"


def _language(example: str) -> str:
    try:
        ast.parse(example)
    except SyntaxError:
        return "none"
    return "python"


def _entries(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Return the entries in lines `name: description` with indented continuations, or none if any line differs."""
    found: list[tuple[str, str]] = []
    for line in lines:
        if found and line.startswith("  "):
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
        elif opening := _TERM.fullmatch(line):
            found.append((opening[1], opening[2]))
        else:
            return []
    return found


def prose(text: str) -> str:
    """Escape plain text for Markdown, except code in backticks."""
    pieces = re.split(r"(`[^`]+`)", text)
    return "".join(piece if at % 2 else _MARKS.sub(r"\\\1", piece) for at, piece in enumerate(pieces))
