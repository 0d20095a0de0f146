"""Command `companion review`: the lessons' questions again, after 1, 3, 7 and 21 days."""

from __future__ import annotations

from jsonargparse import Namespace

from companion.commands.parser import Parser
from companion.ground.fields import plain


def parser() -> Parser:
    parser = Parser(
        description=(
            "Ask the questions of the lessons again that you have answered: a day after the first answer, then after "
            "3, 7 and 21 days, as long as you are right; after a wrong answer from the beginning. An empty line passes "
            "a question over; Ctrl-C ends the review, and what you answered is kept in .companion/questions.json in "
            "your home folder, or in the folder COMPANION_HOME.\n\n"
            "In a notebook: from companion_school.questions import review; review()"
        ),
        epilog=(
            "examples:\n"
            "  companion review              what is waiting today\n"
            "  companion review 2 5          of lessons 02 and 05 alone\n"
            "  companion review 2 --all      all of lesson 02, answered or not\n"
            "  companion review --list       when which is asked again; ask nothing"
        ),
    )
    parser.add_argument("lessons", nargs="*", type=str, default=[], metavar="LESSON", help="numbers. Default: all")
    parser.add_argument("--all", action="store_true", help="also what is not waiting, and was never answered")
    parser.add_argument("--list", action="store_true", help="say when each is asked again, and ask nothing")
    return parser


def run(flags: Namespace) -> int:
    from companion_school.questions import spaced_repetition
    from companion_school.questions.question import questions
    from companion_school.questions.terminal import calendar, review

    course = questions()
    known = sorted({question.lesson for question in course.values()})
    wanted = set()
    for lesson in flags.lessons:
        if not lesson.isdecimal() or len(lesson) > 2 or int(lesson) not in known:
            there = ", ".join(f"{number:02}" for number in known) or "none yet"
            raise ValueError(f"LESSON {plain(lesson)}: expected a lesson with questions: {there}")
        wanted.add(int(lesson))
    chosen = [question for question in course.values() if question.lesson in (wanted or known)]
    if flags.list:
        print(calendar(chosen))
        return 0
    waiting = chosen if flags.all else spaced_repetition.due(chosen)
    if not waiting:
        print("No question is waiting today. `companion review --list` says when; `--all` asks anyway.")
        return 0
    count = len(waiting)
    print(f"{count} question{'s are' if count > 1 else ' is'} waiting. An empty line passes one over.")
    review(waiting)
    return 0
