"""All kinds of cases."""

from fuzz import commands, files, python

KINDS = [*python.KINDS, *files.KINDS, *commands.KINDS]
