"""exercises/PLAN.md: the course in 14 and in 6 weeks, with minutes, hand-ins, and the commands that create them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from authoring.lesson import Lesson, LessonError
from companion_school.build.parts import parts
from companion_school.build.stages import STAGES, Stage
from companion_school.checking.exercise import DIFFICULTIES, Exercise
from companion_school.course.release.dependencies import other_exercises
from companion_school.course.written.rubrics import Written, written_items
from companion_school.exercises.catalogue import exercises

FILE = "exercises/PLAN.md"


@dataclass(frozen=True)
class Week:
    """A week of the plan: the lessons to read, and the stages of *Your own transformer* to write."""

    lessons: tuple[int, ...] = ()
    stages: tuple[int, ...] = ()


@dataclass(frozen=True)
class Plan:
    """A schedule of several weeks.

    Attributes:
        about: The intended audience.
        hand_in: Maximum number of exercises per difficulty (`DIFFICULTIES`) to hand in for each lesson.
        weeks: The schedule, one entry per week.
        written: Whether students also hand in written answers.
        optional: Lessons that students may skip.
    """

    about: str
    hand_in: dict[int, int]
    weeks: tuple[Week, ...]
    written: bool = False
    optional: tuple[int, ...] = ()


PLANS = (
    Plan(
        "Every lesson, and *Your own transformer* from the tokenizer to latent attention.",
        {1: 1, 2: 2, 3: 1},
        (
            Week((0, 1), (1,)),
            Week((2, 3), (2,)),
            Week((4, 5), (3, 20)),
            Week((6,), (4,)),
            Week((7, 8), (5,)),
            Week((9,), (6,)),
            Week((10, 11), (7,)),
            Week((12, 13), (8, 9)),
            Week((14, 15), (10,)),
            Week((16, 17), (11,)),
            Week((18, 19, 20), (12,)),
            Week((21, 22, 23)),
            Week((24, 25)),
            Week((26, 27)),
        ),
        written=True,
    ),
    Plan(
        "An intensive course of lessons 00 to 23. Students hand in one *write* and one *think* exercise per lesson, "
        "and build the stages that lead to a trained decoder that writes text.",
        {2: 1, 3: 1},
        (
            Week((0, 1, 2, 3), (2,)),
            Week((4, 5, 6, 7), (3, 20)),
            Week((8, 9, 13, 10), (4,)),
            Week((11, 12, 14, 15), (5,)),
            Week((16, 17, 18), (6,)),
            Week((19, 20, 21, 22, 23), (7,)),
        ),
        written=True,
        optional=(24, 25, 26, 27),
    ),
)


def faults(plan: Plan, lessons: Sequence[Lesson]) -> Iterator[str]:
    """Yield the faults of a plan: missing lessons, and lessons or stages that come before those on which they build."""
    needs = {lesson.number: lesson.needs for lesson in lessons}
    read = [number for week in plan.weeks for number in week.lessons]
    if (planned := sorted([*read, *plan.optional])) != sorted(needs):
        yield f"lessons {planned} are planned, and the course has {sorted(needs)}"
    seen: set[int] = set()
    written: set[int] = set()
    for at, week in enumerate(plan.weeks, 1):
        for number in week.lessons:
            if missing := sorted(set(needs.get(number, ())) - seen):
                yield f"week {at}: lesson {number:02d} needs lesson {missing[0]:02d} before it"
            seen.add(number)
        for stage in (STAGES[number] for number in week.stages):
            if missing := sorted(set(stage.lessons) - seen):
                yield f"week {at}: stage {stage.number} needs lesson {missing[0]:02d} before it"
            if stage.number in written:
                yield f"week {at}: stage {stage.number} is planned twice"
            if missing := sorted(set(stage.needs) - written):
                yield f"week {at}: stage {stage.number} rests on stage {missing[0]}"
            written.add(stage.number)


def handed_in(plan: Plan, lesson: int) -> list[Exercise]:
    """Return the exercises to hand in for a lesson: the first few of each difficulty, in course order."""
    left, chosen = dict(plan.hand_in), []
    for exercise in exercises().values():
        free = int(exercise.id.split(".")[0]) == lesson and not other_exercises(exercise)
        if free and left.get(exercise.difficulty, 0):
            left[exercise.difficulty] -= 1
            chosen.append(exercise)
    return chosen


@dataclass(frozen=True)
class Load:
    """The work for a week: its lessons, exercises, stages and written questions."""

    number: int
    lessons: tuple[Lesson, ...]
    exercises: tuple[Exercise, ...]
    stages: tuple[Stage, ...]
    written: tuple[Written, ...]

    @property
    def reading(self) -> int:
        return sum(lesson.minutes for lesson in self.lessons)

    @property
    def practice(self) -> int:
        return sum(one.minutes for one in (*self.exercises, *self.written))

    @property
    def building(self) -> int:
        return sum(stage.minutes for stage in self.stages)

    @property
    def points(self) -> int:
        stages = sum(part.points for stage in self.stages for part in parts(stage.number))
        return stages + sum(one.points for one in (*self.exercises, *self.written))

    @property
    def row(self) -> tuple[str, ...]:
        """The week as a table row."""
        lessons = ", ".join(f"[{one.label}](../{one.notebook.name})" for one in self.lessons)
        stages = ", ".join(f"{stage.number} `{stage.file}`" for stage in self.stages)
        minutes = (self.reading, self.practice, self.building)
        hand_in = ", ".join(one.id for one in (*self.exercises, *self.written))
        told = [str(one or "") for one in (*minutes, sum(minutes), self.points)]
        return (str(self.number), lessons, stages, hand_in, *told)

    @property
    def commands(self) -> list[str]:
        """The commands that create the week's problem set and the stages of the project."""
        made = []
        asked = f" --exercises {' '.join(one.id for one in self.exercises)}" if self.exercises else ""
        asked += f" --written {' '.join(one.id for one in self.written)}" if self.written else ""
        if asked:
            made.append(f"companion course release week{self.number}{asked} --out course/")
        if self.stages:
            spec = ",".join(str(stage.number) for stage in self.stages)
            made.append(f"companion course release build{self.number} --build {spec} --out course/")
        return made


def loads(plan: Plan, lessons: Sequence[Lesson]) -> list[Load]:
    """Return the work for each week of a plan.

    Raises:
        LessonError: If the plan has faults.
    """
    if found := list(faults(plan, lessons)):
        raise LessonError(f"authoring/pages/plan.py, {len(plan.weeks)} weeks: {'; '.join(found)}")
    by_number = {lesson.number: lesson for lesson in lessons}
    made = []
    for number, week in enumerate(plan.weeks, 1):
        chosen = tuple(exercise for lesson in week.lessons for exercise in handed_in(plan, lesson))
        items = [item for item in written_items().values() if int(item.id.split(".")[0]) in week.lessons]
        stages = tuple(STAGES[stage] for stage in week.stages)
        made.append(
            Load(
                number,
                tuple(by_number[lesson] for lesson in week.lessons),
                chosen,
                stages,
                tuple(items if plan.written else ()),
            )
        )
    return made


def render(lessons: Sequence[Lesson]) -> str:
    """Return the page with both plans."""
    kinds = ", ".join(f"*{kind}*" for kind in DIFFICULTIES.values())
    opening = (
        "# Two course schedules\n\nThis page is for instructors: a schedule for fourteen weeks and one for six. "
        "[INSTRUCTORS.md](INSTRUCTORS.md) explains how to create, hand out and grade a problem set. Reading times come "
        "from the start of each lesson; times for exercises and stages assume that the student has just read the "
        "lesson. The stages are the files of [*Your own transformer*](../build/01_tokenizer.ipynb). Each lesson and "
        "each stage comes after everything it builds on. Students hand in a selection of each lesson's exercises, "
        f"chosen by kind ({kinds}). The other exercises, the questions at the end of each sitting and the deeper "
        "notebooks are ungraded practice.\n"
    )
    return opening + "".join(_section(plan, loads(plan, lessons)) for plan in PLANS)


def _section(plan: Plan, weeks: Sequence[Load]) -> str:
    head = (
        "week",
        "lessons",
        "stages",
        "hand in",
        "reading, min",
        "exercises, min",
        "stages, min",
        "total, min",
        "points",
    )
    total = [sum(one.reading for one in weeks), sum(one.practice for one in weeks), sum(one.building for one in weeks)]
    points, longest = sum(one.points for one in weeks), max(sum((w.reading, w.practice, w.building)) for w in weeks)
    last = ("total", "", "", "", *(f"{number:,}" for number in (*total, sum(total), points)))
    kinds = ", ".join(f"{most} *{DIFFICULTIES[kind]}*" for kind, most in plan.hand_in.items())
    commands = "\n".join(line for week in weeks for line in week.commands)
    left_out = [
        str(number) for number in STAGES if not any(stage.number == number for w in weeks for stage in w.stages)
    ]
    without = f" Stages {', '.join(left_out)} are optional." if left_out else ""
    without += f" Lessons {', '.join(map(str, plan.optional))} are optional as well." if plan.optional else ""
    return (
        f"\n## {len(weeks)} weeks\n\n{plan.about} For each lesson, students hand in at most {kinds}.{without} "
        f"The longest week takes {longest / 60:.0f} hours; the whole course takes {sum(total) / 60:.0f}.\n\n"
        f"{_table(head, [*(week.row for week in weeks), last])}\n\n"
        "For a stage, students hand in the folder that contains its file and the files of earlier stages. These "
        "commands create the problem sets; add your own dates to each, for example "
        f"`--due 2026-11-30T23:59+01:00 --late '10% a day, at most 50%'`:\n\n```bash\n{commands}\n```\n"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with text aligned left and numbers aligned right."""
    words = len(head) - 5
    rule = ["---:", *["---"] * (words - 1), *["---:"] * 5]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))
