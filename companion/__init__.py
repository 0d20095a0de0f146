"""companion: the package that the course The Executable Transformer builds.

The public names stand in `__init__.pyi` beside this file, in reading order. Each is imported when it is first used, so
that `companion --help` and a mistyped flag are answered without torch.
"""

try:
    import lazy_loader
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "companion is here, but what it needs is not installed: `make lab` in the course's folder does it, and "
        "a notebook then finds it by Kernel > Change Kernel... > The Executable Transformer",
        name="lazy_loader",
    ) from None

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
