"""companion: the package that the course The Executable Transformer builds.

The public names stand in `__init__.pyi` beside this file, in reading order. Each is imported when it is first used, so
that `companion --help` and a mistyped flag are answered without torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
