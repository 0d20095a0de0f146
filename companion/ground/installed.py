"""What is installed beside the course, asked without importing it."""

from __future__ import annotations

from importlib import metadata


def installed(package: str) -> str | None:
    """The version of a package by the name that pip knows; `None` where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
