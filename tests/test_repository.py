"""The README, the Makefile, pyproject.toml and environment.yml agree with each other."""

import ast
import io
import re
import subprocess
import sys
import tokenize
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
    """Return the lines of all shell blocks without comments."""
    blocks = re.findall(r"^```(?:bash|sh|shell|powershell|bat)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [line.split("#")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


def test_conda_installs_an_extra_that_exists():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    [pip] = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    *torch, school, library = pip
    assert torch == [f"--extra-index-url {tasks.CPU_BUILD.split()[2]}", tasks.TORCH]
    [extra] = re.findall(r"^-e \.\[(\w+)\]$", library)
    assert school == "-e ./school" and (ROOT / "school" / "pyproject.toml").is_file()
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
    """Make cannot handle a space in a path, so the Makefile must not use absolute paths."""
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


def test_the_readme_is_short_and_its_first_screen_says_how_to_start():
    lines = README.splitlines()
    assert len(lines) <= 150
    first = "\n".join(lines[:25])
    assert "](companion/page.py)" in first and "git clone" in first and "make lab" in first
    for file in ("companion/README.md", "authoring/lessons/14_train_the_final_model.md"):
        assert "page.py)" in (ROOT / file).read_text(encoding="utf-8"), file


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
    assert len([line for line in example.splitlines() if line.strip()]) <= 20
    code = f"import torch\ntorch.manual_seed(0)\n{example}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout.strip() == said, run.stderr


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


def test_the_places_that_contributing_names_exist():
    [table] = re.findall(
        r"^\| to add \|.*?\n\n", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    code = [word for quoted in re.findall(r"`([^`]+)`", table) for word in quoted.split()]
    places = [word for word in code if word.startswith(("companion/", "tests/", "authoring/")) and "NN" not in word]
    assert len(places) > 20 and not [place for place in places if not (ROOT / place).exists()]


def test_ci_runs_the_readmes_test_command():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "set -euo pipefail" in script and script.rstrip().endswith("make test")
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_licences_are_named():
    assert (ROOT / "LICENSE").read_text(encoding="utf-8").startswith("MIT License")
    assert PROJECT["license"] == "MIT AND CC-BY-4.0"
    assert "CC BY 4.0" in README and "MIT" in README


def test_long_functions_are_few_and_each_has_its_reason():
    """A function has at most 40 lines; tests/long_functions.toml lists the longer ones with their reasons."""
    known = {
        f"{file}::{name}": entry
        for file, functions in tomllib.loads((Path(__file__).parent / "long_functions.toml").read_text("utf-8")).items()
        for name, entry in functions.items()
    }
    files = [
        path
        for folder in ("companion", "companion_school", "authoring")
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]
    found = {
        f"{path.relative_to(ROOT).as_posix()}::{name}": lines
        for path in files
        if not re.fullmatch(r"lesson_\d\d\.py", path.name)  # the lessons' exercises are texts in the form of code
        for name, lines in function_lengths(path.read_text("utf-8")).items()
    }
    long = {name: lines for name, lines in found.items() if lines > 40}
    assert len(found) > 1500 and set(long) - set(known) == set(), "split it, or name it with its reason"
    assert set(known) - set(long) == set(), "no longer long: strike it from the list"
    grown = {name: (lines, known[name]["lines"]) for name, lines in long.items() if lines > known[name]["lines"]}
    assert not grown, f"longer than when it was excused (now, then): {grown}"
    assert all(len(entry["why"].split()) >= 4 for entry in known.values())


def function_lengths(source):
    """Return the number of code lines of every function, by its qualified name.

    These are the lines between its signature and its end, including those of inner functions. The signature,
    docstrings, comments and blank lines do not count.
    """
    aside = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    code = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in aside
        for line in range(token.start[0], token.end[0] + 1)
    }
    lengths = {}

    def visit(node, names):
        for child in ast.iter_child_nodes(node):
            inner = names
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = [*names, child.name]
                if ast.get_docstring(child, clean=False) is not None:
                    code.difference_update(range(child.body[0].lineno, child.body[0].end_lineno + 1))
            # An expression contains no function definition
            if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
                visit(child, inner)
            if inner is not names and not isinstance(child, ast.ClassDef):
                lengths[".".join(inner)] = len(code.intersection(range(child.body[0].lineno, child.end_lineno + 1)))

    visit(ast.parse(source), [])
    return lengths


def test_every_test_that_is_called_slow_is_there():
    here = Path(__file__).parent
    for line in (here / "slow.txt").read_text("utf-8").split():
        file, *_, name = line.split("::")
        assert f"def {name}(" in (here / file).read_text("utf-8"), line


def test_what_a_folder_says_is_in_it_is_there():
    lists, gone = 0, []
    for init in sorted((ROOT / "companion").rglob("__init__.py")):
        said = ast.get_docstring(ast.parse(init.read_text("utf-8"))) or ""
        rows = re.findall(r"^([a-z_]+(?:, [a-z_]+)*)(?:\.py|/)? {2,}\S", said, re.MULTILINE)
        names = [name for row in rows for name in row.split(", ")]
        lists += bool(names)
        gone += [
            f"{init.relative_to(ROOT)}: {name}"
            for name in names
            if not (init.with_name(f"{name}.py").exists() or init.with_name(name).is_dir())
        ]
    assert not gone, "names of files that are not there"
    assert lists > 10
