"""Marks for a project: each student's own transformer, stage by stage, a folder or a zip of it.

A stage's part earns its points where it is right on the public and on the hidden cases, with the student's own earlier
stages, or else with the references in their place: no stage's mark is lost by another's fault. The student's code runs
confined, as any answer does (`sandbox`), a part in a process of its own.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from companion.ground.atomic import write_atomic
from companion.ground.fields import plain, why
from companion.ground.reading import text_of
from companion_school.build import isolated_modules, race, race_score
from companion_school.build.parts import Part, parts, points_of, references
from companion_school.build.stages import STAGES, Stage
from companion_school.build.stubs import is_untouched
from companion_school.checking.call import Result
from companion_school.checking.examine import Verdict
from companion_school.checking.exercise import Case
from companion_school.checking.operator_watch import forbidden_fault, forbidden_uses
from companion_school.course.grading.exercise_mark import KeyRing, try_answer
from companion_school.course.grading.gradebook import as_csv, quoted
from companion_school.course.grading.sandbox.parent import Limits, Program, Worker
from companion_school.course.grading.sandbox.wall import Wall, choose
from companion_school.course.grading.worker_pool import side_by_side

LARGEST = 2**20
"""Bytes of a student's file, and of all their files together four times as many."""
_TAKEN = "# taken:"


@dataclass(frozen=True)
class Handed:
    """One student's files, by module; `fault`: why there is nothing to read."""

    student: str
    sources: Mapping[str, str]
    faults: Mapping[str, str]
    fault: str | None = None


@dataclass(frozen=True)
class PartMark:
    """What a part earned, and what is said of it."""

    part: Part
    points: int
    outcome: str
    told: str = ""


@dataclass(frozen=True)
class Graded:
    """One student's marks, part by part."""

    handed: Handed
    marks: tuple[PartMark, ...]

    def points(self, stage: Stage | None = None) -> int:
        """What was earned: in a stage, or in all."""
        return sum(mark.points for mark in self.marks if stage in (None, mark.part.stage))


def hand_ins(folder: Path) -> list[Handed]:
    """The students of a folder, by name: a folder or a zip for each. Raises `ValueError` if there is none."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: expected a folder of hand-ins, found {'a file' if folder.exists() else 'nothing'}")
    found: dict[str, Handed] = {}
    for path in sorted(folder.iterdir(), key=lambda path: (not path.is_dir(), path.name)):
        is_zip = path.suffix.lower() == ".zip" and not path.is_dir()
        if path.name.startswith((".", "__")) or not (path.is_dir() or path.is_symlink() or is_zip):
            continue
        student = path.stem if is_zip else path.name
        if student in found:
            other = Handed(path.name, {}, {}, f"{student} has handed in a folder already, and that is graded")
            found[path.name] = other
        elif path.is_symlink() or not (path.is_dir() or path.is_file()):
            found[student] = Handed(student, {}, {}, "it is a link or a device, not a folder or a zip")
        else:
            found[student] = _handed(path, student)
    if not found:
        raise ValueError(f"{folder}: expected a folder or a zip for each student, found neither")
    return _with_copies(list(found.values()))


def _handed(path: Path, student: str) -> Handed:
    try:
        texts = _in_folder(path) if path.is_dir() else _in_zip(path)
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError) as error:
        return Handed(student, {}, {}, plain(f"it cannot be read: {error}")[:300])
    known = {stage.file for stage in STAGES.values()}
    sources, faults, total = {}, {}, 0
    for name, (size, data) in sorted(texts.items()):
        if size > LARGEST or total + size > 4 * LARGEST:
            faults[name] = f"{name} has {size:,} bytes; expected at most {LARGEST:,}, and {4 * LARGEST:,} in all"
            continue
        total += size
        try:
            text = text_of(data)
            ast.parse(text)
        except UnicodeError as error:
            faults[name] = f"{name} is no text in UTF-8 ({why(error)})"
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            where = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            faults[name] = f"{name}{where}: it is no Python"
        else:
            sources[Path(name).stem] = text
    if not known & {f"{module}.py" for module in sources} and not faults:
        return Handed(student, {}, {}, "it holds none of the project's files: attention.py and the others")
    return Handed(student, sources, faults)


_Texts = dict[str, tuple[int, bytes]]


def _in_folder(folder: Path) -> _Texts:
    """The Python files where the project's lie: in the folder, or in one of its folders."""
    known = {stage.file for stage in STAGES.values()}
    places = [folder, *sorted(place for place in folder.rglob("*") if place.is_dir() and not place.is_symlink())[:50]]
    home = next((place for place in places if any((place / name).is_file() for name in known)), folder)
    files = [file for file in sorted(home.glob("*.py")) if file.is_file() and not file.is_symlink()]
    sizes = {file: file.stat().st_size for file in files}
    return {file.name: (size, file.read_bytes() if size <= LARGEST else b"") for file, size in sizes.items()}


def _in_zip(path: Path) -> _Texts:
    known = {stage.file for stage in STAGES.values()}
    with zipfile.ZipFile(path) as archive:
        entries = [entry for entry in archive.infolist()[:1000] if entry.filename.endswith(".py")]
        homes = [str(Path(entry.filename).parent) for entry in entries if Path(entry.filename).name in known]
        home = min(homes, key=len) if homes else "."
        found: _Texts = {}
        for entry in entries:
            if str(Path(entry.filename).parent) == home:
                small = entry.file_size <= LARGEST
                data = archive.open(entry).read(LARGEST + 1) if small else b""  # what it says of its size may be wrong
                found[Path(entry.filename).name] = max(entry.file_size, len(data)), data
    return found


def _with_copies(handed: list[Handed]) -> list[Handed]:
    """Whoever handed in just the files of somebody else is told so, and both are named; their marks stay."""
    digests: dict[str, list[str]] = {}
    for one in handed:
        own = {m: t for m, t in one.sources.items() if not t.startswith(_TAKEN) and _is_begun(m, t)}
        if own:
            whole = "\0".join(f"{module}\0{text}" for module, text in sorted(own.items()))
            digests.setdefault(hashlib.sha256(whole.encode()).hexdigest(), []).append(one.student)
    same = {student: names for names in digests.values() if len(names) > 1 for student in names}
    return [
        Handed(one.student, one.sources,
               {**one.faults, "": f"the same files as {', '.join(n for n in same[one.student] if n != one.student)}"})
        if one.student in same
        else one
        for one in handed
    ]  # fmt: skip


def _is_begun(module: str, text: str) -> bool:
    stage = next((stage for stage in STAGES.values() if stage.module == module), None)
    return stage is not None and not is_untouched(stage.number, text)


def grade(
    handed: Sequence[Handed],
    stages: Sequence[Stage],
    secret: bytes,
    *,
    jobs: int = 2,
    limits: Limits | None = None,
    wall: Wall | None = None,
    done: Callable[[Graded], None] = lambda _: None,
) -> list[Graded]:
    """The hand-ins graded, each in processes of its own. What a student handed in can only cost that student.

    wall, done:  as `side_by_side` has them.
    """
    keys = KeyRing(secret)

    def make(worker: Worker, one: Handed) -> Graded:
        return Graded(one, tuple(_mark(worker, part, one, keys) for stage in stages for part in parts(stage.number)))

    return side_by_side(handed, make, jobs=jobs, limits=limits or Limits(), wall=wall or choose(), done=done)


def _mark(worker: Worker, part: Part, handed: Handed, keys: KeyRing) -> PartMark:
    """What a part of one student's earns."""
    stage = part.stage

    def nothing(result: Result, told: str) -> PartMark:
        return PartMark(part, 0, result.value, told)

    if handed.fault is not None:
        return nothing(Result.MISSING, handed.fault)
    if stage.file in handed.faults:
        return nothing(Result.CRASHED, handed.faults[stage.file])
    text = handed.sources.get(stage.module)
    if text is None:
        return nothing(Result.MISSING, f"there is no {stage.file}")
    if text.startswith(_TAKEN):
        return nothing(Result.MISSING, f"{stage.file} is the course's reference, taken")
    if used := forbidden_uses(text, part.without):
        return nothing(Result.REFUSED, forbidden_fault(used))
    verdict = _tried(worker, part, handed.sources, keys, handed.student)
    if verdict.result is Result.RIGHT:
        return PartMark(part, part.points, verdict.result.value)
    if stage.needs:
        right = references(stage)
        right.pop(stage.module)
        again = _tried(worker, part, {**handed.sources, **right}, keys, handed.student)
        if again.result is Result.RIGHT:
            told = "right with the references of earlier stages in place of yours, which are at fault"
            return PartMark(part, part.points, again.result.value, told)
        if again.result is not Result.MISSING:
            verdict = again
    return nothing(verdict.result, str(verdict))


def _tried(worker: Worker, part: Part, sources: Mapping[str, str], keys: KeyRing, student: str) -> Verdict:
    """The public cases, and then the hidden ones, of which a property and a mistake are all that is told."""
    exercise = part.exercise()
    worker.limits = replace(worker.limits, seconds=max(worker.limits.seconds, part.seconds))
    program = Program(part.program(sources), "answer", part.watched)
    public, [passed] = try_answer(worker, program, [keys.public(exercise)], [False], keys, student, exercise.id, "1")
    if not passed:
        return public
    hidden, _ = try_answer(worker, program, keys.hidden(exercise), [False], keys, student, exercise.id, "2")
    if hidden.result is Result.RIGHT:
        return hidden
    return Verdict(hidden.result, hidden.shows, fault="fails on an input that is not shown", mistake=hidden.mistake)


# The race


@dataclass(frozen=True)
class Raced:
    """One student's race: bits per byte, and the seconds that the training took; or why there is no figure."""

    student: str
    bits_per_byte: float | None
    seconds: float
    told: str = ""


def run_races(
    handed: Sequence[Handed], minutes: float, memory_gib: float = 2.0, done: Callable[[Raced], None] = lambda _: None
) -> list[Raced]:
    """The race of each student who has written one, confined, one after the other: the best first.

    A race has one thread and trains on the course's text; it is measured beside its files, and never sees the figure.
    """
    train, held_out = race.texts()
    texts = "\n\n".join(document.text for document in train), [document.text for document in held_out]
    limits = Limits(min(3600.0, 2 * 60 * minutes + 120), memory_gib)
    found = []
    with Worker(limits) as worker:
        for one in handed:
            text = one.sources.get(race.STAGE.module)
            if text is None or text.startswith(_TAKEN) or is_untouched(race.STAGE.number, text):
                continue
            found.append(_raced(worker, one, Case("a race", (*texts, 60.0 * minutes))))
            done(found[-1])
    return sorted(found, key=lambda one: (one.bits_per_byte is None, one.told != "", one.bits_per_byte or 0.0))


def _raced(worker: Worker, handed: Handed, case: Case) -> Raced:
    """One race; a figure that came late is kept, and said to be late."""
    run = worker.run(Program(_race_program(handed.sources), "answer"), [case], [0])
    seconds = case.arguments[2]
    if run.stopped is not None or not run.outcomes.get(0):
        stopped = run.stopped
        late = stopped is not None and stopped.result is Result.TIMEOUT
        why = "it did not come back" if late else "it ended its process"
        return Raced(handed.student, None, 0.0, _why(stopped.error if stopped else None) or why)
    outcome = run.outcomes[0][0]
    match outcome.value:
        case (float(bits), float(took)) if outcome.error is None and 0 < bits < 100:
            late = race.Result(handed.student, seconds / 60, bits, took, "", "").is_late
            return Raced(handed.student, bits, took, f"late: {took:.0f} seconds in place of {seconds:g}" * late)
    return Raced(handed.student, None, 0.0, _why(outcome.error) or "it gave no figure")


def _why(error: tuple[str, str] | None) -> str:
    """What was raised: of the measure's own refusals (`race_score`) the sentence alone."""
    kind, text = error or ("", "")
    return plain(text if kind == "ValueError" else f"{kind}: {text}" if kind else "")[:200]


def _race_program(sources: Mapping[str, str]) -> str:
    """A student's race and its measure as the text of a function `answer`, which needs PyTorch and nothing else."""
    future = "from __future__ import annotations\n"
    measure = inspect.getsource(race_score).replace(future, "")
    return (
        f"{inspect.getsource(isolated_modules)}\n\n{measure}\n\nimport time\n\n"
        f"CODE = World({dict(sources)!r}, {race.STAGE.module!r})\n\n\n"
        "def answer(text, unseen, seconds):\n"
        "    start = time.monotonic()\n"
        "    runner = CODE.race(text, seconds)\n"
        "    took = time.monotonic() - start\n"
        "    return bits_per_byte(CODE, runner, unseen), took\n"
    )


def board(raced: Sequence[Raced]) -> list[list[str]]:
    """The races as a table, the fewest bits first; yardsticks stand between them."""
    rows = [(one.bits_per_byte, one.told != "", one.student, one.told) for one in raced]
    rows += [(mark.bits_per_byte, False, mark.name, "a yardstick") for mark in race.yardsticks(*race.texts())]
    rows.sort(key=lambda row: (row[0] is None, row[0] or 0.0))
    lines, place = [["place", "who", "bits per byte", "note"]], 0
    for bits, out, who, note in rows:
        placed = bits is not None and not out and note != "a yardstick"
        place += placed
        lines.append([str(place) if placed else "", who, "" if bits is None else f"{bits:.3f}", note])
    return lines


def write_table(rows: Sequence[Sequence[str]], file: Path) -> None:
    """Write a table, whose first row is the headings, as CSV."""
    head, *others = rows
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, as_csv(head, (dict(zip(head, map(quoted, row), strict=True)) for row in others)))


def table(graded: Sequence[Graded], stages: Sequence[Stage]) -> list[list[str]]:
    """The marks: a row for each student, a column for each stage, and one for what is to be said."""
    head = ["student", *(f"{stage.number} {stage.module} /{points_of(stage)}" for stage in stages)]
    rows = [[*head, f"points /{sum(map(points_of, stages))}", "note"]]
    for one in graded:
        note = one.handed.fault or "; ".join(one.handed.faults.values())
        rows.append([one.handed.student, *(str(one.points(stage)) for stage in stages), str(one.points()), note])
    return rows


def write(graded: Sequence[Graded], stages: Sequence[Stage], out: Path) -> None:
    """Write marks.csv and a page of feedback for each student."""
    write_table(table(graded, stages), out / "marks.csv")
    (out / "feedback").mkdir(exist_ok=True)
    for one in graded:
        write_atomic(out / "feedback" / f"{one.handed.student}.md", _page(one, stages))


def _page(one: Graded, stages: Sequence[Stage]) -> str:
    most = sum(map(points_of, stages))
    lines = [f"# Your own transformer: {one.handed.student}", "", f"{one.points()} of {most} points.", ""]
    lines += [f"- {said}" for said in filter(None, [one.handed.fault, *one.handed.faults.values()])]
    for stage in stages:
        lines += ["", f"## Stage {stage.number}, {stage.file}: {one.points(stage)} of {points_of(stage)}", ""]
        for mark in (mark for mark in one.marks if mark.part.stage is stage):
            lines.append(f"- {mark.part.title}: {mark.outcome}, {mark.points} of {mark.part.points}")
            lines += [f"      {line}" for line in mark.told.splitlines()]
    return "\n".join(lines) + "\n"
