"""Load scripts and style sheets for cell outputs, stripped of comments and indentation."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files


@cache
def asset(package: str, name: str) -> str:
    """Return a script or style sheet without comments and indentation; a style sheet also loses its extra spaces.

    Args:
        package: Package that contains the file.
        name: Name of the file; a style sheet ends in ".css".
    """
    lines = files(package).joinpath(name).read_text(encoding="utf-8").splitlines()
    text = "\n".join(line.strip() for line in lines if line.strip() and not line.strip().startswith("//"))
    return re.sub(r"\s*([{};,]|:(?=\s))\s*", r"\1", text) if name.endswith(".css") else text
