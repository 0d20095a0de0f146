"""What the package needs to be imported: the models and their commands the base alone, the school its extra besides.
And what a notebook needs that is opened where there is nothing but the installed package, as in Colab."""

import ast
import json
import re
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from companion.commands import doctor

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
MODULES = {"IPython": "ipykernel", "PIL": "pillow", "yaml": "pyyaml", "cycler": "matplotlib", "markupsafe": "jinja2"}
"""What brings a module that has another name."""
FILES = sorted(set((ROOT / "companion").rglob("*.py")) - set((ROOT / "companion_school/build/references").glob("*.py")))
TOOLS = ("bench", "commands", "examples", "selftest", "school", "__main__.py")
"""The folders above the models: what they may import, a model may not."""
LAB = ("school/study/", "school/questions/")
"""What notebooks alone import."""


NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))


def brought(lines):
    return {re.split(r"[\[>=<]", line)[0] for line in lines} - {PROJECT["name"]}


def imports(node, local):
    """What a module imports where it is loaded, and if `local` what its functions do; not what only types need, nor
    what it can do without."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Try) and "ImportError" in ast.unparse(child.handlers):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.level:  # within its own folder
            yield ""
        elif isinstance(child, ast.ImportFrom):
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif local or not isinstance(child, ast.FunctionDef | ast.Lambda):
            yield from imports(child, local)


@cache
def of(file, local):
    return set(imports(ast.parse(file.read_text(encoding="utf-8")), local)) - {""}


def test_a_model_never_imports_the_school_or_a_tool():
    models = [file for file in FILES if file.relative_to(ROOT / "companion").parts[0] not in TOOLS]
    up = {
        str(file.relative_to(ROOT)): found
        for file in models
        if (found := {name for name in of(file, True) if name.startswith(tuple(f"companion.{tool}" for tool in TOOLS))})
    }
    assert len(models) > 100 and up == {}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT / "companion").as_posix())
def test_a_module_loads_with_what_its_part_of_the_package_asks_for(file):
    short = file.relative_to(ROOT / "companion").as_posix()
    allowed = brought(PROJECT["dependencies"])
    if short.startswith("school/"):
        allowed |= brought(EXTRAS["school"])
    if short.startswith(LAB):
        allowed |= brought(EXTRAS["lab"])
    named = {name.partition(".")[0] for name in of(file, local=False)} - {"companion", *sys.stdlib_module_names}
    asked = {MODULES.get(name, name) for name in named}
    assert asked <= allowed, f"no extra of {short} brings {asked - allowed}"


def test_the_base_is_small_and_no_extra_names_it_again():
    base = brought(PROJECT["dependencies"])
    assert {"torch", "numpy", "safetensors"} < base and len(base) <= 11
    for extra in ("school", "lab", "course", "published"):
        assert not base & brought(EXTRAS[extra]), extra
    used = {MODULES.get(name.partition(".")[0], name.partition(".")[0]) for file in FILES for name in of(file, True)}
    assert base <= used, f"nothing imports {base - used}"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda file: file.relative_to(ROOT / "notebooks").as_posix())
def test_a_notebook_needs_nothing_but_the_package_with_its_extra_for_notebooks(notebook):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    allowed = brought(PROJECT["dependencies"]) | brought(EXTRAS["school"]) | brought(EXTRAS["lab"])
    assert code and needs(code, notebook.parent, allowed) == set()
    pictures = [
        found for cell in cells for found in re.findall(r"!\[[^\]]*\]\((?!https:)([^)]+)\)", "".join(cell["source"]))
    ]
    assert not pictures, f"{pictures}: a picture that lies in a file is not there"


def needs(code, folder, allowed):
    """What a notebook asks for that no installation brings: modules, and files of the checkout."""
    tree = ast.parse(code)
    named = {name.partition(".")[0] for name in imports(tree, local=True)} - {"companion", *sys.stdlib_module_names}
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    paths = {text for text in texts if re.fullmatch(r"[\w.-]+(/[\w.-]+)+|[\w-]+\.\w+", text)}
    files = {path for path in paths for root in (ROOT, folder) if (root / path).exists()}
    return {name for name in named if MODULES.get(name, name) not in allowed} | files


def test_what_a_notebook_may_not_need_is_found():
    code = "import torch, transformers\nfrom tests.heads import looks\nopen('tests/ledger.csv')\nopen('mine/notes.csv')"
    assert needs(code, ROOT / "notebooks", {"torch"}) == {"transformers", "tests", "tests/ledger.csv"}


def test_doctor_knows_every_extra():
    assert set(doctor.EXTRAS) == set(EXTRAS)
