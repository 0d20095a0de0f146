"""For a run of nbval over the notebooks: a progress file that is nobody's, numbers behind `≈` left out of what is
compared, and how long each lesson took."""

import os
import tempfile
from collections import Counter
from pathlib import Path

_home = tempfile.TemporaryDirectory(prefix="progress-")
os.environ.setdefault("COMPANION_HOME", _home.name)


def pytest_configure(config):
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
