"""Run the command `companion` as `python -m companion`."""

import sys

from companion.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
