"""The command `companion build`: write your own transformer, stage by stage."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import Namespace

from companion.commands.parser import Parser, add_commands
from companion.ground.number_limits import Positive
from companion.ground.waiting import waiting


def parser() -> Parser:
    return Parser(
        description=(
            "Write your own transformer, one plain Python file at a time: read a lesson, then write its stage. "
            "Without an action, this command shows all stages, your progress in each, and what comes next.\n\n"
            "The stages are listed in the order in which you write them. Their numbers are only names.\n\n"
            "Your files are in the folder my/transformer, which the command looks for in the current folder and in "
            "the folders above it. The flag --folder or the environment variable COMPANION_BUILD selects another "
            "folder. Your files import PyTorch, tokenizers, safetensors and each other, but nothing from the course. "
            "Your code is never overwritten."
        ),
        epilog=(
            "examples:\n"
            "  companion build start            write the stubs\n"
            "  companion build                  show what is done, and what is next\n"
            "  companion build check 2          check stage 2, attention.py\n"
            "  companion build take 3           use the course's positions.py\n"
            "  companion build story            train your model on stories\n"
            "  companion build race --minutes 1 train for a minute and compare"
        ),
    )


def add_actions(parser: Parser) -> None:
    """Add the actions to the parser, which must already be registered as a command."""
    show = _plain_parser("Show the stages, your progress in each, and what comes next.")
    start = _plain_parser("Write the stubs of all stages. Files that you already have are not changed.")
    actions = (
        ("show", show, "show the stages and your progress (the default)"),
        ("start", start, "write the stubs of all stages"),
        ("check", _check_parser(), "check a stage, as check() does in a notebook"),
        ("take", _take_parser(), "use the course's reference solution for a stage"),
        ("compare", _compare_parser(), "show your code and the course's solution side by side"),
        ("story", _story_parser(), "train your model on stories and save it"),
        ("race", _race_parser(), "train with your race.py and compare the result"),
    )
    add_commands(parser, "action", "actions", actions)


def with_action(arguments: list[str]) -> list[str]:
    """Insert the default action, `show`, into a command line that does not name an action."""
    rest = arguments[1:]
    if any(word in ("-h", "--help", "--version") for word in rest[:1]):
        return arguments
    named = bool(rest) and not rest[0].startswith("-")
    return arguments if named else ["build", "show", *rest]


def _add_folder(parser: Parser) -> None:
    parser.add_argument(
        "--folder", metavar="FOLDER", help="your folder (default: my/transformer, here or in a folder above)"
    )


def _plain_parser(description: str) -> Parser:
    parser = Parser(description=description)
    _add_folder(parser)
    return parser


def _check_parser() -> Parser:
    parser = Parser(
        description=(
            "Check your own files, stage by stage. Every part of a stage is tested on many inputs in a separate "
            "process. If a part fails, the report shows the smallest input that it fails on, the expected result, the "
            "most likely mistake, and the stage that contains this mistake."
        ),
        epilog="examples:\n  companion build check 5\n  companion build check 2-5\n  companion build check --all",
    )
    parser.add_argument("stages", nargs="*", metavar="STAGE", help="stages, such as 5, model, 2-5 or 1,3")
    parser.add_argument("--all", action="store_true", help="check every stage")
    _add_folder(parser)
    return parser


def _take_parser() -> Parser:
    parser = Parser(
        description=(
            "Copy the course's reference solution for a stage into your folder, so that you can continue with the "
            "next one. The stage is marked as taken. If you have written something for that stage, your file is not "
            "changed and the solution is saved next to it."
        ),
        epilog="examples:\n  companion build take 3\n  companion build take --all",
    )
    parser.add_argument("stages", nargs="*", metavar="STAGE", help="stages, such as 3, positions or 2-4")
    parser.add_argument("--all", action="store_true", help="take every stage")
    _add_folder(parser)
    return parser


def _compare_parser() -> Parser:
    parser = Parser(
        description="Show your code for a stage next to the course's version. Your stage must have passed its check.",
        epilog="examples:\n  companion build compare 2",
    )
    parser.add_argument("stage", metavar="STAGE", help="stage, such as 2 or attention")
    _add_folder(parser)
    return parser


def _story_parser() -> Parser:
    parser = Parser(
        description=(
            "Train your own transformer (stages 1 to 7) on short stories for a few minutes, let it write a story, "
            "and save it in your folder. Every command accepts this folder as a model. For stages that you have "
            "not begun, the course's files are used."
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
    parser.add_argument("--minutes", type=Positive, default=2.0, help="minutes of training")
    parser.add_argument(
        "--data", nargs="+", default=[], metavar="PATH", help="text files to train on instead of the stories"
    )
    parser.add_argument("--reference", action="store_true", help="train the course's reference files instead of yours")
    parser.add_device()
    _add_folder(parser)
    return parser


def _race_parser() -> Parser:
    parser = Parser(
        description=(
            "Train for a few minutes with your race.py, and measure the model in bits per byte on unseen text. If you "
            "have not written a race.py, your stages 1 to 6 are trained as they are. The first race of each day also "
            "trains the course's race.py for the same time, which shows what this machine can do at the moment. A "
            "race on a GPU is repeated on the CPU, and each has a row in the table. The table and a plot (race.png in "
            "your folder) compare these results with compressors, n-grams and your earlier runs."
        ),
        epilog="examples:\n  companion build race --minutes 1\n  companion build race --minutes 5 --name 'wider'",
    )
    parser.add_argument("--minutes", type=Positive, default=5.0, help="minutes of training")
    parser.add_argument("--name", metavar="NAME", help="name of this run in the table")
    parser.add_argument("--alone", action="store_true", help="do not run the course's race.py")
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
    from companion_school.build.stages import STAGES
    from companion_school.build.workspace import note_passed

    wrong = 0
    for number in _wanted(flags):
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
    print("The notebook build/19_yours.ipynb teaches it to answer questions.")
    return 0


def _race(flags: Namespace, folder: Path) -> int:
    from companion_school.build.race import race

    print(race(folder, flags.minutes, flags.name, alone=flags.alone))
    return 0
