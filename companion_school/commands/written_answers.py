"""The commands `companion course collect` and `companion course mark`, for written answers and their marks."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import Namespace

from companion.commands.parser import Parser
from companion.ground.atomic import must_be_writable, write_atomic
from companion.ground.display import count
from companion.ground.waiting import counting


def collect_parser() -> Parser:
    parser = Parser(
        description=(
            "Collect the written answers of a class in one marking sheet, a CSV file with one row per answer and "
            "empty columns for points and comments. A page with the same name (sheet.html) shows each answer with "
            "what the student's code printed and drew. PSET_marking.md, which `release` wrote, contains the rubric. "
            "If the sheet exists already, marks of unchanged answers are preserved."
        ),
        epilog=(
            "examples:\n"
            "  companion course collect submissions/ --pset week14 --to sheet.csv\n"
            "  companion course mark sheet.csv --into marks/week14"
        ),
    )
    parser.add_argument("folder", metavar="FOLDER", help="folder of submissions")
    parser.add_argument("--pset", help="problem set: its name, its notebook, or the folder of the notebook")
    parser.add_argument(
        "--written",
        nargs="+",
        default=[],
        metavar="N.NAME",
        help="collect these written questions instead of those of the problem set, for example 14.curves",
    )
    parser.add_argument("--to", metavar="SHEET", help="output file")
    parser.add_argument("--blind", action="store_true", help="leave out the names of the students")
    return parser


def mark_parser() -> Parser:
    parser = Parser(
        description=(
            "Read the points and comments of a marking sheet into the marks that `companion grade` wrote, and "
            "update its tables and pages. Points must equal those of a level in the rubric, or lie halfway between "
            "two levels. Rows without points stay unmarked. If the submissions are graded again, the points are "
            "preserved as long as the texts have not changed. If any row is invalid, nothing is written.\n\n"
            "Without a sheet, tables and pages are updated from the files that you have changed: overrides.csv in "
            "the folder of marks (student_id,item,points,reason,author), and PSET.toml and extensions.csv in the "
            "folder of the problem set."
        ),
        epilog=(
            "examples:\n  companion course mark sheet.csv --into marks/week14\n"
            "  companion course mark --into marks/week14"
        ),
    )
    parser.add_argument("sheet", nargs="?", metavar="SHEET", help="marking sheet with points")
    parser.add_argument("--into", metavar="FOLDER", help="folder that `companion grade` wrote")
    return parser


def collect(flags: Namespace) -> int:
    from companion_school.course.grading.grade import grade
    from companion_school.course.grading.submissions import handed_in
    from companion_school.course.grading.what_to_grade import choose
    from companion_school.course.written.sheet import read_sheet, rows_of, sheet, sheet_page

    if flags.to is None:
        raise ValueError("--to: expected a file to write, got none; for example --to sheet.csv")
    folder, to = Path(flags.folder), Path(flags.to)
    if to.is_dir():
        raise ValueError(f"--to {to}: expected a file, got a folder")
    must_be_writable(to.absolute().parent, "--to", str(to))
    task = choose(flags.written, flags.pset, None, [Path(), folder, folder.parent], b"")
    written = task.written
    if not written:
        raise ValueError("--pset: expected a problem set with written answers, found none")
    known = read_sheet(to) if to.is_file() else {}
    handed = handed_in(folder, task.name or None)
    # one process is enough, because a second one would take longer to load PyTorch than to read the answers
    with counting(len(handed), unit="submission", what="reading") as step:
        graded = grade(handed, [], b"", written=written, jobs=1, runs=True, done=lambda _: step(1))
    rows, shown = rows_of(graded, blind=flags.blind), to.with_suffix(".html")
    write_atomic(to, sheet(rows, known))
    write_atomic(shown, sheet_page(rows))
    same: dict[tuple[str, str], list[str]] = {}
    for student, text in ((one.handed.student, text) for one in graded for text in one.texts):
        if text.text:
            same.setdefault((text.item.id, text.text), []).append(student)
        else:
            print(f"{student}: no text for {text.item.id}")
    models = {(item.id, item.model) for item in written}
    for key, students in same.items():
        who = count(len(students), "student") if flags.blind else ", ".join(students)
        if key in models:
            print(f"{key[0]}: {who} handed in the course's model answer")
        elif len(students) > 1:
            print(f"{key[0]}: {who} handed in the same text")
    found = count(len(rows), "different text" if flags.blind else "text")
    print(f"{to}: {found} of {count(len(graded), 'student')}; {shown} shows them with their pictures")
    return 0


def mark(flags: Namespace) -> int:
    from companion_school.course.grading.marks_csv import idle_rows, must_be_untouched, publish
    from companion_school.course.grading.results import FILE, load
    from companion_school.course.grading.what_to_grade import add_own_items
    from companion_school.course.written.marking import put_marks

    if flags.into is None:
        raise ValueError("--into: expected the folder that companion grade --out wrote, got none")
    out = Path(flags.into)
    must_be_writable(out, "--into", flags.into)
    must_be_untouched(out)
    if (out / FILE).is_file():
        graded = load(out)
        add_own_items(graded.course, graded.assignment)
    marked = put_marks(Path(flags.sheet), out) if flags.sheet is not None else 0
    results = load(out)
    settled, faults = publish(results, out)
    waiting = sum(len(one.waits) for one in settled)
    read = f"{count(marked, 'mark')} of written answers read; " if flags.sheet is not None else ""
    still = f"; {count(waiting, 'text')} still to mark" if waiting else ""
    changed = sum(len(one.changes) + sum(line.override is not None for line in one.lines) for one in settled)
    by_hand = f"; {count(changed, 'change')} by hand" if changed else ""
    print(f"{out / 'marks.csv'}: {read}{count(len(settled), 'student')}{by_hand}{still}")
    for fault in (*idle_rows(results, out), *faults):
        print(fault)
    return 1 if faults else 0
