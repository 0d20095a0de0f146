"""The flags of `companion grade`. Nothing here needs torch."""

from __future__ import annotations

from jsonargparse import ArgumentParser

from companion.commands.help_format import HelpFormatter


def grade_parser() -> ArgumentParser:
    parser = ArgumentParser(
        description=(
            "Grade a folder of submissions: STUDENT.ipynb, STUDENT/....ipynb, or nbgrader's submitted/STUDENT/PSET/.\n"
            "Answers are found by their functions' names, whatever has become of the cells. Half of an exercise's\n"
            "points are for the public cases, half for hidden ones drawn from your seed file (all of them, where the\n"
            "answer is one number). Each answer ends as right, wrong, missing, crashed, timeout, refused or\n"
            "unreadable.\n\n"
            "A student's code runs in processes of its own with limits, and decides about no mark. That is no\n"
            "sandbox: to grade people you do not know, run the grader in a container without network, such as\n"
            '  docker run --rm --network none --pids-limit 256 -v "$PWD:/course" -w /course IMAGE companion grade ...\n'
            "Linux and macOS. On macOS memory is not limited, and files are guarded by Python's audit hook alone."
        ),
        epilog=(
            "examples:\n"
            "  companion grade submissions/ --pset week2 --seed-file secret.seed --out marks/\n"
            "  companion grade submissions/ --exercises 2.3 2.4 --seed-file secret.seed --jobs 4 --time 5"
        ),
        formatter_class=HelpFormatter,
    )
    parser.add_argument("folder", type=str, help="the submissions")
    parser.add_argument("--seed-file", type=str | None, default=None, metavar="SECRET", help="what only you know")
    parser.add_argument("--exercises", type=str, nargs="+", default=[], metavar="N.N", help="the exercises to grade")
    parser.add_argument(
        "--pset", type=str | None, default=None, help="or the problem set: its name, its notebook or the folder of that"
    )
    parser.add_argument(
        "--assignment", type=str | None, default=None, metavar="NAME", help="its name in the marks. Default: --pset's"
    )
    parser.add_argument("--jobs", type=int, default=2, help="submissions at once")
    parser.add_argument("--out", type=str, default="marks", metavar="FOLDER", help="gets marks.csv and feedback/")
    parser.add_argument(
        "--time",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="for all public cases of an exercise, and all hidden",
    )
    parser.add_argument("--memory", type=float, default=2.0, metavar="GIB", help="that an answer may take")
    return parser
