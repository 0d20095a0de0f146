"""Write a problem set: the instructor's files and the students' files.

    FOLDER/source/PSET/        source for `nbgrader generate_assignment`: solutions, public checks, hidden checks
    FOLDER/release/PSET/       the students' files, which equal nbgrader's output for the source
    FOLDER/PSET.md             the instructor's page
    FOLDER/PSET_marking.md     the marker's page, if there are written answers
    FOLDER/PSET_sheets/        each student's sheet, if there are questions with individual numbers
    FOLDER/nbgrader_config.py  nbgrader's configuration
    FOLDER/roster.csv          a roster to fill in

The release contains no references. Its checks read sealed keys (`companion_school.checking.sealed_keys`). The code that
reads the keys, `companion_school/checking`, is copied into the release, so students need torch and safetensors but not
companion.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

from companion.ground.atomic import write_atomic
from companion.ground.display import count
from companion.ground.waiting import counted
from companion_school.checking.exercise import BEGIN, END, Exercise
from companion_school.checking.problem_set_checks import to_text as key_text
from companion_school.checking.sealed_keys import seal
from companion_school.course.exam.paper import must_be_free
from companion_school.course.grading.lateness import Lateness
from companion_school.course.grading.marks_csv import page_name
from companion_school.course.hidden_seeds import PUBLIC_SEED, hidden_seeds
from companion_school.course.points import is_constant, parts, shares
from companion_school.course.release.documents import document
from companion_school.course.release.instructor import page
from companion_school.course.release.nbgrader import graded, locked, marked_by_hand, released, solution
from companion_school.course.release.notebook_cells import (
    IMPORTS,
    PRECISION,
    Cell,
    Notebook,
    code,
    group_points,
    heading,
    markdown,
    marked_solution,
    notebook,
    to_text,
)
from companion_school.course.release.own_numbers import is_own, sheet
from companion_school.course.release.problem_set import ProblemSet
from companion_school.course.release.questions import is_question
from companion_school.course.written.rubrics import MARK, Written, marking_page, rubric

PACKAGE = "exercise_check"
"""Name of the copy of `companion_school/checking` in a release."""


def source_notebook(pset: ProblemSet, secret: bytes, rule: Lateness | None = None) -> Notebook:
    """Return the instructor's notebook with nbgrader's metadata (schema 3); its first cell says when the set is due."""
    exercises, points = count(len(pset.exercises) + len(pset.written), "exercise"), count(pset.points, "point")
    due = "" if rule is None else f" {rule.told}."
    about = (
        document("about.md" if pset.exercises else "about_written.md")
        .rstrip("\n")
        .format(name=pset.name, exercises=exercises, points=points, precision=PRECISION, due=due)
    )
    cells: list[Cell] = [locked("about", markdown(about)), locked("imports", code(IMPORTS))]
    for exercise in counted(pset.exercises, unit="exercise"):  # show progress, because hidden cases take seconds
        place = exercise.id.replace(".", "_").replace("-", "_")
        cells += [
            locked(f"statement_{place}", markdown(heading(exercise, _worth(exercise)))),
            *(_own(exercise, place) if is_own(exercise.id) else _answer(exercise, place, secret)),
        ]
    for item in pset.written:
        cells += _written(item)
    return notebook(cells)


def _answer(exercise: Exercise, place: str, secret: bytes) -> list[Cell]:
    return [solution(f"answer_{place}", code(marked_solution(exercise))), *_checks(exercise, place, secret)]


def _own(exercise: Exercise, place: str) -> list[Cell]:
    """Return the cells of a question with individual numbers. A person marks them, because nbgrader lacks the
    numbers."""
    answer = f"{exercise.stub.partition(chr(10))[0]}\n    {BEGIN}\n    return 0.0  # each student's own\n    {END}"
    asked = code(f'from {PACKAGE} import check\n\ncheck("{exercise.id}")', tags=["raises-exception"])
    return [marked_by_hand(f"answer_{place}", exercise.points, code(answer)), locked(f"run_{place}", asked)]


def _written(item: Written) -> list[Cell]:
    place = item.id.replace(".", "_").replace("-", "_")
    facts = f"*{count(item.points, 'point')}, given by a person. About {count(item.minutes, 'minute')}.*"
    asked = f"## {item.id} {item.title}\n\n{facts}\n\n{item.prompt}\n\n**How it is marked**\n\n{rubric(item)}"
    answer = (
        f"**{MARK}{item.id}** (below this line; add cells of text as you need them)\n\n{BEGIN}\n{item.model}\n{END}"
    )
    return [
        locked(f"statement_{place}", markdown(asked)),
        *([locked(f"run_{place}", code(item.code))] if item.code else []),
        marked_by_hand(f"written_{place}", item.points, markdown(answer)),
    ]


def _checks(exercise: Exercise, place: str, secret: bytes) -> list[Cell]:
    """Return the cells that award an exercise's points: a public and a hidden check for each group."""
    cells = []
    is_whole, knows = len(exercise.groups) < 2, not is_constant(exercise)
    seeds = hidden_seeds(secret, exercise.id)[: None if knows else 1]
    keys = ", ".join(f'"""\n{key_text(seal(exercise, seed, mistakes=False))}\n"""' for seed in seeds)
    for number, part in enumerate(parts(exercise), 1):
        end, group = ("", "") if is_whole else (f"_{number}", f", group={number}")
        if knows or number == 1:  # a fixed result needs only one public check for all parts
            asked = f'check("{exercise.id}"{group if knows else ""})'
            cell = code(f"from {PACKAGE} import check\n\n{asked}", tags=["raises-exception"])
            cells.append(graded(f"public_{place}{end}", part.public, cell))
        hidden = code(_hidden(exercise, part.hidden, keys + group))
        cells.append(graded(f"hidden_{place}{end}", part.hidden, hidden))
    return cells


def checks(pset: ProblemSet) -> dict[str, bytes]:
    """Return the files of the package that checks students' answers, keyed by path."""
    engine = sorted(files("companion_school.checking").iterdir(), key=lambda file: file.name)
    made = {f"{PACKAGE}/{file.name}": file.read_bytes() for file in engine if file.name.endswith(".py")}
    for exercise in pset.exercises:
        knows = not is_constant(exercise)
        # A question's key omits the known mistakes, because the only choice that is not a mistake would be the answer.
        key = seal(exercise, PUBLIC_SEED, mistakes=not is_question(exercise.id), knows_answers=knows)
        made[f"{PACKAGE}/keys/{exercise.id}.key"] = key
    return made


def student_files(pset: ProblemSet, source: Notebook) -> dict[str, bytes]:
    """Return the contents of the students' files, keyed by path.

    Args:
        pset: The problem set.
        source: The instructor's notebook, from `source_notebook`.
    """
    return {
        f"{pset.name}.ipynb": to_text(released(source)).encode(),
        "TUTOR.md": document("TUTOR.md").encode(),
        **checks(pset),
    }


def release(pset: ProblemSet, secret: bytes, out: Path, rule: Lateness | None = None) -> list[Path]:
    """Write a problem set into `out`, which may already contain other problem sets.

    Everything is first written to a temporary folder, so a failure leaves no incomplete files.

    Args:
        pset: The problem set.
        secret: The instructor's secret.
        out: Output folder (created if missing).
        rule: Due date and penalty for late work, which the notebook and the instructor's page state.

    Returns:
        The set's folders and files, including the folder for the sheets, which `write_sheets` fills.

    Raises:
        ValueError: `out` already contains a problem set with this name, or is not a folder.
    """
    places = check_free(pset, out)
    pset = pset.dealt(secret)
    kept_notebook = source_notebook(pset, secret, rule)
    received = student_files(pset, kept_notebook)
    kept = received | {f"{pset.name}.ipynb": to_text(kept_notebook).encode()}
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=out) as folder:
        unfinished = Path(folder)
        for part, contents in (("source", kept), ("release", received)):
            for path, content in contents.items():
                write_atomic(unfinished / part / path, content)
        write_atomic(unfinished / "page", page(pset, rule))
        if pset.written:
            write_atomic(unfinished / "marking", "\n".join(map(marking_page, pset.written)))
        made_now = ("source", "release", "page", *["marking"] * bool(pset.written))
        for made, place in zip(made_now, places, strict=False):
            place.parent.mkdir(exist_ok=True)
            (unfinished / made).rename(place)
    for name, source in (("nbgrader_config.py", "nbgrader_config.py.txt"), ("roster.csv", "roster.csv")):
        if not (out / name).exists():
            write_atomic(out / name, document(source))
            places.append(out / name)
    return places


def write_sheets(pset: ProblemSet, secret: bytes, students: Iterable[str], out: Path) -> Path:
    """Write a sheet with individual numbers for each student, and return the folder with the sheets."""
    folder = out / f"{pset.name}_sheets"
    for student in students:
        write_atomic(folder / page_name(student), sheet(pset.name, pset.numbers, secret, student))
    return folder


def check_free(pset: ProblemSet, out: Path) -> list[Path]:
    """Return the paths of a problem set's source, release, pages and sheets after checking that none exists yet.

    Raises:
        ValueError: One of them already exists, or `out` is a file.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out}: expected a folder, got a file")
    places = [out / "source" / pset.name, out / "release" / pset.name, out / f"{pset.name}.md"]
    places += [out / f"{pset.name}_marking.md"] * bool(pset.written)
    places += [out / f"{pset.name}_sheets"] * bool(pset.numbers)
    must_be_free(out, places)
    return places


def _worth(exercise: Exercise) -> str:
    earned = parts(exercise)
    public, hidden = shares(exercise)
    told = f"{count(public + hidden, 'point')}: {public:g} for the public check, {hidden:g} for the hidden one"
    if is_own(exercise.id):
        return count(exercise.points, "point")
    if not public:
        told = f"{count(hidden, 'point')}, all for the hidden check"
    if len(earned) == 1:
        return told
    return f"{told}. Each group of cases earns its own, if the first one is right: {group_points(exercise)}"


def _hidden(exercise: Exercise, points: float, arguments: str) -> str:
    return (
        f"# The hidden check of {exercise.id}: {count(points, 'point')}.\n"
        f"### BEGIN HIDDEN TESTS\nfrom {PACKAGE} import check_hidden\n\n"
        f"check_hidden({arguments})\n### END HIDDEN TESTS"
    )
