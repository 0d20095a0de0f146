"""Marks for a project: each student's own transformer, stage by stage.

A stage's part earns its points where it is right on the public and on the hidden cases, with the student's own earlier
stages, or else with the references in their place: no stage's mark is lost by another's fault. The student's code runs
behind the grader's wall, as any answer does (`sandbox`), a part in a process of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from companion.ground.fields import why
from companion.ground.reading import text_of
from companion_school.build.parts import Part, parts, references
from companion_school.build.stages import Stage
from companion_school.checking.call import Result
from companion_school.checking.examine import AnswerKey, Verdict
from companion_school.checking.operator_watch import forbidden_fault
from companion_school.course import points
from companion_school.course.grading.answers import Unreadable, contents
from companion_school.course.grading.exercise_mark import UNREADABLE, Earned, Graded, KeyRing, Mark, try_answer
from companion_school.course.grading.results import NOTHING, READ
from companion_school.course.grading.sandbox.parent import Limits, Program, Surveyed, Worker
from companion_school.course.grading.submissions import Handed

LARGEST = 2**18
"""Bytes of a student's file, and of all their files together four times as many."""
TAKEN = "# taken:"
_PATIENCE = 3
"""Times that parts of a stage may run out of time before the others are not tried any more."""


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
        except Unreadable as error:
            faults[file.name] = str(error)
        except OSError as error:
            faults[file.name] = f"{file.name} cannot be read ({error.strerror})"
        except UnicodeError as error:
            faults[file.name] = f"{file.name} is not text in UTF-8 ({why(error)})"
        else:
            sources[file.stem] = text
    return sources, faults


def grade_one(worker: Worker, handed: Handed, stages: Sequence[Stage], keys: KeyRing) -> Graded:
    """One student's marks, part by part."""
    book = [part for stage in stages for part in parts(stage.number)]
    if handed.fault is not None:
        marks = tuple(_made(part, UNREADABLE) for part in book)
        return Graded(handed, NOTHING, handed.fault, marks, warning=worker.wall.warning)
    sources, faults = sources_of(handed)
    bans = [*dict.fromkeys(part.without for part in book)]
    try:
        surveyed = worker.survey({f"{module}.py": text.encode() for module, text in sources.items()}, bans)
    except Unreadable as error:
        surveyed, faults = {}, faults | {f"{module}.py": str(error) for module in sources}
    faults |= {file: found.fault for file, found in surveyed.items() if found.fault}
    sources = {module: text for module, text in sources.items() if f"{module}.py" not in faults}
    tried = _Tried(worker, keys, handed.student, sources, faults, surveyed, bans, Counter())
    # All public cases before any hidden one: only what is said of public ones quotes what the code wrote.
    begun = [tried.begin(part) for part in book]
    marks = tuple(finish() for finish in begun)
    fault = "; ".join(faults.values()) or None
    read = UNREADABLE if faults and not any(stage.module in sources for stage in stages) else READ
    return Graded(handed, read, fault, marks, warning=worker.wall.warning)


def _made(part: Part, outcome: str, verdict: Verdict | None = None, note: str = "") -> Mark:
    """The mark of a part, whose points are earned all together."""
    earned = Earned(points.Part("", 0, part.points), hidden=outcome == Result.RIGHT.value)
    section = f"Stage {part.stage.number}, {part.stage.file}"
    notes = (note,) if note else ()
    return Mark(part.exercise(), outcome, verdict, None, notes, (earned,), section=section, title=part.title)


@dataclass(frozen=True)
class _Tried:
    """One student's files, and what it takes to try their parts.

    surveyed:  what stands in each file.
    bans:      the lists of forbidden names, in the order of what was surveyed.
    late:      how often each stage's parts have run out of time.
    """

    worker: Worker
    keys: KeyRing
    student: str
    sources: Mapping[str, str]
    faults: Mapping[str, str]
    surveyed: Mapping[str, Surveyed]
    bans: Sequence[tuple[str, ...]]
    late: Counter[int]

    def begin(self, part: Part) -> Callable[[], Mark]:
        """Try a part's public cases; what is returned tries the hidden ones and gives the mark."""
        stage = part.stage

        def nothing(result: Result, told: str) -> Callable[[], Mark]:
            return lambda: _made(part, result.value, Verdict(result, fault=told))

        if stage.file in self.faults:
            return nothing(Result.CRASHED, self.faults[stage.file])
        text = self.sources.get(stage.module)
        if text is None:
            return nothing(Result.MISSING, f"there is no {stage.file}")
        if text.startswith(TAKEN):
            return nothing(Result.MISSING, f"{stage.file} is the course's reference, taken")
        if told := self._breach(part):
            return nothing(Result.REFUSED, told)
        right = references(stage)
        right.pop(stage.module)
        theirs = {**self.sources, **right}
        own = self._public(part, self.sources)
        again = self._public(part, theirs) if not own.is_right and stage.needs else None

        def finish() -> Mark:
            verdict = self._hidden(part, self.sources) if own.is_right else own
            if verdict.is_right or not stage.needs:
                return _made(part, verdict.result.value, verdict if not verdict.is_right else None)
            with_theirs = again or self._public(part, theirs)
            if with_theirs.is_right:
                with_theirs = self._hidden(part, theirs)
            if with_theirs.is_right:
                told = "right with the references of earlier stages in place of yours, which are at fault"
                return _made(part, with_theirs.result.value, note=told)
            if again is not None and with_theirs.result is not Result.MISSING:
                verdict = with_theirs
            return _made(part, verdict.result.value, verdict)

        return finish

    def _breach(self, part: Part) -> str:
        """What a part's file, or one that it imports, uses and must not; empty if nothing."""
        at, waiting, seen = self.bans.index(part.without), [part.stage.file], set[str]()
        while waiting:
            file = waiting.pop()
            if file not in seen and file in self.surveyed:
                seen.add(file)
                waiting += [f"{module}.py" for module in self.surveyed[file].imports]
                if used := self.surveyed[file].used[at]:
                    return f"in {file}, {forbidden_fault(used)}"
        return ""

    def _public(self, part: Part, sources: Mapping[str, str]) -> Verdict:
        exercise = part.exercise()
        return self._try(part, sources, "1", [self.keys.public(exercise)])

    def _hidden(self, part: Part, sources: Mapping[str, str]) -> Verdict:
        """On the hidden cases, of which a property and a mistake are all that is told."""
        hidden = self._try(part, sources, "2", self.keys.hidden(part.exercise()))
        if hidden.is_right:
            return hidden
        return Verdict(hidden.result, hidden.shows, fault="fails on an input that is not shown", mistake=hidden.mistake)

    def _try(self, part: Part, sources: Mapping[str, str], which: str, wanted: Sequence[AnswerKey]) -> Verdict:
        exercise, number, limits = part.exercise(), part.stage.number, self.worker.limits
        if self.late[number] >= _PATIENCE:
            told = f"not tried: {_PATIENCE} times already, parts of this file did not end in the time they have"
            return Verdict(Result.TIMEOUT, fault=told)
        program = Program(part.program(sources), "answer", part.watched)
        share = limits.seconds / Limits().seconds  # of the time that a part usually has, as --time says
        try:
            self.worker.limits = replace(limits, seconds=min(3600.0, max(0.1, share * part.seconds)))
            verdict, _ = try_answer(self.worker, program, wanted, [False], self.keys, self.student, exercise.id, which)
        finally:
            self.worker.limits = limits
        self.late[number] += verdict.result is Result.TIMEOUT
        return verdict
