"""Grade a project: each student's own transformer, stage by stage.

A part of a stage earns its points if it is correct on both the public and the hidden cases. It is first run with the
student's own files for the stages that it builds on. If it fails, it is run again with their reference solutions, so
that a mistake in one stage does not cost points in another. Each part runs in a separate process in the grader's
sandbox.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from companion.ground.fields import why
from companion.ground.reading import text_of
from companion_school.build.parts import Part, parts, references
from companion_school.build.stages import STAGES, Stage
from companion_school.checking.call import Result
from companion_school.checking.examine import AnswerKey, Verdict
from companion_school.checking.operator_watch import forbidden_fault
from companion_school.course import points
from companion_school.course.grading.answers import Unreadable, contents
from companion_school.course.grading.exercise_mark import (
    DISCREET,
    UNREADABLE,
    Earned,
    Graded,
    KeyRing,
    Mark,
    try_answer,
)
from companion_school.course.grading.results import NOTHING, READ
from companion_school.course.grading.sandbox.parent import Limits, Program, Surveyed, Worker
from companion_school.course.grading.submissions import Handed

LARGEST = 2**18
"""Maximum size of a file in bytes. All of a student's files together may be four times as large."""
TAKEN = "# taken:"
_MODULES = {stage.module for stage in STAGES.values()}
_PATIENCE = 3
"""Once this many parts of a stage have exceeded their time limit, the remaining ones are not tried."""


def sources_of(handed: Handed) -> tuple[dict[str, str], dict[str, str]]:
    """Read a student's files.

    Returns:
        The text of each usable file, keyed by module name, and the errors in the other files, keyed by file name.
    """
    sources, faults, total = {}, {}, 0
    for file in handed.files:
        try:
            size = file.stat().st_size
            if size > LARGEST or total + size > 4 * LARGEST:
                raise Unreadable(
                    f"{file.name} has {size:,} bytes; expected at most {LARGEST:,}, and {4 * LARGEST:,} in total"
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
    """Grade the parts of one student's project."""
    book = [part for stage in stages for part in parts(stage.number)]
    if handed.fault is not None:
        return nothing(handed, stages, NOTHING, handed.fault, worker.wall.warning)
    sources, faults = sources_of(handed)
    bans = [*dict.fromkeys(part.without for part in book)]
    try:
        files = {f"{module}.py": text.encode() for module, text in sources.items()}
        surveyed = worker.survey(files, bans, [*_MODULES])
    except Unreadable as error:
        surveyed, faults = {}, faults | {f"{module}.py": str(error) for module in sources}
    faults |= {file: found.fault for file, found in surveyed.items() if found.fault}
    sources = {module: text for module, text in sources.items() if f"{module}.py" not in faults}
    tried = _Tried(worker, keys, handed.student, sources, faults, surveyed, bans, {})
    # Run all public cases before any hidden case.
    # Feedback on public cases quotes what the code wrote, so the code must not have seen any hidden case by then.
    begun = [tried.begin(part) for part in book]
    marks = tuple(finish() for finish in begun)
    fault = "; ".join(faults.values()) or None
    read = UNREADABLE if faults and not any(stage.module in sources for stage in stages) else READ
    return Graded(handed, read, fault, marks, warning=worker.wall.warning)


def nothing(handed: Handed, stages: Sequence[Stage], submission: str, fault: str, warning: str) -> Graded:
    """Return the marks for a project that was not graded, with the reason."""
    marks = tuple(_made(part, UNREADABLE) for stage in stages for part in parts(stage.number))
    return Graded(handed, submission, fault, marks, warning=warning)


def _made(part: Part, outcome: str, verdict: Verdict | None = None, note: str = "") -> Mark:
    """Build the mark for a part. A part earns either all of its points or none."""
    earned = Earned(points.Part("", 0, part.points), hidden=outcome == Result.RIGHT.value)
    section = f"Stage {part.stage.number}, {part.stage.file}"
    notes = (note,) if note else ()
    return Mark(part.exercise(), outcome, verdict, None, notes, (earned,), section=section, title=part.title)


@dataclass(frozen=True)
class _Tried:
    """A student's files, and everything needed to run the parts on them."""

    worker: Worker
    keys: KeyRing
    student: str
    sources: Mapping[str, str]  # text of each usable file, keyed by module
    faults: Mapping[str, str]  # errors in the other files, keyed by file name
    surveyed: Mapping[str, Surveyed]
    bans: Sequence[tuple[str, ...]]  # lists of forbidden names, in the same order as in `surveyed`
    late: dict[int, set[str]]  # for each stage, the names of the parts that have exceeded their time limit

    def begin(self, part: Part) -> Callable[[], Mark]:
        """Run a part's public cases, and return a function that runs the hidden cases and returns the mark."""
        stage = part.stage

        def nothing(result: Result, told: str) -> Callable[[], Mark]:
            return lambda: _made(part, result.value, Verdict(result, fault=told))

        if stage.file in self.faults:
            return nothing(Result.CRASHED, self.faults[stage.file])
        text = self.sources.get(stage.module)
        if text is None:
            others = [module for module in self.sources if module not in _MODULES]
            near = next((one for one in others if stage.module in one.lower() or one.lower() in stage.module), None)
            hint = f"; was {near}.py meant to be it?" if near else ""
            return nothing(Result.MISSING, f"there is no {stage.file}{hint}")
        if text.startswith(TAKEN):
            return nothing(Result.MISSING, f"{stage.file} is the course's own, as companion build take writes it")
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
                told = (
                    "right with the course's files of earlier stages in place of yours, which are missing or at fault"
                )
                return _made(part, with_theirs.result.value, note=told)
            if again is not None and with_theirs.result is not Result.MISSING:
                verdict = with_theirs
            return _made(part, verdict.result.value, verdict)

        return finish

    def _breach(self, part: Part) -> str:
        """Return a sentence about forbidden names in a part's file and the files that it imports, or ""."""
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
        return self._try(part, sources, [self.keys.public(exercise)])

    def _hidden(self, part: Part, sources: Mapping[str, str]) -> Verdict:
        """Run the hidden cases. The verdict reveals only the violated property and the known mistake."""
        exercise = part.exercise()
        order = self.keys.order(self.student, exercise.id, "hidden")
        hidden = self._try(part, sources, self.keys.hidden(exercise), order)
        if hidden.is_right:
            return hidden
        return Verdict(hidden.result, hidden.shows, fault=DISCREET[hidden.result], mistake=hidden.mistake)

    def _try(
        self,
        part: Part,
        sources: Mapping[str, str],
        wanted: Sequence[AnswerKey],
        order: Callable[[int], Sequence[int]] = range,
    ) -> Verdict:
        late, limits = self.late.setdefault(part.stage.number, set()), self.worker.limits
        if order is range and len(late - {part.name}) >= _PATIENCE:
            told = f"not tried, because {_PATIENCE} parts of this file have already exceeded their time limit"
            return Verdict(Result.TIMEOUT, fault=told)
        program = Program(part.program(sources), "answer", part.watched, part.writes)
        share = limits.seconds / Limits().seconds  # --time scales every part's usual time limit by this factor
        try:
            self.worker.limits = replace(limits, seconds=min(3600.0, max(0.1, share * part.seconds)))
            verdict, _ = try_answer(self.worker, program, wanted, [False], order)
        finally:
            self.worker.limits = limits
        late |= {part.name} if verdict.result is Result.TIMEOUT else set()
        lacks = re.search(rf"\b{part.stage.file} defines no (\w+)$", verdict.fault)
        if lacks is None or verdict.result is not Result.CRASHED:
            return verdict
        near = re.findall(rf"^(?:def|class) (\w*{lacks[1]}\w*)", sources[part.stage.module], re.MULTILINE)
        return Verdict(Result.MISSING, fault=lacks[0] + (f"; was {near[0]} meant to be it?" if near else ""))
