"""Slides of a lesson, which nbconvert generates from the stored notebook without running it.

Each heading starts a new slide, and every other cell below it becomes a subslide. Slides that are taller than the
screen can be scrolled, so nothing is cut off.
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
    """Write nbconvert's slide types into the metadata of a notebook's cells, and return the notebook."""
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
        if asked or figure:  # the slides show this cell's output but not its code
            cell.metadata["tags"] = [*cell.metadata.get("tags", ()), "shown"]
    return notebook


def write(lesson: str, folder: Path, out: Path, reveal: str) -> Path:
    """Write a lesson's slides into a folder.

    Args:
        lesson: Number of the lesson, as in "05".
        folder: Folder of the lessons' notebooks.
        out: Output folder.
        reveal: URL or folder of reveal.js.

    Returns:
        The path of the HTML file.
    """
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
    """Find the folder of the lessons' notebooks.

    If a folder is given, no other is tried. Otherwise the candidates are `notebooks` in the current folder and
    `notebooks` beside the `companion` package.

    Raises:
        ValueError: If no candidate holds a lesson's notebook.
    """
    import companion

    places = [Path(named)] if named else [Path("notebooks"), Path(companion.__file__).parents[1] / "notebooks"]
    found = next((place for place in places if any(place.glob("[0-9][0-9]_*.ipynb"))), None)
    if found is None:
        raise ValueError(
            f"--notebooks{f' {named}' if named else ''}: expected a folder with the lessons' notebooks, which are "
            "part of the course but not of the package; found none"
        )
    return found


def read_lesson(name: str, folder: Path) -> Path:
    """Return the path of a lesson's notebook, given the lesson's number. Raises `ValueError` if it does not exist."""
    found = sorted(folder.glob(f"{int(name):02d}_*.ipynb")) if re.fullmatch(r"\d{1,2}", name) else []
    if not found:
        raise ValueError(f"lesson {name!r}: expected the number of a notebook in {folder}, as in 05")
    return found[0]
