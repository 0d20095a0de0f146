"""Find out what is installed without importing it, and which extra provides what is missing."""

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
"""Root of the checkout, if the package is in one."""
_BROUGHT_BY = {"IPython": "ipykernel", "PIL": "pillow", "yaml": "pyyaml"}
"""Packages that provide a module with another name."""


def installed(package: str) -> str | None:
    """Return the version of a package, given by its pip name, or `None` if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@cache
def requirements() -> tuple[Requirement, ...]:
    """Return the requirements of the installed package or of its checkout; without either, the result is empty."""
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
    """Return the requirements of an extra or, without a name, those of the package itself."""
    return [asked for asked in requirements() if _belongs(asked, extra)]


def _belongs(asked: Requirement, extra: str) -> bool:
    if asked.marker is None:
        return not extra
    return asked.marker.evaluate({"extra": extra}) and not (extra and asked.marker.evaluate({"extra": ""}))


def missing(extra: str = "") -> list[Requirement]:
    """Return the requirements of an extra that are not installed, or are installed in an unsuitable version.

    Without a name, the requirements of the package itself are checked.
    """
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
    """Return advice about a module that could not be imported, or `None` if no extra provides it."""
    top = module.partition(".")[0]
    wanted = _BROUGHT_BY.get(top, top).lower().replace("_", "-")
    for extra in extras:
        if any(asked.name.lower().replace("_", "-") == wanted for asked in asked_by(extra)):
            return f"this needs {wanted}, which is not installed: {install_line(extra)}"
    return None
