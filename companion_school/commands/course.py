"""The command `companion course`, which makes problem sets, manages marks, and proves that the checks work."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import Namespace

from companion.commands.parser import Parser, add_commands, exclude
from companion.ground.atomic import must_be_writable, write_atomic
from companion.ground.display import count
from companion.ground.number_limits import Count
from companion.ground.waiting import waiting
from companion_school.commands import course_items, exam, slides, written_answers

if TYPE_CHECKING:
    from companion_school.build.stages import Stage
    from companion_school.course.grading.lateness import Lateness
    from companion_school.course.release.problem_set import ProblemSet


def parser() -> Parser:
    return Parser(
        description=(
            "Make problem sets and notebooks from the exercises, collect marks, and test every check. "
            "notebooks/exercises/INSTRUCTORS.md explains how to choose, release and grade exercises."
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
    """Add the actions to the parser, which must already be registered as a command."""
    actions = ((name, made(), help) for name, (made, _, help) in ACTIONS.items())
    add_commands(parser, "action", "actions", actions)


def run(flags: Namespace) -> int:
    _, act, _ = ACTIONS[flags.action]
    return act(flags[flags.action])


def _release_parser() -> Parser:
    parser = Parser(
        description=(
            "Make a problem set in a folder: source/PSET for nbgrader, release/PSET for the students, and PSET.md "
            "for you. The students' files contain no solutions. Half of an exercise's points are for public cases "
            "and half for hidden ones, which are drawn from your seed file. All points of a question are for the "
            "hidden check, and your seed file decides the order of the choices. A folder can contain several problem "
            "sets.\n\n"
            "--questions also accepts predictions with a list of reasons; students enter a letter for what happens "
            "and a number for the reason. --written accepts questions that are answered in words. PSET_marking.md "
            "helps the person who marks them; `collect` writes a marking sheet and `mark` reads it back.\n\n"
            "--numbers accepts the exam questions that ask for a number. Each student in --roster gets a sheet with "
            "different numbers in PSET_sheets/, and enters the result in the notebook.\n\n"
            "--own-items adds written questions of your own. --build makes a project instead of a problem set.\n\n"
            "--gradescope also writes an autograder for Gradescope as a zip file, which contains your secret. "
            "--repository also writes a template repository for GitHub, to be used directly or in Classroom 50. "
            "Its workflow runs the public checks after each push, and `companion grade` computes the marks from "
            "the cloned repositories.\n\n"
            "PSET.toml, next to the problem set, contains the due date and the penalty for late work. Extensions, "
            "late days and grace periods go into extensions.csv in the same folder."
        ),
        epilog=(
            "examples:\n"
            "  companion course release week2 --exercises 2.3 2.4 3.1 --out course/\n"
            "  companion course release quiz --questions 2.a 2.c --out course/\n"
            "  companion course release project --build 2-7 --out course/\n"
            "  companion course release week3 --exercises 3.2 3.3 --out course/ \\\n"
            "      --seed-file ~/secret.seed\n"
            "  companion course release week4 --exercises 6.3 --out course/ \\\n"
            "      --gradescope week4.zip --repository week4-template/ \\\n"
            "      --due 2026-11-30T23:59+01:00 --late '10% a day, at most 50%'"
        ),
    )
    parser.add_argument("pset", metavar="PSET", help="name of the problem set (letters, digits, - and _)")
    parser.add_argument(
        "--exercises", nargs="+", default=[], metavar="N.N", help="exercises; they appear in the order of the course"
    )
    parser.add_argument(
        "--questions", nargs="+", default=[], metavar="N.X", help="questions from the lessons, such as 2.a 2.c"
    )
    parser.add_argument(
        "--written",
        nargs="+",
        default=[],
        metavar="N.NAME",
        help="written questions that a person marks, such as 14.curves",
    )
    parser.add_argument(
        "--numbers", nargs="+", default=[], metavar="N.NAME", help="questions with different numbers for each student"
    )
    parser.add_argument(
        "--roster", metavar="FILE", help="CSV file of the students who get their own numbers, with a column id"
    )
    parser.add_argument(
        "--build", metavar="STAGES", help="make a project from these stages of Your own transformer, such as 2-7"
    )
    parser.add_argument(
        "--notebooks",
        metavar="FOLDER",
        help="folder with the course's notebooks, whose stage guides become part of a project (default: found next to "
        "the package)",
    )
    parser.add_argument("--out", metavar="FOLDER", help="output folder (created if missing)")
    parser.add_argument(
        "--gradescope", metavar="FILE.zip", help="also write an autograder, a zip file to upload to Gradescope"
    )
    parser.add_argument("--repository", metavar="FOLDER", help="also write a template repository for GitHub")
    parser.add_argument("--due", metavar="TIME", help="due date with its time zone, such as 2026-11-30T23:59+01:00")
    parser.add_argument("--late", metavar="RULE", help="penalty for late work, such as '10% a day, at most 50%'")
    parser.add_argument(
        "--grace", metavar="TIME", help="grace period without a penalty, such as '15 minutes' (default: none)"
    )
    parser.add_argument(
        "--own-items", metavar="FILE", help="TOML file with written questions of your own, for --written"
    )
    parser.add_argument(
        "--seed-file",
        metavar="SECRET",
        help="file with your secret seed (default: FOLDER/secret.seed, created if missing)",
    )
    return parser


def _export_parser() -> Parser:
    parser = Parser(
        description=(
            "Collect the marks that `companion grade --out FOLDER` wrote for problem sets and projects into one "
            "table with the columns of `nbgrader export`. If nothing could be graded, the score stays empty. With "
            "--roster, the names that a learning platform gave to students are matched with the roster. "
            "FOLDER/names.csv lists the matches, and you fill in those that are missing."
        ),
        epilog=(
            "examples:\n  companion course export marks/\n"
            "  companion course export marks/ --roster roster.csv --to grades.csv\n"
            "  companion course export marks/week2 --into gradebook.csv --to filled.csv\n"
            "  companion course export marks/week2 --pages feedback.zip"
        ),
    )
    parser.add_argument("folder", metavar="FOLDER", help="folder with marks; subfolders are included")
    parser.add_argument("--to", metavar="FILE", help="output table (default: FOLDER/grades.csv)")
    parser.add_argument("--roster", metavar="FILE", help="CSV file with the columns id, names and email")
    parser.add_argument(
        "--into",
        metavar="TABLE",
        help="gradebook exported from Canvas, or grading worksheet from Moodle, to fill in with the grades",
    )
    parser.add_argument(
        "--columns",
        nargs="+",
        default=[],
        metavar="A=B",
        help="column headings of a worksheet in another language, such as Identifier=Nummer Grade=Bewertung",
    )
    parser.add_argument(
        "--pages",
        metavar="FILE.zip",
        help="write the feedback pages of one problem set to a zip file, which Moodle or Canvas can return to students",
    )
    return parser


def _alike_parser() -> Parser:
    parser = Parser(
        description=(
            "List groups of answers that are equal or nearly equal once the names chosen by students are normalized, "
            "and answers that equal the course's own solution. Short answers are left out. Similarity does not prove "
            "anything, so talk with the students."
        ),
        epilog=(
            "examples:\n"
            "  companion course alike submissions/ --exercises 2.3 2.4\n"
            "  companion course alike hand-ins/ --build 2-4\n"
            "  companion course alike submissions/ --exercises 2.3 2.4 --export answers/"
        ),
    )
    parser.add_argument("folder", metavar="FOLDER", help="folder of submissions")
    parser.add_argument("--exercises", nargs="+", default=[], metavar="N.N", help="exercises to compare")
    parser.add_argument("--build", metavar="STAGES", help="stages of a project to compare instead")
    parser.add_argument(
        "--assignment",
        metavar="NAME",
        help="name of the subfolder in each student's folder that contains the submission",
    )
    parser.add_argument(
        "--export",
        metavar="FOLDER",
        help="instead, write the answers to this folder, as files for a comparison tool such as JPlag",
    )
    return parser


def _oral_parser() -> Parser:
    parser = Parser(
        description=(
            "Write questions for oral exams: for each student, some questions about lines that the student wrote, "
            "with the points that a good answer covers. Your seed file decides which questions are drawn. The "
            "list contains no marks."
        ),
        epilog=(
            "examples:\n  companion course oral submissions/ --pset week2 --seed-file course/secret.seed \\\n"
            "      --to oral.md"
        ),
    )
    parser.add_argument("folder", metavar="FOLDER", help="folder of submissions")
    parser.add_argument("--exercises", nargs="+", default=[], metavar="N.N", help="exercises to ask about")
    parser.add_argument("--pset", help="problem set or project, as for companion grade")
    parser.add_argument("--seed-file", metavar="SECRET", help="file with your secret seed")
    parser.add_argument("--each", type=Count, default=3, help="number of questions per student")
    parser.add_argument("--to", default="oral.md", metavar="FILE", help="output file")
    return parser


def _clone_parser() -> Parser:
    parser = Parser(
        description=(
            "Clone the repositories of a class. LIST is a CSV file with the columns student_id and repository. "
            "Repositories that were cloned before are updated. No code in them is run. `companion grade` takes "
            "submission times from the commits."
        ),
        epilog="examples:\n  companion course clone repositories.csv --to submissions/",
    )
    parser.add_argument("table", metavar="LIST", help="CSV file with the columns student_id and repository")
    parser.add_argument("--to", default="submissions", metavar="FOLDER", help="output folder")
    return parser


def _verify_parser() -> Parser:
    parser = Parser(
        description=(
            "Run every reference solution, every alternative right answer, every stub and every known mistake on "
            "several seeds, and run a class of hostile students through the grader. The exit code is 0 only if "
            "all results are as expected.\n\n"
            "If you name exercises, only these are tried, without the hostile class. With --mutants, each "
            "reference is tried with one change at a time, and the exit code is 0 only if the checks reject every "
            "mutant that is not declared equivalent. With --seeds N, every right answer, including those of "
            "the project's stages, is tried on N hidden seeds drawn from a secret. Answers that are right only up to "
            "some size, or only for the public sizes, must not pass. Fifty seeds take about an hour."
        ),
        epilog=(
            "examples:\n  companion course verify\n  companion course verify 5.3 5.4\n"
            "  companion course verify --mutants --json\n"
            "  companion course verify --seeds 50\n"
            "  companion course verify --seeds 10 5.3 build.3"
        ),
    )
    parser.add_argument("exercises", nargs="*", default=[], metavar="ID", help="exercises, such as 5.3 (default: all)")
    parser.add_argument(
        "--mutants", action="store_true", help="test each reference solution with one deliberate change at a time"
    )
    parser.add_argument(
        "--seeds", type=Count, metavar="N", help="try right answers on N hidden seeds and on other sizes"
    )
    parser.add_argument("--json", action="store_true", help="print the counts and every fault as JSON")
    parser.add_argument("--jobs", type=Count, default=2, help="number of parallel processes")
    return parser


def _notebooks_parser() -> Parser:
    parser = Parser(
        description="Make the exercise notebooks for self-study. Every run writes the same files, byte for byte.",
        epilog=(
            "examples:\n"
            "  companion course notebooks            bring notebooks/exercises/ up to date\n"
            "  companion course notebooks --check    write nothing; exit code 1 if one is\n"
            "                                        stale\n"
            "  companion course notebooks --solved build/solved\n"
            "                                        with solutions and the expected\n"
            "                                        output"
        ),
    )
    parser.add_argument("folder", nargs="?", default="notebooks", metavar="FOLDER", help="folder of the lessons")
    parser.add_argument("--check", action="store_true", help="write nothing, only report which notebooks are stale")
    parser.add_argument("--solved", metavar="FOLDER", help="write the solved notebooks into this folder instead")
    return parser


def _release(flags: Namespace) -> int:
    from companion_school.course.grading.gradebook import read_roster
    from companion_school.course.grading.lateness import Lateness, as_toml
    from companion_school.course.hidden_seeds import read_secret
    from companion_school.course.release import project, release
    from companion_school.course.release.problem_set import ProblemSet, checked_name

    if flags.out is None:
        raise ValueError("--out: expected a folder to write into, got none; for example --out course/")
    out = Path(flags.out)
    must_be_writable(out, "--out")
    settings = _settings(flags)
    late = None if flags.due is None else Lateness(flags.due, flags.late, flags.grace or "")
    name, rule = checked_name(flags.pset), out / f"{flags.pset}.toml"
    stages, notebooks = _stages(flags)
    asked = flags.exercises, flags.questions, flags.written, flags.numbers
    pset = None if stages else ProblemSet.of(name, *asked)
    release.check_free(pset, out) if pset else project.check_free(name, out)
    if rule.exists():
        raise ValueError(f"--out {out}: {rule.name} already exists there; move it elsewhere or choose another name")
    bundles = _bundles(pset, flags)
    file, is_new = _secret_file(flags, out)
    secret = read_secret(file)
    written = release.release(pset, secret, out, late) if pset else project.release(name, stages, out, notebooks, late)
    if settings:
        write_atomic(rule, as_toml(settings))
        written.append(rule)
    if flags.own_items is not None:
        write_atomic(out / settings["items"], Path(flags.own_items).read_bytes())
    if pset and pset.numbers:
        release.write_sheets(pset, secret, read_roster(Path(flags.roster)), out)
    _write_bundles(pset, name, settings, secret, flags, late)
    if is_new:
        print(f"{file}: your new secret. Keep it: grading needs it, and no one else may read it.")
    for path in (*written, *bundles):
        print(f"{path}: written{' with two invented students; replace them' if path.name == 'roster.csv' else ''}")
    if stages and notebooks is None:
        print(f"\n{project.UNGUIDED}")
    for warning in pset.warnings() if pset else ():
        print(f"warning: {warning}")
    sheets = f", and each student their own sheet from {out / f'{name}_sheets'}" if flags.numbers else ""
    print(f"\nGive students {out / 'release' / name}, the whole folder{sheets}. {out / f'{name}.md'} is your page.")
    return 0


def _settings(flags: Namespace) -> dict[str, str]:
    """Validate the flags that depend on each other, and return the contents of PSET.toml."""
    from companion_school.course.grading.gradebook import read_roster
    from companion_school.course.written.rubrics import add_items

    if (flags.due is None) != (flags.late is None):
        raise ValueError("--due, --late: expected both or neither; --late '0% a day' deducts nothing")
    if flags.grace is not None and flags.due is None:
        raise ValueError(f"--grace {flags.grace} needs --due and --late")
    if flags.own_items is not None:
        add_items(Path(flags.own_items))
    if bool(flags.numbers) != (flags.roster is not None):
        raise ValueError("--numbers, --roster: expected both or neither")
    if flags.numbers and flags.gradescope is not None:
        raise ValueError(
            f"--gradescope {flags.gradescope} cannot be used together with --numbers, because Gradescope does not know "
            "each student's sheet"
        )
    told = {"due": flags.due, "late": flags.late, "grace": flags.grace, "build": flags.build}
    if flags.roster is not None:
        read_roster(Path(flags.roster))
        told["roster"] = str(Path(flags.roster).resolve())
    told["items"] = f"{flags.pset}_items.toml" if flags.own_items is not None else None
    return {name: value for name, value in told.items() if value}


def _stages(flags: Namespace) -> tuple[Sequence[Stage], Path | None]:
    """Return a project's stages and the folder with their guides, or no stages and None for a problem set."""
    from companion_school.build.stages import find_stages

    if flags.build is None:
        return (), None
    others = ("exercises", "questions", "written", "numbers", "own_items", "repository")
    if beside := [f"--{name.replace('_', '-')}" for name in others if flags.get(name)]:
        raise ValueError(f"--build {flags.build} cannot be used together with {', '.join(beside)}")
    return find_stages(flags.build), _guides(flags.notebooks)


def _secret_file(flags: Namespace, out: Path) -> tuple[Path, bool]:
    """Return the path of the secret file, and whether it has just been created."""
    file = Path(flags.seed_file) if flags.seed_file is not None else out / "secret.seed"
    if file.exists() or flags.seed_file is not None:
        return file, False
    file.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as opened:
        opened.write(secrets.token_hex(32) + "\n")
    return file, True


def _guides(named: str | None) -> Path | None:
    """Return the named folder's subfolder `build`, or None if there is none.

    Without a name, `notebooks` is tried in the current folder and then beside the package. Raises `ValueError` if a
    folder is named but has no such subfolder.
    """
    import companion

    places = [Path(named)] if named else [Path("notebooks"), Path(companion.__file__).parents[1] / "notebooks"]
    found = next((place / "build" for place in places if (place / "build").is_dir()), None)
    if named and found is None:
        raise ValueError(
            f"--notebooks {named}: expected a folder with the course's notebooks and a subfolder build, found none"
        )
    return found


def _bundles(pset: ProblemSet | None, flags: Namespace) -> list[Path]:
    """Return the paths of the requested bundles. Raises `ValueError` if a bundle cannot be written."""
    from companion_school.course.bundles import gradescope, repository

    places = []
    if flags.gradescope is not None:
        gradescope.check_place(Path(flags.gradescope))
        must_be_writable(Path(flags.gradescope).absolute().parent, "--gradescope", flags.gradescope)
        places.append(Path(flags.gradescope))
    if flags.repository is not None and pset is not None:
        repository.check_place(pset, Path(flags.repository))
        must_be_writable(Path(flags.repository).absolute().parent, "--repository", flags.repository)
        places.append(Path(flags.repository))
    return places


def _write_bundles(
    pset: ProblemSet | None,
    name: str,
    settings: Mapping[str, str],
    secret: bytes,
    flags: Namespace,
    late: Lateness | None,
) -> None:
    from companion_school.course.bundles import gradescope, repository

    if flags.gradescope is not None:
        items = Path(flags.own_items).read_bytes() if flags.own_items is not None else b""
        asked = pset.ids if pset else ()
        gradescope.write_bundle(name, asked, settings, secret, Path(flags.gradescope), items)
    if flags.repository is not None and pset is not None:
        repository.write_template(pset, secret, Path(flags.repository), late)


def _export(flags: Namespace) -> int:
    from companion_school.course.grading import lms
    from companion_school.course.grading.gradebook import collect, names_known, to_csv
    from companion_school.course.grading.results import FILE, load

    folder = Path(flags.folder)
    if flags.pages is not None:
        file = Path(flags.pages)
        must_be_writable(file.absolute().parent, "--pages", flags.pages)
        print(f"{file}: {count(lms.write_pages(load(folder), folder, file), 'page')}")
        return 0
    to = folder / "grades.csv" if flags.to is None else Path(flags.to)
    if to.is_dir() or to.name == "marks.csv":
        raise ValueError(f"--to {to}: expected a file name other than marks.csv")
    must_be_writable(to.parent, "--to", str(to))
    rows = collect(folder, None if flags.roster is None else Path(flags.roster))
    for place in sorted(file.parent for file in folder.rglob(FILE) if (file.parent / "marks.csv").is_file()):
        _warn_if_outdated(place)
    sets = sorted({row["assignment"] for row in rows})
    told = count(len({row["student_id"] for row in rows}), "student")
    if flags.into is None:
        write_atomic(to, to_csv(rows))
    else:
        named = dict(one.split("=", 1) for one in flags.columns if "=" in one)
        if set(named) - {*lms.ROLES} or len(named) != len(flags.columns):
            raise ValueError(f"--columns: expected Identifier=HEADING Grade=HEADING, got {' '.join(flags.columns)}")
        text, unknown, filled_in = lms.filled(Path(flags.into), rows, named, names_known(folder))
        write_atomic(to, text)
        if unknown:
            print(f"not in {flags.into}, so their grades are not in {to}: {', '.join(unknown)}")
        told = f"{count(filled_in, 'grade')} filled in, of {told}"
    print(f"{to}: {told}, {count(len(sets), 'problem set')} ({', '.join(sets)})")
    return 0


def _warn_if_outdated(marks: Path) -> None:
    """Warn if these marks do not contain the latest changes or extensions, which only `companion course mark` adds."""
    from companion_school.course.grading.marks_csv import is_outdated
    from companion_school.course.grading.results import load
    from companion_school.course.grading.what_to_grade import add_own_items

    try:
        results = load(marks)
        add_own_items(results.course, results.assignment)
        if is_outdated(results, marks):
            what = f"{marks / 'marks.csv'} does not contain the latest changes, extensions, names or late days"
            print(f"warning: {what}; run companion course mark --into {marks}, and export again", file=sys.stderr)
    except ValueError as error:
        print(f"warning: {error}", file=sys.stderr)


def _alike(flags: Namespace) -> int:
    from companion_school.build.stages import find_stages
    from companion_school.course.grading import similarity
    from companion_school.course.grading.submissions import handed_in
    from companion_school.exercises.catalogue import find_exercise

    if bool(flags.exercises) == (flags.build is not None):
        raise ValueError("--exercises: expected at least one, as in --exercises 2.3 2.4, or stages with --build")
    handed = handed_in(Path(flags.folder), flags.assignment, project=flags.build is not None)
    with waiting("reading the answers"):
        if flags.build is not None:
            answers = similarity.modules(handed, find_stages(flags.build))
        else:
            answers = similarity.programs(handed, [find_exercise(id) for id in flags.exercises])
    if flags.export is not None:
        out = Path(flags.export)
        must_be_writable(out.absolute().parent, "--export", flags.export)
        total = similarity.export(answers, out)
        print(f"{out / 'handed_in'}: {total} answers of {len(handed)} students; {out / 'known'}: what to leave out")
        return 0
    with waiting("comparing the answers"):
        found = [one for each in answers for one in similarity.alike(each)]
    print("\n".join([*filter(None, [similarity.as_text(found)]), f"{count(len(found), 'group')} of similar answers"]))
    return 0


def _oral(flags: Namespace) -> int:
    from companion_school.course import oral
    from companion_school.course.grading import similarity
    from companion_school.course.grading.lateness import due_line, read_rule
    from companion_school.course.grading.submissions import handed_in
    from companion_school.course.grading.what_to_grade import choose
    from companion_school.course.hidden_seeds import read_secret
    from companion_school.course.release.questions import is_question

    if flags.seed_file is None:
        raise ValueError("--seed-file: expected the file with your secret, got none")
    folder, to, secret = Path(flags.folder), Path(flags.to), read_secret(flags.seed_file)
    must_be_writable(to.absolute().parent, "--to", flags.to)
    near = [Path(), folder, folder.parent, Path(flags.seed_file).parent]
    task = choose(flags.exercises, flags.pset, None, near, secret)
    handed = handed_in(folder, task.name or None, project=bool(task.stages))
    with waiting("reading the answers"):
        if task.stages:
            answers = similarity.modules(handed, task.stages)
        else:
            answers = similarity.programs(handed, [one for one in task.exercises if not is_question(one.id)])
    due = due_line(task.name, read_rule(task.course, task.name) if task.course else None)
    about = f"{task.name}: {due}\n\n" if task.name else ""
    write_atomic(to, oral.page([one.student for one in handed], answers, secret, flags.each, about))
    print(f"{to}: questions for {count(len(handed), 'student')}")
    return 0


def _clone(flags: Namespace) -> int:
    from companion_school.course.bundles.repository import clone_all

    must_be_writable(Path(flags.to), "--to", flags.to)
    faults = 0
    for student, fault in clone_all(Path(flags.table), Path(flags.to)):
        faults += bool(fault)
        print(f"{student}: {fault or 'cloned'}")
    return 1 if faults else 0


def _verify(flags: Namespace) -> int:
    exclude(flags, "seeds", "mutants")
    if flags.mutants:
        from companion_school.course.proof import survivors

        report = survivors.survey(flags.exercises or None, jobs=flags.jobs)
        print(survivors.as_json(report) if flags.json else survivors.as_text(report))
        return 0 if report.holds else 1
    from companion_school.course.proof.proof import as_json, as_text, prove, prove_on_seeds

    if flags.seeds is not None:
        proof = prove_on_seeds(flags.exercises or None, flags.seeds, jobs=flags.jobs)
    else:
        proof = prove(flags.exercises or None, jobs=flags.jobs)
    print(as_json(proof) if flags.json else as_text(proof))
    return 0 if proof.holds else 1


def _notebooks(flags: Namespace) -> int:
    from companion_school.course.release.notebooks import stale_files, write_self_study, write_solved

    folder = Path(flags.folder)
    exclude(flags, "check", "solved")
    if not folder.is_dir():
        raise ValueError(f"{folder}: expected the folder of the lessons, found no such folder")
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


ACTIONS = {
    "list": (course_items.parser, course_items.run, "list the exercises and questions to choose from"),
    "release": (_release_parser, _release, "make a problem set, for you and for the students"),
    "export": (_export_parser, _export, "collect marks into one table with nbgrader's columns"),
    "collect": (
        written_answers.collect_parser,
        written_answers.collect,
        "collect written answers into a sheet, for a person to mark",
    ),
    "mark": (written_answers.mark_parser, written_answers.mark, "read the points from that sheet into the marks"),
    "alike": (_alike_parser, _alike, "list similar answers in a class, ignoring variable names"),
    "oral": (_oral_parser, _oral, "list questions to ask each student about their own code"),
    "clone": (_clone_parser, _clone, "clone the repositories of a class, from a list"),
    "verify": (_verify_parser, _verify, "test every check by running right and wrong answers"),
    "notebooks": (_notebooks_parser, _notebooks, "make the notebooks for self-study, or the solved ones"),
    "slides": (slides.parser, slides.run, "make slides of lessons: figures, equations, questions"),
    "exam": (exam.parser, exam.run, "make an exam and its marking key from your seed"),
}
"""For each action, its parser, the function that performs it, and its help text."""
