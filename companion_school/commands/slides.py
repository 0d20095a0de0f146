"""`companion course slides`: a lesson's slides, as a page for a browser and as PDF."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import Namespace

from companion.commands.parser import Parser
from companion.commands.preflight import must_be_writable
from companion.ground.waiting import waiting

REVEAL = "https://unpkg.com/reveal.js@4.6.1"
"""Where reveal.js comes from unless a teacher says otherwise. nbconvert 7 writes pages for its version 4."""


def parser() -> Parser:
    made = Parser(
        description=(
            "Make slides of lessons from their notebooks as they are stored: a slide for each figure, equation, piece "
            "of code and question, whose answer comes with the next step. The lesson's prose is in the speaker's "
            "notes: press S. Nothing is run. The page takes reveal.js from an address when it is opened; with "
            "--reveal FOLDER, the unpacked npm package, it holds all that it needs and wants no network."
        ),
        epilog=(
            "examples:\n"
            "  companion course slides 05\n"
            "  companion course slides 05 06 --out slides/ --pdf\n"
            "  npm pack reveal.js@4.6.1 && tar xzf reveal.js-4.6.1.tgz\n"
            "  companion course slides 05 --reveal package/"
        ),
    )
    made.add_argument("lessons", type=str, nargs="+", metavar="NN", help="the lessons, as in 05")
    made.add_argument(
        "--notebooks",
        type=str,
        default=None,
        metavar="FOLDER",
        help="the lessons' notebooks. Default: found where the course is",
    )
    made.add_argument("--out", type=str, default="slides", metavar="FOLDER", help="where to; made where there is none")
    made.add_argument(
        "--reveal", type=str, default=REVEAL, metavar="PLACE", help="reveal.js 4: an address, or a folder"
    )
    made.add_argument("--pdf", action="store_true", help="let a browser of this machine print them as well")
    return made


def run(flags: Namespace) -> int:
    from companion_school.course import slides

    folder, out = slides.lessons_folder(flags.notebooks), Path(flags.out)
    for lesson in flags.lessons:
        slides.read_lesson(lesson, folder)
    must_be_writable(out, "--out")
    program = slides.browser() if flags.pdf else None
    if flags.pdf and program is None:
        raise ValueError(
            "--pdf: expected Chromium, Chrome or Edge on this machine, and found none; leave it out, open the page "
            "with ?print-pdf behind its address in such a browser, and print it to a file"
        )
    for lesson in flags.lessons:
        with waiting(f"slides of lesson {lesson}"):
            file = slides.write(lesson, folder, out, flags.reveal)
        print(f"{file}: written")
        if program is not None:
            with waiting(f"printing lesson {lesson}"):
                slides.print_pdf(file, file.with_suffix(".pdf"), program, slides.how_many(lesson, folder))
            print(f"{file.with_suffix('.pdf')}: written")
    if flags.reveal.startswith(("https://", "http://")):
        print(
            f"\nThe pages take reveal.js from {flags.reveal} when they are opened; --reveal FOLDER puts it into them."
        )
    return 0
