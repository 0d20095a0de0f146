"""Everything that the instructors' page mentions exists."""

import re
import shlex
from pathlib import Path

import pytest

from companion.commands.main import command_parser
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


def test_a_page_for_written_answers_says_nothing_of_stars_and_limits(bundle):
    told = instructor.page(ProblemSet.of("project", [], written=["27.data"]))
    assert "27.data" in told and "**Two marks.**" not in told and "--memory" not in told
    assert "**Two marks.**" in (bundle / "week2.md").read_text(encoding="utf-8")
