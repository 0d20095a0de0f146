"""Pytest plugin for running nbval over the notebooks.

The plugin uses a temporary progress file, forks kernels so that they start instantly, and reports how many seconds each
lesson takes. Stand-ins in tests/left_out replace Python's help topics, which differ between versions, and a module that
is slow to import. Numbers after `≈` are not compared.
"""

import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

from authoring.kernels import fork_kernels

_home = tempfile.TemporaryDirectory(prefix="progress-")
os.environ.setdefault("COMPANION_HOME", _home.name)
_left_out = str(Path(__file__).parent.parent / "tests" / "left_out")
sys.path.insert(0, _left_out)  # needed before nbval imports the modules that are replaced there
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_left_out, os.environ.get("PYTHONPATH")]))


def pytest_configure(config):
    fork_kernels()
    if config.getoption("nbval_sanitize_with", None) is None:
        config.option.nbval_sanitize_with = str(Path(__file__).with_name("nbval.cfg"))


def pytest_terminal_summary(terminalreporter):
    seconds = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            lesson, found, _ = getattr(report, "nodeid", "").partition(".ipynb::")
            if found and hasattr(report, "duration"):
                seconds[lesson] += report.duration
    if seconds:
        terminalreporter.section("seconds for each lesson")
        for lesson, total in sorted(seconds.items()):
            terminalreporter.line(f"{total:7.1f}  {lesson}")
