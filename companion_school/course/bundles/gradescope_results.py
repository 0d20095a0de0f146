"""Grade one submission as Gradescope asks for it: `run_autograder` of the zip file calls this.

`AUTOGRADER` names the folder that Gradescope lays out, /autograder unless it is set: `source` holds the unpacked zip
file, `submission` what a student handed in, `submission_metadata.json` who and when; `results/results.json` is written.
What a student may see of the hidden cases is what `companion grade` says of them, and not before marks are published.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from companion.ground.atomic import write_atomic
from companion.ground.fields import why
from companion_school.checking.call import Result
from companion_school.checking.examine import Verdict
from companion_school.checking.exercise import STAR
from companion_school.course.bundles.gradescope import ITEMS, SECRET, SET
from companion_school.course.grading.exercise_mark import Graded, Mark, Text
from companion_school.course.grading.grade import grade
from companion_school.course.grading.lateness import Late, Lateness
from companion_school.course.grading.received import moment
from companion_school.course.grading.results import TRIED, Results, record_of, settle
from companion_school.course.grading.sandbox.wall import choose as choose_wall
from companion_school.course.grading.submissions import CHOICE, handed_by
from companion_school.course.grading.what_to_grade import choose
from companion_school.course.hidden_seeds import read_secret
from companion_school.course.written.rubrics import add_items

NO_SCORE = "Nothing could be graded, so the zero here is not a mark; your instructor decides what this is worth:"
HIDDEN = "after_published"
"""When a student sees the hidden cases' tests, in Gradescope's word."""


def main() -> int:
    """Grade what lies in `AUTOGRADER`. 0, or 2 with a sentence for the instructor where this cannot be done."""
    folder = Path(os.environ.get("AUTOGRADER", "/autograder"))
    try:
        write_atomic(folder / "results" / "results.json", json.dumps(graded(folder), indent=1))
    except (OSError, ValueError) as error:
        print(f"run_autograder: error: {error}", file=sys.stderr)
        return 2
    return 0


def graded(folder: Path) -> dict[str, Any]:
    """What `results.json` says of the submission in such a folder."""
    told = _read(folder / "source" / SET)
    secret = read_secret(folder / "source" / SECRET)
    if (folder / "source" / ITEMS).is_file():
        add_items(folder / "source" / ITEMS)
    about = _read(folder / "submission_metadata.json")
    people = about.get("users") or []
    names = [str(user.get("email") or user.get("id")) for user in people]
    task = choose(told["exercises"], None, told.get("build"), [], secret)
    who = " and ".join(names) or "student"
    handed = handed_by(who, folder / "submission", told["assignment"], project=bool(task.stages))
    wall = choose_wall([folder / "source" / SECRET, Path(__file__).parents[2] / "exercises"])
    [student] = grade(
        [handed],
        task.exercises,
        secret,
        written=task.written,
        stages=task.stages,
        jobs=1,
        wall=wall,
    )
    late = Late()
    if "due" in told and about.get("created_at"):
        rule = Lateness(told["due"], told["late"], told.get("grace", ""))
        late = rule.of(who, told["assignment"], about["created_at"], due=_due(about, people))
    return results(student, late)


def _due(about: Mapping[str, Any], people: Sequence[Mapping[str, Any]]) -> str:
    """When Gradescope says that it is due: the latest of the assignment's date and its students' extensions."""
    dates = [entry.get("due_date") for entry in (about.get("assignment"), *(one.get("assignment") for one in people))
             if isinstance(entry, dict)]  # fmt: skip
    return max((date for date in dates if isinstance(date, str)), key=lambda date: moment(date, "due_date"), default="")


def results(student: Graded, late: Late | None = None) -> dict[str, Any]:
    """A student's marks in Gradescope's form.

    Nothing that is visible before marks are published says how many points were earned or taken off: from these and
    the rule for late work the points of the hidden cases would follow.
    """
    record, late = record_of(student), late or Late()
    [settled] = settle(Results("", "", (record,)), {}, [])
    no_score = student.submission not in TRIED
    said = [
        f"{NO_SCORE} {record.fault}." if no_score else record.fault,
        late.told,
        f"Graded: {record.file}. Not graded: {', '.join(record.others)}. {CHOICE}" if record.others else "",
    ]
    penalty = round(settled.earned * late.share, 4)
    return {
        "score": round(settled.earned - penalty, 4),
        "output": "\n".join(filter(None, said)),
        "output_format": "text",
        "test_output_format": "text",
        "test_name_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "extra_data": {"outcomes": {mark.exercise.id: mark.outcome for mark in student.marks}, "penalty": penalty},
        "tests": [
            *(test for mark in student.marks for test in _tests(mark)),
            *(_for_a_person(text) for text in student.texts),
        ],
    }


def _for_a_person(text: Text) -> dict[str, Any]:
    """What is said of a written answer: its points are given elsewhere."""
    found = f"found, {len(text.text.split())} words; a person marks it" if text.text else "there is no text"
    name = f"{text.item.id} {text.item.title}"
    return {"name": name, "name_format": "text", "output": found, "output_format": "text", "visibility": "visible"}


def _tests(mark: Mark) -> list[dict[str, Any]]:
    """A test for the public and one for the hidden cases, of each part of the points."""
    made: list[dict[str, Any]] = []
    seen: set[str] = set()
    weak = f"What would make it robust {STAR}:\n{mark.unstood}" if mark.unstood else ""
    told = {"public": _said(mark.public, mark.notes), "hidden": _said(mark.hidden, () if mark.public else mark.notes)}
    if mark.section:  # a part of a project is earned as a whole; what failed in public is said of the public cases
        told["hidden"] = told["public"]
    for number, each in enumerate(mark.earned, 1):
        for kind, most, has in (("public", each.part.public, each.public), ("hidden", each.part.hidden, each.hidden)):
            if not most:
                continue
            again = "not right either" if kind in seen else told[kind]
            said = weak if has else again or "not tried: the public cases must be right first"
            weak = "" if has else weak  # once is enough
            seen |= {kind} if not has and told[kind] else set()
            group = f", {each.part.name}" if each.part.name else ""
            made.append({
                "number": f"{mark.exercise.id}.{number}",
                "name": f"{mark.exercise.id} {mark.title or mark.exercise.title}{group}: {kind} cases",
                "name_format": "text",
                "score": most if has else 0.0,
                "max_score": most,
                "status": "passed" if has else "failed",
                "output": said,
                "output_format": "text",
                "visibility": "visible" if kind == "public" else HIDDEN,
            })  # fmt: skip
    return made


def _said(verdict: Verdict | None, notes: tuple[str, ...]) -> str:
    if verdict is None:
        return ""
    told = "" if verdict.result is Result.RIGHT else str(verdict)
    return "\n".join(filter(None, (*notes, told)))


def _read(file: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: expected a JSON object ({why(error)})") from None
    if not isinstance(found, dict):
        raise ValueError(f"{file}: expected a JSON object, got {type(found).__name__}")
    return found


if __name__ == "__main__":
    sys.exit(main())
