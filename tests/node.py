"""Scripts run by Node."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

NODE = shutil.which("node")


def run(script: str, given: Any, folder: Path) -> Path:
    """Run a script with `given` in its `given`, in a folder, where it may leave files by `write(name, content)`."""
    assert NODE is not None
    tools = (
        'const { writeFileSync: write, readFileSync: read } = require("fs"), given = JSON.parse(read("given.json"));\n'
    )
    (folder / "given.json").write_text(json.dumps(given), encoding="utf-8")
    (folder / "run.cjs").write_text(f'"use strict";\n{tools}{script}', encoding="utf-8")
    subprocess.run([NODE, "run.cjs"], cwd=folder, check=True, timeout=60)
    return folder
