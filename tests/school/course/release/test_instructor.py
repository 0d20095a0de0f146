"""Everything that the instructors' page mentions exists."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from companion.commands.main import command_parser, main
from companion_school.checking.call import Result
from companion_school.commands.grade import parser as grade_parser
from companion_school.course.exam.paper import exam_questions
from companion_school.course.release import instructor
from companion_school.course.release.problem_set import ProblemSet

FOLDER = Path(__file__).parents[4] / "notebooks" / "exercises"
PAGE = (FOLDER / "INSTRUCTORS.md").read_text(encoding="utf-8")
SHELL = "\n".join(re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)).replace("\\\n", " ")


def commands(text):
    lines = [line.split(" #")[0] for line in text.splitlines()]
    return [line[line.index("companion ") :] for line in lines if re.search(r"(?:^|-grader )companion ", line.strip())]


def test_every_command_is_one(bundle):
    found = [*commands(SHELL), *commands((bundle / "week2.md").read_text(encoding="utf-8"))]
    assert len(found) >= 6
    for line in found:
        command_parser().parse_args(shlex.split(line)[1:])


def test_a_command_that_is_none_would_be_found():
    with pytest.raises(SystemExit):
        command_parser().parse_args(["course", "release", "week2", "--tasks", "2.3"])


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#\s]+)", PAGE)
    assert links and all((FOLDER / link).exists() for link in links)


def test_it_says_how_many_examination_questions_there_are():
    assert f"draws on {len(exam_questions())} questions, four for each lesson" in PAGE


def test_all_outcomes_are_explained():
    for result in Result:
        assert re.search(rf"\| (?:\w+, )?{result.value}\b", PAGE), result


def test_it_says_what_a_hidden_seed_cannot_do():
    assert "**The references are public.**" in PAGE and "**What it does not protect.**" in PAGE
    assert "--network none" in PAGE


def test_limits_and_empty_scores_are_explained(bundle):
    grader = {option: action.default for action in grade_parser()._actions for option in action.option_strings}
    for page in (PAGE, (bundle / "week2.md").read_text(encoding="utf-8")):
        assert f"`--time {grader['--time']:g}`" in page and f"`--memory {grader['--memory']:g}`" in page
        assert re.search(r"empty score (?:[^.]* )?is (?:not a|no) zero", " ".join(page.split()), re.IGNORECASE)


def test_pages_say_when_the_work_is_due_what_it_needs_and_who_gets_a_sheet(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("roster.csv").write_text("id\nada\n")
    due = ["--due", "2026-11-30T23:59+01:00", "--late", "10% a day", "--grace", "1 hour", "--out", "c"]
    told = "Due 2026-11-30T23:59+01:00, with a grace period of 1 hour; late work loses 10% for each day begun"
    assert main(["course", "release", "set", "--numbers", "5.turn", "--roster", "roster.csv", *due]) == 0
    page, said = Path("c/set.md").read_text("utf-8"), capsys.readouterr().out
    assert told in page and "give each student their own sheet from `set_sheets/`" in page and "not `companion`" in page
    assert "and each student their own sheet from c/set_sheets." in said
    assert f"points. {told}.\\n" in Path("c/release/set/set.ipynb").read_text("utf-8")
    assert main(["course", "release", "part", "--build", "20", *due]) == 0
    assert told in Path("c/part.md").read_text("utf-8") and told in Path("c/release/part/README.md").read_text("utf-8")
    assert main(["course", "release", "own", "--written", "27.data", "--out", "c"]) == 0
    page = Path("c/own.md").read_text("utf-8")
    assert "Due 2" not in Path("c/release/own/own.ipynb").read_text("utf-8")
    assert "There is no due date." in page and "and Jupyter, and `companion`" in page and "hidden checks" not in page
    Path("sub").mkdir()
    shutil.copy("c/source/set/set.ipynb", "sub/ada.ipynb")
    assert main(["course", "oral", "sub", "--pset", "c/release/set", "--seed-file", "c/secret.seed"]) == 0
    assert f"set: {told}" in Path("oral.md").read_text("utf-8")


def test_a_page_for_written_answers_says_nothing_of_stars_and_limits(bundle):
    told = instructor.page(ProblemSet.of("project", [], written=["27.data"]))
    assert "27.data" in told and "**Two marks.**" not in told and "--memory" not in told
    assert "**Two marks.**" in (bundle / "week2.md").read_text(encoding="utf-8")
