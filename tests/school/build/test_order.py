"""The order of the track: stages, notebooks and checks only use what came before, and no solution is shown."""

import ast
import re
from pathlib import Path

import pytest

from authoring.finish import NOW_WRITE_IT
from authoring.lesson import SOURCES, stages
from companion import page
from companion_school.build.parts import parts
from companion_school.build.stages import STAGES, following
from companion_school.build.stubs import definitions, due, names, reference, stub

ORDER = [*STAGES.values()]
TOLD = (("you train and save", "6"), ("it tells", "7"))
MODULES = {stage.module: stage for stage in ORDER}


def before(stage):
    return ORDER[: ORDER.index(stage)]


def imported(source):
    """Return the stages whose files a source imports, and the imported names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in MODULES:
            yield MODULES[node.module], {alias.name for alias in node.names}


@pytest.mark.parametrize("stage", ORDER, ids=lambda stage: stage.module)
def test_a_stage_uses_only_stages_before_it(stage):
    earlier = before(stage)
    for source in (stub(stage.number), reference(stage.number)):
        for other, _ in imported(source):
            assert other in earlier and other.number in stage.needs
    for number in stage.needs:
        assert STAGES[number] in earlier and {*STAGES[number].needs} <= {*stage.needs}
    for part in parts(stage.number):
        asked = re.findall(r'code\["(\w+)"\]', part.program({}).split("def probe")[-1])
        assert {*asked} <= {STAGES[number].module for number in (*stage.needs, stage.number)}


@pytest.mark.parametrize("stage", ORDER, ids=lambda stage: stage.module)
def test_what_is_written_after_a_lesson_uses_nothing_of_a_later_one(stage):
    after = {name: lesson for lesson, written in due(stage).items() for name in written}
    assert set(after) == {*names(stage.number)}
    taken = {name: max(due(other)) for other, some in imported(reference(stage.number)) for name in some}
    for other, _ in imported(reference(stage.number)):
        taken |= {name: lesson for lesson, some in due(other).items() for name in some if name in taken}
    for name, text in definitions(reference(stage.number)).items():
        used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
        for one in used & {*taken, *after} if name in after else ():
            assert {**taken, **after}[one] <= after[name], f"{name} is written after {after[name]:02d} and uses {one}"


def test_each_notebook_uses_only_stages_before_it_and_leads_to_the_next():
    for lesson in stages():
        if lesson.number not in STAGES:  # a notebook that looks back
            continue
        stage, text = STAGES[lesson.number], lesson.source.read_text("utf-8")
        used = {STAGES[int(number)] for number in re.findall(r"\bown\((\d+)\)", text)}
        used |= {MODULES[name] for name in re.findall(r'code\["(\w+)"\]', text)}
        assert used <= {*before(stage), stage}, stage.module
        told = re.search(r"You need (.*?)[.]", text)[1]
        assert [int(number) for number in re.findall(r"lesson (\d\d)", told)] == [*stage.lessons]
        advised = {MODULES[name].number for name in re.findall(r"`from (\w+) import", text)}
        assert advised <= {*stage.needs}, f"{stage.file} is graded without a file that its notebook tells to import"
    assert [following(stage) for stage in ORDER] == [*ORDER[1:], None]


def test_every_lesson_says_what_is_written_after_it():
    for stage in ORDER:
        for lesson, written in due(stage).items():
            [source] = SOURCES.glob(f"{lesson:02d}_*.md")
            text = source.read_text("utf-8")
            assert not written or NOW_WRITE_IT in text or f"build/{stage.number:02d}_{stage.module}" in text


def test_something_learns_in_the_first_third_and_no_lesson_shows_what_is_still_to_be_written():
    assert ORDER.index(STAGES[20]) < 4 and max(due(STAGES[20])) == 5
    shown = [int(path.name[:2]) for path in SOURCES.glob("*.md") if "import page" in path.read_text("utf-8")]
    for stage in ORDER:
        if {*names(stage.number)} <= {*definitions(Path(page.__file__).read_text("utf-8"))} and shown:
            assert max(due(stage)) < min(shown)


def test_the_start_page_names_the_lesson_after_which_each_stage_can_be_written():
    text = (SOURCES.parent / "pages" / "start.md").read_text("utf-8")
    named = dict(re.findall(r"lesson (\d\d)[^.]*?\(build/(\d\d)_", text))
    named |= {re.search(rf"fter lesson (\d\d)\s+{words}", " ".join(text.split()))[1]: number for words, number in TOLD}
    assert {lesson: max(due(STAGES[int(number)])) for lesson, number in named.items()} == {
        lesson: int(lesson) for lesson in ("01", "05", "09", "10")
    }
