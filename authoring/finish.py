"""Finish the cells of a notebook. This part of the conversion needs the sources of other lessons.

Every lesson begins and ends with a navigation line (previous, start, next, exercises, deeper, glossary). Each "lesson
03" in its prose becomes a link, as does each role (see below). Three things are inserted: the head; the counted
minutes; and, in place of `{{ now write it }}`, the parts of *Your own transformer* that readers write after the lesson.

    {ref}`coins`, {ref}`the coins <coins>`              a place in the same notebook, by its target
    {deeper}`why only rotations will do <05#rotations>` a section of a lesson's deeper notebook, with its minutes
    {out}`0.33 <trained>`                               a number that the cell of this name printed (quoted_outputs.py)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from authoring.markdown import headings, in_prose
from authoring.minutes import Part, parts
from authoring.question import SourceError
from authoring.quoted_outputs import Said
from authoring.source import Source, read_source
from companion.ground.display import count
from companion_school.build.stages import STAGES, Stage
from companion_school.build.stubs import due
from companion_school.course.release import navigation_line
from companion_school.course.release.notebook_cells import IN_ANOTHER_KERNEL
from companion_school.questions.question import Question

HEAD = "{{ head }}"
NOW_WRITE_IT = "{{ now write it }}"
HEAD_KEYS = ("able", "needs")

_ROLE = re.compile(r"\{(\w+)\}`(?:([^`<]*?)\s*<([^`>]+)>|([^`<>]+))`")
_LESSONS = re.compile(r"\b([Ll]essons?)(\s+)(\d\d(?:(?:,\s+|\s+(?:and|or|to)\s+|,\s+and\s+)\d\d)*)\b")


@dataclass(frozen=True)
class Finished:
    """A notebook's cells before they are executed.

    Attributes:
        source: The source of the notebook.
        cells: The cells.
        lines: As in `Source`.
        tables: As in `Source`.
        parts: The parts of the source, with their counts.
        questions: The lesson's questions.
        said: Statements in the text about outputs.
    """

    source: Source
    cells: list[NotebookNode]
    lines: list[int]
    tables: list[tuple[int, int]]
    parts: list[Part]
    questions: list[Question]
    said: list[Said]


def is_deeper(source: Path) -> bool:
    """Return whether a path is the source of a deeper notebook."""
    return source.parent.name == "deeper"


def is_stage(source: Path) -> bool:
    """Return whether a path is the source of a notebook for a stage of *Your own transformer*."""
    return source.parent.name == "stages"


def notebook_of(source: Path) -> str:
    """Return the path of the notebook that is built from a source, relative to the lessons' notebook folder."""
    if is_stage(source):
        return f"build/{source.stem}.ipynb"
    return navigation_line.deeper_of(int(source.stem[:2])) if is_deeper(source) else f"{source.stem}.ipynb"


def deeper_source(lesson: Path) -> Path:
    """Return the path of a lesson's deeper source, whether or not it exists."""
    return lesson.parent.parent / "deeper" / lesson.name


def lesson_source(deeper: Path) -> Path:
    """Return the path of the lesson's source, given that of its deeper notebook."""
    return deeper.parent.parent / "lessons" / deeper.name


def finish(path: Path) -> Finished:
    """Return the cells of the notebook that is built from a source, with all links resolved.

    Raises:
        SourceError: If a role or target is invalid. The message gives the line number.
    """
    source = read_source(path)
    counted = parts(source)
    said: list[Said] = []
    resolve = _resolver(source, said)
    with_links = lesson_linker(path)
    cells = [NotebookNode(cell) for cell in source.cells]
    for index, cell in enumerate(cells):
        if cell.cell_type == "markdown":
            text = _with_minutes(cell.source, [part for part in counted if part.index == index], source)
            text = text.replace(HEAD, _head(source, counted)) if index == 0 and HEAD in text else text
            text = text.replace(NOW_WRITE_IT, _now_write_it(source)) if NOW_WRITE_IT in text else text
            cell.source = in_prose(with_links, resolve(text, source.lines[index]))
    questions = []
    for draft in source.questions.values():

        def linked(text: str, line: int = draft.line) -> str:
            return in_prose(with_links, resolve(text, line))

        questions.append(draft.finished(linked))
    first = next((cell for cell in cells if cell.cell_type == "code"), None)
    if first:
        first.source = _in_another_kernel(first.source)
    line = navigation(path)
    ends = [nbformat.v4.new_markdown_cell(line, id=f"{navigation_line.TAG}-{end}") for end in ("top", "end")]
    for cell in ends:
        cell.metadata["tags"] = [navigation_line.TAG]
    whole = [ends[0], *cells, ends[1]]
    moved = [(number + 1, row) for number, row in source.tables]
    return Finished(
        source, whole, [1, *source.lines, source.lines[-1] if cells else 1], moved, counted, questions, said
    )


def _in_another_kernel(code: str) -> str:
    """Add an import with a hint to the first cell's code, below the comment that a folded cell still shows."""
    rows = code.split("\n")
    at = 1 if rows[0].startswith("#") else 0
    return "\n".join([*rows[:at], IN_ANOTHER_KERNEL, *rows[at:]])


# --- navigation


def titles(folder: Path) -> dict[int, tuple[str, str]]:
    """Return the name and title of each lesson with a source in the folder, by number."""
    found = {}
    for path in sorted(folder.glob("[0-9][0-9]_*.md")):
        title = re.search(r"^# (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        found[int(path.name[:2])] = (path.stem, title[1].strip() if title else path.stem)
    return found


def navigation(source: Path) -> str:
    """Return the navigation line of a lesson, a deeper notebook or a stage, as Markdown."""
    if is_stage(source):
        return _stage_navigation(source)
    deeper = is_deeper(source)
    lesson = lesson_source(source) if deeper else source
    known, number = titles(lesson.parent), int(source.name[:2])
    kind, there = "deeper" if deeper else "lesson", deeper_source(lesson).exists()
    return navigation_line.navigation(kind, number, known, deeper=there)


def _stage_navigation(source: Path) -> str:
    known = titles(source.parent)
    order = [*(number for number in STAGES if number in known), *(number for number in known if number not in STAGES)]
    at = order.index(int(source.name[:2]))
    links = [f"[← {_title_of(known, order[at - 1])}]({known[order[at - 1]][0]}.ipynb)"] if at else []
    links.append(f"[Start](../{navigation_line.START})")
    links += [f"[{_title_of(known, number)} →]({known[number][0]}.ipynb)" for number in order[at + 1 : at + 2]]
    return " · ".join([*links, f"[Glossary](../{navigation_line.GLOSSARY})"])


def _title_of(known: dict[int, tuple[str, str]], number: int) -> str:
    title = known[number][1]
    return title[0].lower() + title[1:]


def lesson_linker(path: Path) -> Callable[[str], str]:
    """Return a function that turns every "lesson 03" in prose into a link, except in that lesson itself."""
    deeper, stage = is_deeper(path), is_stage(path)
    known = titles(path.parent.parent / "lessons" if stage else (lesson_source(path) if deeper else path).parent)

    def link(words: str, number: int) -> str:
        if number not in known or (number == int(path.name[:2]) and not deeper and not stage):
            return words
        return f"[{words}]({'../' * (deeper or stage)}{known[number][0]}.ipynb)"

    def linked(found: re.Match[str]) -> str:
        word, space, numbers = found.groups()
        if len(numbers) == 2:
            return link(f"{word}{space}{numbers}", int(numbers))
        return word + space + re.sub(r"\d\d", lambda one: link(one[0], int(one[0])), numbers)

    return lambda prose: _LESSONS.sub(linked, prose)


# --- head, minutes, roles


def lesson_minutes(counted: list[Part]) -> int:
    """Return a lesson's minutes: the rounded minutes of each sitting plus the minutes outside sittings."""
    return sum(part.minutes for part in counted if part.is_sitting) + _rest(counted)


def _rest(counted: list[Part]) -> int:
    """Return the minutes outside sittings, for the exercises, the summary, and what to read next."""
    return round(sum(part.exact for part in counted if not part.is_sitting))


def _head(source: Source, counted: list[Part]) -> str:
    missing = [key for key in HEAD_KEYS if not str(source.front.get(key, "")).strip()]
    if missing:
        what = (
            f"`{missing[0]}:` is missing in the front matter; {HEAD} prints what a reader will be able to do and needs"
        )
        raise SourceError(source.path, 1, what)
    able, needs = (" ".join(str(source.front[key]).split()) for key in HEAD_KEYS)
    sittings = [str(part.minutes) for part in counted if part.is_sitting]
    many = {2: "two", 3: "three", 4: "four"}.get(len(sittings), str(len(sittings)))
    rest = f", and {_rest(counted)} for the rest" if _rest(counted) else ""
    split = f": {many} sittings of {', '.join(sittings[:-1])} and {sittings[-1]}{rest}" if len(sittings) > 1 else ""
    read = round(sum(part.reading for part in counted))
    return (
        f"**You will be able to** {able}\n\n{_written_after(source.path)}"
        f"**Time:** {lesson_minutes(counted)} minutes{split}; reading is {read} of them, figures, outputs and waiting"
        f" the others. **You need:** {needs}"
    )


def _due_after(lesson: Path) -> list[tuple[Stage, tuple[str, ...], str]]:
    """Return what readers write after a lesson: each stage, the names to define in it, and its notebook."""
    number, notebooks = int(lesson.name[:2]), titles(lesson.parent.parent / "stages")
    there = [stage for stage in STAGES.values() if stage.number in notebooks]
    return [(stage, due(stage)[number], f"build/{notebooks[stage.number][0]}.ipynb")
            for stage in there if due(stage).get(number)]  # fmt: skip


def _written_after(lesson: Path) -> str:
    said = [f"[`{stage.file}`]({notebook}) with {', '.join(f'`{name}`' for name in written)}"
            for stage, written, notebook in _due_after(lesson)]  # fmt: skip
    return f"**You will write**, in *Your own transformer*: {'; '.join(said)}.\n\n" if said else ""


def _now_write_it(source: Source) -> str:
    """Return a text that says what readers write now, stage by stage, and how to see the course's version."""
    number, said = int(source.path.name[:2]), []
    found = _due_after(source.path)
    if not found:
        raise SourceError(source.path, 1, f"{NOW_WRITE_IT}: no stage of Your own transformer is written after it")
    for at, (stage, written, notebook) in enumerate(found):
        whole, more = due(stage), [lesson for lesson in due(stage) if lesson > number]
        link = f"[stage {stage.number}{' of *Your own transformer*' * (at == 0)}, {stage.title.lower()}]({notebook})"
        one = len(written) == 1
        if more:
            verb = "is the first part of" if one else "are the first part of"
        elif len(whole) > 1:
            verb = "completes" if one else "complete"
        else:
            verb = "makes up" if one else "make up"
        rest = f"; the rest follows in lesson {more[0]:02d}" if more else ""
        said.append(f"{_listed(written)} {verb} {link}{rest}.")
    commands = " and ".join(f"`companion build compare {stage.number}`" for stage, _, _ in found)
    shows = "show" if len(found) > 1 else "shows"
    told = f"Once your version passes its check, {commands} {shows} the course's version beside it."
    return f"**Now write it.** {' '.join(said)} {told}"


def _listed(names: tuple[str, ...]) -> str:
    *others, last = (f"`{name}`" for name in names)
    return f"{', '.join(others)} and {last}" if others else last


def _with_minutes(text: str, here: list[Part], source: Source) -> str:
    """Insert the minutes under the heading of each sitting or, in a deeper notebook, of each section."""
    rows = text.split("\n")
    for part in reversed(here):
        if part.is_sitting or is_deeper(source.path):
            rows.insert(part.line + 1, f"*{count(part.minutes, 'minute')}*")
            if part.line + 2 < len(rows) and rows[part.line + 2].strip():
                rows.insert(part.line + 2, "")
    return "\n".join(rows)


def _resolver(source: Source, said: list[Said]) -> Callable[[str, int], str]:
    """Return a function that resolves the roles in a text, given its first line, and adds `{out}` roles to `said`."""
    names = {cell.metadata.get("name") for cell in source.cells if cell.cell_type == "code"}

    def resolve(text: str, line: int) -> str:
        def link(found: re.Match[str]) -> str:
            role, words, target = found[1], (found[2] or "").strip(), (found[3] or found[4]).strip()
            where = line + text.count("\n", 0, found.start())
            if role == "ref":
                return _ref(source, words, target, where)
            if role == "deeper":
                return _deeper(source, words, target, where)
            if role == "out":
                if not words or target not in names:
                    what = (
                        f"{{out}}`{words or target}`: expected words and a cell's name, as in {{out}}`0.33 <trained>`"
                    )
                    raise SourceError(source.path, where, what)
                said.append(Said(words, target, where))
                return words
            raise SourceError(source.path, where, f"{{{role}}}: expected {{ref}}, {{deeper}} or {{out}}")

        return _ROLE.sub(link, text)

    return resolve


def _ref(source: Source, words: str, target: str, line: int) -> str:
    if target not in source.targets:
        known = ", ".join(source.targets) or "none"
        raise SourceError(source.path, line, f"{{ref}}`{target}`: there is no target ({target})=; there are: {known}")
    index = source.targets[target]
    above = [heading.text for heading in headings(source.cells) if heading.index <= index]
    name = notebook_of(source.path).split("/")[-1]
    return f"[{words or above[-1]}]({name}#cell-id={source.cells[index].id})"


def _deeper(source: Source, words: str, target: str, line: int) -> str:
    found = re.fullmatch(r"(\d\d)#([\w-]+)", target)
    if not words or not found:
        what = (
            f"{{deeper}}`{words or target}`: expected words and a place, as in {{deeper}}`the words <02#assumptions>`"
        )
        raise SourceError(source.path, line, what)
    if is_deeper(source.path):
        raise SourceError(source.path, line, "a deeper section stands alone: no {deeper} in it")
    paths = [
        path for path in sorted(deeper_source(source.path).parent.glob("[0-9][0-9]_*.md")) if path.name[:2] == found[1]
    ]
    there = _sections(paths[0]) if paths else {}
    if found[2] not in there:
        known = ", ".join(f"{found[1]}#{name}" for name in there) or "none"
        what = f"{{deeper}}`{words}`: there is no deeper section {target}; there are: {known}"
        raise SourceError(source.path, line, what)
    id, part = there[found[2]]
    return f"[*Deeper:* {words} ({count(part.minutes, 'minute')})]({notebook_of(paths[0])}#cell-id={id})"


def _sections(deeper: Path) -> dict[str, tuple[str, Part]]:
    """Return the cell id and part of each section in a deeper notebook, keyed by the target before its heading."""
    text = deeper.read_text(encoding="utf-8")
    return _sections_of(deeper, text)


@cache
def _sections_of(deeper: Path, text: str) -> dict[str, tuple[str, Part]]:
    source = read_source(deeper)
    counted = parts(source)
    found = {}
    for name, index in source.targets.items():
        here = [part for part in counted if part.index == index and part.line == 0]
        if here:
            found[name] = (source.cells[index].id, here[0])
    return found
