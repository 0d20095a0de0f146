"""Build the distributions for the package index, and try them in an empty environment, as a user would.

    make package                the library's sdist and both wheels, in dist/, and the trial
    make package TAG=v1.0.0     the same, and check that the version is that of the tag

Nothing in the checkout is used after the build. The commands and examples come from the page that the index shows,
companion/README.md, and run with only the dependencies of the models; then the extra for the school is installed. The
script needs only Python, and pip needs its index.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import tasks  # noqa: E402

DIST = ROOT / "dist"
TOOLS = ROOT / "build" / "package" / "tools"
SCHOOL_PAGE = ROOT / "school" / "README.md"
OPTIONAL = {"IPython", "matplotlib", "nbformat", "triton"}
"""Packages that modules may import at the top without the extra `lab`: they draw, or write notebooks. Triton comes with
PyTorch for CUDA."""

IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
count, without = 0, set()
for module in pkgutil.walk_packages(package.__path__, sys.argv[1] + ".", onerror=lambda name: None):
    # The reference solutions of the build track import each other as the files in a learner's folder do.
    if not module.name.endswith("__main__") and ".build.references." not in module.name:
        try:
            importlib.import_module(module.name)
            count += 1
        except ImportError as error:
            missing = error if error.name else error.__cause__
            without.add(missing.name.partition(".")[0])
print(count, *sorted(without))
"""

TYPED = """
import companion
from companion import ModelConfig, Sampling, Transformer

def of(config: ModelConfig) -> None:
    reveal_type(config.d_model)
    reveal_type(Transformer(config))
    reveal_type(companion.complete)

Sampling(temperature="hot")
"""
SAYS = (
    'Revealed type is "int"',
    'Revealed type is "companion.transformer.Transformer"',
    'Revealed type is "def (model: companion.transformer.Transformer',
    'Argument "temperature" to "Sampling" has incompatible type "str"; expected "float"',
)
"""What mypy must find in `TYPED`, line by line, and nothing else."""


class Failed(Exception):
    """A failure of the build or of the trial."""


def blocks(page: str, language: str) -> list[str]:
    """Return the code blocks of a page in this language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def commands(page: str) -> list[list[str]]:
    """Return the words of each `companion` command on the page."""
    lines = [shlex.split(line, comments=True) for block in blocks(page, "bash") for line in block.splitlines()]
    return [words for words in lines if words and words[0] == "companion"]


def promised(example: str) -> list[str]:
    """Return what an example promises to print: the comments after and below `print(...)` and `check(...)`."""
    said = re.findall(r"^(?:print|check)\(.*\)((?:  #|\n#) .+(?:\n# .+)*)$", example, re.MULTILINE)
    return [line for comments in said for line in re.findall(r"# (.+)", comments)]


def refuse_other_version(tag: str, version: str) -> None:
    """Raise `Failed` unless `tag` is empty, or is `v` and the version in pyproject.toml."""
    if tag and tag != f"v{version}":
        raise Failed(f"tag {tag!r}: expected 'v{version}', as pyproject.toml has version {version}")


def run(command: Sequence[str | Path], folder: Path, environment: dict[str, str] | None = None, exits: int = 0) -> str:
    """Run a command, print it and its time, and return its output; raise `Failed` unless its exit code is `exits`."""
    start = time.perf_counter()
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8"
    )
    shown = " ".join([Path(words[0]).stem, *(word if "\n" not in word else "..." for word in words[1:])])
    print(f"{time.perf_counter() - start:6.1f} s  {shown}".replace(f"{ROOT}{os.sep}", ""), flush=True)
    if done.returncode != exits:
        raise Failed(f"{shown}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


def virtual_environment(folder: Path) -> Path:
    """Create a virtual environment and return the path of its Python."""
    run([sys.executable, "-m", "venv", "--clear", folder], ROOT)
    return tasks.python_in(folder)


def build() -> tuple[Path, Path]:
    """Build the library and the school into dist/, check them with twine, and return the two wheels."""
    python = tasks.python_in(TOOLS)
    if not python.exists():
        virtual_environment(TOOLS)
        run([python, "-m", "pip", "install", "--quiet", "build", "twine"], ROOT)
    shutil.rmtree(DIST, ignore_errors=True)
    for stale in ROOT.glob("*.egg-info/SOURCES.txt"):
        stale.unlink()  # the file list of an earlier build would be used again
    run([python, "-m", "build", "--outdir", DIST, ROOT], ROOT)
    # Files that were deleted since then would be packed again
    shutil.rmtree(ROOT / "school" / "build", ignore_errors=True)
    # Only a wheel, because the school's package is outside its project folder, and an sdist cannot contain such files.
    run([python, "-m", "build", "--wheel", "--outdir", DIST, ROOT / "school"], ROOT)
    found = sorted(DIST.iterdir())
    run([python, "-m", "twine", "check", "--strict", *found], ROOT)
    library, school = (path for path in found if path.suffix == ".whl")  # sorted by name, the library comes first
    return library, school


def alone(folder: Path) -> dict[str, str]:
    """Return the environment variables of a user without a checkout, whose progress is stored in `folder`."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return known | {"COMPANION_HOME": str(folder / "progress"), "PYTHONUTF8": "1"}


def trial(wheel: Path, school: Path, torch: str, page: str, folder: Path) -> None:
    """Install the library in an empty environment and use it, then the school.

    Raises `Failed` if any result differs from what is promised.
    """
    python = virtual_environment(folder / "empty")
    user, work = alone(folder), folder / "a folder of one's own"
    work.mkdir()
    run([python, "-m", "pip", "install", "--quiet", *shlex.split(torch)], work, user)
    run([python, "-m", "pip", "install", "--quiet", wheel], work, user)
    run([python, "-m", "pip", "check"], work, user)
    place = run([python, "-c", "import companion; print(companion.__file__)"], work, user).strip()
    if not Path(place).is_relative_to(folder):
        raise Failed(f"companion came from {place}, expected it from {folder}")
    script = shutil.which("companion", path=str(python.parent))
    if script is None:
        raise Failed("no command companion was installed")
    for words in commands(page):
        run([script, *words[1:]], work, user)
    for example in blocks(page, "python"):
        check_example(python, example, work, user)
    load_all(python, "companion", work, user)
    translate = [script, "train", "--task", "number-words", "--steps", "2", "--out", "numbers"]
    how = "which is not installed: pip install 'executable-transformer[school]'"
    for words, sentence in ((translate, f"this needs num2words, {how}"), ([script, "course"], f"the school, {how}")):
        said = run(words, work, user, exits=2)
        if sentence not in said:
            raise Failed(f"without the school, companion does not say how to get it, but\n{said}")
    run([python, "-m", "pip", "install", "--quiet", school, f"{wheel}[school]"], work, user)
    run([python, "-m", "pip", "check"], work, user)
    run(translate, work, user)
    run([script, "course", "--help"], work, user)
    load_all(python, "companion_school", work, user)
    for example in blocks(SCHOOL_PAGE.read_text("utf-8"), "python"):
        check_example(python, example, work, user)
    run([python, "-m", "pip", "install", "--quiet", "mypy"], work, user)
    look(python, work, user)


def check_example(python: Path, example: str, work: Path, user: dict[str, str]) -> None:
    """Raise `Failed` unless an example of a page prints what its comments promise."""
    said = run([python, "-c", example], work, user)
    missing = [line for line in promised(example) if line not in said.splitlines()]
    if missing:
        raise Failed(f"the page promises {missing}, and the example prints\n{said}")


def load_all(python: Path, package: str, work: Path, user: dict[str, str]) -> None:
    """Raise `Failed` unless every module of a package can be imported, except those that need something optional."""
    count, *without = run([python, "-c", IMPORT_ALL, package], work, user).split()
    if not set(without) <= OPTIONAL:
        raise Failed(f"{count} modules of {package} load, others ask for {without}; expected none but {OPTIONAL}")
    print(f"          {count} modules of {package} load; others need {', '.join(without) or 'nothing'}")


def look(python: Path, work: Path, user: dict[str, str]) -> None:
    """Raise `Failed` unless mypy finds the package's types when it checks a user's file."""
    (work / "typed.py").write_text(TYPED, "utf-8")
    checked = subprocess.run(
        [str(python), "-m", "mypy", "--strict", "typed.py"], cwd=work, env=user, capture_output=True, encoding="utf-8"
    )
    found = re.findall(r"^typed\.py:\d+: (?:note|error): (.*)$", checked.stdout, re.MULTILINE)
    if len(found) != len(SAYS) or any(not line.startswith(says) for line, says in zip(found, SAYS, strict=True)):
        raise Failed(f"mypy sees other types than expected:\n{checked.stdout}{checked.stderr}")
    print("          mypy sees the types")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make package", description=__doc__)
    parser.add_argument("--tag", default="", help="refuse to build unless this is v and the version")
    parser.add_argument("--torch", default=tasks.TORCH, help="which PyTorch is there first, with any options of pip")
    options = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    try:
        refuse_other_version(options.tag, project["version"])
        library, school = build()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            trial(library, school, options.torch, (ROOT / project["readme"]).read_text("utf-8"), Path(folder).resolve())
    except Failed as failed:
        print(failed, file=sys.stderr)
        return 1
    print(f"All of it holds: {', '.join(path.name for path in sorted(DIST.iterdir()))}, in dist/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
