"""Not imported: kernels.py starts it, and writes a line for every kernel, which it becomes by a fork."""

import contextlib
import gc
import importlib
import json
import os
import signal
import sys

IMPORTED = (
    *("torch", "torch.testing", "sympy", "ipykernel.ipkernel", "ipykernel.kernelapp"),
    # Not pyplot, which looks for a notebook to draw in while it is imported.
    *("matplotlib.figure", "matplotlib.backend_bases", "matplotlib.image", "matplotlib.projections"),
)


def asked() -> tuple[list[str], dict[str, str], str]:
    """In every process that was forked: its arguments, environment and folder."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            return json.loads(line)
        print(pid, flush=True)
    sys.exit()


del sys.path[0]  # this file's folder: a kernel finds modules in its own
os.environ["JPY_PARENT_PID"] = str(os.getpid())  # a kernel ends with its parent, which is this process
signal.signal(signal.SIGINT, signal.SIG_IGN)  # of whoever stops the tests: they end, and so does this
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who has ended is gone at once
if not os.environ.get("MPLBACKEND"):  # as a kernel does before its notebook can import matplotlib, which reads it once
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
gc.disable()  # what is imported stays: there is nothing to find in it now, nor in any kernel
for name in IMPORTED:
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module(name)
gc.freeze()

arguments, environment, folder = asked()
gc.enable()
os.setsid()
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.clear()
os.environ.update(environment | {"JPY_PARENT_PID": str(os.getppid())})
os.chdir(folder)
nothing = os.open(os.devnull, os.O_RDWR)
for descriptor in range(3):
    os.dup2(nothing, descriptor)
os.close(nothing)
importlib.import_module("torch").seed()  # what no cell seeds differs from kernel to kernel
sys.argv[1:] = arguments
importlib.import_module("ipykernel.kernelapp").launch_new_instance()
