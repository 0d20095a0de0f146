"""Weekly plans: an order that cannot be taught is detected, and every command on the page exists."""

import re
import shlex
from dataclasses import replace

import pytest
from course import built_lessons

from authoring.lesson import LessonError
from authoring.pages import plan
from companion.commands.main import command_parser
from companion_school.course.release.problem_set import ProblemSet
from companion_school.exercises.catalogue import exercises

LESSONS = built_lessons()


@pytest.mark.parametrize("which", plan.PLANS, ids=lambda which: f"{len(which.weeks)} weeks")
def test_minutes_and_points_are_those_of_what_a_week_asks_for(which):
    weeks = plan.loads(which, LESSONS)
    assert [len(plan.PLANS[0].weeks), len(plan.PLANS[1].weeks)] == [14, 6]
    planned = [lesson for lesson in LESSONS if lesson.number not in which.optional]
    assert sum(week.reading for week in weeks) == sum(lesson.minutes for lesson in planned)
    for week in weeks:
        ids = [one.id for one in week.exercises]
        if ids:
            ProblemSet.of("week", ids, (), [item.id for item in week.written])
        for lesson in week.lessons:
            kinds = [exercises()[id].difficulty for id in ids if int(id.split(".")[0]) == lesson.number]
            assert kinds and all(kinds.count(kind) <= which.hand_in.get(kind, 0) for kind in kinds)


def test_the_weeks_of_the_short_plan_are_of_similar_weight():
    weeks = plan.loads(plan.PLANS[1], LESSONS)
    minutes = [week.reading + week.practice + week.building for week in weeks]
    assert max(minutes) < 1.3 * min(minutes) and max(week.points for week in weeks) < 0.25 * sum(
        w.points for w in weeks
    )


def test_every_command_of_the_page_is_one():
    shell = re.findall(r"```bash\n(.*?)```", plan.render(LESSONS), re.DOTALL)
    lines = "".join(shell).splitlines()
    assert len(shell) == 2 and len(lines) > 25
    parser = command_parser()
    for line in lines:
        parser.parse_args(shlex.split(line)[1:])


def changed(week, **fields):
    weeks = list(plan.PLANS[0].weeks)
    weeks[week - 1] = replace(weeks[week - 1], **fields)
    return replace(plan.PLANS[0], weeks=tuple(weeks))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (changed(10, lessons=()), "the course has"),
        (changed(1, lessons=(14,)), "lesson 14 needs lesson 01 before it"),
        (changed(1, stages=(2,)), "stage 2 needs lesson 02 before it"),
        (changed(2, stages=()), "stage 4 rests on stage 2"),
        (changed(11, stages=(8,)), "stage 8 is planned twice"),
    ],
)
def test_a_plan_that_cannot_be_taught_is_refused(wrong, said):
    with pytest.raises(LessonError, match=said):
        plan.loads(wrong, LESSONS)
