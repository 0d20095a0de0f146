"""*Your own transformer* on the site: the page that lists its stages, and a note on pages whose cells must be run."""

from __future__ import annotations

import html
from collections.abc import Iterator
from pathlib import Path

from authoring.site.notebook import Press, raw
from authoring.site.pages import Course, Page
from companion_school.build.stages import STAGES, Stage

INDEX = "your_own_transformer"
LABEL = "Your own transformer"
NOTEBOOKS = "_static/notebooks"
TEXT = Path(__file__).with_suffix(".md")


def texts(course: Course) -> Iterator[tuple[str, str, str]]:
    """Yield the page's name, its label in the contents, and its text."""
    rows = "".join(_row(stage, course) for stage in STAGES.values())
    head = "<thead><tr><th>stage</th><th>your file</th><th>lessons</th><th>minutes</th></tr></thead>"
    hours = round(sum(stage.minutes for stage in STAGES.values()) / 60)
    text = TEXT.read_text(encoding="utf-8").format(count=len(STAGES), hours=hours)
    table = raw(f'<table class="progress-table">{head}<tbody>{rows}</tbody></table>')
    yield INDEX, LABEL, f"{text}\n{table}\n"


def _row(stage: Stage, course: Course) -> str:
    page = course.part("stage", str(stage.number))
    title = f"{stage.number}. {html.escape(stage.title)}"
    name = f'<a href="{page.name}.html">{title}</a>' if page else title
    after = " ".join(_lesson(f"{number:02d}", course) for number in stage.lessons)
    cells = (name, f"<code>{stage.file}</code>", after, str(stage.minutes))
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _lesson(number: str, course: Course) -> str:
    page = course.part("lesson", number)
    return f'<a href="{page.name}.html" title="{html.escape(page.label)}">{number}</a>' if page else number


def where_to_run(page: Page, press: Press) -> str:
    """Return the note at the top of pages whose cells readers should run, with a link to the notebook."""
    file = f"{NOTEBOOKS}/{page.source.name}"
    press.assets.files[file] = page.source.read_bytes()
    place = page.source.relative_to(page.source.parents[1]).as_posix()
    return raw(
        '<p class="runs-elsewhere">This page is for reading: nothing on it can be run or checked. To work, open '
        f"<code>my/{place}</code> in JupyterLab, which <code>make lab</code> starts in your copy of the course, or "
        f'<a href="{page.up}{file}" download>download this notebook</a> and open it wherever the course is '
        "installed.</p>"
    )
