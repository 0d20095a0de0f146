"""Requirements of the package.

The models and their commands can be imported with only the base requirements, the school with its extra. A notebook
that is opened outside of a checkout, as in Colab, needs only the installed package.
"""

import ast
import json
import re
import sys
import tomllib
from functools import cache
from graphlib import TopologicalSorter

import pytest

from authoring.imports import LIBRARY, PACKAGES, ROOT, imported, imports_of, modules, parts
from companion.commands import doctor, main
from companion.ground import installed
from companion_school.commands import COMMANDS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SCHOOLS_PROJECT = tomllib.loads((ROOT / "school" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
MODULES = {"IPython": "ipykernel", "PIL": "pillow", "yaml": "pyyaml", "cycler": "matplotlib", "markupsafe": "jinja2"}
"""The package that brings a module of another name."""
LEARNERS = ROOT / "companion_school" / "build" / "references"  # files that import each other, like a learner's
FILES = sorted({file for package in PACKAGES for file in package.rglob("*.py")} - set(LEARNERS.glob("*.py")))
OWN = {package.name for package in PACKAGES}
TOOLS = ("commands", "examples", "__main__.py")
"""The folders of the library that models never import."""
LAB = ("companion_school/study/", "companion_school/questions/")
"""The folders that only notebooks import."""


NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))


def brought(lines):
    return {re.split(r"[\[>=<]", line)[0] for line in lines} - {PROJECT["name"], SCHOOLS_PROJECT["name"]}


def imports(node, local):
    """Yield what a module imports when it is loaded and, with `local`, what its functions import.

    Imports only for type checkers and optional ones do not count.
    """
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


def read(file):
    return file.read_text(encoding="utf-8")


@cache
def of(file, local):
    return set(imports(ast.parse(read(file)), local)) - {""}


def test_the_library_never_imports_the_school():
    """This covers imports at load time, in functions, and by a string, as in `import_module("companion_school.x")`."""
    library = [file for file in FILES if file.is_relative_to(LIBRARY)]
    over = {file.relative_to(ROOT).as_posix(): found for file in library if (found := named_of_the_school(read(file)))}
    assert len(library) > 100 and over == {}


def named_of_the_school(code):
    tree = ast.parse(code)
    names = {name for name, _ in imported(tree)} | {
        node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return {name for name in names if re.fullmatch(r"companion_school(\.\w+)*(:\w+)?", name)}


def test_a_model_never_imports_a_tool():
    library = [file for file in FILES if file.is_relative_to(LIBRARY)]
    models = [file for file in library if file.relative_to(LIBRARY).parts[0] not in TOOLS]
    tools = tuple(f"companion.{tool}" for tool in TOOLS)
    up = {str(file.relative_to(ROOT)): found for file in models for found in of(file, True) if found.startswith(tools)}
    assert len(models) > 100 and up == {}


def test_no_modules_and_no_parts_import_each_other_in_a_circle():
    TopologicalSorter({module: imports_of(module) for module in modules()}).prepare()
    order = parts()  # the school counts as one part
    places = [order.index(f"companion/{part}") for part in ("config", "layers", "transformer", "training", "commands")]
    assert places == sorted(places) and order.index("companion_school") > order.index("companion/training")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_a_module_loads_with_what_its_part_of_the_package_asks_for(file):
    short = file.relative_to(ROOT).as_posix()
    allowed = brought(PROJECT["dependencies"])
    if short.startswith("companion_school/"):
        allowed |= brought(EXTRAS["school"])
    if short.startswith(LAB):
        allowed |= brought([*EXTRAS["lab"], *EXTRAS["colab"]])
    named = {name.partition(".")[0] for name in of(file, local=False)} - {*OWN, *sys.stdlib_module_names}
    asked = {MODULES.get(name, name) for name in named}
    assert asked <= allowed, f"no extra of {short} brings {asked - allowed}"


def test_the_school_is_a_distribution_of_its_own_and_both_have_one_version():
    name, version = PROJECT["name"], PROJECT["version"]
    assert SCHOOLS_PROJECT["version"] == version
    assert SCHOOLS_PROJECT["dependencies"] == [f"{name}[school]=={version}"]
    assert EXTRAS["school"][0] == f"{SCHOOLS_PROJECT['name']}=={version}"
    assert SCHOOLS_PROJECT["requires-python"] == PROJECT["requires-python"]
    assert (name, SCHOOLS_PROJECT["name"]) == (installed.NAME, installed.SCHOOL)
    assert (ROOT / "school" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert set(main.SCHOOL_COMMANDS) == set(COMMANDS)


def test_the_base_is_small_and_no_extra_names_it_again():
    base = brought(PROJECT["dependencies"])
    assert {"torch", "numpy", "safetensors"} < base and len(base) <= 12
    for extra in ("school", "lab", "course", "published"):
        assert not base & brought(EXTRAS[extra]), extra
    used = {MODULES.get(name.partition(".")[0], name.partition(".")[0]) for file in FILES for name in of(file, True)}
    assert base <= used, f"nothing imports {base - used}"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda file: file.relative_to(ROOT / "notebooks").as_posix())
def test_a_notebook_needs_nothing_but_the_package_with_its_extra_for_notebooks(notebook):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    allowed = brought(PROJECT["dependencies"]) | brought(EXTRAS["school"]) | brought([*EXTRAS["lab"], *EXTRAS["colab"]])
    assert code and needs(code, notebook.parent, allowed) == set()
    pictures = [
        found for cell in cells for found in re.findall(r"!\[[^\]]*\]\((?!https:)([^)]+)\)", "".join(cell["source"]))
    ]
    if notebook.name == "start.ipynb":  # opened from a checkout or from the reader's copy of it
        pictures = [picture for picture in pictures if not (notebook.parent / picture).is_file()]
    assert not pictures, f"{pictures}: a picture that lies in a file is not there"


def needs(code, folder, allowed):
    """Return the modules and files of a checkout that a notebook needs but that no installation provides."""
    tree = ast.parse(code)
    named = {name.partition(".")[0] for name in imports(tree, local=True)} - {*OWN, *sys.stdlib_module_names}
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    paths = {text for text in texts if re.fullmatch(r"[\w.-]+(/[\w.-]+)+|[\w-]+\.\w+", text)}
    files = {path for path in paths for root in (ROOT, folder) if (root / path).exists()}
    return {name for name in named if MODULES.get(name, name) not in allowed} | files


def test_doctor_knows_every_extra():
    assert set(doctor.EXTRAS) == set(EXTRAS)
