"""The repository's address, and the links that need it: to Colab, to Binder, and to files that have no page.

The address is set once, in `[project.urls]` of pyproject.toml under `Repository`. Without an address, there are no such
links.
"""

from __future__ import annotations

import html
import re
import subprocess
import tomllib
from pathlib import Path

from authoring.site.fault import Faults
from authoring.site.pages import Page
from companion.ground.installed import NAME, SCHOOL

GITHUB = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?")
KEY = "Repository"


def address(root: Path, faults: Faults) -> str:
    """Return the repository's address without a trailing slash, or an empty string if the project names none."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = project.get("urls", {}).get(KEY, "")
    if not named:
        return ""
    found = GITHUB.fullmatch(named)
    if not found:
        faults.add("pyproject.toml", f"{KEY} {named!r}: expected an address as https://github.com/owner/name")
        return ""
    return f"https://github.com/{found[1]}"


def changed(folder: Path) -> dict[str, str]:
    """Return the date of the last change to each file in a folder, by path, or no dates if there is no git history."""
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


def badges(repository: str, file: str) -> dict[str, str]:
    """Return the addresses that open a notebook, by service. The id of a cell can be appended to each address."""
    if not repository:
        return {}
    name = repository.removeprefix("https://github.com/")
    return {
        "Colab": f"https://colab.research.google.com/github/{name}/blob/main/notebooks/{file}#scrollTo=",
        "Binder": f"https://mybinder.org/v2/gh/{name}/main?urlpath=lab/tree/my/{file}%23cell-id=",
        "JupyterLab": f"http://localhost:8888/lab/tree/my/{file}#cell-id=",
    }


def bar(repository: str, page: Page) -> str:
    """Return the line of badges on a notebook's page. The page's script adds these links to each cell as well."""
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
