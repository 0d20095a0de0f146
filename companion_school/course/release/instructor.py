"""The instructor's page of a problem set."""

from __future__ import annotations

from companion.ground.display import count
from companion_school.checking.codec import case_value, pack
from companion_school.checking.exercise import DIFFICULTIES, Exercise
from companion_school.course.grading.lateness import Lateness, due_line
from companion_school.course.hidden_seeds import hidden_seed
from companion_school.course.points import is_constant, shares
from companion_school.course.release.documents import document
from companion_school.course.release.notebook_cells import group_points
from companion_school.course.release.own_numbers import is_own
from companion_school.course.release.problem_set import ProblemSet

_TABLE = (
    "| exercise | title | kind | minutes | public points | hidden points | hidden inputs |",
    "|---|---|---|---:|---:|---:|---|",
)


def page(pset: ProblemSet, rule: Lateness | None = None) -> str:
    """Return the instructor's page of a problem set, with this rule for late work, in Markdown."""
    rows = list(_TABLE) if pset.exercises else []
    for exercise in pset.exercises:
        public, hidden = shares(exercise)
        about = (exercise.id, exercise.title, DIFFICULTIES[exercise.difficulty], str(exercise.minutes))
        cells = (*about, f"{public:g}", f"{hidden:g}", _secrecy(exercise))
        rows.append(f"| {' | '.join(cells)} |")
    credit = [f"- {one.id}: {group_points(one)}" for one in pset.exercises if one.groups]
    if credit:
        told = "**Partial credit.** Each group of cases earns its points by itself, half of them for hidden cases,"
        rows += ["", f"{told} if the first one is right:", "", *credit]
    if pset.written:
        items = [f"{item.id} {item.title} ({count(item.points, 'point')})" for item in pset.written]
        sheet = f"`companion course collect SUBMISSIONS --pset {pset.name} --to sheet.csv`"
        marks = f"companion course mark sheet.csv --into marks/{pset.name}"
        rows += ["", f"**Written answers**, marked by a person: {', '.join(items)}. {sheet} collects the texts;"]
        rows += [f"`{pset.name}_marking.md` is the marker's page; `{marks}` puts the points into the marks."]
    if pset.numbers:
        sheets = f"give each student their own sheet from `{pset.name}_sheets/`"
        rows += ["", f"**Individual numbers.** Besides the folder below, {sheets}."]
    needs = "and `companion`" if any(item.id.startswith("27.") for item in pset.written) else "but not `companion`"
    minutes = sum(one.minutes for one in pset.exercises) + sum(item.minutes for item in pset.written)
    points = count(pset.points, "point")
    exercises = count(len(pset.exercises) + len(pset.written), "exercise")
    text, facts = document("instructor.md"), "\n".join(rows).strip()
    if not pset.exercises:  # limits and stars are only for code
        text = "\n\n".join(part for part in text.split("\n\n") if not part.startswith(("**Two marks.**", "`--time")))
    work = {"exercises": exercises, "points": points, "minutes": minutes, "rows": facts}
    return text.format(name=pset.name, due=due_line(pset.name, rule), needs=needs, **work)


def _secrecy(exercise: Exercise) -> str:
    """Explain what part of the hidden check depends on the instructor's secret."""
    if is_own(exercise.id):
        return "each student's own"
    if is_constant(exercise):
        return "none: one fixed result"
    seeds = 0, hidden_seed(b"any", exercise.id)
    cases = [pack([case_value(case) for case in exercise.inputs(seed)]) for seed in seeds]
    return "the same for every seed" if cases[0] == cases[1] else "from your seed"
