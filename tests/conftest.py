"""Setup of all tests.

Every test runs with the companion's shape annotations checked, so that a tensor whose shape or type differs from the
signature is an error here, although the package itself does not pay for these checks. Every test, and every command and
notebook that it starts, also runs with Python's help topics emptied. They differ between versions, and nothing may
depend on them.
"""

import gc
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import pytest
from jaxtyping import config, install_import_hook

gc.disable()  # no garbage collection while modules and tests are loaded, because all of them stay

ROOT = Path(__file__).parents[1]
WITH_SHAPES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in ("companion", "companion_school")
    for path in (ROOT / package).rglob("*.py")
    if path.stem != "__init__" and "\nfrom jaxtyping import" in path.read_text(encoding="utf-8")
]
"""The modules whose signatures say shapes; to check every call of the others would take as long as all the rest."""
if importlib.util.find_spec("beartype") is not None:  # `make gpu` also runs its tests without beartype
    import shapes

    jaxtyping.jaxtyped = shapes.like_calls_once  # the import hook decorates functions with this name
    install_import_hook(WITH_SHAPES, "shapes.check")

collect_ignore = [] if importlib.util.find_spec("peft") is not None else ["families/test_peft.py"]
"""An environment from before peft was one of the tests' libraries: what needs no peft proves the same layout."""

LEFT_OUT = str(Path(__file__).parent / "left_out")
sys.path.insert(0, LEFT_OUT)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [LEFT_OUT, os.environ.get("PYTHONPATH")]))


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Disable the shape checks, for tests of the package's own errors about arguments of a wrong type."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


SLOW = (
    "real/test_smollm2.py",
    "training/test_distributed.py",
    "bench/test_bench.py",
    "school/checking/test_sealed_keys.py",
    "school/course/proof/test_leaks.py",
    "commands/test_translate.py",
    "families/test_releases.py",
    "commands/test_commands.py",
    "school/course/release/test_nbgrader.py",
    "bench/test_gpu.py",
    "commands/test_generate.py",
    "families/test_odd_folders.py",
    "school/course/grading/test_submissions.py",
    "commands/test_train.py",
    "commands/test_tune.py",
    "families/test_peft.py",
    "training/test_survive.py",
    "families/test_pretrained.py",
    "data/test_published_tokenizers.py",
    "real/test_minilm.py",
    "commands/test_get.py",
)
"""The files that take longest, longest first: they train, start processes, try every exercise or hold another library
beside ours."""


LONG = (
    "school/build/test_parts.py",
    "test_module.py",
    "generation/test_compiled_steps.py",
    "school/build/test_first_difference.py",
    "school/study/test_live.py",
    "school/build/test_check.py",
    "generation/test_generate.py",
    "school/course/grading/test_whole_class.py",
    "school/course/grading/test_project.py",
    "authoring/test_contract.py",
    "authoring/test_build.py",
    "school/study/test_readers_day.py",
    "test_repository.py",
    "test_user.py",
)
"""The files whose tests take long together, or wait for one that does: begun last, they would keep one process busy
while the other has nothing left."""


SLOW_ALONE = frozenset(Path(__file__).with_name("slow.txt").read_text("utf-8").split())
"""The tests of other files that take 0.7 seconds or more (`pytest --durations=0` says how long each takes)."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that need a GPU if there is none."""
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a GPU")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the longest tests first (`SLOW`, the lessons, then `LONG`), so that each process ends with short ones."""
    here = Path(__file__).parent
    slow = {here / name: place for place, name in enumerate(SLOW)}
    long = {here / name: len(slow) + 1 + place for place, name in enumerate(LONG)}

    def place(item: pytest.Item) -> int:
        lesson = item.path.suffix == ".ipynb" and item.path.parent.name in ("notebooks", "deeper")
        return slow.get(item.path, len(slow) if lesson else long.get(item.path, len(slow) + len(long) + 1))

    for item in items:
        if item.path in slow or item.nodeid.split("[")[0].removeprefix("tests/") in SLOW_ALONE:
            item.add_marker(pytest.mark.slow)
    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Freeze the million objects that exist now, because scanning them took a twentieth of all tests' time."""
    gc.freeze()
    # Collect less often, because each test makes thousands of objects that are freed without it
    gc.set_threshold(20_000, 20, 20)
    gc.enable()
