"""The repository's address, and what hangs on it: links to Colab and Binder, and to files that are on no page.

It stands in one place: `[project.urls]` of pyproject.toml, under `Repository`. Without it there are no such links.
"""

from __future__ import annotations

import html
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

from authoring.site.fault import Faults
from authoring.site.pages import Page
from companion.ground.installed import NAME, SCHOOL

GITHUB = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?")
KEY = "Repository"


def project(root: Path) -> dict[str, Any]:
    """The table `project` of pyproject.toml."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def address(root: Path, faults: Faults) -> str:
    """The repository's address, without a slash at its end; empty if the project names none."""
    named = project(root).get("urls", {}).get(KEY, "")
    if not named:
        return ""
    found = GITHUB.fullmatch(named)
    if not found:
        faults.add("pyproject.toml", f"{KEY} {named!r}: expected an address as https://github.com/owner/name")
        return ""
    return f"https://github.com/{found[1]}"


def changed(folder: Path) -> dict[str, str]:
    """The day of the last change of each file of a folder, by its path in there; empty where there is no history."""
    command = ["git", "log", "--format=%x00%cs", "--name-only", "--no-renames", "--relative", "--", "."]
    try:
        log = subprocess.run(command, cwd=folder, capture_output=True, text=True, encoding="utf-8", check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return {}
    days: dict[str, str] = {}
    for entry in log.split("\0")[1:]:
        day, *files = entry.split("\n")
        for file in filter(None, files):
            days.setdefault(file, day)
    return days


def badges(repository: str, file: str = "start.ipynb") -> dict[str, str]:
    """Where a notebook opens, by the place's name; a cell's id may follow each address as it is."""
    if not repository:
        return {}
    name = repository.removeprefix("https://github.com/")
    return {
        "Colab": f"https://colab.research.google.com/github/{name}/blob/main/notebooks/{file}#scrollTo=",
        "Binder": f"https://mybinder.org/v2/gh/{name}/main?urlpath=lab/tree/my/{file}%23cell-id=",
        "JupyterLab": f"http://localhost:8888/lab/tree/my/{file}#cell-id=",
    }


def bar(repository: str, page: Page) -> str:
    """The line of badges of a page that is a notebook; its script puts the same links beside each cell."""
    file = page.source.relative_to(page.source.parents[len(Path(page.name).parts) - 1]).as_posix()
    there = badges(repository, file)
    if not there:
        return ""
    first = next((cell.id for cell in page.notebook.cells if cell.cell_type == "code"), "")
    links = " ".join(
        f'<a class="badge" data-opens="{html.escape(address)}" href="{html.escape(address + first)}">'
        f"Open in {html.escape(name)}</a>"
        for name, address in there.items()
    )
    install = html.escape(
        f'%pip install "{NAME}[colab] @ git+{repository}" "{SCHOOL} @ git+{repository}#subdirectory=school"'
    )
    return (
        f'<p class="badges">{links}</p>'
        f'<p class="badges">In Colab put a cell before all others, and run it first: <code>{install}</code></p>'
    )
