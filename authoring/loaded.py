"""What the server of `authoring.kernels` loads. Nothing of the companion: a notebook that forgets to import a part of
it must fail here as it would at home."""

import os

os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"  # the debugger's warning, of files of Python's own, is for nobody

import ipykernel.debugger  # (which every kernel has, and loads for longer than all else it does to start)
import ipykernel.kernelapp  # noqa: F401
import ipywidgets  # noqa: F401
import jaxtyping  # noqa: F401
import matplotlib.pyplot  # noqa: F401
import torch._dynamo  # noqa: F401  (which the first optimizer loads, for as long as PyTorch itself)
