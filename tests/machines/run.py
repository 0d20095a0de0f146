"""Run the notebooks and the tests that compare numbers as other machines would, and say where they differ.

    make machines                                       every lesson and the tests, under every setting (hours)
    make machines LESSON="13 00"                        two lessons under every setting
    make machines SETTING="avx2 MKL_CBWR=AVX2" LESSON=02
    make machines SETTING="odd-loads+threads-2+hash-1"  several in one go
    make machines MACHINES=--list                       the settings
    make machines SETTING=plain MACHINES="--table tests/machines/table.md"  and write what is found into the table

A setting is a set of environment variables that choose kernels, threads or the order of sets, or one of the machines
that site/ simulates. Every cell of a lesson's notebooks must run and print what is stored; every test must pass. A
library that does not know the kernels it is asked for falls back in silence, to those that `companion doctor` shows.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

from filelock import FileLock

from companion.ground.display import table
from companion.ground.processor import SETTINGS as KERNELS
from companion.ground.processor import processor

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(__file__).resolve().parent / "site"
SIMULATED = "COMPANION_MACHINE"
SETTINGS = {
    "none": {},
    "plain": {"ATEN_CPU_CAPABILITY": "default"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "mkl-sse": {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    "mkl-avx2": {"MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "mkl-same": {"MKL_CBWR": "COMPATIBLE"},  # products that are alike on all processors
    "onednn-sse": {"ONEDNN_MAX_CPU_ISA": "SSE41"},
    # MKL_DYNAMIC: more threads than cores, too, where they are asked for.
    **{f"threads-{count}": {"OMP_NUM_THREADS": str(count), "MKL_DYNAMIC": "FALSE"} for count in (1, 2, 4)},
    **{machine: {SIMULATED: machine} for machine in ("odd-loads", "other-sums")},
    **{f"hash-{seed}": {"PYTHONHASHSEED": str(seed)} for seed in (0, 1, 2)},
}
# What compares numbers; the rest reads files, starts commands, or is about words.
TESTS = {
    "tests: layers": "tests/layers",
    "tests: models": "tests/test_worked_example.py tests/test_transformer.py tests/generation tests/families",
    "tests: training": " ".join(f"tests/training/test_{name}.py" for name in ("losses", "run_loop", "trainer")),
    "tests: exercises": "tests/school/exercises",
}


def rows(root: Path = ROOT) -> dict[str, list[str]]:
    """Each lesson with its notebooks (itself, deeper, exercises, and `make solved`'s solutions), and `TESTS`."""
    found = {}
    for lesson in sorted((root / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        beside = ("notebooks/deeper/{}_deeper", "notebooks/exercises/{}_exercises", "build/solved/{}_exercises")
        paths = [root / f"{place.format(lesson.name[:2])}.ipynb" for place in beside]
        found[lesson.stem] = [str(path.relative_to(root)) for path in (lesson, *paths) if path.is_file()]
    return found | {name: paths.split() for name, paths in TESTS.items()}


def environment(setting: str) -> dict[str, str]:
    """The variables of a setting: a name, one of its own as `VARIABLE=VALUE`, or several joined with `+`.

    Raises `ValueError` for a name that is not in `SETTINGS`, and for another variable or value.
    """
    made: dict[str, str] = {}
    for part in setting.split("+"):
        variable, _, value = part.partition("=")
        if part not in SETTINGS and value not in KERNELS.get(variable, {}):
            raise ValueError(
                f"--setting {part}: expected one of {', '.join(SETTINGS)}, or one of {', '.join(KERNELS)}=VALUE"
            )
        made |= SETTINGS.get(part, {variable: value})
    return made


def whole_environment(setting: str) -> dict[str, str]:
    """This process's environment with the setting's: one thread and a drawn hash seed unless it says otherwise."""
    made = environment(setting)
    kept = {name: value for name, value in os.environ.items() if name not in (*KERNELS, "PYTHONHASHSEED")}
    if SIMULATED in made:
        made["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH")]))
    return {**kept, "OMP_NUM_THREADS": "1", **made}


def differ(paths: Sequence[str], setting: str, root: Path = ROOT) -> str:
    """What pytest says at its end of notebooks or tests under a setting; empty where all is as it must be."""
    books = any(path.endswith(".ipynb") for path in paths)
    nbval = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout=600"] if books else []
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "--tb=line", "-p", "no:cacheprovider", "--timeout=1800"]
    done = subprocess.run(
        [*command, *nbval, *paths], cwd=root, env=whole_environment(setting), capture_output=True, text=True
    )
    return "" if done.returncode == 0 else (done.stdout + done.stderr)[-4000:].strip()


HEAD = """# Where numbers were compared

Written by `make machines MACHINES="--table tests/machines/table.md"`, which adds what it runs to what is here; do not
edit it. A part for each PyTorch and processor, a column for each setting of `make machines MACHINES=--list` ("none":
as the machine is). `=`: every cell printed what is stored, and every test passed, on that day. `DIFFERS`: something did
not. Every other cell says that it was not run; a setting without a column was not run there at all.
"""


def here() -> str:
    """What a part of the table is of: the versions and the processor that calculate here."""
    return f"PyTorch {version('torch')}, Python {platform.python_version()}, {processor()}"


def add_to_table(path: Path, name: str, setting: str, differs: bool) -> None:
    """Write one cell, with the date, into the table of `here()`; what other runs wrote stays."""
    with FileLock(Path(tempfile.gettempdir()) / "machines-table.lock"):  # several may run at once
        parts: dict[str, dict[tuple[str, str], str]] = {}
        columns: list[str] = []
        for line in path.read_text("utf-8").splitlines() if path.is_file() else ():
            cells = [cell.strip() for cell in line.split("|")[1:-1]]
            if line.startswith("## "):
                part = parts.setdefault(line[3:], {})
            elif cells and not cells[0]:
                columns = cells[1:]
            elif cells and not cells[0].startswith("-"):
                part |= {(cells[0], column): cell for column, cell in zip(columns, cells[1:], strict=True)}
        parts.setdefault(here(), {})[name, setting] = f"{'DIFFERS' if differs else '='} {date.today()}"
        path.write_text(HEAD + "".join(_part(title, cells) for title, cells in sorted(parts.items())), "utf-8")


def _part(title: str, cells: dict[tuple[str, str], str]) -> str:
    columns = list(dict.fromkeys(setting for _, setting in cells))
    lines = [("", *columns), ("---",) * (1 + len(columns))]
    lines += [(name, *(cells.get((name, column), "not run") for column in columns)) for name in rows()]
    return f"\n## {title}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="make machines", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--lesson", metavar="NN", nargs="+", default=[""], help="beginnings of rows; 'tests' are rows, too"
    )
    parser.add_argument(
        "--setting", metavar="NAME", nargs="+", default=[*SETTINGS], help="names, VARIABLE=VALUE, or A+B"
    )
    parser.add_argument("--list", action="store_true", help="say which settings there are, and stop")
    parser.add_argument("--table", metavar="FILE", type=Path, help="add what is found to this table of Markdown")
    options = parser.parse_args(arguments)
    if options.list:
        print(
            table([(name, *map("=".join, made.items())) for name, made in SETTINGS.items()], left=(0, 1, 2), indent=0)
        )
        return 0
    chosen = {name: paths for name, paths in rows().items() if name.startswith(tuple(options.lesson))}
    if not chosen:
        parser.error(f"--lesson {' '.join(options.lesson)}: expected the beginning of one of {', '.join(rows())}")
    try:
        for setting in options.setting:
            environment(setting)
    except ValueError as error:
        parser.error(str(error))
    found: dict[tuple[str, str], str] = {}
    for setting in options.setting:
        for name, paths in chosen.items():
            said = found[name, setting] = differ(paths, setting)
            if options.table:
                add_to_table(options.table, name, setting, differs=bool(said))
            print(f"{setting:12} {name:36} {'differs' if said else 'alike'}\n{said}".rstrip(), flush=True)
    cells = [(name, *("DIFFERS" if found[name, setting] else "=" for setting in options.setting)) for name in chosen]
    print("\n" + table(cells, ("", *options.setting), indent=0, width=None))
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
