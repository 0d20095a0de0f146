"""Scripts and styles as outputs carry them: a file of a package without what only its authors need."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files


@cache
def asset(package: str, name: str) -> str:
    """Return a script or a style without its comments and its indentation, a style also without needless spaces."""
    lines = files(package).joinpath(name).read_text(encoding="utf-8").splitlines()
    text = "\n".join(line.strip() for line in lines if line.strip() and not line.strip().startswith("//"))
    return re.sub(r"\s*([{};,]|:(?=\s))\s*", r"\1", text) if name.endswith(".css") else text
