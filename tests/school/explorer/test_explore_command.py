"""`companion explore` runs with only the dependencies of the package."""

import subprocess
import sys

WITHOUT = ["matplotlib", "IPython", "ipywidgets", "sympy", "PIL", "nbformat", "jinja2", "num2words"]
COMMAND = f"""
import sys
sys.modules.update(dict.fromkeys({WITHOUT!r}))  # importing one of these raises ModuleNotFoundError
from companion.commands.main import main
sys.exit(main(["explore", "--out", "page.html"]))
"""


def test_the_explorer_needs_nothing_that_only_the_lab_brings(tmp_path):
    done = subprocess.run([sys.executable, "-c", COMMAND], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("page.html: ")
    assert "<title>Inside a model</title>" in (tmp_path / "page.html").read_text("utf-8")
