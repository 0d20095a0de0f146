"""Run scripts of pages in Node or, if there is none, in a headless browser."""

from __future__ import annotations

import base64
import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

NODE = shutil.which("node")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
_WRITTEN = re.compile(r'<pre id="written">(.*?)</pre>', re.DOTALL)
_PAGE = """<!DOCTYPE html><meta charset="utf-8"><pre id="written"></pre><script>"use strict";
const written = {}, given = GIVEN;
const write = (name, content) => {
  const bytes = typeof content === "string" ? new TextEncoder().encode(content) : content;
  let letters = "";
  for (let at = 0; at < bytes.length; at += 32768) letters += String.fromCharCode(...bytes.subarray(at, at + 32768));
  written[name] = btoa(letters);
};
SCRIPT
document.getElementById("written").textContent = JSON.stringify(written);
</script>"""


def run(script: str, given: Any, folder: Path, *, browser: bool = NODE is None) -> Path:
    """Run a script with the variable `given` in a folder, where it may write files with `write(name, content)`."""
    (_by_browser if browser else _by_node)(script, json.dumps(given), folder)
    return folder


def _by_node(script: str, given: str, folder: Path) -> None:
    assert NODE is not None
    tools = (
        'const { writeFileSync: write, readFileSync: read } = require("fs"), given = JSON.parse(read("given.json"));\n'
    )
    (folder / "given.json").write_text(given, encoding="utf-8")
    (folder / "run.cjs").write_text(f'"use strict";\n{tools}{script}', encoding="utf-8")
    subprocess.run([NODE, "run.cjs"], cwd=folder, check=True, timeout=60)


def _by_browser(script: str, given: str, folder: Path) -> None:
    assert BROWSER is not None, f"expected Node, or one of {', '.join(BROWSERS)}"
    page = folder / "run.html"
    page.write_text(_PAGE.replace("GIVEN", given.replace("<", "\\u003c")).replace("SCRIPT", script), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'browser'}", "--dump-dom"]
    shown = subprocess.run([BROWSER, *flags, page.as_uri()], check=True, capture_output=True, timeout=90).stdout
    found = _WRITTEN.search(shown.decode())
    assert found is not None and found[1], "the script did not come to its end"
    for name, content in json.loads(html.unescape(found[1])).items():
        (folder / name).write_bytes(base64.b64decode(content))
