"""`python -m companion` is the command `companion`."""

import sys

from companion.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
