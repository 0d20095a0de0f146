"""Modules that the server of `authoring.kernels` loads in advance.

The companion is not loaded, because a notebook that forgets to import a part of it must fail here as it would
elsewhere.
"""

import os

os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"  # the debugger's warning about Python's own files is useless here

import ipykernel.debugger  # (loaded by every kernel, which takes longer than the rest of the startup)
import ipykernel.kernelapp  # noqa: F401
import ipywidgets  # noqa: F401
import jaxtyping  # noqa: F401
import matplotlib.pyplot  # noqa: F401
import torch._dynamo  # noqa: F401  (which the first optimizer loads, for as long as PyTorch itself)
