"""A forked kernel behaves like the kernel that a reader gets, except that it starts faster."""

import json

import pytest
from jupyter_client.manager import KernelManager

from authoring import kernels

ASKED = """
%matplotlib inline
import json, os, sys
before = "companion" in sys.modules, "tests.conftest" in sys.modules
import matplotlib.pyplot, torch
own = {"JPY_PARENT_PID", "JPY_SESSION_NAME"}
print(json.dumps({
    "path": sys.path, "folder": os.getcwd(), "loaded": before, "backend": matplotlib.get_backend(),
    "environment": {name: value for name, value in sorted(os.environ.items()) if name not in own},
    "main": __name__, "group": os.getpgrp() == os.getpid(), "threads": torch.get_num_threads(),
    "drawn": torch.rand(3).tolist(), "name": sys.argv[0].rsplit("/")[-1],
}))
"""


def said(manager: KernelManager, code: str) -> str:
    """Return what a new kernel prints for this code, and check that it ends when it is told to."""
    client = manager.blocking_client()
    client.start_channels()
    printed: list[str] = []
    try:
        client.wait_for_ready(timeout=120)
        client.execute_interactive(
            code, timeout=120, output_hook=lambda message: printed.append(message["content"].get("text", ""))
        )
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert not manager.is_alive()
    return "".join(printed)


def start(folder: object) -> KernelManager:
    manager = KernelManager()
    manager.start_kernel(cwd=str(folder))
    return manager


def test_a_forked_kernel_is_that_of_a_reader(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(kernels.local_provisioner, "launch_kernel", kernels._as_always)
    plain = json.loads(said(start(tmp_path), ASKED))
    kernels.fork_kernels()
    forked = json.loads(said(start(tmp_path), ASKED))
    assert forked.pop("drawn") != plain.pop("drawn")  # not seeded
    assert forked == plain
    assert forked["group"] and forked["loaded"] == [False, False]
