"""Kernels that start instantly, by forking.

About a hundred notebooks need PyTorch and Matplotlib, and loading these takes as long as running a short notebook. A
server loads both once, and each kernel is a process forked from the server. Notebooks still have to import what they
use. On systems without fork, such as Windows, kernels start as usual.
"""

import json
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from jupyter_client.provisioning import local_provisioner

_LAUNCHER = "ipykernel_launcher"
_as_always = local_provisioner.launch_kernel


class Forked:
    """A kernel's process, with the parts of `subprocess.Popen`'s interface that `jupyter_client` uses."""

    stdin = stdout = stderr = None

    def __init__(self, process: Any) -> None:
        self.process, self.pid = process, process.pid

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self) -> int | None:
        self.process.join()
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def fork_kernels() -> None:
    """From now on, fork all kernels that this process starts."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([f"{__package__}.loaded"])

    def launch(cmd: Sequence[str], cwd: str | None = None, env: Mapping[str, str] | None = None, **more: Any) -> Any:
        if _LAUNCHER not in cmd:  # another kind of kernel
            return _as_always(cmd, cwd=cwd, env=env, **more)
        process = server.Process(target=_become, args=(list(cmd), cwd, dict(env or os.environ), _search_path()))
        process.start()
        # Until the kernel leads its own process group, a signal to its group would also reach this process.
        while process.is_alive() and os.getpgid(process.pid) != process.pid:
            time.sleep(0.001)
        return Forked(process)

    local_provisioner.launch_kernel = launch


@cache
def _search_path() -> list[str]:
    """Return the module search path of a new Python process, without the folders that a test run adds."""
    command = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.path[1:]))"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _become(command: list[str], cwd: str | None, env: dict[str, str], search_path: list[str]) -> None:
    """Turn this process into the kernel that the command would have started, with some modules already loaded."""
    os.setsid()  # interrupts and the final signal should also reach the processes that the notebook starts
    os.chdir(cwd or ".")
    # Keep what `authoring.loaded` sets (the Matplotlib backend) and what the kernel's debugger sets when it is loaded.
    set_here = {name: os.environ[name] for name in ("MPLBACKEND", "PYDEVD_USE_FRAME_EVAL") if name in os.environ}
    os.environ.clear()
    os.environ.update({**env, **set_here})
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    sys.path[:] = ["", *search_path]
    sys.modules["torch"].seed()  # without a seed, each kernel should draw different numbers
    sys.modules["numpy"].random.seed()
    sys.argv = command[command.index(_LAUNCHER) :]
    runpy.run_module(_LAUNCHER, run_name="__main__", alter_sys=True)
