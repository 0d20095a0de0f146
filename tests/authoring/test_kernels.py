"""The kernels of the notebooks' tests: forked, and as fresh as those that are started."""

import os
import signal
import time

import pytest
from jupyter_client.provisioning.factory import KernelProvisionerFactory
from nbval.kernel import CURRENT_ENV_KERNEL_NAME, RunningKernel

from authoring import kernels

FACTS = """
def facts():
    import os, sys

    there = "companion" in sys.modules, "matplotlib.pyplot" in sys.modules, "torch" in globals(), "left" in globals()
    import matplotlib, torch

    told = matplotlib.get_backend(), torch.get_num_threads(), torch.get_default_dtype(), sys.argv[1], sys.path
    return there, told, os.getcwd(), sorted(os.environ.keys() - {"ANOTHER"})


print(facts())
"""
DRAWN = "import torch; print(torch.rand(4))"


@pytest.fixture(scope="module", autouse=True)
def used():
    factory = KernelProvisionerFactory.instance()
    before = factory.default_provisioner_name
    kernels.use()
    kernels._source.cache_clear()  # made by an earlier test, perhaps in another environment
    yield
    factory.default_provisioner_name = before


@pytest.fixture
def kernel(tmp_path):
    made = []

    def make():
        made.append(RunningKernel(CURRENT_ENV_KERNEL_NAME, cwd=str(tmp_path)))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def told(kernel, code):
    """What a cell prints, or what is wrong with it."""
    kernel.execute_cell_input(code, allow_stdin=False)
    while True:
        message = kernel.get_message("iopub", timeout=20)
        if message["msg_type"] in ("stream", "error"):
            return message["content"].get("text", message["content"].get("evalue")).strip()


def test_a_forked_kernel_is_as_fresh_as_a_started_one(kernel, tmp_path, monkeypatch):
    first = kernel()
    assert isinstance(first.km.provisioner.process, kernels.Process)
    change = "import companion as left, matplotlib.pyplot, torch; torch.set_num_threads(3); print('changed')"
    assert told(first, change) == "changed"
    second = kernel()
    forked = told(second, FACTS)
    monkeypatch.setenv("ANOTHER", "environment")
    started = kernel()
    assert not isinstance(started.km.provisioner.process, kernels.Process)
    assert told(started, FACTS) == forked
    assert str(tmp_path) in forked and "inline" in forked
    assert told(first, DRAWN) != told(second, DRAWN)


def test_a_kernel_that_is_killed_is_gone(kernel):
    killed, interrupted = kernel(), kernel()
    os.kill(killed.km.provisioner.pid, signal.SIGKILL)
    until = time.monotonic() + 10
    while killed.is_alive() and time.monotonic() < until:
        time.sleep(0.01)
    assert not killed.is_alive() and interrupted.is_alive()
    interrupted.km.interrupt_kernel()
    assert told(interrupted, "print(6 * 7)") == "42"


def test_a_source_that_has_ended_is_said():
    source = kernels.Source()
    source.process.kill()
    with pytest.raises(RuntimeError, match=r"expected the number of a process, but it ended with -9"):
        source.fork([], {}, ".")
