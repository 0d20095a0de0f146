"""What the server of `authoring.kernels` loads. Nothing of the companion: a notebook that forgets to import a part of it
must fail here as it would at home."""

import os

os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"

import ipykernel.kernelapp  # noqa: E402, F401
import matplotlib.pyplot  # noqa: E402, F401
import torch  # noqa: E402, F401
