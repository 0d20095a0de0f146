"""What is installed beside the package, asked without importing it, and which extra brings what is not."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.requirements import Requirement

NAME = "executable-transformer"
"""The library's name for pip."""
SCHOOL = "executable-transformer-school"
"""The school's name for pip; in a checkout, the folder school/ installs it."""
CHECKOUT = Path(__file__).resolve().parents[2]
"""Where the package lies in its checkout, if it does."""
_BROUGHT_BY = {"IPython": "ipykernel", "PIL": "pillow", "yaml": "pyyaml"}
"""What brings a module that has another name."""


def installed(package: str) -> str | None:
    """The version of a package by the name that pip knows; `None` where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@cache
def requirements() -> tuple[Requirement, ...]:
    """What the package asks for: as it was installed, else as its checkout says; empty where neither is here."""
    asked = None
    try:
        asked = metadata.requires(NAME)
    except metadata.PackageNotFoundError:
        path = CHECKOUT / "pyproject.toml"
        if path.is_file():
            project = tomllib.loads(path.read_text("utf-8"))["project"]
            asked = project["dependencies"] + [
                f'{line}; extra == "{extra}"'
                for extra, lines in project["optional-dependencies"].items()
                for line in lines
            ]
    from packaging.requirements import Requirement

    return tuple(Requirement(line) for line in asked or ())


def asked_by(extra: str = "") -> list[Requirement]:
    """What an extra names; empty: what the package itself needs."""
    return [asked for asked in requirements() if _belongs(asked, extra)]


def _belongs(asked: Requirement, extra: str) -> bool:
    if asked.marker is None:
        return not extra
    return asked.marker.evaluate({"extra": extra}) and not (extra and asked.marker.evaluate({"extra": ""}))


def missing(extra: str = "") -> list[Requirement]:
    """What the extra asks for (empty: what the package needs itself) and is not here, or not in a version it takes."""
    found = []
    for asked in asked_by(extra):
        if asked.name == NAME:
            found += [requirement for inner in sorted(asked.extras) for requirement in missing(inner)]
            continue
        number = installed(asked.name)
        if number is None or not asked.specifier.contains(number, prereleases=True):
            found.append(asked)
    return found


def install_line(extra: str) -> str:
    """Return the command that installs an extra."""
    checkout = (CHECKOUT / "pyproject.toml").is_file()
    return f"pip install -e ./school -e '.[{extra}]'" if checkout else f"pip install '{NAME}[{extra}]'"


def how_to_get(module: str, extras: tuple[str, ...]) -> str | None:
    """The sentence about a module that could not be imported; `None` for one that none of the extras brings."""
    top = module.partition(".")[0]
    wanted = _BROUGHT_BY.get(top, top).lower().replace("_", "-")
    for extra in extras:
        if any(asked.name.lower().replace("_", "-") == wanted for asked in asked_by(extra)):
            return f"this needs {wanted}, which is not installed: {install_line(extra)}"
    return None
