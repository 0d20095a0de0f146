"""`companion grade`: grade a folder of submissions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import Namespace

from companion.commands.parser import Parser
from companion.commands.preflight import must_be_writable, try_to_write
from companion.ground.number_limits import Count, NonNegative, Positive

if TYPE_CHECKING:
    from companion_school.course.grading.sandbox.wall import Wall


def parser() -> Parser:
    parser = Parser(
        description=(
            "Grade a folder of submissions: STUDENT.ipynb, STUDENT/....ipynb, or nbgrader's submitted/STUDENT/PSET/. "
            "Answers are found by their functions' names, whatever has become of the cells. Half of an exercise's "
            "points are for the public cases, half for hidden ones drawn from your seed file (all of them, where the "
            "answer is one number). An exercise with groups of cases gives points for each group by itself. A right "
            "answer may be robust besides: it stands extremes, NaN and bad input; --robust says what that adds. Each "
            "answer ends as right, wrong, missing, crashed, timeout, refused or unreadable; a written one as to mark, "
            "until `companion course mark` has read its mark.\n\n"
            "A student's code runs behind a wall, with limits, and decides about no mark: under bubblewrap (Debian, "
            "Ubuntu: apt install bubblewrap), which shows it neither network nor files, or else, where root grades, as "
            "another user without any rights. Where there is neither, nothing is graded without --no-sandbox, and "
            "every page says so. On macOS and Windows, grade in WSL or in a Linux container, as root:\n\n"
            '  docker run --rm --network none --pids-limit 256 -v "$PWD:/course" \\\n'
            "      -w /course IMAGE companion grade ..."
        ),
        epilog=(
            "examples:\n"
            "  companion grade submissions/ --pset week2 --seed-file secret.seed --out marks/\n"
            "  companion grade submissions/ --exercises 2.3 2.4 --seed-file secret.seed \\\n"
            "      --jobs 4 --time 5\n"
            "  companion grade submissions/ --pset week2 --seed-file secret.seed \\\n"
            "      --robust 0.25"
        ),
    )
    parser.add_argument("folder", type=str, metavar="FOLDER", help="the submissions")
    parser.add_argument("--seed-file", type=str, default=None, metavar="SECRET", help="what only you know")
    parser.add_argument("--exercises", type=str, nargs="+", default=[], metavar="N.N", help="the exercises to grade")
    parser.add_argument(
        "--pset", type=str, default=None, help="or the problem set: its name, its notebook or the folder of that"
    )
    parser.add_argument(
        "--build",
        type=str,
        default=None,
        metavar="STAGES",
        help="or a project: these stages of Your own transformer, as in 2-7; a folder or a zip for each student",
    )
    parser.add_argument(
        "--race",
        type=Positive,
        default=None,
        metavar="MINUTES",
        help="of a project: let every race.py train for so long, one after the other, and make the table board.csv",
    )
    parser.add_argument(
        "--assignment", type=str, default=None, metavar="NAME", help="its name in the marks. Default: --pset's"
    )
    _add_how(parser)
    return parser


def _add_how(parser: Parser) -> None:
    """The flags that say how to grade, and not what."""
    parser.add_argument("--jobs", type=Count, default=2, help="submissions at once")
    parser.add_argument("--out", type=str, default="marks", metavar="FOLDER", help="gets marks.csv and feedback/")
    parser.add_argument(
        "--time",
        type=Positive,
        default=10.0,
        metavar="SECONDS",
        help="for all public cases of an exercise, and all hidden",
    )
    parser.add_argument(
        "--no-sandbox",
        action="store_true",
        help="grade even where nothing keeps students' code from your files and from its own marks",
    )
    parser.add_argument(
        "--regrade",
        action="store_true",
        help="put these marks among those that are in --out already, and list whose changed",
    )
    parser.add_argument(
        "--robust",
        type=NonNegative,
        default=0.0,
        metavar="SHARE",
        help="what a robust answer adds, as a share of its exercise's points; max_score grows with it",
    )
    parser.add_argument("--memory", type=Positive, default=2.0, metavar="GIB", help="that an answer may take")


def run(flags: Namespace) -> int:
    from companion_school.course.grading.lateness import read_rule
    from companion_school.course.grading.regrade import first_marks, merged
    from companion_school.course.grading.sandbox.parent import Limits
    from companion_school.course.grading.submissions import handed_in, left_out
    from companion_school.course.grading.what_to_grade import choose
    from companion_school.course.hidden_seeds import read_secret
    from companion_school.course.written.marking import keep_rule
    from companion_school.course.written.sheet import kept

    if flags.seed_file is None:
        raise ValueError(
            "--seed-file: expected the file with your secret, got none; `companion course release` makes one"
        )
    folder, seed_file, out = Path(flags.folder), Path(flags.seed_file), Path(flags.out)
    if flags.race is not None and flags.build is None:
        raise ValueError(f"--race {flags.race:g}: expected --build beside it, as in --build 2-7,11")
    if flags.build is not None:
        return _project(flags, folder, seed_file, out)
    limits = Limits(flags.time, flags.memory)
    secret = read_secret(seed_file)
    for flag, other in (("folder", folder), ("--out", out)):
        if seed_file.resolve().parent.is_relative_to((other / "feedback" if flag == "--out" else other).resolve()):
            if flag == "folder" and (folder / "submitted").is_dir():
                continue
            raise ValueError(f"--seed-file {seed_file}: expected it outside {other}, which holds what students see")
    for place in (out, out / "feedback"):
        must_be_writable(place, "--out", str(out))
    wanted, written = choose(flags.exercises, flags.pset, [Path(), folder, folder.parent, seed_file.parent], secret)
    name = flags.assignment or (Path(flags.pset).stem if flags.pset else folder.resolve().name)
    handed = handed_in(folder, name)
    wall = _wall(flags, folder, seed_file)
    rule = read_rule(seed_file.parent / f"{name}.toml")
    given = kept(out)
    first = first_marks(out, [one.student for one in handed], again=flags.regrade)
    try_to_write(out, "--out")  # now, and not after the last student
    for file in left_out(folder):
        print(f"left out: {file} is neither a notebook nor a Python file", file=sys.stderr)

    import torch
    from tqdm import tqdm

    from companion_school.course.grading.grade import TRIED, grade
    from companion_school.course.grading.marks_csv import summary, table, write

    torch.set_num_threads(1)  # of the comparisons; the answers run elsewhere
    with tqdm(total=len(handed), desc="submissions", unit=" students", disable=None) as bar:
        graded = grade(
            handed,
            wanted,
            secret,
            written=written,
            given=given,
            jobs=flags.jobs,
            wall=wall,
            robust=flags.robust,
            limits=limits,
            done=lambda _: bar.update(),
        )
    marks, changes = merged(first, table(graded, name, rule))
    faults = write(graded, name, out, marks)
    if written:
        keep_rule(out, rule)
    print(summary(graded))
    if first:
        print("\n".join(["", *changes, f"{len(changes)} of {len(graded)} marks changed"]))
    for student in graded:
        if student.fault is not None:
            print(f"{student.handed.student}: {student.submission}: {student.fault}")
    tried = [student.points for student in graded if student.submission in TRIED]
    if tried:
        mean, most = sum(tried) / len(tried), graded[0].most
        print(f"\n{len(tried)} of {len(graded)} submissions graded, {mean:.1f} of {most:g} points on average")
    if waiting := sum(not student.is_marked for student in graded):
        print(f"{waiting} of them wait for the marks of written answers: companion course collect {folder} --help")
    return _written(out, faults)


def _written(out: Path, faults: Sequence[str]) -> int:
    """Says what a marking has left, and what of it could not be written; the exit code."""
    print(f"{out / 'marks.csv'}: the marks; {out / 'class.csv'}: which mistakes were made, and how often")
    print(f"{out / 'feedback'}: a page for each student")
    for fault in faults:
        print(f"companion grade: error: {fault}", file=sys.stderr)
    return 1 if faults else 0


def _wall(flags: Namespace, folder: Path, seed_file: Path) -> Wall:
    """What stands between students' code and the secret, the references and each other's work."""
    from companion_school.course.grading.sandbox.wall import choose

    exercises = Path(__file__).parents[1] / "exercises"
    return choose([seed_file, folder, exercises], no_sandbox=flags.no_sandbox)


def _project(flags: Namespace, folder: Path, seed_file: Path, out: Path) -> int:
    """Grade a project: each student's own transformer."""
    from companion.ground.display import table
    from companion_school.build.stages import find_stages
    from companion_school.course.grading import project
    from companion_school.course.grading.sandbox.parent import Limits
    from companion_school.course.hidden_seeds import read_secret

    if flags.exercises or flags.pset:
        raise ValueError(f"--build {flags.build}: expected a project by itself, got --exercises or --pset beside it")
    stages, secret = find_stages(flags.build), read_secret(seed_file)
    must_be_writable(out, "--out")
    wall = _wall(flags, folder, seed_file)
    handed = project.hand_ins(folder)
    try_to_write(out, "--out")

    import torch
    from tqdm import tqdm

    torch.set_num_threads(1)  # of the comparisons; the answers run elsewhere
    limits = Limits(flags.time, flags.memory)
    with tqdm(total=len(handed), desc="hand-ins", unit=" students", disable=None) as bar:
        graded = project.grade(
            handed,
            stages,
            secret,
            jobs=flags.jobs,
            limits=limits,
            wall=wall,
            done=lambda _: bar.update(),
        )
    project.write(graded, stages, out)
    rows = project.table(graded, stages)
    print(table([tuple(row) for row in rows], left=(0, len(rows[0]) - 1), width=None))
    print(f"\n{out / 'marks.csv'}: the marks; {out / 'feedback'}: a page for each student")
    if flags.race is not None:
        with tqdm(desc="races", unit=" students", disable=None) as bar:
            raced = project.run_races(handed, flags.race, flags.memory, done=lambda _: bar.update())
        rows = project.board(raced)
        project.write_table(rows, out / "board.csv")
        print(f"\n{table([tuple(row) for row in rows], left=(0, 1, 3), width=None)}")
        print(f"\n{out / 'board.csv'}: the races of {flags.race:g} minutes, the fewest bits per byte first")
    return 0
