"""The steps from notebooks to pages: read, convert, render, check."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from sphinx.application import Sphinx

from authoring.build import difference
from authoring.lesson import Lesson, lessons, with_deeper
from authoring.pages import glossary, start
from authoring.question import SourceError
from authoring.site import explorer, extension, finish, flow, front, own, questions, reference, repository, search
from authoring.site.fault import Broken, Faults
from authoring.site.formula import Formulas
from authoring.site.links import Links
from authoring.site.notebook import Press, raw, text_of
from authoring.site.output import STYLES, Assets
from authoring.site.pages import BESIDE, TEACHING, Course, Page
from companion_school.course.release.notebooks import stale_files

HERE = Path(__file__).parent
THEME = HERE / "theme"
Way = tuple[str, str] | None  # a page's name and its label in the contents, or None for no page


def build(notebooks: Path, root: Path, work: Path) -> int:
    """Build the site in the folder `html` of `work`, and return the number of links that were checked.

    Raises:
        Broken: If anything is wrong. The message lists all faults that were found.
    """
    faults = Faults()
    course = Course.of(notebooks, root, faults)
    for place, found in _stale(notebooks):
        faults.add(f"{notebooks.name}/{place.relative_to(notebooks).as_posix()}", found)
    formulas, assets = Formulas(), Assets()
    there = reference.modules()
    home = repository.address(root, faults)
    press = Press(Links(course, reference.places(there), home, faults), assets, formulas, faults)
    texts, labels, kinds = _texts(course, there, press, home)
    for fault in formulas.convert():
        faults.add(*fault.split(": ", 1))
    faults.stop()
    shutil.rmtree(work, ignore_errors=True)
    _write(work / "source", {f"{name}.md": text.encode() for name, text in texts.items()} | assets.files)
    changed = repository.changed(course.folder)
    days = {page.name: changed[file] for file, page in course.pages.items() if file in changed}
    extension.SITE = extension.Site(formulas, _ways(course, texts, labels), kinds, days)
    _set(work, root)
    site = work / "html"
    shown = {name: content for name, content in assets.files.items() if name.startswith("_static/")}
    page = course.pages[glossary.FILE]
    terms = search.terms(
        page.source.read_text(encoding="utf-8"), lambda href: press.links.leads(href, page, page.place)
    )
    known = search.script([*extension.SITE.sections, *terms], glossary.aliases("aliases", "searched"))
    _write(site, shown | {STYLES: assets.sheet().encode(), "_static/sections.js": known.encode()})
    finish.clear(site)
    sources = {f"{page.name}.html": page.place for page in course.pages.values()}
    links = finish.check(site, sources, faults)
    faults.stop()
    return links


def _stale(notebooks: Path) -> Iterator[tuple[Path, str]]:
    written = lessons(notebooks=notebooks)
    faults = [(lesson.notebook, found) for lesson in with_deeper(written) if (found := _stale_lesson(lesson))]
    yield from faults
    for line in stale_files(notebooks):
        place, _, found = line.rpartition(": ")
        yield Path(place), f"{found}. Run: make notebooks"
    page = notebooks / start.FILE
    if not faults and page.read_text(encoding="utf-8") != start.render(written):
        yield page, "is not what the lessons make. Run: make notebooks"


def _stale_lesson(lesson: Lesson) -> str:
    """Return the reason why a notebook is out of date, or "" if it is up to date."""
    if not lesson.notebook.exists():
        return "has never been built. Run: make notebooks"
    try:
        found = difference(lesson)
    except SourceError as error:
        return str(error)
    return f"is not built as its source is: {found}. Run: make notebooks" if found else ""


def _texts(
    course: Course, there: list[reference.Module], press: Press, home: str
) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Return the texts of all pages, their labels in the contents, and their kinds, keyed by page name."""
    texts, labels, kinds = {}, {}, {}
    asked = questions.by_lesson()
    made = [
        *(("question", *entry) for entry in questions.texts(press, course)),
        *(("reference", *entry) for entry in reference.texts(there, reference.users(lessons()))),
        *(("beside", *entry) for entry in (*flow.texts(press.assets), *own.texts(course))),
    ]
    for kind, name, label, text in made:
        texts[name], labels[name], kinds[name] = text, label, kind
    for page in course.pages.values():
        labels[page.name], kinds[page.name] = page.label, page.kind
        if page.kind == "start":
            texts[page.name] = front.text(course, asked, press, home)
        else:
            texts[page.name] = _with_head(text_of(page, press), page, course, press, home)
    texts[course.pages[explorer.FILE].name] = explorer.with_explorer(
        texts[course.pages[explorer.FILE].name], press.assets
    )
    parts = {page.name: _children(page, course, labels) for page in course.of_kind("lesson")}
    for name, children in parts.items():
        texts[name] += _contents(children, labels)
    texts["index"] += "".join(
        _contents(names, labels, caption)
        for caption, names in (
            ("Lessons", parts),
            ("See it live", [flow.PAGES[0][0], course.pages[explorer.FILE].name, flow.PAGES[1][0]]),
            (own.LABEL, [own.INDEX]),
            ("Beside the lessons", [*(course.pages[file].name for file, _ in BESIDE[1:]), questions.INDEX]),
            ("The package", [reference.INDEX]),
            ("Teaching", [course.pages[file].name for file, _ in TEACHING]),
        )
    )
    texts[own.INDEX] += _contents([page.name for page in course.of_kind("stage")], labels)
    texts[reference.INDEX] += _contents(
        [name for name in texts if kinds[name] == "reference" and name != reference.INDEX], labels
    )
    return texts, labels, kinds


def _children(lesson: Page, course: Course, labels: dict[str, str]) -> list[str]:
    pages = [page.name for kind in ("deeper", "exercises") if (page := course.part(kind, lesson.lesson))]
    return [*pages, *(name for name in [f"questions/{lesson.lesson}"] if name in labels)]


def _with_head(text: str, page: Page, course: Course, press: Press, home: str) -> str:
    """Add a line under a page's title with links to related pages and to services that open the notebook."""
    if page.source.suffix != ".ipynb":
        return text
    links = [f"Lesson {page.lesson}"] if page.kind == "lesson" else []
    for kind, label in (("lesson", f"Lesson {page.lesson}"), ("exercises", "Exercises"), ("deeper", "Deeper")):
        other = course.part(kind, page.lesson)
        if other and other is not page:
            links.append(f'<a href="{page.up}{other.name}.html">{label}</a>')
    if page.lesson in questions.by_lesson():
        links.append(f'<a href="{page.up}questions/{page.lesson}.html">Questions</a>')
    if page.kind == "stage":
        links = [f'<a href="{page.up}{own.INDEX}.html">{own.LABEL}</a>']
    head = f'<p class="belongs">{" · ".join(links)}</p>{repository.bar(home, page)}'
    runs = own.where_to_run(page, press) if page.kind in ("exercises", "stage") else ""
    before, title, after = re.split(r"^(# .*)$", text, maxsplit=1, flags=re.MULTILINE)
    return f"{before}{title}\n\n{raw(head)}\n{runs}\n{after}"


def _contents(names: Iterable[str], labels: dict[str, str], caption: str = "") -> str:
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    lines = [f"{labels[name]} </{name}>" for name in names]
    return "\n\n" + "\n".join(["```{toctree}", *options, "", *lines, "```"]) + "\n"


def _ways(course: Course, texts: dict[str, str], labels: dict[str, str]) -> dict[str, tuple[Way, Way]]:
    """Return the previous and the next page of each page.

    Lessons follow lessons. For a page that belongs to a lesson, the previous page is that lesson.
    """

    def row(names: list[str]) -> dict[str, tuple[Way, Way]]:
        entries: list[Way] = [(name, labels[name]) for name in names]
        around = [None, *entries, None]
        return {name: (around[at], around[at + 2]) for at, name in enumerate(names)}

    stages = [own.INDEX, *(page.name for page in course.of_kind("stage"))]
    path = ["index", *(page.name for page in course.of_kind("lesson"))]
    beside = [page.name for page in course.of_kind("beside")]
    package = [reference.INDEX, *(name for name in texts if name.startswith("reference/") and name != reference.INDEX)]
    ways = row(path) | row(beside) | row(package) | row(stages)
    for lesson in course.of_kind("lesson"):
        after = ways[lesson.name][1]
        for name in _children(lesson, course, labels):
            ways[name] = ((lesson.name, lesson.label), after)
    return ways


def _write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _set(work: Path, root: Path) -> None:
    """Render the pages with Sphinx. Raise `Broken` if it warns or fails."""
    said = io.StringIO()
    source, html, doctrees = work / "source", work / "html", work / "doctrees"
    app = Sphinx(source, None, html, doctrees, "html", _settings(root), io.StringIO(), said, freshenv=True)
    app.build(force_all=True)
    warnings = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in said.getvalue().splitlines() if line.strip()]
    if warnings or app.statuscode:
        raise Broken(line.replace(f"{source}/", "") for line in warnings or ["Sphinx failed"])


def _colours(blue: str) -> dict[str, str]:
    """Return theme variables for the figures' blue, in a shade that is readable as text."""
    return {f"color-brand-{what}": blue for what in ("primary", "content")}


def _settings(root: Path) -> dict[str, Any]:
    citation = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))
    title = citation["title"].split(":")[0]
    return {
        "project": title,
        "html_title": title,
        "version": str(citation["version"]),
        "copyright": f"{str(citation['date-released'])[:4]}, {citation['authors'][0]['name']}",
        "html_context": {
            "authors": ", ".join(author["name"] for author in citation["authors"]),
            "released": str(citation["date-released"]),
        },
        "extensions": ["myst_parser", "authoring.site.extension"],
        "myst_enable_extensions": ["dollarmath", "deflist"],
        "myst_disable_syntax": ["myst_line_comment", "myst_block_break", "myst_target", "myst_role", "colon_fence"],
        "myst_all_links_external": True,
        "myst_heading_anchors": 4,
        "html_theme": "furo",
        "html_math_renderer": "mathml",
        "html_static_path": [str(THEME / "static")],
        "templates_path": [str(THEME / "templates")],
        "html_css_files": ["outputs.css", "site.css"],
        "html_js_files": [("site.js", {"defer": "defer"}), ("phone.js", {"defer": "defer"})],
        "html_theme_options": {"light_css_variables": _colours("#0067a3"), "dark_css_variables": _colours("#5fb0ea")},
        "html_copy_source": False,
        "html_show_sourcelink": False,
        "html_use_index": False,
        "html_permalinks_icon": "#",
        "html_baseurl": "",
        "highlight_language": "none",
        "smartquotes": False,
        "language": "en",
        "nitpicky": True,
    }
