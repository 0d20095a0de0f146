"""The command `companion grade`, which grades a folder of submissions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import Namespace

from companion.commands.parser import Parser
from companion.commands.preflight import try_to_write
from companion.ground.atomic import must_be_writable
from companion.ground.display import count
from companion.ground.number_limits import Count, NonNegative, Positive
from companion.ground.waiting import meanwhile

if TYPE_CHECKING:
    from companion_school.checking.exercise import Exercise
    from companion_school.course.grading.exercise_mark import Graded
    from companion_school.course.grading.results import Settled
    from companion_school.course.grading.sandbox.parent import Limits
    from companion_school.course.grading.sandbox.wall import Wall
    from companion_school.course.grading.submissions import Handed
    from companion_school.course.grading.what_to_grade import Task


def parser() -> Parser:
    parser = Parser(
        description=(
            "Grade a folder of submissions: STUDENT.ipynb, STUDENT/....ipynb, or nbgrader's "
            "submitted/STUDENT/PSET/. Answers are found by the names of their functions, even if cells were moved "
            "or renamed. Half of an exercise's points are for the public cases and half for hidden ones, which "
            "are drawn from your seed file. If the answer is a single number, all points are for the hidden "
            "check. An exercise with groups of cases gives points for each group separately. A right answer can "
            "also be robust, which means that it handles extreme values, NaN and bad input; --robust sets the "
            "bonus for that. Each answer is marked right, wrong, missing, crashed, timeout, refused or "
            'unreadable. A written answer is marked "to mark" until `companion course mark` has read its points.\n\n'
            "Students' code runs in a sandbox with limits and cannot influence any mark. The sandbox is "
            "bubblewrap (on Debian and Ubuntu: apt install bubblewrap), which hides the network and your files. "
            "Without bubblewrap, root can still grade, and the code then runs as another user without any privileges. "
            "If neither is possible, grading needs --no-sandbox, and every feedback page says so. On macOS and "
            "Windows, grade in WSL or, as root, in a Linux container:\n\n"
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
    parser.add_argument("folder", metavar="FOLDER", help="folder of submissions")
    parser.add_argument("--seed-file", metavar="SECRET", help="file with your secret seed")
    parser.add_argument("--exercises", nargs="+", default=[], metavar="N.N", help="exercises to grade")
    parser.add_argument(
        "--pset", help="problem set to grade instead: its name, its notebook, or the folder of the notebook"
    )
    parser.add_argument(
        "--build",
        metavar="STAGES",
        help="project to grade instead: stages of Your own transformer, such as 2-7; expects a folder or a zip file "
        "per student",
    )
    parser.add_argument(
        "--race",
        type=Positive,
        metavar="MINUTES",
        help="for a project: train every race.py for this long, one after the other, and write the table board.csv",
    )
    parser.add_argument(
        "--assignment", metavar="NAME", help="assignment name to write in the marks (default: the name of --pset)"
    )
    parser.add_argument(
        "--times",
        metavar="TABLE",
        help="CSV file with the columns student_id and time, for submission times that cannot be found otherwise",
    )
    _add_how(parser)
    return parser


def _add_how(parser: Parser) -> None:
    """Add the flags that control how submissions are graded, as opposed to what is graded."""
    parser.add_argument("--jobs", type=Count, default=2, help="number of submissions graded in parallel")
    parser.add_argument("--out", default="marks", metavar="FOLDER", help="output folder for marks.csv and feedback/")
    parser.add_argument(
        "--time",
        type=Positive,
        default=10.0,
        metavar="SECONDS",
        help="time limit for all public cases of an exercise together, and again for all hidden cases",
    )
    parser.add_argument(
        "--no-sandbox",
        action="store_true",
        help="grade even if nothing protects your files and the marks from students' code",
    )
    parser.add_argument(
        "--regrade",
        action="store_true",
        help="replace the marks of the graded students in --out, and list the students whose marks changed",
    )
    parser.add_argument(
        "--robust",
        type=NonNegative,
        default=0.0,
        metavar="SHARE",
        help="bonus for a robust answer, as a share of the exercise's points; max_score includes it",
    )
    parser.add_argument("--memory", type=Positive, default=2.0, metavar="GIB", help="memory limit for an answer")


def run(flags: Namespace) -> int:
    from companion_school.course.grading.marks_csv import first_results, idle_rows, merged, publish
    from companion_school.course.grading.results import Results, record_of
    from companion_school.course.grading.sandbox.parent import Limits
    from companion_school.course.hidden_seeds import read_secret

    if flags.seed_file is None:
        raise ValueError(
            "--seed-file: expected the file with your secret, got none; `companion course release` creates one"
        )
    folder, seed_file, out = Path(flags.folder), Path(flags.seed_file), Path(flags.out)
    limits, secret = Limits(flags.time, flags.memory), read_secret(seed_file)
    _must_be_apart(folder, seed_file, out)
    for place in (out, out / "feedback"):
        must_be_writable(place, "--out", str(out))
    wall = _wall(flags, folder, seed_file)
    task, name, handed = _what_and_who(flags, folder, seed_file, secret)
    first = first_results(out, [one.student for one in handed], flags.assignment or task.name, again=flags.regrade)
    try_to_write(out, "--out")  # fail now rather than after grading the last student
    _tell_what_was_found(folder, handed, is_project=bool(task.stages))
    own = _own_numbers(task, handed, secret, out)
    graded = _graded(flags, task, handed, secret, limits, wall, own)
    results = Results(name, str(task.course or ""), tuple(record_of(one) for one in graded))
    changes: list[str] = []
    if first is not None:
        results, changes = merged(first, results)
    settled, faults = publish(results, out)
    now = [one for one in settled if one.record.student in {each.student for each in handed}]
    _tell(now, changes if first is not None else None, task, name)
    for note in idle_rows(results, out):
        print(note)
    if flags.race is not None:
        _race(handed, flags, out, wall)
    return _written(out, faults)


def _must_be_apart(folder: Path, seed_file: Path, out: Path) -> None:
    for flag, other in (("folder", folder), ("--out", out)):
        if seed_file.resolve().parent.is_relative_to((other / "feedback" if flag == "--out" else other).resolve()):
            if flag == "folder" and (folder / "submitted").is_dir():
                continue
            raise ValueError(
                f"--seed-file {seed_file}: expected a file outside {other}, because students see that folder"
            )


def _wall(flags: Namespace, folder: Path, seed_file: Path) -> Wall:
    """Choose the sandbox that keeps students' code away from the secret, the references and other students' work."""
    from companion_school.course.grading.sandbox.wall import choose, reaches_network

    exercises = Path(__file__).parents[1] / "exercises"
    wall = choose([seed_file, folder, exercises], no_sandbox=flags.no_sandbox)
    if not wall.warning and reaches_network(wall.name):
        print(
            "warning: students' code can reach the network here, and could reveal the hidden cases; start the "
            "container with --network none, or install bubblewrap",
            file=sys.stderr,
        )
    return wall


def _what_and_who(flags: Namespace, folder: Path, seed_file: Path, secret: bytes) -> tuple[Task, str, list[Handed]]:
    from companion_school.course.grading.lateness import read_rule
    from companion_school.course.grading.received import read_times
    from companion_school.course.grading.submissions import handed_in
    from companion_school.course.grading.what_to_grade import choose

    near = [Path(), folder, folder.parent, seed_file.parent]
    task = choose(flags.exercises, flags.pset, flags.build, near, secret)
    if flags.race is not None and not task.stages:
        raise ValueError(f"--race {flags.race:g}: expected a project, as in --build 2-7,11")
    name = flags.assignment or task.name or folder.resolve().stem
    rule = read_rule(task.course, name) if task.course else None
    if task.course and name != task.name and read_rule(task.course, task.name):
        raise ValueError(
            f"--assignment {name}: the due date and the extensions belong to {task.name}, so the marks need that name"
        )
    times = read_times(Path(flags.times)) if flags.times else {}
    zone = rule.zone if rule else "UTC"
    return task, name, handed_in(folder, name, project=bool(task.stages), times=times, zone=zone)


def _tell_what_was_found(folder: Path, handed: Sequence[Handed], *, is_project: bool) -> None:
    """Report which files are skipped, and which file is graded if a student submitted several."""
    from companion_school.course.grading.submissions import CHOICE, CHOICE_OF_FOLDER, left_out, plain

    for file in left_out(folder):
        print(f"left out: {file} is neither a notebook, a Python file nor a zip", file=sys.stderr)
    several = [one for one in handed if one.others]
    if several:
        print(CHOICE_OF_FOLDER if is_project else CHOICE, file=sys.stderr)
    for one in several:
        files = f"{plain(one.files[0].parent.name)}/" if is_project else plain(one.files[0].name)
        print(f"{one.student}: {files} is graded; left out: {', '.join(one.others)}", file=sys.stderr)


def _own_numbers(task: Task, handed: Sequence[Handed], secret: bytes, out: Path) -> Callable[[str], Sequence[Exercise]]:
    """Return a function that returns a student's individual questions, whose numbers depend on the id in the roster."""
    from companion_school.course.grading.gradebook import ids_of, read_roster
    from companion_school.course.release.own_numbers import as_exercise

    if task.roster is None:
        return lambda student: ()
    people = read_roster(task.roster)
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    known = ids_of(out.absolute().parent, [one.student for one in handed], people)
    return lambda student: [as_exercise(one, secret, known.get(student, student)) for one in task.numbers]


def _graded(
    flags: Namespace,
    task: Task,
    handed: Sequence[Handed],
    secret: bytes,
    limits: Limits,
    wall: Wall,
    own: Callable[[str], Sequence[Exercise]],
) -> Sequence[Graded]:
    import torch
    from tqdm import tqdm

    from companion_school.course.grading.grade import grade

    torch.set_num_threads(1)  # this process only compares results; answers run in other processes
    bar = tqdm(total=len(handed), desc="submissions", unit=" students", disable=None)
    with bar, meanwhile(bar.refresh):
        return grade(
            handed,
            task.exercises,
            secret,
            written=task.written,
            stages=task.stages,
            jobs=flags.jobs,
            wall=wall,
            robust=flags.robust,
            limits=limits,
            own=own,
            done=lambda _: bar.update(),
        )


def _tell(settled: Sequence[Settled], changes: Sequence[str] | None, task: Task, name: str) -> None:
    from companion_school.course.grading.lateness import read_rule
    from companion_school.course.grading.marks_csv import summary
    from companion_school.course.grading.received import CALLED_LATE
    from companion_school.course.grading.tables import number

    print(summary(settled))
    if changes is not None:
        print("\n".join(["", *changes, f"{len(changes)} of {len(settled)} marks changed"]))
    for one in settled:
        if one.record.fault:
            print(f"{one.record.student}: {one.record.submission}: {one.record.fault}")
    tried = [one.earned if one.score is None else one.score for one in settled if one.score is not None or one.waits]
    if tried and (task.exercises or task.stages or task.numbers):  # no average for work that only people mark
        mean, most = number(round(sum(tried) / len(tried), 1)), number(settled[0].most)
        print(f"\n{len(tried)} of {len(settled)} submissions graded, {mean} of {most} points on average")
    if waiting := sum(bool(one.waits) for one in settled):
        them = f"{count(waiting, 'submission')} {'waits' if waiting == 1 else 'wait'}"
        print(f"{them} for the marks of written answers: see companion course collect --help")
    rule = read_rule(task.course, name) if task.course else None
    late = sum(bool(one.late.told) or one.record.time_from == CALLED_LATE for one in settled)
    unknown = sum(not one.record.time for one in settled)
    told = f"due {rule.due}, {rule.late}: {late} late" if rule else "no rule, so no points are deducted"
    untimed = f"; the submission times of {unknown} are unknown, so they lose no points" if unknown else ""
    print(f"Late work: {told}{untimed}")


def _written(out: Path, faults: Sequence[str]) -> int:
    print(f"{out / 'marks.csv'}: the marks; {out / 'class.csv'}: which mistakes were made, and how often")
    print(f"{out / 'feedback'}: a page for each student")
    for fault in faults:
        print(f"companion grade: error: {fault}", file=sys.stderr)
    return 1 if faults else 0


def _race(handed: Sequence[Handed], flags: Namespace, out: Path, wall: Wall) -> None:
    from tqdm import tqdm

    from companion.ground.display import table
    from companion_school.course.grading import race_board

    bar = tqdm(desc="races", unit=" students", disable=None)
    with bar, meanwhile(bar.refresh):
        raced = race_board.run_races(handed, flags.race, flags.memory, wall, done=lambda _: bar.update())
    rows = race_board.board(raced)
    race_board.write_table(rows, out / "board.csv")
    print(f"\n{table([tuple(row) for row in rows], left=(0, 1, 3), width=None)}")
    print(f"\n{out / 'board.csv'}: the races of {flags.race:g} minutes, best first")
