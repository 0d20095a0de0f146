"""Kernels that are there at once: forked from a process that has imported what every notebook imports.

Sixty notebooks are run again, each in a kernel of its own, and to import PyTorch and matplotlib takes two seconds each
time. A forked kernel is as fresh as any: these modules are loaded, but none is in its namespace, and the companion is
not loaded at all. Where there is no fork, and where a kernel is asked for in another environment than this process's
own, it starts as usual.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from jupyter_client.provisioning.factory import KernelProvisionerFactory
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

SCRIPT = str(Path(__file__).with_name("kernel_source.py"))
LAUNCHED = [sys.executable, "-m", "ipykernel_launcher"]
OF_ONE = ("JPY_", "PYTEST_")
"""How the variables begin that differ from kernel to kernel, and mean nothing to a module that is imported."""


def use() -> None:
    """From now on the kernels of this process are forked, where that can be done."""
    if sys.platform == "linux":
        factory = KernelProvisionerFactory.instance()
        factory.provisioners["forked"] = EntryPoint("forked", f"{__name__}:Forked", factory.GROUP_NAME)
        factory.default_provisioner_name = "forked"


class Forked(LocalProvisioner):
    """What Jupyter asks for the process of a kernel."""

    async def launch_kernel(self, cmd: list[str], **how: Any) -> Any:
        environment = dict(how.get("env") or os.environ)
        of_all = _of_all(environment)
        if cmd[: len(LAUNCHED)] != LAUNCHED or of_all != _of_all(os.environ) or of_all != _source().environment:
            return await super().launch_kernel(cmd, **how)
        self.cwd = str(how.get("cwd") or os.getcwd())
        self.pid = self.pgid = _source().fork(cmd[len(LAUNCHED) :], environment, self.cwd)
        self.process = Process(self.pid)  # type: ignore[assignment]
        return self.connection_info


def _of_all(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith(OF_ONE)}


@cache
def _source() -> Source:
    return Source()


class Source:
    """The process that forks (kernel_source.py). It ends with this one, when nobody can write to it any more."""

    def __init__(self) -> None:
        self.environment = _of_all(os.environ)
        self.process = subprocess.Popen([sys.executable, SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def fork(self, arguments: list[str], environment: dict[str, str], folder: str) -> int:
        """The number of a new process, which leads a group of its own.

        Raises `RuntimeError` if the source has ended.
        """
        line = json.dumps([arguments, environment, folder]) + "\n"
        said = b""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line.encode())  # type: ignore[union-attr]
            self.process.stdin.flush()  # type: ignore[union-attr]
            said = self.process.stdout.readline()  # type: ignore[union-attr]
        if not said:
            raise RuntimeError(f"{SCRIPT}: expected the number of a process, but it ended with {self.process.wait()}")
        return int(said)


class Process:
    """As much of `subprocess.Popen` as Jupyter uses, for a process that another one has started, and waits for."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int | None:
        """None while it runs, then 0, whatever it ended with."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return 0
        return None

    def wait(self, timeout: float | None = None) -> int:
        last = time.monotonic() + (timeout or float("inf"))
        while self.poll() is None:
            if time.monotonic() > last:
                raise subprocess.TimeoutExpired(f"kernel {self.pid}", timeout or 0)
            time.sleep(0.01)
        return 0

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)
