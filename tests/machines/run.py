"""Run the notebooks and the tests that compare numbers as other machines would, and print where they differ.

    make machines                                       every lesson and the tests, under every setting (hours)
    make machines LESSON="13 00"                        two lessons under every setting
    make machines SETTING="avx2 MKL_CBWR=AVX2" LESSON=02
    make machines SETTING="odd-loads+threads-2+hash-1"  several in one go
    make machines MACHINES=--list                       the settings, and whether this machine can play them

A setting is a set of kernels (settings.py says which). Every cell of a lesson's notebooks must run and print what is
stored; every test must pass. Where joined settings differ nowhere, none of them does, as far as each changes a library
of its own; where they differ, run that row under each part. Nothing is written but build/machines: the table, and what
failed, in full.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from machines.settings import SETTINGS, Setting, missing_here, parse

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "machines"
NBVAL = ("--nbval", "--nbval-current-env", "--nbval-cell-timeout=600")
# What compares numbers; the rest reads files, starts commands, or is about words.
TESTS = {
    "tests: layers": ("tests/layers",),
    "tests: models": (
        "tests/test_worked_example.py", "tests/test_transformer.py", "tests/generation", "tests/families",
        "tests/files/test_checkpoints.py",
    ),
    "tests: training": (
        "tests/data/test_batches.py", "tests/data/test_packing.py", "tests/training/test_losses.py",
        "tests/training/test_schedule.py", "tests/training/test_fit.py", "tests/training/test_loop.py",
        "tests/training/test_translation.py", "tests/training/test_text.py",
    ),
    "tests: exercises": ("tests/school/exercises",),
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What a row gave under a setting: how many cells or tests ran, and what failed, each by name and first line."""

    ran: int
    failed: tuple[tuple[str, str], ...]
    seconds: float

    @property
    def cell(self) -> str:
        return f"{len(self.failed)} of {self.ran}" if self.failed else "="


def rows(root: Path = ROOT) -> dict[str, tuple[str, ...]]:
    """Each lesson with its notebooks (itself, deeper, exercises, and `make solved`'s solutions), and `TESTS`."""
    found = {}
    for lesson in sorted((root / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        number = lesson.name[:2]
        beside = [
            root / "notebooks" / "deeper" / f"{number}_deeper.ipynb",
            root / "notebooks" / "exercises" / f"{number}_exercises.ipynb",
            root / "build" / "solved" / f"{number}_exercises.ipynb",
        ]
        paths = [lesson, *(path for path in beside if path.is_file())]
        found[lesson.stem] = tuple(path.relative_to(root).as_posix() for path in paths)
    return found | TESTS


def run(paths: Sequence[str], setting: Setting, report: Path, root: Path = ROOT) -> Outcome:
    """Run notebooks or tests with pytest, in a process of their own.

    Raises `ValueError` if pytest itself did not come to an end: its report would say nothing.
    """
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    books = any(path.endswith(".ipynb") for path in paths)
    command = [setting.python, "-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider", "--timeout=1800"]
    command += [*(NBVAL if books else ()), f"--junitxml={report}", *paths]
    home = {"COMPANION_HOME": str(report.parent / "progress")}
    begun = time.monotonic()
    done = subprocess.run(
        command, cwd=root, env={**setting.whole_environment(), **home}, capture_output=True, text=True
    )
    report.with_suffix(".txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode not in (0, 1) or not report.is_file():
        last = (done.stdout + done.stderr).strip().splitlines()[-1:] or ["nothing"]
        raise ValueError(
            f"{' '.join(paths)}: pytest ended with code {done.returncode} ({last[0]}); see {report.parent}"
        )
    return read(report, time.monotonic() - begun)


def read(report: Path, seconds: float) -> Outcome:
    """What pytest's report says. What a cell or test printed stays in the report."""
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = []
    for case in cases:
        fault = next((child for child in case if child.tag in ("failure", "error")), None)
        if fault is not None:
            where = case.get("classname", "").removesuffix(".ipynb").split(".")[-1].split("/")[-1]
            failed.append((f"{where} {case.get('name')}", _reason(fault)))
    return Outcome(len(cases), tuple(failed), seconds)


def _reason(fault: ElementTree.Element) -> str:
    """The line of a failure that says most: the last error, or the first line that differs."""
    text = re.sub(r"#x1B\[[0-9;]*m", "", fault.text or fault.get("message", ""))  # colours, as XML spells them
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line and ":" in line]
    differs = [line for line in lines if line[:2] in ("- ", "+ ")]
    return (errors[-1:] or differs[:1] or lines[:1] or ["no reason given"])[0][:140]


def table(outcomes: dict[tuple[str, str], Outcome], names: Sequence[str], columns: Sequence[str]) -> Iterator[str]:
    """Markdown: a row a lesson, a column a setting; `=` where nothing differs, else how many cells of how many."""
    yield "| | " + " | ".join(columns) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    for name in names:
        found = [outcomes.get((name, column)) for column in columns]
        yield f"| {name} | " + " | ".join(one.cell if one else "not run" for one in found) + " |"


def summary(outcomes: dict[tuple[str, str], Outcome], names: Sequence[str], columns: Sequence[str]) -> str:
    lines = [*table(outcomes, names, columns), ""]
    for (name, column), outcome in outcomes.items():
        lines += [f"{column}: {name}: {case}: {why}" for case, why in outcome.failed]
    differ = sum(bool(outcome.failed) for outcome in outcomes.values())
    ran = sum(outcome.ran for outcome in outcomes.values())
    found = f"a difference in {differ} of {len(outcomes)} places" if differ else "no difference"
    lines.append(f"{ran:,} cells and tests under {len(columns)} settings: {found}")
    return "\n".join(lines)


def _choose(parser: argparse.ArgumentParser, options: argparse.Namespace) -> tuple[list[str], list[Setting]]:
    every = rows()
    names = [n for n in every if not options.lesson or any(n.startswith(start) for start in options.lesson)]
    if not names:
        parser.error(f"--lesson {' '.join(options.lesson)}: expected the beginning of one of {', '.join(every)}")
    try:
        chosen = [parse(text) for text in options.setting] if options.setting else list(SETTINGS)
        chosen += [Setting(_version(python), "another PyTorch", {}, python) for python in options.python]
        reasons = {setting.name: missing_here(setting) for setting in chosen}
    except (ValueError, OSError) as error:
        parser.error(str(error))
    unknown = [f"{name}: {reason}" for name, reason in reasons.items() if reason]
    if options.setting and unknown:
        parser.error(unknown[0].split(": ", 1)[1])
    print(*unknown, sep="\n", end="\n" * bool(unknown))
    return names, [setting for setting in chosen if not reasons[setting.name]]


def _version(python: str) -> str:
    asked = [python, "-c", "import torch; print(torch.__version__.split('+')[0])"]
    done = subprocess.run(asked, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"--python {python}: expected a Python with PyTorch and the course's extra `test`")
    return f"torch-{done.stdout.strip()}"


def main(arguments: Sequence[str] | None = None, attempt: Callable[..., Outcome] = run) -> int:
    about = (__doc__ or "").split("\n\n")
    parser = argparse.ArgumentParser(
        prog="make machines",
        description=about[0],
        epilog="\n\n".join(about[1:]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    several = {"nargs": "+", "default": []}
    parser.add_argument("--lesson", metavar="NN", help="beginnings of rows; 'tests' are rows, too", **several)
    parser.add_argument("--setting", metavar="NAME", help="names, VARIABLE=VALUE, or A+B (default: all)", **several)
    parser.add_argument("--python", metavar="PATH", help="more columns: Pythons with other PyTorch", **several)
    parser.add_argument("--list", action="store_true", help="say which settings there are, and stop")
    options = parser.parse_args(arguments)
    if options.list:
        for setting in SETTINGS:
            print(f"{setting.name:12} {setting.what}" + (f" ({reason})" if (reason := missing_here(setting)) else ""))
        return 0
    names, chosen = _choose(parser, options)
    every, columns = rows(), [setting.name for setting in chosen]
    outcomes: dict[tuple[str, str], Outcome] = {}
    try:
        for setting in chosen:
            for name in names:
                report = OUT / setting.name.replace("=", "-") / f"{name.replace(': ', '-')}.xml"
                outcome = outcomes[name, setting.name] = attempt(every[name], setting, report)
                count = f"[{len(outcomes):3} of {len(names) * len(chosen)}]"
                said = f"{len(outcome.failed)} of {outcome.ran} differ" if outcome.failed else f"{outcome.ran} alike"
                print(f"{count} {setting.name:12} {name:36} {outcome.seconds:6.0f} s  {said}", flush=True)
    except KeyboardInterrupt:
        print("stopped; the table has what was run")
    except ValueError as error:
        parser.error(str(error))
    text = summary(outcomes, names, columns)
    print(f"\n{text}")
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "table.md").write_text(text + "\n", encoding="utf-8")
    return 1 if any(outcome.failed for outcome in outcomes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
