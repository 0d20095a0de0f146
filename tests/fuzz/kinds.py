"""All kinds of cases."""

from fuzz import commands, files, published, python, runs

KINDS = [*python.KINDS, *files.KINDS, *published.KINDS, *commands.KINDS, *runs.KINDS]
