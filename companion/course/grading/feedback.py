"""One student's page of feedback: HTML in one file, that needs nothing from anywhere.

It is made of `Mark`s, whose hidden verdicts hold no input, no value and nothing that the student's code wrote.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from companion.checking.examine import Result, Verdict

if TYPE_CHECKING:
    from companion.course.grading.mark import Graded, Mark

_WORDS = {
    "right": "Right.",
    "wrong": "Wrong: the code runs, and the result is not the right one.",
    "missing": "Missing: there is no answer, or it is still as it was handed out.",
    "crashed": "Crashed: the code raised an error, or ended its process.",
    "timeout": "Timeout: the code did not end in the time it has.",
    "refused": "Refused: the code uses what the exercise, or the grader, does not allow.",
    "unreadable": "Unreadable: there was no notebook that could be read, so nothing was tried.",
}

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem }
body { color: #1c1c1c; background: #fff }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #ccc }
td.number, th.number { text-align: right }
section { margin: 2rem 0 }
h2 { font-size: 1.15rem; margin-bottom: .3rem }
pre { background: #f3f3f3; padding: .6rem .8rem; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere }
.right { color: #14602b }
.outcome { font-weight: 600 }
.likely { border-left: 4px solid #b7791f; padding-left: .8rem }
.told { color: #555 }
@media (prefers-color-scheme: dark) {
  body { color: #e6e6e6; background: #161616 }
  pre { background: #262626 }
  .right { color: #7ccf93 }
  .told { color: #aaa }
  th, td { border-color: #444 }
}
""".strip()

_CLOSING = (
    "Public cases are those of the check in your notebook. Hidden cases ask for the same properties of other inputs; "
    "they are tried where the public ones are right, and their inputs are not shown to anybody."
)


def page(graded: Graded, assignment: str) -> str:
    """The page of one student."""
    student, title = escape(graded.handed.student), escape(assignment)
    rows = "\n".join(
        f'<tr><td>{escape(one.exercise.id)}</td><td>{escape(one.exercise.title)}</td><td class="outcome {one.outcome}">'
        f'{one.outcome}</td><td class="number">{one.points:g} of {one.exercise.points}</td></tr>'
        for one in graded.marks
    )
    fault = f"<p><strong>{escape(_sentence(graded.fault))}</strong></p>" if graded.fault else ""
    parts = [
        "<!DOCTYPE html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{title}: {student}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>{title}</h1><p>{student}: {graded.points:g} of {graded.most} points</p>{fault}",
        "<table><thead><tr><th></th><th>Exercise</th><th>Outcome</th>",
        '<th class="number">Points</th></tr></thead><tbody>',
        rows,
        "</tbody></table>",
        *(_section(one) for one in graded.marks),
        f'<p class="told">{_CLOSING}</p>',
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _section(mark: Mark) -> str:
    lines = [
        f"<section><h2>{escape(mark.exercise.id)} {escape(mark.exercise.title)}</h2>",
        f'<p class="outcome {mark.outcome}">{_WORDS[mark.outcome]}</p>',
    ]
    lines += [f"<p>{escape(_sentence(note))}</p>" for note in mark.notes]
    failed = [
        one
        for one in (("public", mark.public), ("hidden", mark.hidden))
        if one[1] and one[1].result is not Result.RIGHT
    ]
    if mark.public is not None and mark.public.result is Result.RIGHT and failed:
        lines.append("<p>Right on the public cases. On the hidden ones:</p>")
    for _, verdict in failed:
        assert verdict is not None
        lines += _verdict(verdict)
    return "\n".join([*lines, "</section>"])


def _verdict(verdict: Verdict) -> list[str]:
    lines = []
    if verdict.shows:
        lines.append(f"<p>What fails: {escape(verdict.shows)}</p>")
    told = "\n".join(line for line in (f"with {verdict.input}" if verdict.input else "", verdict.fault) if line)
    if told:
        lines.append(f"<pre>{escape(told)}</pre>")
    if verdict.mistake:
        lines.append(f'<p class="likely">Most likely: {escape(verdict.mistake)}</p>')
    return lines


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?")) else ".")
