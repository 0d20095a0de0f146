"""How the help of every command is laid out. Nothing here needs torch."""

from __future__ import annotations

import argparse

from jsonargparse import DefaultHelpFormatter


class HelpFormatter(argparse.RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """Defaults and types behind each flag; descriptions and examples as they are written."""
