"""Make the frozen text: the prose of this course's first edition, one document for each section of its lessons.

    python companion/data/texts/make.py [--check]

The text is taken from the lessons in one particular commit, so that later editions change neither the text nor the
results measured on it. `--check` writes nothing and says whether the stored file matches the commit.
"""

from __future__ import annotations

import json
import lzma
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
FILE = HERE / "first_edition.json.xz"
COMMIT = "a9bd8f28eda916c2d3b60c47fc96eccaf12d242f"
"""The first edition."""
LESSONS = "notebooks/src/"

FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
CODE_CELL = re.compile(r"^```\{code-cell\}.*?^```$\n?", re.DOTALL | re.MULTILINE)
DIRECTIVE = re.compile(r"^(\{\{.*\}\}|\+\+\+|</?details>.*)$\n?", re.MULTILINE)
SECTION = re.compile(r"^(?=## )", re.MULTILINE)


def sections(source: str) -> Iterator[tuple[str, str]]:
    """Yield (name, text) for each section of a lesson.

    Code cells and directives are left out; formulas, tables and lists stay. A name has the form `Scaled dot-product
    attention: Derivation`. The opening is named after the lesson, and repeated headings are numbered.
    """
    prose = FRONT_MATTER.sub("", source)
    for pattern in (CODE_CELL, DIRECTIVE):
        prose = pattern.sub("", prose)
    opening, *others = (part.strip() + "\n" for part in SECTION.split(re.sub(r"\n{3,}", "\n\n", prose)))
    lesson = _heading(opening)
    yield lesson, opening
    seen: Counter[str] = Counter()
    for text in others:
        name = f"{lesson}: {_heading(text)}"
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name} ({seen[name]})", text


def make() -> bytes:
    """Return the text as JSON that maps the name of each section to its prose, in the order of the course."""
    folder = f"{COMMIT}:{LESSONS}"
    files = [line for line in _git("show", folder).splitlines() if line.endswith(".md")]
    documents = dict(pair for file in sorted(files) for pair in sections(_git("show", folder + file)))
    return json.dumps(documents, ensure_ascii=False, indent=0).encode()


def _heading(text: str) -> str:
    line = text.partition("\n")[0]
    if not line.startswith("#"):
        raise ValueError(f"expected a section that begins with a heading, got {line!r}")
    return line.lstrip("# ")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=HERE, check=True, capture_output=True).stdout.decode()


def main() -> int:
    """Write the file or check it, and return the exit code."""
    text = make()
    if "--check" in sys.argv[1:]:
        # Compare the text rather than the bytes of the file, because another version of xz may compress it differently.
        same = lzma.decompress(FILE.read_bytes()) == text
        print(f"{FILE.name} {'matches' if same else 'DOES NOT MATCH'} commit {COMMIT}")
        return 0 if same else 1
    FILE.write_bytes(
        lzma.compress(text, format=lzma.FORMAT_XZ, check=lzma.CHECK_SHA256, preset=9 | lzma.PRESET_EXTREME)
    )
    print(f"{FILE.name}: {len(json.loads(text))} documents, {len(text):,} bytes, {FILE.stat().st_size:,} in the file")
    return 0


if __name__ == "__main__":
    sys.exit(main())
