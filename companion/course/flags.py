"""The flags of `companion course`. Nothing here needs torch."""

from __future__ import annotations

from jsonargparse import ArgumentParser

from companion.help_format import HelpFormatter


def course_parser() -> ArgumentParser:
    return ArgumentParser(
        description=(
            "Make problem sets and notebooks from the exercises, collect marks, and prove that every check works.\n"
            "notebooks/exercises/INSTRUCTORS.md explains how to choose, hand out and grade."
        ),
        epilog=(
            "examples:\n"
            "  companion course release week2 --exercises 2.3 2.4 --out course/\n"
            "  companion grade submissions/ --pset week2 --seed-file course/secret.seed --out marks/\n"
            "  companion course export marks/\n"
            "  companion course verify"
        ),
        formatter_class=HelpFormatter,
    )


def add_actions(parser: ArgumentParser) -> None:
    """Give a course parser its actions, once it is a subcommand itself."""
    actions = parser.add_subcommands(dest="action", title="actions", description="Each explains itself with --help.")
    actions.add_subcommand("release", _release_parser(), help="make a problem set: what you keep, what students get")
    actions.add_subcommand("export", _export_parser(), help="collect marks into one table, with nbgrader's columns")
    actions.add_subcommand("verify", _verify_parser(), help="prove every check: run what is right, and what is wrong")
    actions.add_subcommand("notebooks", _notebooks_parser(), help="make the self-study notebooks, or the solved ones")


def _release_parser() -> ArgumentParser:
    parser = ArgumentParser(
        description=(
            "Make a problem set in a folder: source/PSET for nbgrader, release/PSET for students, PSET.md for you.\n"
            "What students get holds no solution. Half of an exercise's points are for public cases, half for hidden\n"
            "ones, which are drawn from your seed file. A folder may hold several problem sets."
        ),
        epilog=(
            "examples:\n"
            "  companion course release week2 --exercises 2.3 2.4 3.1 --out course/\n"
            "  companion course release week3 --exercises 3.2 3.3 --out course/ --seed-file ~/secret.seed"
        ),
        formatter_class=HelpFormatter,
    )
    parser.add_argument("pset", type=str, help="the name of the problem set: letters, digits, - and _")
    parser.add_argument(
        "--exercises", type=str, nargs="+", default=[], metavar="N.N", help="the exercises; the course's order is kept"
    )
    parser.add_argument(
        "--out", type=str | None, default=None, metavar="FOLDER", help="where to; made where there is none"
    )
    parser.add_argument(
        "--seed-file",
        type=str | None,
        default=None,
        metavar="SECRET",
        help="a file with what only you know. Default: FOLDER/secret.seed, made if it is not there",
    )
    return parser


def _export_parser() -> ArgumentParser:
    parser = ArgumentParser(
        description=(
            "Collect the marks that `companion grade --out FOLDER` wrote, of one or several problem sets, into one\n"
            "table with the columns of `nbgrader export`. Where no notebook could be read, the score stays empty."
        ),
        epilog=(
            "examples:\n  companion course export marks/\n"
            "  companion course export marks/ --roster roster.csv --to grades.csv"
        ),
        formatter_class=HelpFormatter,
    )
    parser.add_argument("folder", type=str, help="the folder with marks; folders inside it count, too")
    parser.add_argument("--to", type=str | None, default=None, metavar="FILE", help="Default: FOLDER/grades.csv")
    parser.add_argument(
        "--roster",
        type=str | None,
        default=None,
        metavar="FILE",
        help="CSV with id, first_name, last_name, email",
    )
    return parser


def _verify_parser() -> ArgumentParser:
    parser = ArgumentParser(
        description=(
            "Run every reference, every other right answer, every stub and every known mistake on several seeds, and\n"
            "a class of hostile students through the grader. Exit code 0 only if all come out as they must.\n\n"
            "With exercises named, these alone, without the hostile class: for whoever writes one."
        ),
        epilog="examples:\n  companion course verify\n  companion course verify 5.3 5.4",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("exercises", nargs="*", type=str, default=[], metavar="ID", help="such as 5.3. Default: all")
    parser.add_argument("--json", action="store_true", help="print the counts, and every fault, as JSON")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    return parser


def _notebooks_parser() -> ArgumentParser:
    parser = ArgumentParser(
        description="Make the notebooks of the exercises for self-study, byte for byte the same each time.",
        epilog=(
            "examples:\n"
            "  companion course notebooks                             bring notebooks/exercises/ up to date\n"
            "  companion course notebooks --check                     write nothing; exit code 1 if one is stale\n"
            "  companion course notebooks --solved build/solved       with solutions, and with what they must print"
        ),
        formatter_class=HelpFormatter,
    )
    parser.add_argument("folder", nargs="?", type=str, default="notebooks", help="the folder of the lessons")
    parser.add_argument("--check", action="store_true", help="write nothing; say which notebook is stale")
    parser.add_argument("--solved", type=str | None, default=None, metavar="FOLDER", help="write the solved ones here")
    return parser
