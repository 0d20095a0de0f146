"""Marks for a project: each student's own transformer, stage by stage.

A stage's part earns its points where it is right on the public and on the hidden cases, with the student's own earlier
stages, or else with the references in their place: no stage's mark is lost by another's fault. The student's code runs
confined, as any answer does (`sandbox`), a part in a process of its own.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from companion.ground.atomic import write_atomic
from companion.ground.fields import plain, why
from companion.ground.reading import text_of
from companion_school.build import isolated_modules, race, race_score
from companion_school.build.parts import Part, parts, references
from companion_school.build.stages import Stage
from companion_school.build.stubs import is_untouched
from companion_school.checking.call import Result
from companion_school.checking.examine import Verdict
from companion_school.checking.exercise import Case
from companion_school.checking.operator_watch import forbidden_fault, forbidden_uses
from companion_school.course import points
from companion_school.course.grading.answers import Unreadable, contents
from companion_school.course.grading.exercise_mark import UNREADABLE, Earned, Graded, KeyRing, Mark, try_answer
from companion_school.course.grading.results import NOTHING, READ
from companion_school.course.grading.sandbox.parent import Limits, Program, Worker
from companion_school.course.grading.submissions import Handed
from companion_school.course.grading.tables import as_csv, quoted

LARGEST = 2**20
"""Bytes of a student's file, and of all their files together four times as many."""
TAKEN = "# taken:"


def sources_of(handed: Handed) -> tuple[dict[str, str], dict[str, str]]:
    """A student's files by module, and what is wrong with those that cannot be used, by file."""
    sources, faults, total = {}, {}, 0
    for file in handed.files:
        try:
            size = file.stat().st_size
            if size > LARGEST or total + size > 4 * LARGEST:
                raise Unreadable(
                    f"{file.name} has {size:,} bytes; expected at most {LARGEST:,}, and {4 * LARGEST:,} in all"
                )
            total += size
            text = text_of(contents(file))
            ast.parse(text)
        except Unreadable as error:
            faults[file.name] = str(error)
        except OSError as error:
            faults[file.name] = f"{file.name} cannot be read ({error.strerror})"
        except UnicodeError as error:
            faults[file.name] = f"{file.name} is not text in UTF-8 ({why(error)})"
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            where = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            faults[file.name] = f"{file.name}{where}: it is not valid Python"
        else:
            sources[file.stem] = text
    return sources, faults


def grade_one(worker: Worker, handed: Handed, stages: Sequence[Stage], keys: KeyRing) -> Graded:
    """One student's marks, part by part."""
    book = [part for stage in stages for part in parts(stage.number)]
    if handed.fault is not None:
        marks = tuple(_made(part, UNREADABLE) for part in book)
        return Graded(handed, NOTHING, handed.fault, marks, (), worker.wall.warning)
    sources, faults = sources_of(handed)
    marks = tuple(_mark(worker, part, handed.student, sources, faults, keys) for part in book)
    if faults and not any(stage.module in sources for stage in stages):
        return Graded(handed, UNREADABLE, "; ".join(faults.values()), marks, (), worker.wall.warning)
    return Graded(handed, READ, "; ".join(faults.values()) or None, marks, (), worker.wall.warning)


def _made(part: Part, outcome: str, verdict: Verdict | None = None, note: str = "") -> Mark:
    """The mark of a part, whose points are earned all together."""
    earned = Earned(points.Part("", 0, part.points), hidden=outcome == Result.RIGHT.value)
    section = f"Stage {part.stage.number}, {part.stage.file}"
    notes = (note,) if note else ()
    return Mark(part.exercise(), outcome, verdict, None, notes, (earned,), section=section, title=part.title)


def _mark(
    worker: Worker, part: Part, student: str, sources: Mapping[str, str], faults: Mapping[str, str], keys: KeyRing
) -> Mark:
    """What a part of one student's earns."""
    stage = part.stage

    def nothing(result: Result, told: str) -> Mark:
        return _made(part, result.value, Verdict(result, fault=told))

    if stage.file in faults:
        return nothing(Result.CRASHED, faults[stage.file])
    text = sources.get(stage.module)
    if text is None:
        return nothing(Result.MISSING, f"there is no {stage.file}")
    if text.startswith(TAKEN):
        return nothing(Result.MISSING, f"{stage.file} is the course's reference, taken")
    if used := forbidden_uses(text, part.without):
        return nothing(Result.REFUSED, forbidden_fault(used))
    verdict = _tried(worker, part, sources, keys, student)
    if verdict.result is Result.RIGHT:
        return _made(part, verdict.result.value)
    if stage.needs:
        right = references(stage)
        right.pop(stage.module)
        again = _tried(worker, part, {**sources, **right}, keys, student)
        if again.result is Result.RIGHT:
            told = "right with the references of earlier stages in place of yours, which are at fault"
            return _made(part, again.result.value, note=told)
        if again.result is not Result.MISSING:
            verdict = again
    return _made(part, verdict.result.value, verdict)


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
            sources, _ = sources_of(one)
            text = sources.get(race.STAGE.module)
            if text is None or text.startswith(TAKEN) or is_untouched(race.STAGE.number, text):
                continue
            found.append(_raced(worker, one.student, sources, Case("a race", (*texts, 60.0 * minutes))))
            done(found[-1])
    return sorted(found, key=lambda one: (one.bits_per_byte is None, one.told != "", one.bits_per_byte or 0.0))


def _raced(worker: Worker, student: str, sources: Mapping[str, str], case: Case) -> Raced:
    """One race; a figure that came late is kept, and said to be late."""
    run = worker.run(Program(_race_program(sources), "answer"), [case], [0])
    seconds = case.arguments[2]
    if run.stopped is not None or not run.outcomes.get(0):
        stopped = run.stopped
        late = stopped is not None and stopped.result is Result.TIMEOUT
        why = "it did not come back" if late else "it ended its process"
        return Raced(student, None, 0.0, _why(stopped.error if stopped else None) or why)
    outcome = run.outcomes[0][0]
    match outcome.value:
        case (float(bits), float(took)) if outcome.error is None and 0 < bits < 100:
            late = race.Result(student, seconds / 60, bits, took, "", "").is_late
            return Raced(student, bits, took, f"late: {took:.0f} seconds in place of {seconds:g}" * late)
    return Raced(student, None, 0.0, _why(outcome.error) or "it gave no figure")


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
