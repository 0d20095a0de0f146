"""What lies beside a problem set for its instructor: a page, nbgrader's configuration, a roster to fill in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from companion.checking.codec import case_value, pack
from companion.checking.exercise import DIFFICULTIES, Exercise
from companion.course.release.cells import count
from companion.course.seeds import hidden_seed, is_constant, shares

if TYPE_CHECKING:
    from companion.course.release.problem_set import ProblemSet

CONFIG = '''\
"""nbgrader's configuration for the problem sets in this folder. Yours to change; a release does not overwrite it."""

from nbconvert.preprocessors import CSSHTMLHeaderPreprocessor
from nbgrader.preprocessors import ClearHiddenTests, GetGrades

c = get_config()  # noqa: F821

c.CourseDirectory.course_id = "transformer"

# A blank answer is the same here as in the course's own checks.
c.ClearSolutions.code_stub = {"python": "raise NotImplementedError"}

# The release that came with the source is what nbgrader makes of it. It must make it itself, for its gradebook's sake.
c.GenerateAssignment.force = True

# A check that a student deleted is put back and counted.
c.OverwriteCells.add_missing_cells = True

# Feedback shows what hidden checks found, and not the hidden checks.
c.GenerateFeedback.preprocessors = [GetGrades, ClearHiddenTests, CSSHTMLHeaderPreprocessor]

# Seconds for a cell; the first one imports torch.
c.Execute.timeout = 120
'''

ROSTER = """\
id,first_name,last_name,email
ada,Ada,Lovelace,ada@example.org
emmy,Emmy,Noether,emmy@example.org
"""


def page(pset: ProblemSet) -> str:
    """The instructor's page of a problem set."""
    name = pset.name
    rows = []
    for one in pset.exercises:
        public, hidden = shares(one)
        kind = DIFFICULTIES[one.difficulty]
        facts = (one.id, one.title, kind, str(one.minutes), f"{public:g}", f"{hidden:g}", _secrecy(one))
        rows.append(f"| {' | '.join(facts)} |")
    minutes = sum(one.minutes for one in pset.exercises)
    points = count(sum(one.points for one in pset.exercises), "point")
    return f"""\
# {name}

{count(len(pset.exercises), "exercise")}, {points}, about {minutes} minutes of work.

| exercise | title | kind | minutes | public points | hidden points | hidden inputs |
|---|---|---|---:|---:|---:|---|
{chr(10).join(rows)}

**For students:** `release/{name}/`, the whole folder and nothing else. They need Python with torch, safetensors
and Jupyter; no `companion`. `source/`, this page and the seed file stay with you: `source/` holds the solutions, and
the hidden checks with what they expect.

**Grade with the companion** (each submission in a process of its own, outcomes kept apart; the one to trust):

    companion grade SUBMISSIONS --pset {name} --seed-file secret.seed --out marks/{name}
    companion course export marks/ --roster roster.csv

`--time 10` (seconds for all public cases of an exercise, and once more for all hidden ones) and `--memory 2` (GiB)
are the defaults; raise them on a slow or busy machine. An empty score is no zero: it means that there was nothing to
try, and the column `submission` of marks.csv says why. What it is worth is for you to say.

**Grade with nbgrader**, in this folder, submissions in `submitted/STUDENT/{name}/{name}.ipynb`:

    nbgrader generate_assignment {name}
    nbgrader autograde {name}
    nbgrader generate_feedback {name}
    nbgrader export

`nbgrader db student import roster.csv` takes your roster. nbgrader runs a submission's code beside its own
gradebook, and in the same process as the checks: good for a course in which nobody cheats in that way.
"""


def _secrecy(exercise: Exercise) -> str:
    """How much of the hidden check an instructor's seed makes secret."""
    if is_constant(exercise):
        return "none: one fixed result"
    cases = [pack([case_value(one) for one in exercise.inputs(seed)]) for seed in (0, hidden_seed(b"one", exercise.id))]
    return "the same for every seed" if cases[0] == cases[1] else "from your seed"
