"""Grade one submission on Gradescope. The script `run_autograder` in the zip file calls this module.

The environment variable `AUTOGRADER` names the folder that Gradescope sets up (default: /autograder). In this folder,
`source` contains the unpacked zip file, `submission` contains the student's files, and `submission_metadata.json` says
who submitted them and when. The result is written to `results/results.json`. Feedback on the hidden cases is the same
as from `companion grade`, but students only see it after the marks are published.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from companion.ground.atomic import write_atomic
from companion.ground.display import count
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
from companion_school.course.grading.submissions import CHOICE, CHOICE_OF_FOLDER, handed_by
from companion_school.course.grading.what_to_grade import choose
from companion_school.course.hidden_seeds import read_secret
from companion_school.course.written.rubrics import add_items

NO_SCORE = "Nothing could be graded, so the zero here is not a mark. Your instructor decides what this is worth:"
HIDDEN = "after_published"
"""Gradescope's visibility setting for tests on hidden cases: students see them once the marks are published."""


def main() -> int:
    """Grade the submission in the folder `AUTOGRADER` and return the exit code.

    Returns:
        0 if results were written, or 2 if grading was impossible. In that case, a message for the instructor is written
        to stderr.
    """
    folder = Path(os.environ.get("AUTOGRADER", "/autograder"))
    try:
        write_atomic(folder / "results" / "results.json", json.dumps(graded(folder), indent=1))
    except (OSError, ValueError) as error:
        print(f"run_autograder: error: {error}", file=sys.stderr)
        return 2
    return 0


def graded(folder: Path) -> dict[str, Any]:
    """Grade the submission in an autograder folder and return the contents of `results.json`."""
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
    [student] = grade([handed], task.exercises, secret, written=task.written, stages=task.stages, jobs=1, wall=wall)
    late = Late()
    if "due" in told and about.get("created_at"):
        rule = Lateness(told["due"], told["late"], told.get("grace", ""))
        late = rule.of(who, told["assignment"], about["created_at"], due=_due(about, people))
    return results(student, late)


def _due(about: Mapping[str, Any], people: Sequence[Mapping[str, Any]]) -> str:
    """Return the latest due date, counting the extensions of the submitting students, or "" if there is none."""
    dates = [entry.get("due_date") for entry in (about.get("assignment"), *(one.get("assignment") for one in people))
             if isinstance(entry, dict)]  # fmt: skip
    return max((date for date in dates if isinstance(date, str)), key=lambda date: moment(date, "due_date"), default="")


def results(student: Graded, late: Late | None = None) -> dict[str, Any]:
    """Return a student's marks in Gradescope's format.

    Text that is visible before the marks are published omits the total and the late penalty, because students could use
    them to work out their points for the hidden cases.
    """
    record, late = record_of(student), late or Late()
    [settled] = settle(Results("", "", (record,)), {}, [])
    no_score = student.submission not in TRIED
    choice = CHOICE_OF_FOLDER if any(mark.section for mark in student.marks) else CHOICE
    said = [
        f"{NO_SCORE} {record.fault}." if no_score else record.fault,
        late.told,
        f"Graded: {record.file}. Not graded: {', '.join(record.others)}. {choice}" if record.others else "",
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
    """Return a test entry that says whether a written answer was found. It has no score, because a person marks it."""
    found = f"found, {count(len(text.text.split()), 'word')}; a person marks it" if text.text else "there is no text"
    name = f"{text.item.id} {text.item.title}"
    return {"name": name, "name_format": "text", "output": found, "output_format": "text", "visibility": "visible"}


def _tests(mark: Mark) -> list[dict[str, Any]]:
    """Return two test entries for each part of an exercise's points: one for public and one for hidden cases."""
    made: list[dict[str, Any]] = []
    seen: set[str] = set()
    weak = f"What would make it robust {STAR}:\n{mark.unstood}" if mark.unstood else ""
    told = {"public": _said(mark.public, mark.notes), "hidden": _said(mark.hidden, () if mark.public else mark.notes)}
    # A part of a project has only hidden points, so its hidden test also reports a failure on the public cases
    if mark.section:
        told["hidden"] = told["public"]
    for number, each in enumerate(mark.earned, 1):
        for kind, most, has in (("public", each.part.public, each.public), ("hidden", each.part.hidden, each.hidden)):
            if not most:
                continue
            again = "not right either" if kind in seen else told[kind]
            said = weak if has else again or "not tried: the public cases must be right first"
            weak = "" if has else weak  # give this advice only once
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
