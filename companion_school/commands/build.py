"""Command `companion build`: your own transformer, stage by stage."""

from __future__ import annotations

import sys
from pathlib import Path

from jsonargparse import Namespace

from companion.commands.parser import Parser, add_commands
from companion.ground.number_limits import Positive
from companion.ground.waiting import waiting


def parser() -> Parser:
    parser = Parser(
        description=(
            "Write a transformer of your own, one plain Python file after the other: read a lesson, write a part. "
            "Without an action, it shows the stages, what you have done of each, and what is next.\n\n"
            "Stages are listed in the order in which they are written; their numbers are only names.\n\n"
            "Your files are in my/transformer, found from here or from any folder above; --folder, or the variable "
            "COMPANION_BUILD, names another one. They import torch and each other. Nothing that you have written is "
            "ever overwritten."
        ),
        epilog=(
            "examples:\n"
            "  companion build start            write the stubs that you begin with\n"
            "  companion build                  show what is done, and what is next\n"
            "  companion build check 2          try stage 2, attention.py\n"
            "  companion build take 3           go on with the course's positions.py\n"
            "  companion build story            train it on stories, and keep it\n"
            "  companion build race --minutes 1 how well does it read by then?"
        ),
    )
    return parser


def add_actions(parser: Parser) -> None:
    """Add the actions to the parser, which must be registered as a command before."""
    actions = (
        ("show", _plain_parser("Show the stages, how far each is, and what is next."), "show the stages (the default)"),
        ("start", _plain_parser("Write the stubs of all stages; files of yours stay as they are."), "write the stubs"),
        ("check", _check_parser(), "try a stage, as check() does in a notebook"),
        ("take", _take_parser(), "lay in the course's reference of a stage, to go on with"),
        ("compare", _compare_parser(), "show the course's version of a stage beside yours"),
        ("story", _story_parser(), "train what you have written on stories, and keep the model"),
        ("race", _race_parser(), "train with your race.py, and compare"),
    )
    add_commands(parser, "action", "actions", actions)


def with_action(arguments: list[str]) -> list[str]:
    """Insert the default action, `show`, into a command line that names none."""
    rest = arguments[1:]
    if any(word in ("-h", "--help", "--version") for word in rest[:1]):
        return arguments
    named = bool(rest) and not rest[0].startswith("-")
    return arguments if named else ["build", "show", *rest]


def _add_folder(parser: Parser) -> None:
    parser.add_argument(
        "--folder", type=str, default=None, metavar="FOLDER", help="your folder. Default: my/transformer, here or above"
    )


def _plain_parser(description: str) -> Parser:
    parser = Parser(description=description)
    _add_folder(parser)
    return parser


def _check_parser() -> Parser:
    parser = Parser(
        description=(
            "Try stages with your own files: every part of a stage on many inputs, in a process of its own. Where "
            "something is wrong: what fails, the smallest input that shows it, what was expected, the mistake that it "
            "most likely is, and the stage in which it lies."
        ),
        epilog="examples:\n  companion build check 5\n  companion build check 2-5\n  companion build check --all",
    )
    parser.add_argument("stages", type=str, nargs="*", metavar="STAGE", help="as in 5, model, 2-5 or 1,3")
    parser.add_argument("--all", action="store_true", help="every stage")
    _add_folder(parser)
    return parser


def _take_parser() -> Parser:
    parser = Parser(
        description=(
            "Lay in the course's reference of a stage, to go on with what comes after it. It is marked as taken. Where "
            "you have written something, it is laid beside your file and yours is left as it is."
        ),
        epilog="examples:\n  companion build take 3\n  companion build take --all",
    )
    parser.add_argument("stages", type=str, nargs="*", metavar="STAGE", help="as in 3, positions or 2-4")
    parser.add_argument("--all", action="store_true", help="every stage")
    _add_folder(parser)
    return parser


def _compare_parser() -> Parser:
    parser = Parser(
        description="Show what you have written for a stage beside the course's version, once yours passes its check.",
        epilog="examples:\n  companion build compare 2",
    )
    parser.add_argument("stage", type=str, metavar="STAGE", help="as in 2 or attention")
    _add_folder(parser)
    return parser


def _story_parser() -> Parser:
    parser = Parser(
        description=(
            "Train your own transformer (stages 1 to 7) on small stories for some minutes, let it write one, and save "
            "it into your folder. Every command takes that folder as a model. The course's files stand in for stages "
            "that you have not begun."
        ),
        epilog=(
            "examples:\n"
            "  companion build story\n"
            "  companion build story --minutes 5 --data letters/*.txt\n"
            "then:\n"
            '  companion generate --checkpoint my/transformer --prompt "Once upon a time"\n'
            "  companion explore my/transformer\n"
            "  companion export mine.gguf --checkpoint my/transformer --gguf F16\n"
            "  companion tune --start my/transformer --task sums --worked 0.5"
        ),
    )
    parser.add_argument("--minutes", type=Positive, default=2.0, help="of training")
    parser.add_argument(
        "--data", type=str, nargs="+", default=[], metavar="PATH", help="files of text to read instead of the stories"
    )
    parser.add_argument("--reference", action="store_true", help="train the course's files, not yours")
    parser.add_device()
    _add_folder(parser)
    return parser


def _race_parser() -> Parser:
    parser = Parser(
        description=(
            "Train for some minutes with your race.py, and measure in bits per byte on text that it has not seen. As "
            "long as you have not written one, your stages 1 to 6 train as they are. "
            "The course's race.py runs after it for as many minutes, once a day, so that you can compare with what "
            "this machine does now. A table and a plot, race.png in your folder, show both beside compressors, n-grams "
            "and your earlier runs."
        ),
        epilog="examples:\n  companion build race --minutes 1\n  companion build race --minutes 5 --name 'wider'",
    )
    parser.add_argument("--minutes", type=Positive, default=5.0, help="of training")
    parser.add_argument("--name", type=str, default=None, metavar="NAME", help="what this run is called in the table")
    parser.add_argument("--alone", action="store_true", help="leave out the course's race.py")
    _add_folder(parser)
    return parser


def run(flags: Namespace) -> int:
    from companion_school.build.workspace import find_folder, lay_stubs, overview

    action = flags.get("action") or "show"
    chosen = flags[action]
    folder = find_folder(chosen.folder)
    if action == "race":
        return _race(chosen, folder)
    if action == "story":
        return _story(chosen, folder)
    if action == "compare":
        from companion_school.build.stages import find_stage
        from companion_school.build.workspace import compare

        print(compare(folder, find_stage(chosen.stage)))
        return 0
    if action in ("show", "start"):
        if action == "start":
            print(*lay_stubs(folder), sep="\n", end="\n\n")
        print(overview(folder))
        return 0
    return _check(chosen, folder) if action == "check" else _take(chosen, folder)


def _wanted(flags: Namespace) -> list[int]:
    from companion_school.build.stages import STAGES, find_stages

    if flags.all == bool(flags.stages):
        raise ValueError("STAGE: expected one or several stages, as in 5 or 2-5, or --all" + ", not both" * flags.all)
    return [*STAGES] if flags.all else [stage.number for stage in find_stages(",".join(flags.stages))]


def _check(flags: Namespace, folder: Path) -> int:
    from companion_school.build.check import examine_stage, with_real_model
    from companion_school.build.parts import parts
    from companion_school.build.stages import STAGES
    from companion_school.build.workspace import note_passed

    wrong = 0
    for number in _wanted(flags):
        if flags.all and not parts(number):
            print(f"{STAGES[number].id} {STAGES[number].file}: no check yet, left out", file=sys.stderr)
            continue
        with waiting(f"trying {STAGES[number].file}"):
            report = with_real_model(examine_stage(STAGES[number], folder), folder)
        note_passed(folder, report.stage, report.is_right)
        print(report, flush=True)
        wrong += not report.is_right
    return 1 if wrong else 0


def _take(flags: Namespace, folder: Path) -> int:
    from companion_school.build.stages import STAGES
    from companion_school.build.workspace import overview, take

    print(*take(folder, [STAGES[number] for number in _wanted(flags)]), sep="\n", end="\n\n")
    print(overview(folder))
    return 0


def _story(flags: Namespace, folder: Path) -> int:
    from companion_school.build.story import tell

    told = tell(folder, flags.minutes, flags.data, reference=flags.reference, device=flags.device)
    print(f"\n{told}")
    print(f"Saved in {folder}: {', '.join(told.files)}. Next:")
    print(f'  companion generate --checkpoint {folder} --prompt "Once upon a time"')
    print(f"  companion explore {folder}")
    return 0


def _race(flags: Namespace, folder: Path) -> int:
    from companion_school.build.race import race

    print(race(folder, flags.minutes, flags.name, alone=flags.alone))
    return 0
