"""figures/front.png: a figure that a lesson has drawn, for the top of the README and for the start page.

The figure is taken unchanged from the executed notebook, so the README shows what readers see when they run it.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import nbformat
from PIL import Image, ImageChops, ImageDraw, ImageFont, PngImagePlugin

from authoring.figure_contract import figures_in, words
from authoring.lesson import NOTEBOOKS, Lesson, LessonError
from authoring.pages import drawing

FILE = "figures/front.png"
# (lesson, beginning of the figure's alternative text, caption)
SHOWN = (
    (4, "Five small pictures", "Lesson 04: five clock hands, found in the positions that a published model learned"),
)
HEIGHT, CAPTION, GAP = 430, 60, 24
LETTERS = 40
"""Height of a caption's letters in pixels. Readers see them at a third of this size."""
ALT = (
    "A figure from lesson 04: five rotations in the table of positions that all-MiniLM-L6-v2 learned, each about three "
    "times as slow as the one before."
)


def picture(lesson: Lesson, begins: str) -> bytes:
    """Return the PNG of the figure in the lesson's notebook whose alternative text has the given beginning.

    Raises:
        LessonError: The notebook has no such figure.
    """
    notebook = nbformat.read(NOTEBOOKS / f"{lesson.name}.ipynb", as_version=4)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            page = "".join(output.get("data", {}).get("text/html", ""))
            for _, inside in figures_in(page):
                if words(inside).startswith(begins):
                    return base64.b64decode(re.search(r'src="data:image/png;base64,([^"]+)"', inside)[1])
    raise LessonError(f"{lesson.name} has no figure whose alternative text begins {begins!r}; see SHOWN in {__name__}")


def _pictures(lessons: Sequence[Lesson]) -> list[tuple[bytes, str]]:
    by_number = {lesson.number: lesson for lesson in lessons}
    return [(picture(by_number[number], begins), caption) for number, begins, caption in SHOWN]


def inputs(lessons: Sequence[Lesson]) -> str:
    """Return a digest of everything that affects the picture."""
    parts = [(hashlib.sha256(png).hexdigest(), caption) for png, caption in _pictures(lessons)]
    return drawing.digest(parts, Path(__file__))


def draw(lessons: Sequence[Lesson]) -> bytes:
    """Draw the figures side by side at the same height, with their captions, on a white background."""
    font_file = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    font = ImageFont.truetype(str(font_file), LETTERS)
    panels = []
    for png, caption in _pictures(lessons):
        figure = Image.open(io.BytesIO(png)).convert("RGB")
        figure = figure.crop(ImageChops.difference(figure, Image.new("RGB", figure.size, "white")).getbbox())
        figure = figure.resize((round(figure.width * HEIGHT / figure.height), HEIGHT), Image.Resampling.LANCZOS)
        panels.append((figure, caption))
    width = sum(figure.width for figure, _ in panels) + GAP * (len(panels) + 1)
    whole = Image.new("RGB", (width, HEIGHT + CAPTION + 2 * GAP), "white")
    pen, x = ImageDraw.Draw(whole), GAP
    for figure, caption in panels:
        whole.paste(figure, (x, GAP))
        pen.text(
            (x + figure.width / 2, GAP + HEIGHT + CAPTION / 2 + 6), caption, fill=drawing.INK, font=font, anchor="mm"
        )
        x += figure.width + GAP
    said, stored = PngImagePlugin.PngInfo(), io.BytesIO()
    said.add_text("Description", f"from {inputs(lessons)}")
    whole.quantize(128, dither=Image.Dither.NONE).save(stored, format="png", optimize=True, pnginfo=said)
    return stored.getvalue()
