"""`companion course`: problem sets, marks, and the proof that the checks work."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import Namespace

from companion.commands.parser import Parser, add_commands
from companion.commands.preflight import must_be_writable
from companion.ground.atomic import write_atomic
from companion.ground.number_limits import Count
from companion.ground.waiting import waiting
from companion_school.commands import exam, slides, written_answers

if TYPE_CHECKING:
    from companion_school.course.release.problem_set import ProblemSet


def parser() -> Parser:
    return Parser(
        description=(
            "Make problem sets and notebooks from the exercises, collect marks, and prove that every check works. "
            "notebooks/exercises/INSTRUCTORS.md explains how to choose, hand out and grade."
        ),
        epilog=(
            "examples:\n"
            "  companion course release week2 --exercises 2.3 2.4 --out course/\n"
            "  companion grade submissions/ --pset week2 --seed-file course/secret.seed \\\n"
            "      --out marks/\n"
            "  companion course export marks/\n"
            "  companion course verify"
        ),
    )


def add_actions(parser: Parser) -> None:
    """Give a course parser its actions, once it is a command itself."""
    actions = (
        ("release", _release_parser(), "make a problem set: what you keep, what students get"),
        ("export", _export_parser(), "collect marks into one table, with nbgrader's columns"),
        ("collect", written_answers.collect_parser(), "collect written answers into a sheet, for a person to mark"),
        ("mark", written_answers.mark_parser(), "read that sheet's points into the marks"),
        ("alike", _alike_parser(), "which answers of a class are too alike, after renaming"),
        ("verify", _verify_parser(), "prove every check: run what is right, and what is wrong"),
        ("notebooks", _notebooks_parser(), "make the self-study notebooks, or the solved ones"),
        ("slides", slides.parser(), "make slides of lessons: figures, equations, questions"),
        ("exam", exam.parser(), "make an examination, and its marking key, from your seed"),
    )
    add_commands(parser, "action", "actions", actions)


def _release_parser() -> Parser:
    parser = Parser(
        description=(
            "Make a problem set in a folder: source/PSET for nbgrader, release/PSET for students, PSET.md for you. "
            "What students get holds no solution. Half of an exercise's points are for public cases, half for hidden "
            "ones, which are drawn from your seed file. All points of a question are for the hidden check; your seed "
            "file decides the order of its choices. A folder may hold several problem sets.\n\n"
            "--questions takes predictions, too, where the reasons are listed: a letter for what happens, a number "
            "for why. --written takes answers in words: PSET_marking.md is the marker's page; `collect` and `mark` "
            "carry them to a person and back.\n\n"
            "--gradescope also writes the zip file of an autograder for Gradescope; it holds your secret. "
            "--github-classroom also writes a template repository: its workflow gives the points of the public cases "
            "after each push, and `companion grade` on the cloned repositories the marks."
        ),
        epilog=(
            "examples:\n"
            "  companion course release week2 --exercises 2.3 2.4 3.1 --out course/\n"
            "  companion course release quiz --questions 2.a 2.b --out course/\n"
            "  companion course release project --build 2-7 --out course/\n"
            "  companion course release week3 --exercises 3.2 3.3 --out course/ \\\n"
            "      --seed-file ~/secret.seed\n"
            "  companion course release week4 --exercises 6.3 --out course/ \\\n"
            "      --gradescope week4.zip --github-classroom week4-template/"
        ),
    )
    parser.add_argument("pset", type=str, metavar="PSET", help="the name of the problem set: letters, digits, - and _")
    parser.add_argument(
        "--exercises", type=str, nargs="+", default=[], metavar="N.N", help="the exercises; the course's order is kept"
    )
    parser.add_argument(
        "--questions", type=str, nargs="+", default=[], metavar="N.X", help="the lessons' questions, as in 2.a 2.b"
    )
    parser.add_argument(
        "--written",
        type=str,
        nargs="+",
        default=[],
        metavar="N.NAME",
        help="written answers for a person to mark, as in 14.curves",
    )
    _add_project(parser)
    parser.add_argument("--out", type=str, default=None, metavar="FOLDER", help="where to; made where there is none")
    parser.add_argument(
        "--gradescope",
        type=str,
        default=None,
        metavar="FILE.zip",
        help="write an autograder to upload to Gradescope",
    )
    parser.add_argument(
        "--github-classroom",
        type=str,
        default=None,
        metavar="FOLDER",
        help="write a template repository for GitHub Classroom",
    )
    parser.add_argument("--due", type=str, default=None, metavar="TIME", help="as in 2026-11-30T23:59; UTC")
    parser.add_argument(
        "--late", type=str, default=None, metavar="RULE", help="what late work costs: '10% a day, at most 50%'"
    )
    parser.add_argument(
        "--seed-file",
        type=str,
        default=None,
        metavar="SECRET",
        help="a file with what only you know. Default: FOLDER/secret.seed, made if it is not there",
    )
    return parser


def _add_project(parser: Parser) -> None:
    parser.add_argument(
        "--build",
        type=str,
        default=None,
        metavar="STAGES",
        help="a project instead: these stages of Your own transformer, as in 2-7",
    )
    parser.add_argument(
        "--notebooks",
        type=str,
        default=None,
        metavar="FOLDER",
        help="the course's notebooks, whose guides to the stages go into a project. Default: found where the course is",
    )


def _export_parser() -> Parser:
    parser = Parser(
        description=(
            "Collect the marks that `companion grade --out FOLDER` wrote, of one or several problem sets, into one "
            "table with the columns of `nbgrader export`. Where no notebook could be read, the score stays empty."
        ),
        epilog=(
            "examples:\n  companion course export marks/\n"
            "  companion course export marks/ --roster roster.csv --to grades.csv"
        ),
    )
    parser.add_argument(
        "folder", type=str, metavar="FOLDER", help="the folder with marks; folders inside it count, too"
    )
    parser.add_argument("--to", type=str, default=None, metavar="FILE", help="Default: FOLDER/grades.csv")
    parser.add_argument(
        "--into",
        type=str,
        default=None,
        metavar="TABLE",
        help="a gradebook of Canvas or a grading worksheet of Moodle, as exported: fill in its grades",
    )
    parser.add_argument(
        "--roster",
        type=str,
        default=None,
        metavar="FILE",
        help="CSV with id, first_name, last_name, email",
    )
    return parser


def _alike_parser() -> Parser:
    parser = Parser(
        description=(
            "List pairs of answers that are equal, or nearly, after all that students name has been renamed. Answers "
            "that are short, or equal one that the course knows, are left out. Likeness proves nothing: talk with both."
        ),
        epilog=(
            "examples:\n"
            "  companion course alike submissions/ --exercises 2.3 2.4\n"
            "  companion course alike submissions/ --exercises 2.3 2.4 --export answers/"
        ),
    )
    parser.add_argument("folder", type=str, metavar="FOLDER", help="the submissions")
    parser.add_argument("--exercises", type=str, nargs="+", default=[], metavar="N.N", help="the exercises to compare")
    parser.add_argument("--assignment", type=str, default=None, metavar="NAME", help="the folder in a student's")
    parser.add_argument(
        "--export",
        type=str,
        default=None,
        metavar="FOLDER",
        help="write the answers as files for a tool that compares such, like JPlag, instead",
    )
    return parser


def _verify_parser() -> Parser:
    parser = Parser(
        description=(
            "Run every reference, every other right answer, every stub and every known mistake on several seeds, and "
            "a class of hostile students through the grader. Exit code 0 only if all come out as they must.\n\n"
            "With exercises named, these alone, without the hostile class: for whoever writes one. With --mutants, "
            "every reference with one thing changed in it instead: exit code 0 only if the checks refuse all that "
            "are not declared to compute the same."
        ),
        epilog=(
            "examples:\n  companion course verify\n  companion course verify 5.3 5.4\n"
            "  companion course verify --mutants --json"
        ),
    )
    parser.add_argument("exercises", nargs="*", type=str, default=[], metavar="ID", help="such as 5.3. Default: all")
    parser.add_argument("--mutants", action="store_true", help="try references with one thing changed in them")
    parser.add_argument("--json", action="store_true", help="print the counts, and every fault, as JSON")
    parser.add_argument("--jobs", type=Count, default=2, help="processes at once")
    return parser


def _notebooks_parser() -> Parser:
    parser = Parser(
        description="Make the notebooks of the exercises for self-study, byte for byte the same each time.",
        epilog=(
            "examples:\n"
            "  companion course notebooks            bring notebooks/exercises/ up to date\n"
            "  companion course notebooks --check    write nothing; exit code 1 if one is\n"
            "                                        stale\n"
            "  companion course notebooks --solved build/solved\n"
            "                                        with solutions, and with what they\n"
            "                                        must print"
        ),
    )
    parser.add_argument(
        "folder", nargs="?", type=str, default="notebooks", metavar="FOLDER", help="the folder of the lessons"
    )
    parser.add_argument("--check", action="store_true", help="write nothing; say which notebook is stale")
    parser.add_argument("--solved", type=str, default=None, metavar="FOLDER", help="write the solved ones here")
    return parser


def run(flags: Namespace) -> int:
    actions = {"release": _release, "export": _export, "alike": _alike, "verify": _verify, "notebooks": _notebooks}
    actions |= {
        "collect": written_answers.collect,
        "mark": written_answers.mark,
        "slides": slides.run,
        "exam": exam.run,
    }
    if flags.action == "release" and flags.release.build is not None:
        return _release_project(flags.release)
    return actions[flags.action](flags[flags.action])


def _release(flags: Namespace) -> int:
    from companion_school.course.bundles import classroom, gradescope
    from companion_school.course.grading.lateness import Lateness, as_toml
    from companion_school.course.hidden_seeds import read_secret
    from companion_school.course.release.problem_set import ProblemSet
    from companion_school.course.release.release import check_free, release

    if flags.out is None:
        raise ValueError("--out: expected a folder to write into, got none; for example --out course/")
    out = Path(flags.out)
    must_be_writable(out, "--out")
    pset = ProblemSet.of(flags.pset, flags.exercises, flags.questions, flags.written)
    if (flags.due is None) != (flags.late is None):
        raise ValueError("--due, --late: expected both or neither")
    rule = Lateness(flags.due, flags.late) if flags.due is not None else None
    check_free(pset, out)
    bundles = _bundles(pset, flags)
    made = None
    if flags.seed_file is None:
        file = out / "secret.seed"
        if not file.exists():
            made = file
            _put_secret(file)
    else:
        file = Path(flags.seed_file)
    secret = read_secret(file)
    written = release(pset, secret, out)
    if rule is not None:
        write_atomic(file.parent / f"{pset.name}.toml", as_toml(rule))
        written.append(file.parent / f"{pset.name}.toml")
    if flags.gradescope is not None:
        gradescope.write_bundle(pset, secret, rule, Path(flags.gradescope))
    if flags.github_classroom is not None:
        classroom.write_template(pset, secret, Path(flags.github_classroom))
    written += bundles
    if made:
        print(f"{made}: your secret, new. Keep it; grading needs it, and nobody else may read it.")
    for path in written:
        print(f"{path}: written")
    print(f"\nGive students {out / 'release' / pset.name}, the whole folder. {out / f'{pset.name}.md'} is your page.")
    return 0


def _release_project(flags: Namespace) -> int:
    from companion_school.build.stages import find_stages
    from companion_school.course.release.problem_set import checked_name
    from companion_school.course.release.project import UNGUIDED, release

    others = ("exercises", "questions", "written", "gradescope", "github_classroom", "due", "late")
    if beside := [f"--{name.replace('_', '-')}" for name in others if flags.get(name)]:
        raise ValueError(f"--build {flags.build}: expected a project by itself, got {', '.join(beside)} beside it")
    if flags.out is None:
        raise ValueError("--out: expected a folder to write into, got none; for example --out course/")
    out = Path(flags.out)
    must_be_writable(out, "--out")
    name, stages = checked_name(flags.pset), find_stages(flags.build)
    notebooks = _guides(flags.notebooks)
    written = release(name, stages, out, notebooks)
    file = Path(flags.seed_file) if flags.seed_file is not None else out / "secret.seed"
    if not file.exists():
        _put_secret(file)
        print(f"{file}: your secret, new. Keep it; grading needs it, and nobody else may read it.")
    for path in written:
        print(f"{path}: written")
    if notebooks is None:
        print(f"\n{UNGUIDED}")
    print(f"\nGive students {written[0]}, the whole folder. {written[1]} is your page.")
    return 0


def _guides(named: str | None) -> Path | None:
    """The folder of the stages' notebooks: of the course that is named, of the one around, or of the one that the
    package stands in; None where there is none. Raises `ValueError` if the named one has none."""
    import companion

    places = [Path(named)] if named else [Path("notebooks"), Path(companion.__file__).parents[1] / "notebooks"]
    found = next((place / "build" for place in places if (place / "build").is_dir()), None)
    if named and found is None:
        raise ValueError(f"--notebooks {named}: expected the course's notebooks, with a folder build in it; found none")
    return found


def _bundles(pset: ProblemSet, flags: Namespace) -> list[Path]:
    """Where bundles go, if any are asked for. Raises `ValueError` where they cannot."""
    from companion_school.course.bundles import classroom, gradescope

    asked = (("--gradescope", flags.gradescope, gradescope), ("--github-classroom", flags.github_classroom, classroom))
    places = []
    for flag, given, kind in asked:
        if given is not None:
            kind.check_place(pset, Path(given))
            must_be_writable(Path(given).absolute().parent, flag, given)
            places.append(Path(given))
    return places


def _put_secret(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as opened:
        opened.write(secrets.token_hex(32) + "\n")


def _export(flags: Namespace) -> int:
    from companion_school.course.grading.gradebook import collect, to_csv
    from companion_school.course.grading.lms import filled

    folder = Path(flags.folder)
    to = folder / "grades.csv" if flags.to is None else Path(flags.to)
    if to.is_dir():
        raise ValueError(f"--to {to}: expected a file, got a folder")
    must_be_writable(to.parent, "--to", str(to))
    leave_out = [to] if flags.into is None else [to, Path(flags.into)]
    rows = collect(folder, None if flags.roster is None else Path(flags.roster), leave_out=leave_out)
    if flags.into is None:
        write_atomic(to, to_csv(rows))
    else:
        text, unknown = filled(Path(flags.into), rows)
        write_atomic(to, text)
        for student in unknown:
            print(f"{student}: not in {flags.into}")
    students, sets = {row["student_id"] for row in rows}, {row["assignment"] for row in rows}
    print(f"{to}: {len(students)} students, {len(sets)} problem sets ({', '.join(sorted(sets))})")
    return 0


def _alike(flags: Namespace) -> int:
    from companion_school.course.grading.similarity import as_text, export, too_alike
    from companion_school.course.grading.submissions import handed_in
    from companion_school.exercises.catalogue import find_exercise

    if not flags.exercises:
        raise ValueError("--exercises: expected at least one, as in --exercises 2.3 2.4")
    chosen = [find_exercise(id) for id in flags.exercises]
    handed = handed_in(Path(flags.folder), flags.assignment)
    if flags.export is not None:
        out = Path(flags.export)
        must_be_writable(out.absolute().parent, "--export", flags.export)
        total = export(handed, chosen, out)
        print(f"{out / 'handed_in'}: {total} answers of {len(handed)} students; {out / 'known'}: what to leave out")
        return 0
    with waiting("comparing the answers"):
        pairs = too_alike(handed, chosen)
    print("\n".join([*filter(None, [as_text(pairs)]), f"{len(pairs)} pairs of {len(handed)} students are too alike"]))
    return 0


def _verify(flags: Namespace) -> int:
    if flags.mutants:
        from companion_school.course.proof import survivors

        report = survivors.survey(flags.exercises or None, jobs=flags.jobs)
        print(survivors.as_json(report) if flags.json else survivors.as_text(report))
        return 0 if report.holds else 1
    from companion_school.course.proof.proof import as_json, as_text, prove

    proof = prove(flags.exercises or None, jobs=flags.jobs)
    print(as_json(proof) if flags.json else as_text(proof))
    return 0 if proof.holds else 1


def _notebooks(flags: Namespace) -> int:
    from companion_school.course.release.notebooks import stale_files, write_self_study, write_solved

    folder = Path(flags.folder)
    if flags.check and flags.solved is not None:
        raise ValueError("--check: expected no --solved beside it, got both")
    if not folder.is_dir():
        raise ValueError(f"{folder}: expected the folder of the lessons, got no folder")
    if flags.solved is not None:
        with waiting("writing the notebooks"):
            written = write_solved(folder, Path(flags.solved))
        print(*(f"{path}: written" for path in written), sep="\n")
        return 0
    with waiting("making the notebooks"):
        lines = stale_files(folder) if flags.check else write_self_study(folder)
    print("\n".join(lines) or f"{folder / 'exercises'}: up to date")
    if flags.check and lines:
        print("Run: make notebooks")
    return 1 if flags.check and lines else 0
