"""Command `companion course exam`: an examination on paper and its marking key, from the teacher's seed."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import Namespace

from companion.commands.parser import Parser
from companion.commands.preflight import must_be_writable
from companion.ground.number_limits import Count


def parser() -> Parser:
    made = Parser(
        description=(
            "Make an examination on paper: for each lesson some of its four questions (numbers, "
            "reasons, broken pieces of "
            "code). Your seed file decides which, and the numbers in them: without it nobody can make the key. Each "
            "version has numbers and an order of its own. release/NAME/ has a page to print for each version, and its "
            "text in Markdown; NAME_key.md is the marker's."
        ),
        epilog=(
            "examples:\n"
            "  companion course exam midterm --lessons 0-6 --seed-file course/secret.seed --out course/\n"
            "  companion course exam final --each 1 --versions 2 \\\n"
            "      --seed-file course/secret.seed --out course/"
        ),
    )
    made.add_argument("name", type=str, metavar="NAME", help="what it is called: letters, digits, - and _")
    made.add_argument("--lessons", type=str, default="all", metavar="LESSONS", help="as in 0-4 or 2,3,5-7")
    made.add_argument("--each", type=Count, default=4, help="questions of each lesson")
    made.add_argument("--versions", type=Count, default=1, help="papers with other numbers")
    made.add_argument("--out", type=str, default=None, metavar="FOLDER", help="where to; made where there is none")
    made.add_argument("--seed-file", type=str, default=None, metavar="SECRET", help="a file with what only you know")
    return made


def run(flags: Namespace) -> int:
    from companion_school.course.exam import paper
    from companion_school.course.hidden_seeds import read_secret
    from companion_school.course.release.problem_set import checked_name

    for flag, given in (("--out", flags.out), ("--seed-file", flags.seed_file)):
        if given is None:
            raise ValueError(
                f"{flag}: expected one, got none; for example --seed-file course/secret.seed --out course/"
            )
    if flags.versions > len(paper.VERSIONS):
        raise ValueError(f"--versions {flags.versions}: expected at most {len(paper.VERSIONS)}")
    name, out = checked_name(flags.name), Path(flags.out)
    lessons, secret = paper.lessons_in(flags.lessons), read_secret(flags.seed_file)
    must_be_writable(out, "--out")
    questions = paper.chosen(lessons, flags.each, secret)
    papers, key = paper.write(name, questions, secret, out, flags.versions)
    for path in (*papers, key):
        print(f"{path}: written")
    print(f"\n{len(questions)} questions, {sum(one.points for one in questions)} points. {key} is the marker's alone.")
    return 0
