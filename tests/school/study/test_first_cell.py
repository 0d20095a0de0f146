"""In a kernel that is not the course's, the first cell of every notebook says in one line what to do."""

import ast
import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest

from companion_school.course.release.notebook_cells import IN_ANOTHER_KERNEL
from companion_school.study.readers_copy import KERNEL

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"
EVERY = sorted(
    path.relative_to(NOTEBOOKS).as_posix() for path in NOTEBOOKS.rglob("*.ipynb") if "." not in path.parts[-2]
)
TRIED = [name for name in EVERY if re.match(r"start|02_|deeper/02|exercises/02", name)]
# In another kernel, where the course is not installed, the first cells are run as Jupyter runs them.
ELSEWHERE = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell

class Gone:
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] == "companion":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Gone)
shell = InteractiveShell()
for source in json.load(sys.stdin):
    result = shell.run_cell(source)
    print("=====", type(result.error_in_exec).__name__)
"""


def first_cell(name):
    return next(cell for cell in nbformat.read(NOTEBOOKS / name, as_version=4).cells if cell.cell_type == "code").source


@pytest.mark.parametrize("name", EVERY)
def test_the_line_stands_before_everything_that_could_fail(name):
    source = first_cell(name)
    assert IN_ANOTHER_KERNEL in source.split("\n")[:2]
    assert ast.unparse(ast.parse(source).body[0]) == "import companion"


def test_the_line_names_the_kernel_of_make_lab():
    assert IN_ANOTHER_KERNEL.endswith(f"Kernel > Change Kernel... > {KERNEL}")


def test_in_another_kernel_the_line_is_what_is_seen():
    sources = [first_cell(name) for name in TRIED]
    assert len(sources) == 4
    run = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], input=json.dumps(sources), capture_output=True, text=True, check=True
    )
    shown = re.sub(r"\x1b\[[0-9;]*m", "", run.stdout).split("===== ")
    for said, error in pairwise(shown):
        assert error.startswith("ModuleNotFoundError")
        [arrow] = [line for line in said.split("\n") if line.startswith("---->")]
        assert IN_ANOTHER_KERNEL in arrow
        assert said.rstrip().endswith("No module named 'companion'")
