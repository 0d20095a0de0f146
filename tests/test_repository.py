"""What the README, the Makefile, pyproject.toml and environment.yml promise each other."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import tasks

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(" ".join(re.findall(r"^([a-z][a-z -]*):(?!=)", MAKEFILE, re.MULTILINE)).split())


def commands(text):
    """The lines of all shell blocks, comments cut off."""
    blocks = re.findall(r"^```(?:bash|sh|shell|powershell|bat)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [line.split("#")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


def test_conda_installs_an_extra_that_exists():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    [pip] = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    [extra] = re.findall(r"^-e \.\[(\w+)\]$", "\n".join(pip), re.MULTILINE)
    assert extra in PROJECT["optional-dependencies"]
    assert environment["name"] == PROJECT["name"]
    [python] = [entry for entry in environment["dependencies"] if str(entry).startswith("python=")]
    assert tuple(map(int, python.removeprefix("python=").split("."))) >= (3, 11)


def test_every_make_command_that_is_named_anywhere_is_a_target():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "authoring" / "README.md", ROOT / ".ci" / "run"]
    lines = [line for page in pages for line in page.read_text(encoding="utf-8").splitlines()]
    named = {word for line in lines for word in re.findall(r"(?:^|`)\s*make ([a-z][a-z-]+)", line)}
    assert {"lab", "test", "notebooks"} <= named
    assert named <= TARGETS, f"no such target: {sorted(named - TARGETS)}"


def test_make_alone_explains_every_target():
    told = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert TARGETS - {"help"} <= set(re.findall(r"[a-z][a-z-]+", told))


def test_makefile_installs_extras_that_exist():
    extras = set(re.findall(r"\$\(call install,(\w+)", MAKEFILE))
    there = PROJECT["optional-dependencies"]
    contained = set(re.findall(r"\w+", " ".join(re.findall(r"executable-transformer\[(.*?)\]", str(there)))))
    assert extras <= set(there) <= extras | contained


def test_makefile_works_in_a_folder_of_any_name():
    """Make cannot handle a space in a path, so none that leads through the checkout's parents may occur."""
    for absolute in ("CURDIR", "abspath", "realpath", "MAKEFILE_LIST"):
        assert absolute not in MAKEFILE
    assert re.findall(r"(?:^|[\s'\"])(/\w[^\s'\"]*)", MAKEFILE, re.MULTILINE) == []


def test_readme_and_makefile_name_the_torch_that_is_installed():
    assert f"installs `{tasks.TORCH}`" in README and f'TORCH="{tasks.TORCH} --index-url' in README
    assert f'TORCH="{tasks.TORCH} ' in MAKEFILE
    assert tasks.TORCH == "torch==2.13.0" and "torch>=2.11" in PROJECT["dependencies"]


def test_readme_names_companion_commands_that_exist():
    from companion.commands import main

    named = {line.split()[1] for line in commands(README) if line.startswith("companion ")}
    assert {"train", "generate"} <= named
    help_text = subprocess.run([sys.executable, "-m", "companion", "--help"], capture_output=True, text=True).stdout
    assert named <= set(re.findall(r"\w+", help_text)), help_text
    assert callable(main.main) and PROJECT["scripts"] == {"companion": "companion.commands.main:main"}


def test_readme_lists_every_lesson():
    for notebook in sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        assert f"notebooks/{notebook.name}" in README


def test_readmes_example_runs_and_prints_what_it_says():
    [example] = [
        block
        for block in re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
        if "companion" in block
    ]
    [said] = re.findall(r"print\(.*# (.+)$", example, re.MULTILINE)
    assert len([line for line in example.splitlines() if line.strip()]) <= 14
    code = f"import torch\ntorch.manual_seed(0)\n{example}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout.strip() == said, run.stderr


def test_readme_shows_a_cell_that_is_in_the_lesson():
    excerpts = [
        block
        for block in re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
        if "companion" not in block
    ]
    lessons = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "authoring" / "lessons").glob("*.md"))]
    assert excerpts and all(any(excerpt in lesson for lesson in lessons) for excerpt in excerpts)


def test_citation_changelog_and_package_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] in PROJECT["license"].split(" AND ")
    assert citation["title"].split(":")[0] in README and citation["authors"][0]["name"] in README
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[(.+?)\]", changelog, re.MULTILINE)[0] == "Unreleased"
    assert set(re.findall(r"^### (.+)$", changelog, re.MULTILINE)) <= {
        "Added",
        "Changed",
        "Deprecated",
        "Removed",
        "Fixed",
        "Security",
    }


@pytest.mark.parametrize("page", ["README.md", "authoring/README.md", "CONTRIBUTING.md"])
def test_links_within_the_repository_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link]
    missing = [link for link in links if not ((ROOT / page).parent / link).exists()]
    assert not missing, missing


def test_ci_runs_the_readmes_test_command():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "set -euo pipefail" in script and script.rstrip().endswith("make test")
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_licences_are_named():
    assert (ROOT / "LICENSE").read_text(encoding="utf-8").startswith("MIT License")
    assert PROJECT["license"] == "MIT AND CC-BY-4.0"
    assert "CC BY 4.0" in README and "MIT" in README


def test_no_file_of_code_has_more_than_400_lines():
    """The lessons' exercises aside, which are texts in the form of code."""
    files = [path for folder in ("companion", "authoring") for path in (ROOT / folder).rglob("*.py")]
    code = [path for path in files if not re.fullmatch(r"lesson_\d\d\.py", path.name)]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in code}
    assert len(lengths) > 150 and not {name: lines for name, lines in lengths.items() if lines > 400}


def test_every_test_that_is_called_slow_is_there():
    here = Path(__file__).parent
    for line in (here / "slow.txt").read_text("utf-8").split():
        file, *_, name = line.split("::")
        assert f"def {name}(" in (here / file).read_text("utf-8"), line
