"""The workflows on GitHub only run `make` targets, the quick one first, with few permissions.

`make workflows` checks that GitHub accepts the files.
"""

import re
from pathlib import Path

import pytest
import yaml
from test_repository import PROJECT, TARGETS

import tasks

ROOT = Path(__file__).parents[1]
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))
}
JOBS = {(name, job): content for name, workflow in WORKFLOWS.items() for job, content in workflow["jobs"].items()}
STEPS = [step for job in JOBS.values() for step in job.get("steps", [])]
PYTHONS = [entry.rpartition(" ")[2] for entry in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", entry)]


def test_nothing_but_make_is_called_and_every_target_is_there():
    lines = [step["run"] for step in STEPS if "run" in step]
    called = [re.fullmatch(r"make ([a-z-]+)", line) for line in lines]
    assert all(called), lines
    assert {match[1] for match in called} <= TARGETS, sorted({match[1] for match in called} - TARGETS)
    assert {"quick", "test", "reader", "package", "site-quick", "check-notebooks"} <= {match[1] for match in called}


def test_every_action_is_taken_in_a_version():
    used = [step["uses"] for step in STEPS if "uses" in step]
    assert used and all(re.fullmatch(r"[\w-]+/[\w-]+@(?:release/)?v\d+", action) for action in used), used


def test_the_quick_lane_comes_first():
    jobs = WORKFLOWS["test"]["jobs"]
    assert [job for job, content in jobs.items() if "needs" not in content] == ["quick"]
    assert {content["needs"] for job, content in jobs.items() if job != "quick"} == {"quick"}


def test_every_system_and_every_python_of_the_classifiers_has_its_run():
    linux, elsewhere = (WORKFLOWS["test"]["jobs"][job]["strategy"]["matrix"] for job in ("linux", "elsewhere"))
    assert linux["python"] == elsewhere["python"] == PYTHONS
    assert set(elsewhere["system"]) == {"macos-latest", "windows-latest"}
    packaged = WORKFLOWS["test"]["jobs"]["package"]["strategy"]["matrix"]["system"]
    assert set(packaged) == {"ubuntu-latest", *elsewhere["system"]}


def test_the_lowest_and_the_newest_torch_are_tried_and_what_is_not_out_yet():
    [lowest] = [entry.replace(">=", "==") + ".0" for entry in PROJECT["dependencies"] if entry.startswith("torch")]
    assert JOBS["test", "torch"]["strategy"]["matrix"]["torch"] == [lowest, "torch"]
    assert all(WORKFLOWS[name]["env"]["TORCH"].startswith(f"{tasks.TORCH} ") for name in ("test", "site"))
    upcoming = JOBS["upcoming", "torch"]
    assert upcoming["env"]["TORCH"].startswith("--pre torch ") and "test" in upcoming["strategy"]["matrix"]["channel"]
    assert WORKFLOWS["upcoming"][True]["schedule"], "YAML reads the key `on` as true"


@pytest.mark.parametrize("name", WORKFLOWS)
def test_rights_are_given_where_they_are_needed_and_every_job_ends(name):
    workflow = WORKFLOWS[name]
    assert workflow["permissions"] == {"contents": "read"}
    rights = {job: content["permissions"] for job, content in workflow["jobs"].items() if "permissions" in content}
    to_pages, to_the_index = {"pages": "write", "id-token": "write"}, {"id-token": "write"}
    assert rights == {"site": {"deploy": to_pages}, "release": {"publish": to_the_index}}.get(name, {})
    assert all("timeout-minutes" in content or "uses" in content for content in workflow["jobs"].values())


def test_a_release_is_proved_and_built_before_it_is_handed_over():
    assert WORKFLOWS["release"][True] == {"push": {"tags": ["v*"]}}
    assert JOBS["release", "test"]["uses"] == "./.github/workflows/test.yml"
    assert "workflow_call" in WORKFLOWS["test"][True]
    assert JOBS["release", "package"]["needs"] == "test" and JOBS["release", "publish"]["needs"] == "package"
    tag = JOBS["release", "package"]["env"]["TAG"]
    assert tag == "${{ github.ref_name }}", "make package refuses to build another version"
