"""Slides of a lesson, made from its notebook as it is stored: one idea a slide, what the lesson says of it as notes.

A slide is a heading with a figure and its caption, an equation, a piece of code with what it prints, or a question,
whose answer comes with the next step. The prose goes into the speaker's notes (press S). nbconvert's exporter for
reveal.js writes the page. Formulas become MathML, which browsers draw by themselves, so that reveal.js is all that a
page needs besides: from an address, or, without network, from an unpacked npm package, whose files it then holds.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from companion.ground.display import count
from companion_school.questions.question import Question, find_question

NEEDED = ("dist/reveal.css", "dist/theme/white.css", "dist/reveal.js", "plugin/notes/notes.js")
BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "msedge",
    "microsoft-edge",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
LONGEST_CODE = 18  # lines that can still be read from the back of a room
TERMS = 4
"""Sentences with a term that a heading without figure, equation and code gets, at most."""

_FORMULA = re.compile(r"\$\$(?P<display>.+?)\$\$|(?<![\\$\w])\$(?P<inline>[^$\n]+?)\$(?!\d)", re.DOTALL)
_TAG = re.compile(r"\\tag\{([^}]*)\}")
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\([^)\s]+\)")
_ASKED = re.compile(r'^ask\("([^"]+)"\)', re.MULTILINE)
_NUMBERED = re.compile(r"^Sitting \d+: ")
_FENCE = re.compile(r"(```.*?```|`[^`\n]+`)", re.DOTALL)
_SENTENCE = re.compile(r"(?<=[.?!])\s+(?=[A-Z*$])")
_ASIDE = re.compile(r"You can stop here\.|\*\d+ minutes?\*$|\[\*Deeper:\*")  # the reader's way, not the lesson's matter
_LEFT_OUT = ("Exercises", "What to read next", "Checkpoint")
"""Headings under which only questions go onto slides."""

_TEMPLATE = """{%- extends 'reveal/index.html.j2' -%}
{%- block html_head_js -%}{%- endblock -%}
{%- block html_head_js_mathjax -%}
<style>
.reveal{font-size:28px} .reveal :is(h1,h2,h3){text-transform:none !important}
.reveal .jp-RenderedHTMLCommon p{font-size:1.2em} .reveal .celltag_shown .jp-Cell-inputWrapper{display:none}
.reveal math{font-size:1.15em} .reveal math[display=block]{font-size:1.35em;margin:.6em 0}
.reveal .number{display:block;text-align:right}
.reveal .ext-figure{margin:0 auto;text-align:left} .reveal .ext-figure details{display:none}
.reveal .ext-figure figcaption{font-size:17px} .reveal .jp-InputPrompt,.reveal .jp-OutputPrompt{display:none}
.reveal .highlight pre,.reveal .jp-OutputArea-output pre{font-size:17px;line-height:1.3;width:auto;box-shadow:none}
.reveal ol[type=a]{display:inline-block;text-align:left} .reveal li{margin:.25em 0}
.reveal .answer{border-left:6px solid #007a59;padding-left:.6em;text-align:left}
</style>
{%- endblock -%}
{%- block footer_js -%}
<script src="{{ resources.reveal.url_prefix }}/dist/reveal.js"></script>
<script src="{{ resources.reveal.url_prefix }}/plugin/notes/notes.js"></script>
<script>
Reveal.initialize({hash: true, slideNumber: "c/t", transition: "none", width: 1100, height: 700,
                   plugins: [RevealNotes], pdfSeparateFragments: false, pdfMaxPagesPerSlide: 1});
</script>
{%- endblock -%}
"""


@dataclass
class Slide:
    """One slide: its cells, the first of which begins it, and what the lesson says beside them.

    top:  begins a column of its own, as a sitting does; all others stand below one.
    """

    cells: list[NotebookNode]
    notes: list[str] = field(default_factory=list)
    top: bool = False


class Slides:
    """The slides of a lesson, collected in the order of its cells."""

    def __init__(self) -> None:
        self.made: list[Slide] = []
        self._heading = ""
        self._under = True  # whether prose says more of the last slide, or waits for the next one
        self._waiting: list[str] = []

    def read(self, cell: NotebookNode) -> None:
        """Take over what a cell has for a room."""
        if "navigation" in cell.metadata.get("tags", ()):
            return
        if cell.cell_type == "markdown":
            for block in _blocks(cell.source):
                self._block(block)
        elif asked := _ASKED.search(cell.source):
            self._question(find_question(asked[1]))
        elif self._heading in _LEFT_OUT:
            return
        elif any("ext-figure" in out.get("data", {}).get("text/html", "") for out in cell.outputs):
            figures = [out for out in cell.outputs if "text/html" in out.get("data", {})]
            self._add(_shown(figures))
        elif "folded" not in cell.metadata.get("tags", ()) and len(cell.source.splitlines()) <= LONGEST_CODE:
            self._add(new_code_cell(cell.source, outputs=_printed(cell.outputs)))

    def end(self) -> list[Slide]:
        """All slides, the last heading's among them."""
        self._close()
        return self.made

    def _block(self, block: str) -> None:
        if heading := re.match(r"(#{1,3}) (.+)", block):
            self._close()
            level, self._heading = len(heading[1]), heading[2].strip()
            self._under, self._waiting = False, []
            if level < 3 and self._heading not in _LEFT_OUT:
                self.made.append(Slide([_text(f"{'#' * level} {self._heading}")], top=True))
                self._under = level == 1
                self._heading = _NUMBERED.sub("", self._heading)
            rest = block.partition("\n")[2].strip()
            if rest:
                self._block(rest)
        elif self._heading in _LEFT_OUT or _ASIDE.match(block):
            return
        elif block.startswith("$$"):
            before = self._waiting[-1] if self._waiting else (self.made[-1].notes or [""])[-1]
            self._add(_text(f"{_last_sentence(before)}\n\n{block}"))
        elif self._heading == "Summary":
            self._list(block)
        elif block.startswith("|"):
            self._add(_text(block))
        elif len(self.made) == 1 and not self.made[0].notes and block.startswith("**"):
            self.made[0].cells.append(_text(block))
            self.made[0].notes.append(block)
        elif self._under:
            self.made[-1].notes.append(block)
        else:
            self._waiting.append(block)

    def _list(self, block: str) -> None:
        """The sentences of a summary, four a slide."""
        points = re.split(r"\n(?=[-*] |\d+\. )", block)
        for start in range(0, len(points), 4):
            self._add(_text("\n".join(points[start : start + 4])))

    def _add(self, *cells: NotebookNode) -> None:
        """A slide under the heading that holds, with the prose that led to it."""
        heading = [_text(f"### {self._heading}")] if self._heading and self._heading != "Summary" else []
        self.made.append(Slide([*heading, *cells], self._waiting))
        self._waiting, self._under = [], True

    def _question(self, question: Question) -> None:
        self.made.append(Slide([_text(asked(question)), _text(answered(question), "fragment")], self._waiting))
        self._waiting, self._under = [], True

    def _close(self) -> None:
        """A heading with nothing but prose: the sentences that explain a term, else the first one."""
        if not self._waiting:
            return
        sentences = _SENTENCE.split(" ".join(" ".join(self._waiting).split()))
        terms = [one for one in sentences if "**" in one and one.count("**") % 2 == 0][:TERMS] or sentences[:1]
        self._add(_text("\n".join(f"- {one}" for one in terms)))


def asked(question: Question) -> str:
    """What a question's slide shows first, in Markdown."""
    choices = "".join(f"<li>{_inline(answer.text)}</li>" for answer in question.answers)
    listed = f'\n\n<ol type="a">{choices}</ol>' if question.kind == "choice" else ""
    return f"### Question {question.id}\n\n{question.text}{listed}"


def answered(question: Question) -> str:
    """What comes with the next step, in Markdown."""
    if question.right is None:
        return f'<div class="answer">\n\n{question.outcome}\n\n</div>'
    right, letter = question.right, ""
    if question.kind == "choice":
        letter = f"{'abcdefghijklmnopqrstuvwxyz'[list(question.answers).index(right)]}) "
    return f'<div class="answer">\n\n**{letter}{right.text}** {right.why}\n\n</div>'


def slides_of(notebook: NotebookNode) -> list[Slide]:
    """The slides of a lesson's notebook."""
    slides = Slides()
    for cell in notebook.cells:
        slides.read(cell)
    return slides.end()


def as_notebook(slides: Sequence[Slide]) -> NotebookNode:
    """The slides as nbconvert wants them: a notebook whose cells say what they are on a slide."""
    cells = []
    for slide in slides:
        for at, cell in enumerate(slide.cells):
            kind = cell.metadata.get("slideshow", {}).get("slide_type", "-")
            begins = "slide" if slide.top else "subslide"
            cell.metadata["slideshow"] = {"slide_type": begins if at == 0 else kind}
            cells.append(cell)
        if slide.notes:
            cells.append(_text("\n\n".join(slide.notes), "notes"))
    for number, cell in enumerate(cells):
        cell["id"] = f"slide-{number}"
    return new_notebook(cells=cells)


def page(notebook: NotebookNode, title: str, reveal: str) -> str:
    """The HTML of a lesson's slides.

    reveal:  an address of reveal.js 4, or a folder with its npm package: then the page holds its files and needs no
             network.

    Raises `ValueError` for a folder that is no such package.
    """
    from nbconvert.exporters import SlidesExporter  # slow to import

    made = as_notebook(slides_of(notebook))
    made.metadata["title"] = title
    is_address = reveal.startswith(("https://", "http://"))
    files = {} if is_address else _package(Path(reveal))
    exporter = SlidesExporter(raw_template=_TEMPLATE)
    exporter.reveal_theme = "white"
    exporter.reveal_url_prefix = prefix = reveal.rstrip("/") if is_address else "reveal.js"
    text, _ = exporter.from_notebook_node(made)
    for name, content in files.items():
        address = f"{prefix}/{name}"
        if name.endswith(".css"):
            link = rf'<link [^>]*href="{re.escape(address)}"[^>]*>'
            text = re.sub(link, _once(f"<style>{content}</style>"), text)
        else:
            script = re.sub(
                r"<(?=!--|/?script)", r"\\x3C", content
            )  # in its strings: a page would read them as its own
            text = text.replace(f'<script src="{address}"></script>', f"<script>{script}</script>")
    return str(text)


def _once(text: str) -> Callable[[re.Match[str]], str]:
    return lambda _: text


def _package(folder: Path) -> dict[str, str]:
    """The files of reveal.js that a page needs, with the theme's fonts left to the system."""
    if missing := [name for name in NEEDED if not (folder / name).is_file()]:
        raise ValueError(
            f"--reveal {folder}: expected an address, or the folder of the npm package reveal.js 4 "
            f"(npm pack reveal.js@4.6.1, and unpack it), and it has no {missing[0]}"
        )
    texts = {name: (folder / name).read_text(encoding="utf-8") for name in NEEDED}
    return {name: re.sub(r"@import url\([^)]*\);?", "", text) for name, text in texts.items()}


def browser() -> str | None:
    """A browser of this machine that prints, or None."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def print_pdf(html: Path, pdf: Path, program: str, least: int = 2) -> None:
    """Let a browser print a page of slides. Raises `ValueError` where it does not.

    On a machine that has much to do it may print before the slides are laid out, or before reveal.js has come, on fewer
    pages than there are slides: it is then given more time.

    least:  how many slides there are, each of which takes a page at least.
    """
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer"]
    address = f"{html.resolve().as_uri()}?print-pdf"
    for seconds in (30, 120, 600):  # as the page's clock counts them, which need not be waited for
        more = [f"--virtual-time-budget={1000 * seconds}", f"--print-to-pdf={pdf.resolve()}", address]
        try:
            done = subprocess.run([program, *flags, *more], capture_output=True, text=True, timeout=300)
        except subprocess.TimeoutExpired:
            raise ValueError(f"--pdf: {program} did not print {html.name} in five minutes") from None
        if done.returncode != 0 or not pdf.is_file():
            raise ValueError(f"--pdf: {program} did not print {html.name}: {done.stderr.strip()[-200:]}")
        if pages(pdf) >= least:
            return
    printed = count(pages(pdf), "page")
    pdf.unlink()
    raise ValueError(
        f"--pdf: {program} printed {printed} of {html.name}, which has {least} slides: did the page find reveal.js? "
        "--reveal FOLDER puts it into the page"
    )


def how_many(lesson: str, folder: Path) -> int:
    """How many slides a lesson has."""
    return len(slides_of(nbformat.read(read_lesson(lesson, folder), as_version=4)))


def pages(pdf: Path) -> int:
    """How many pages a PDF has, as browsers write them."""
    return len(re.findall(rb"/Type\s*/Page\b", pdf.read_bytes()))


def _blocks(source: str) -> list[str]:
    """The paragraphs of a cell; equations are blocks of their own, and code in fences stays whole."""
    made: list[str] = []
    for part in re.split(r"(\$\$.+?\$\$|^```.*?^```)", source, flags=re.DOTALL | re.MULTILINE):
        whole = part.startswith(("$$", "```"))
        made += [part] if whole else [block.strip() for block in re.split(r"\n\s*\n", part)]
    return [block for block in made if block]


def _last_sentence(paragraph: str) -> str:
    return _SENTENCE.split(" ".join(paragraph.split()))[-1] if paragraph else ""


def _shown(outputs: Sequence[Any]) -> NotebookNode:
    """A cell that shows what was drawn, and not the code that drew it."""
    return new_code_cell("", outputs=list(outputs), metadata={"tags": ["shown"]})


def _printed(outputs: Sequence[Any]) -> list[Any]:
    return [out for out in outputs if out.output_type in ("stream", "execute_result", "display_data")]


def _text(markdown: str, kind: str = "-") -> NotebookNode:
    return new_markdown_cell(_prose(markdown), metadata={"slideshow": {"slide_type": kind}})


def _prose(markdown: str) -> str:
    """Markdown without links, which lead nowhere from a slide, and with its formulas as MathML; code as it is."""
    parts = _FENCE.split(_LINK.sub(r"\1", markdown))  # a link's text may be code
    return "".join(part if at % 2 else _FORMULA.sub(_mathml, part) for at, part in enumerate(parts))


def _inline(markdown: str) -> str:
    """A choice's text as HTML."""
    from nbconvert.filters import markdown2html

    return re.sub(r"^\s*<p>(.*)</p>\s*$", r"\1", str(markdown2html(_prose(markdown))), flags=re.DOTALL)


def _mathml(found: re.Match[str]) -> str:
    from latex2mathml.converter import convert

    formula = found["display"] or found["inline"]
    tag = _TAG.search(formula)
    made = convert(_TAG.sub("", formula).strip(), display="block" if found["display"] else "inline")
    made = " ".join(str(made).split())
    return f'\n\n{made}\n\n<span class="number">({tag[1]})</span>\n\n' if tag else made


def lessons_folder(named: str | None) -> Path:
    """The folder of the lessons' notebooks: the one that is named, the one of the course around, or of the one that the
    package stands in. Raises `ValueError` where there is none."""
    import companion

    places = [Path(named)] if named else [Path("notebooks"), Path(companion.__file__).parents[1] / "notebooks"]
    found = next((place for place in places if any(place.glob("[0-9][0-9]_*.ipynb"))), None)
    if found is None:
        raise ValueError(
            f"--notebooks{f' {named}' if named else ''}: expected a folder with the lessons' notebooks, which come "
            "with the course and not with the package; found none"
        )
    return found


def read_lesson(name: str, folder: Path) -> Path:
    """The notebook of a lesson, by its number. Raises `ValueError` where there is none."""
    found = sorted(folder.glob(f"{int(name):02d}_*.ipynb")) if re.fullmatch(r"\d{1,2}", name) else []
    if not found:
        raise ValueError(f"lesson {name!r}: expected the number of a notebook in {folder}, as in 05")
    return found[0]


def write(lesson: str, folder: Path, out: Path, reveal: str) -> Path:
    """Write a lesson's slides into a folder; the file."""
    from companion.ground.atomic import write_atomic

    source = read_lesson(lesson, folder)
    notebook = nbformat.read(source, as_version=4)
    file = out / f"{source.stem}.html"
    write_atomic(file, page(notebook, source.stem.replace("_", " "), reveal))
    return file
