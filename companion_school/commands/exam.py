"""The command `companion course exam`, which writes a paper examination and its marking key with the teacher's seed."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import Namespace

from companion.commands.parser import Parser
from companion.ground.atomic import must_be_writable
from companion.ground.number_limits import Count


def parser() -> Parser:
    made = Parser(
        description=(
            "Make a paper exam from a pool of four questions per lesson (calculation, reasoning, broken "
            "code). Your seed file determines the questions and their numbers, so making the marking key requires "
            "this file. Each version has different numbers and a different order. release/NAME/ contains a printable "
            "page for each version and the same text in Markdown. NAME_key.md is for the person who marks the papers."
        ),
        epilog=(
            "examples:\n"
            "  companion course exam midterm --lessons 0-6 \\\n"
            "      --seed-file course/secret.seed --out course/\n"
            "  companion course exam final --each 1 --versions 2 \\\n"
            "      --seed-file course/secret.seed --out course/"
        ),
    )
    made.add_argument("name", metavar="NAME", help="name of the exam (letters, digits, - and _)")
    made.add_argument("--lessons", default="all", metavar="LESSONS", help="lessons, such as 0-4 or 2,3,5-7")
    made.add_argument("--each", type=Count, default=4, help="number of questions per lesson, from 1 to 4")
    made.add_argument("--versions", type=Count, default=1, help="number of versions of the paper")
    made.add_argument("--out", metavar="FOLDER", help="output folder (created if missing)")
    made.add_argument("--seed-file", metavar="SECRET", help="file with your secret seed")
    return made


def run(flags: Namespace) -> int:
    from companion_school.course.exam import paper
    from companion_school.course.hidden_seeds import read_secret
    from companion_school.course.release.problem_set import checked_name

    for flag, given in (("--out", flags.out), ("--seed-file", flags.seed_file)):
        if given is None:
            raise ValueError(f"{flag}: required; for example --seed-file course/secret.seed --out course/")
    if flags.each > 4:
        raise ValueError(f"--each {flags.each}: expected at most 4, because each lesson has four questions")
    if flags.versions > len(paper.VERSIONS):
        raise ValueError(f"--versions {flags.versions}: expected at most {len(paper.VERSIONS)}")
    name, out = checked_name(flags.name), Path(flags.out)
    lessons, secret = paper.lessons_in(flags.lessons), read_secret(flags.seed_file)
    must_be_writable(out, "--out")
    questions = paper.chosen(lessons, flags.each, secret)
    papers, key = paper.write(name, questions, secret, out, flags.versions)
    for path in (*papers, key):
        print(f"{path}: written")
    print(f"\n{len(questions)} questions, {sum(one.points for one in questions)} points. Keep {key} secret.")
    return 0
