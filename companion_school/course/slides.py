"""Slides of a lesson, made by nbconvert from its notebook as it is stored.

A heading begins a slide; each figure, piece of code and question below it is a step down. Slides that are longer than
the screen scroll, so nothing is cut off.
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from companion.ground.atomic import write_atomic

_LEFT_OUT = re.compile(r"^#+ (Exercises|What to read next|Checkpoint)", re.MULTILINE)
_ASKED = re.compile(r'^ask\("[^"]+"\)', re.MULTILINE)
_STYLE = "<style>.reveal{font-size:26px} .reveal .jp-InputPrompt,.reveal .jp-OutputPrompt{display:none}</style>"


def with_slides(notebook: NotebookNode) -> NotebookNode:
    """The notebook with nbconvert's marks of slides in its cells."""
    is_left_out = False
    for cell in notebook.cells:
        heading = cell.cell_type == "markdown" and re.match(r"#+ ", cell.source)
        is_left_out = bool(_LEFT_OUT.match(cell.source)) if heading else is_left_out
        asked = cell.cell_type == "code" and _ASKED.search(cell.source)
        figure = cell.cell_type == "code" and "ext-figure" in str(cell.outputs)
        kind = "slide" if heading else "subslide"
        if "navigation" in cell.metadata.get("tags", ()) or (is_left_out and not asked):
            kind = "skip"
        cell.metadata["slideshow"] = {"slide_type": kind}
        if asked or figure:  # what is shown, and not the code that shows it
            cell.metadata["tags"] = [*cell.metadata.get("tags", ()), "shown"]
    return notebook


def write(lesson: str, folder: Path, out: Path, reveal: str) -> Path:
    """Write a lesson's slides into a folder; the file. `reveal`: the address or the folder of reveal.js."""
    from nbconvert import SlidesExporter
    from nbconvert.preprocessors import TagRemovePreprocessor

    source = read_lesson(lesson, folder)
    exporter = SlidesExporter(reveal_scroll=True, reveal_url_prefix=reveal, reveal_number="c/t")
    exporter.register_preprocessor(TagRemovePreprocessor(remove_input_tags={"shown"}), enabled=True)
    text, _ = exporter.from_notebook_node(with_slides(nbformat.read(source, as_version=4)))
    file = out / f"{source.stem}.html"
    write_atomic(file, text.replace("</head>", f"{_STYLE}</head>", 1))
    return file


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
