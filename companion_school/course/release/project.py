"""Projects for students: stubs of some stages, guiding notebooks for these stages, and a page for the teacher.

FOLDER/release/NAME/    the students' files: transformer/ with the stubs, notebooks/, README.md
FOLDER/NAME.md          the teacher's page
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from companion.ground.atomic import write_atomic
from companion.ground.display import count
from companion_school.build.parts import FORBIDDEN, OPEN, parts, points_of
from companion_school.build.stages import STAGES, Stage
from companion_school.build.stubs import given, names, reference
from companion_school.build.workspace import TAKEN, lay_stubs
from companion_school.course.exam.paper import must_be_free
from companion_school.course.grading.lateness import Lateness, due_line

UNGUIDED = (
    "The guiding notebooks are missing, because the wheel does not contain them; they are in `notebooks/build` of the "
    "course's repository. Release the project again with `--notebooks FOLDER`, where FOLDER is the repository's "
    "`notebooks`, or hand them out separately."
)


def release(
    name: str, stages: Sequence[Stage], out: Path, notebooks: Path | None = None, rule: Lateness | None = None
) -> list[Path]:
    """Write a project into `out`.

    For stages that the project needs but does not assign, students get the course's references. The students' folder is
    written atomically, followed by the teacher's page.

    Args:
        name: Name of the project.
        stages: Stages that the students write.
        out: Output folder (created if missing).
        notebooks: Folder with the guiding notebooks, `notebooks/build` in the repository. If None, the project has no
            guides, and the teacher's page says so.
        rule: Due date and penalty for late work, which the students' and the teacher's page state.

    Returns:
        The students' folder and the teacher's page.

    Raises:
        ValueError: `out` already contains a project with this name.
    """
    place, page = check_free(name, out)
    needed = {number for stage in stages for number in stage.needs} - {stage.number for stage in stages}
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=out) as unfinished:
        made = Path(unfinished, name)
        lay_stubs(made / "transformer", stages)
        for number in sorted(needed):
            write_atomic(made / "transformer" / STAGES[number].file, f"{TAKEN}\n{reference(number)}")
        for stage in stages:
            for file in sorted(notebooks.glob(f"{stage.number:02d}_*.ipynb")) if notebooks else []:
                write_atomic(made / "notebooks" / file.name, file.read_bytes())
        write_atomic(made / "README.md", _for_students(name, stages, needed, rule, guided=notebooks is not None))
        place.parent.mkdir(parents=True, exist_ok=True)
        made.rename(place)
    write_atomic(page, _for_teachers(name, stages, needed, due_line(name, rule), guided=notebooks is not None))
    return [place, page]


def check_free(name: str, out: Path) -> tuple[Path, Path]:
    """Return the paths of a project's folder and page after checking that neither exists yet.

    Raises:
        ValueError: One of them already exists.
    """
    places = out / "release" / name, out / f"{name}.md"
    must_be_free(out, places)
    return places


def _for_students(name: str, stages: Sequence[Stage], needed: set[int], rule: Lateness | None, *, guided: bool) -> str:
    lines = [
        f"# {name}: your own transformer",
        "",
        *([] if rule is None else [f"{rule.told}.", ""]),
        "The folder `transformer/` contains the files that you complete: signatures and docstrings with shapes. They "
        "import PyTorch, `tokenizers`, `safetensors` and each other. Code marked `# given` is complete.",
        "",
        "| stage | file | what you write | lessons | about | points |",
        "|---|---|---|---|---|---|",
    ]
    for stage in stages:
        asked, lessons = ", ".join(names(stage.number)), ", ".join(f"{lesson:02d}" for lesson in stage.lessons)
        lines.append(
            f"| {stage.number} | `{stage.file}` | {asked} | {lessons} | {stage.minutes} min | {points_of(stage)} |"
        )
    if needed:
        lines += ["", f"Your files use {_files(needed)}, which you also find there, already complete."]
    if guided:
        lines += ["", "`notebooks/` has a guide to each stage. It explains what to write and in which order, and it "
                  "shows what your own code can do afterwards."]  # fmt: skip
    lines += [
        "",
        "Check a stage as often as you like, in this folder:",
        "",
        *(f"    companion build check {stage.number}" for stage in stages),
        "",
        'You get the command with `pip install "executable-transformer[school]"`, or with a checkout of the course\'s '
        "repository.",
        "",
        f"Before the race, no file may use {', '.join(f'`{word}`' for word in FORBIDDEN)}. A file that does earns "
        "nothing. Import only the public parts of PyTorch, numpy and everyday modules of Python, because other modules "
        f"could hide one of these names.{_bans(stages)}",
        "",
        "Hand in the folder `transformer`, or a zip of it. Each part of a stage earns its own points, and a mistake in "
        "an earlier stage costs no points in a later one.",
    ]
    return "\n".join(lines) + "\n"


def _files(numbers: set[int]) -> str:
    return ", ".join(f"`{STAGES[number].file}`" for number in sorted(numbers))


def _bans(stages: Sequence[Stage]) -> str:
    """Return a sentence for each part that forbids further names in the student's file."""
    banned = [(part, stage.file) for stage in stages for part in parts(stage.number) if part.forbidden]
    return "".join(
        f" `{part.title}` earns nothing if `{file}` uses {' or '.join(f'`{word}`' for word in part.forbidden)}."
        for part, file in banned
    )


def _for_teachers(name: str, stages: Sequence[Stage], needed: set[int], due: str, *, guided: bool) -> str:
    minutes, points = sum(stage.minutes for stage in stages), sum(map(points_of, stages))
    spec = ",".join(str(stage.number) for stage in stages)
    lines = [
        f"# {name}: the instructor's page",
        "",
        f"{count(len(stages), 'stage')} of *Your own transformer*, {points} points, about {minutes} minutes of work. "
        f"{due}",
        "",
        "Collect the folders, or zips of them, in one folder, each under its student's name. Then grade them:",
        "",
        f"    companion grade hand-ins/ --pset {name} --seed-file secret.seed --out marks/{name}",
        "    companion course export marks/",
        f"    companion course alike hand-ins/ --build {spec}",
        "",
        "A part earns its points if it is right on the public cases and on hidden cases drawn from your seed file, "
        "either with the student's own files of earlier stages or with the references in their place. Code that "
        "never ends, or that ends its process, costs only the part that it belongs to. `alike` names students whose "
        "files are similar, and those who handed in the course's own.",
        "",
    ]
    if any(stage.number == OPEN for stage in stages):
        race = "With `--race 1`, each race.py trains for one minute, one after the other, and `board.csv` ranks them."
        lines += [race, ""]
    if needed:
        them = "it" if len(needed) == 1 else "them"
        lines += [f"The stages build on {_files(needed)}. Students receive the course's own version of {them}.", ""]
    if not guided:
        lines += [UNGUIDED, ""]
    for stage in stages:
        lines += [f"## Stage {stage.number}, {stage.file}: {stage.title}", ""]
        if ready := given(stage.number):
            lines += [f"Given: {', '.join(ready)}.", ""]
        lines += [f"- {part.title}, {count(part.points, 'point')}. {part.shows} Known mistakes: "
                  f"{len(part.mistakes)}." for part in parts(stage.number)]  # fmt: skip
        lines.append("")
    return "\n".join(lines)
