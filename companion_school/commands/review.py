"""The command `companion review`, which asks the lessons' questions again after 1, 3, 7 and 21 days."""

from __future__ import annotations

from jsonargparse import Namespace

from companion.commands.parser import Parser
from companion.ground.fields import plain


def parser() -> Parser:
    parser = Parser(
        description=(
            "Review lesson questions that you have already answered. A question comes back one day after "
            "the first answer, then after 3, 7 and 21 days if your answers are right. After a wrong answer the "
            "schedule starts again. Press Enter to skip a question and Ctrl-C to end the review. Your answers are "
            "saved in .companion/questions.json in your home folder, or in the folder COMPANION_HOME.\n\n"
            "In a notebook: from companion_school.questions import review; review()"
        ),
        epilog=(
            "examples:\n"
            "  companion review              questions that are due today\n"
            "  companion review 2 5          only lessons 02 and 05\n"
            "  companion review 2 --all      all of lesson 02, answered or not\n"
            "  companion review --list       when each question is due"
        ),
    )
    parser.add_argument("lessons", nargs="*", default=[], metavar="LESSON", help="lesson numbers (default: all)")
    parser.add_argument(
        "--all",
        action="store_true",
        help="ask all questions, including those that are not due and those you never answered",
    )
    parser.add_argument("--list", action="store_true", help="list when each question is due, and ask nothing")
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
            raise ValueError(f"LESSON {plain(lesson)}: expected one of the lessons with questions ({there})")
        wanted.add(int(lesson))
    chosen = [question for question in course.values() if question.lesson in (wanted or known)]
    if flags.list:
        print(calendar(chosen))
        return 0
    waiting = chosen if flags.all else spaced_repetition.due(chosen)
    if not waiting:
        print("No question is due today. `companion review --list` shows the dates; `--all` asks anyway.")
        return 0
    count = len(waiting)
    print(f"{count} question{'s are' if count > 1 else ' is'} due. Press Enter to skip one.")
    review(waiting)
    return 0
